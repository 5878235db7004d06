"""Many rows at once: Arrow tables in, an Arrow table out."""

import pyarrow as pa

from earshot import Engine

subscriptions = pa.table(
    {
        "id": [10, 11, 12, 13],
        "keywords": [["road", "works"], ["pothole"], ["!?"], None],
        "min_x": [150.0, 150.0, 150.0, 151.0],
        "min_y": [-34.0, -34.0, -34.0, -33.9],
        "max_x": [152.0, 152.0, 152.0, 151.3],
        "max_y": [-33.0, -33.0, -33.0, -33.8],
    }
)
messages = pa.table(
    {
        "id": ["m1", "m2", "m3"],
        "text": ["Road works until Friday", "A pothole, fixed", "No place on Earth"],
        "x": [151.2, 150.5, 200.0],
        "y": [-33.87, -33.5, 0.0],
    }
)

engine = Engine(n_threads=2)
added = engine.subscribe_batch(subscriptions, on_error="reject", source="subscriptions")
for error in added.rejects:
    print("refused:", error)

updates = engine.publish_batch(messages, on_error="reject", source="messages")
for error in updates.rejects:
    print("refused:", error)
matches = updates.table(["message_id", "subscription_id"])
for row in sorted(matches.to_pylist(), key=lambda row: (row["message_id"], row["subscription_id"])):
    print(row)
