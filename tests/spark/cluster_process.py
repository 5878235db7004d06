"""A pipeline on a cluster, as a driver of its own: ``cluster_process.py ROOT MASTER N_SHARDS``.

It runs until ROOT/stop is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from earshot.spark import FileSink, Stream, build, local_session, match_stream

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
    "spark.python.daemon.module": "spark.ready_workers",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # A busy machine is no reason to take a shard elsewhere.
    "spark.locality.wait": "60s",
}

if __name__ == "__main__":
    root, n_shards = Path(sys.argv[1]), int(sys.argv[3])
    session = local_session(sys.argv[2], extra=SETTINGS)
    build(
        session.read.parquet(str(root / "subscriptions.parquet")),
        root / "index",
        placement="sharded",
        n_shards=n_shards,
    )
    pipeline = match_stream(
        Stream.of_files(session, root / "feed" / "messages", files_per_batch=1, ids="string"),
        root / "index",
        FileSink(root / "out"),
        root / "checkpoint",
        changes=Stream.of_files(session, root / "feed" / "changes", files_per_batch=1),
    )
    while pipeline.is_active and not (root / "stop").exists():
        time.sleep(0.05)
    pipeline.stop()
    session.stop()
