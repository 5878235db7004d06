"""The best messages of a sliding window: real reports, an hour at a time."""

from datetime import timedelta

from earshot import Engine, Point, Subscription, TopK
from earshot.workloads.datasets import bundled_messages

SYDNEY, NEWCASTLE = Point(151.21, -33.87), Point(151.78, -32.93)

# Near counts for half, words for half; beyond 50 km the place counts for nothing.
engine = Engine(TopK(window=timedelta(hours=1), k=3, alpha=0.5, max_distance=50_000))
engine.subscribe(
    Subscription("sydney", ("crash", "truck"), region=SYDNEY),
    Subscription("newcastle", ("crash", "truck"), region=NEWCASTLE, k=1),
)

messages = bundled_messages().slice(0, 1_000)  # in the order of their times
learned = engine.learn(messages)  # so that rare words weigh more
engine.reweigh(forget=True)  # they count again as they are published
print(f"{learned.n_rows:,} messages learned from")

updates = engine.publish_batch(messages)
for reason in ("match", "refill", "displaced", "expired"):
    n = sum(update.reason == reason for update in updates)
    print(f"{n:,} x {reason}")

print(f"at {engine.time:%d %b %H:%M}, of {engine.n_messages} messages in the window:")
for name in ("sydney", "newcastle"):
    for rank, result in enumerate(engine.results(name), 1):
        print(f"  {name} {rank}: {result.message_id} ({result.score:.2f})")

# Moving ranks the window anew: results of the new place come, those of the old one go.
for update in engine.move("newcastle", SYDNEY):
    print(
        update.sign,
        update.message_id,
        "for",
        update.subscription_id,
        "because of the",
        update.reason,
    )
