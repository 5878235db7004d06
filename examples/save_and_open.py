"""Build an engine once and open it again without building anything."""

import tempfile
from pathlib import Path

from earshot import Engine, Message, Point, Subscription
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

messages = bundled_messages()  # real reports, part of the package
engine = Engine()
engine.subscribe_batch(draw_subscriptions(messages, 2_000))

with tempfile.TemporaryDirectory() as folder:
    directory = Path(folder) / "alerts.index"
    engine.save(directory)

    opened = Engine.open(directory)  # maps the arrays; nothing is rebuilt
    print(f"{len(opened):,} subscriptions opened")
    found = len(opened.publish_batch(messages.slice(0, 500)).subscription_ids)
    expected = len(engine.publish_batch(messages.slice(0, 500)).subscription_ids)
    print("same answers:", found == expected)

    # An opened engine can be changed; the directory stays as it is.
    opened.subscribe(Subscription("new", ("landslide",)))
    update = next(
        each
        for each in opened.publish(Message("m", "Landslide", place=Point(151.0, -34.0)))
        if each.subscription_id == "new"
    )
    print(update.sign, update.message_id, update.subscription_id)
    print("in the directory:", "new" in Engine.open(directory))
