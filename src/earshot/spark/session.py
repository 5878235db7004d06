"""A Spark session with the settings that Earshot wants, each with its reason."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from earshot.spark.java import cache_directory, keep_file, use_java

LOCAL_MASTER = "local[*,4]"
"""All cores, and four attempts: under plain ``local[*]`` one killed worker ends the query."""


class Setting(NamedTuple):
    """A Spark setting."""

    value: str
    reason: str
    local: bool = False  # only where driver and workers are one process


SETTINGS = {
    "spark.sql.session.timeZone": Setting(
        "UTC", "the same data gives the same times on every machine"
    ),
    "spark.ui.enabled": Setting("false", "no web server beside a command", local=True),
    "spark.ui.showConsoleProgress": Setting("false", "Earshot shows its own progress", local=True),
    "spark.driver.host": Setting("127.0.0.1", "nothing listens to the network", local=True),
    "spark.driver.bindAddress": Setting("127.0.0.1", "nothing listens to the network", local=True),
    "spark.sql.streaming.checkpointFileManagerClass": Setting(
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager",
        "Hadoop starts a process for each chmod and stat of a local file, so that one file of a "
        "checkpoint takes 60 ms by Spark's default and 20 ms by this; a small batch writes three",
        local=True,
    ),
}
"""Every setting that differs from Spark's default; the caller's own win.

Tried and left alone, as nothing was gained beyond the noise: Arrow batches of 1,000 to
100,000 rows (10,000 is Spark's), shuffle partitions, the polling delay of streams, how many batches
they retain, their files' checksums, adaptive execution and code generation.
"""

LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.streaming.name = org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution
logger.streaming.level = off
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
"""Errors only, from the JVM's first line on: ``spark.log.level`` counts from the session on.

The level of PythonGatewayServer is what Spark gives to all loggers when Python starts it. What is
off here fails tasks or queries: they are tried again, or the caller gets the same as an exception.
"""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def is_local(master: str) -> bool:
    """Whether a master runs everything in one process."""
    return master == "local" or master.startswith("local[")


def settings_for(master: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of a session: Earshot's, then the caller's over them."""
    local = is_local(master)
    chosen = {name: each.value for name, each in SETTINGS.items() if local or not each.local}
    if local:
        chosen[JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_log4j_file().as_uri()}"
    for name, value in (extra or {}).items():
        # Java's options add up; the later wins where two contradict.
        chosen[name] = f"{chosen[name]} {value}" if name == JAVA_OPTIONS and local else value
    return chosen


def local_session(
    master: str = LOCAL_MASTER,
    *,
    app_name: str = "earshot",
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, on this machine unless told otherwise.

    A process has one Spark: where a session runs already, that one is returned as it is.

    Args:
        master: Where to run; settings that belong to a cluster's administrator are only made for
            local ones.
        app_name: Name in Spark's logs and pages.
        extra: Spark settings that are added or that replace Earshot's.

    Raises:
        MissingExtra: Java is not installed.
        InvalidParameter: JAVA_HOME is not a Java that can run Spark.
    """
    with suppress(PySparkRuntimeError):  # which says that there is none
        return SparkSession.active()
    if is_local(master):
        use_java()
        # Workers would otherwise be the first python3 on PATH, which may lack this package.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings_for(master, extra).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _log4j_file() -> Path:
    digest = hashlib.sha256(LOG4J.encode()).hexdigest()[:16]
    path = cache_directory() / f"log4j2-{digest}.properties"
    keep_file(path, LOG4J)
    return path.absolute()
