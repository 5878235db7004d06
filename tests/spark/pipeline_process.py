"""A pipeline in a process of its own, to be killed: ``python pipeline_process.py ROOT``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from earshot.spark import (
    FileSink,
    Stream,
    file_stream,
    local_session,
    match_stream,
)

FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(root: Path) -> None:
    session = local_session("local[2,4]", extra={"spark.driver.extraJavaOptions": FAST_START})
    pipeline = match_stream(
        Stream(
            file_stream(session, root / "feed" / "messages", files_per_batch=1),
            "files",
            ids="string",
        ),
        root / "index",
        FileSink(root / "out"),
        root / "checkpoint",
        changes=Stream(file_stream(session, root / "feed" / "changes", files_per_batch=1), "files"),
        rejects=FileSink(root / "rejects" / "messages"),
        change_rejects=FileSink(root / "rejects" / "changes"),
        merge_least=100,
        merge_share=0.01,
    )
    while pipeline.is_active and not (root / "stop").exists():
        time.sleep(0.1)
    pipeline.await_idle()
    pipeline.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
