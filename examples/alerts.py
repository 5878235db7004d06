"""Alerts for a city: one event at a time."""

from datetime import UTC, datetime, timedelta

from earshot import Circle, Engine, Message, Point, Rectangle, Subscription

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
HARBOUR = Rectangle(151.19, -33.88, 151.24, -33.84)

engine = Engine()
engine.subscribe(
    Subscription("ann", ("flood",), region=Circle(151.21, -33.87, 5_000)),
    Subscription("ben", ("ferry",), region=HARBOUR, expires=NOON + timedelta(hours=1)),
    Subscription("cho", expression="(fire or smoke) and not drill"),
    Subscription("dee", region=HARBOUR),  # no keywords: all that happens there
)


def tell(message: Message) -> None:
    """Publish a message and print who gets it."""
    names = sorted(str(update.subscription_id) for update in engine.publish(message))
    print(f"{message.text!r} reaches {', '.join(names) or 'nobody'}")


tell(Message(1, "Flood at Circular Quay", place=Point(151.211, -33.861), time=NOON))
tell(Message(2, "Ferry delayed", place=Point(151.211, -33.861), time=NOON))

# From now on Ann listens in Wollongong; Ben's subscription ends by itself.
engine.move("ann", Circle(150.89, -34.42, 5_000))
later = NOON + timedelta(hours=2)
tell(Message(3, "Flood at Circular Quay", place=Point(151.211, -33.861), time=later))
tell(Message(4, "Ferry delayed", place=Point(151.211, -33.861), time=later))
print(f"{len(engine)} subscriptions are left at {engine.time:%H:%M}")

drill = Message(5, "Fire drill", place=Point(151.0, -33.8))
print(engine.explain(drill, "cho"))
