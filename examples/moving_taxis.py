"""Taxis that move, and fares that wait for a while: who is near which, at every moment."""

from datetime import UTC, datetime, timedelta

from earshot import Circle, Engine, Message, Moving, Point, Subscription

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

engine = Engine(Moving(lifetime=10 * MINUTE))
engine.subscribe(
    Subscription("taxi 7", ("fare",), region=Circle(151.200, -33.870, 800)),
    # Told once a fare has been near for two minutes, and not when it is gone.
    Subscription(
        "taxi 8", ("fare",), region=Circle(151.200, -33.870, 800), dwell=2 * MINUTE, leaving=False
    ),
)


def tell(updates: object) -> None:
    """Print what changed."""
    for each in updates:  # type: ignore[attr-defined]
        fare = f"fare {each.message_id} {each.reason}"
        print(f"{each.time:%H:%M} {each.sign} {fare}, {each.subscription_id}")


quay = Point(151.211, -33.861)
station = Point(151.206, -33.883)
tell(engine.publish(Message(1, "Fare to the airport", place=station, time=NOON)))
tell(engine.move("taxi 7", Point(151.206, -33.878), NOON + MINUTE))
tell(engine.publish(Message(2, "Fare to Bondi", place=quay, time=NOON + 2 * MINUTE)))
tell(engine.move("taxi 8", Point(151.210, -33.862), NOON + 3 * MINUTE))
tell(engine.advance(NOON + 5 * MINUTE))
tell(engine.advance(NOON + 10 * MINUTE))
print("taxi 7 holds", [each.message_id for each in engine.results("taxi 7")])
print("taxi 8 holds", [each.message_id for each in engine.results("taxi 8")])
