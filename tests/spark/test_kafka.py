"""Messages, changes and deliveries over a real Kafka broker."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from earshot import Engine
from earshot.spark import FileSink, KafkaSink, Stream, build, match_stream
from earshot.spark.store import IndexStore
from earshot.spark.stream import Pipeline
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

from .kafka_broker import consume, create_topic, produce

N_MESSAGES, N_SUBSCRIPTIONS = 200, 500


def test_messages_changes_and_deliveries(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    for topic in ("messages", "changes", "deliveries"):
        create_topic(spark, kafka, topic)
    messages = bundled_messages().slice(0, N_MESSAGES).drop_columns(["time"])
    subscriptions = draw_subscriptions(bundled_messages(), N_SUBSCRIPTIONS)
    base, late = subscriptions.slice(0, 400), subscriptions.slice(400)
    index = str(tmp_path / "index")
    build(spark.createDataFrame(base), index)
    gone = base["id"].to_pylist()[:100]
    changes = [{"op": "subscribe", **row} for row in late.to_pylist()]
    changes += [{"op": "unsubscribe", "id": name} for name in gone]
    produce(spark, kafka, "changes", [(row["id"], json.dumps(row)) for row in changes])
    produce(spark, kafka, "changes", [(None, '{"op": "unsubscribe", "id": "nobody"}')])
    good = [(row["id"], json.dumps(row)) for row in messages.to_pylist()]
    produce(spark, kafka, "messages", [*good, (None, "{broken"), (None, '{"id": "placeless"}')])

    def run() -> Pipeline:
        pipeline = match_stream(
            Stream.of_kafka(spark, kafka, "messages", ids="string"),
            index,
            KafkaSink(kafka, "deliveries"),
            tmp_path / "checkpoint",
            changes=Stream.of_kafka(spark, kafka, "changes"),
            rejects=FileSink(tmp_path / "rejects" / "messages", "ndjson"),
            change_rejects=FileSink(tmp_path / "rejects" / "changes", "ndjson"),
            shape="lists",
            available_now=True,
        )
        assert pipeline.await_end(120)
        return pipeline

    status = run().status()
    assert (status.messages, status.rejects, status.changes) == (N_MESSAGES, 3, 200)

    engine = Engine()
    engine.subscribe_batch(subscriptions)
    engine.unsubscribe(*gone)
    expected = {(each.message_id, each.subscription_id)
                for each in engine.publish_batch(messages)}  # fmt: skip
    delivered = [json.loads(value) for _, value in consume(spark, kafka, "deliveries")]
    assert {row["batch"] for row in delivered} == {0}
    found = [(row["message_id"], name) for row in delivered for name in row["subscription_ids"]]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert IndexStore(index).latest().n_subscriptions == len(engine)

    refused = spark.read.json(str(tmp_path / "rejects" / "messages")).collect()
    assert {row["raw"][:8] for row in refused} == {"{broken", '{"id": "'}
    assert all(row["source"].startswith("messages/") for row in refused)
    [unknown] = spark.read.json(str(tmp_path / "rejects" / "changes")).collect()
    assert "no subscription 'nobody'" in unknown["reason"]

    produce(spark, kafka, "messages", good[:10])
    assert run().status().messages == 10, "goes on where it was"
