"""Alerts by score: near misses reach those who ask for little, and rare words count for more."""

from earshot import Engine, Message, Point, Ranking, Rectangle, Subscription

HARBOUR = Rectangle(151.19, -33.88, 151.24, -33.84)

# Half of the score is the place's, half the text's.
engine = Engine(Ranking(alpha=0.5, threshold=0.7))
engine.subscribe(
    Subscription("ann", ("ferry", "delay"), region=HARBOUR),
    Subscription("ben", ("ferry", "delay"), region=HARBOUR, threshold=0.9),  # near hits only
    Subscription("cho", ("ferry", "whale"), region=HARBOUR),
    Subscription("dee", ("ferry",), region=HARBOUR, threshold=0.4),  # far hits too
)


def tell(message: Message) -> None:
    """Publish a message and print who gets it, and with which score."""
    updates = sorted(engine.publish(message), key=lambda update: str(update.subscription_id))
    names = [f"{update.subscription_id} ({update.score:.2f})" for update in updates]
    print(f"{message.text!r} reaches {', '.join(names) or 'nobody'}")


tell(Message(1, "Ferry cancelled", place=Point(151.211, -33.861)))
tell(Message(2, "Ferry delay", place=Point(151.211, -33.861)))
tell(Message(3, "Ferry delay", place=Point(150.0, -33.0)))  # far away
tell(Message(4, "Ferry delay", place=Rectangle(151.215, -33.88, 151.24, -33.84)))  # half of it

# All words weighed the same so far. Everybody asks for ferries, so that word says little.
engine.reweigh()
tell(Message(5, "Ferry cancelled", place=Point(151.211, -33.861)))
tell(Message(6, "Whale!", place=Point(151.211, -33.861)))
print(engine.explain(Message(7, "Whale!", place=Point(151.211, -33.861)), "cho"))
