"""A Spark session with the settings that Earshot wants, each with its reason.

A command's session stops with the command, and says in a sentence what went wrong.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from earshot.errors import EarshotError, InvalidParameter
from earshot.spark.java import cache_directory, keep_file, use_java
from earshot.spark.network import unanswered
from earshot.spark.notes import plain_failure

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
    "spark.scheduler.mode": Setting(
        "FAIR", "a merge beside the stream takes its share, instead of all that comes free"
    ),
    "spark.shuffle.reduceLocality.enabled": Setting(
        "false", "a shard's tasks run where the shard is, not where most messages come from"
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

CLUSTER_LOG4J = (
    LOG4J.replace("rootLogger.level = error", "rootLogger.level = warn").replace(
        "logger.gateway.level = error", "logger.gateway.level = warn"
    )
    + """\
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.adaptive.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.adaptive.level = error
"""
)
"""The same for a command on a cluster, whose warnings may be of executors that were lost."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def is_local(master: str) -> bool:
    """Whether a master runs everything in one process."""
    return master == "local" or master.startswith("local[")


def settings_for(master: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of a session: Earshot's, then the caller's over them."""
    local = is_local(master)
    chosen = {name: each.value for name, each in SETTINGS.items() if local or not each.local}
    if local:
        chosen[JAVA_OPTIONS] = _log4j_option(LOG4J)
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
        InvalidParameter: JAVA_HOME is not a Java that can run Spark, or the master does not answer.
    """
    with suppress(PySparkRuntimeError):  # which says that there is none
        return SparkSession.active()
    if is_local(master):
        use_java()
        # Workers would otherwise be the first python3 on PATH, which may lack this package.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    check_master(master)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings_for(master, extra).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check_master(master: str) -> None:
    """Refuse the master of a standalone cluster that does not answer, which Spark takes long to.

    Raises:
        InvalidParameter: None of those named answers.
    """
    if not master.startswith("spark://"):
        return
    why = unanswered(master.removeprefix("spark://"))
    if why is not None:
        raise InvalidParameter(
            f"master {master} cannot be reached: {why}; start it, or give the address that its own "
            f"page shows"
        )


def _log4j_option(content: str) -> str:
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    path = cache_directory() / f"log4j2-{digest}.properties"
    keep_file(path, content)
    return f"-Dlog4j2.configurationFile={path.absolute().as_uri()}"


# ---- for a command -----------------------------------------------------------------------------

SPARK_IS_GONE = (PySparkException, Py4JError, OSError)
"""What a Spark that is ending says."""
FAILURE_CHARACTERS = 500
"""Most that is told of what went wrong in Spark."""
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
_ERROR = re.compile(r"^(?:: )?(?:[\w$]+\.)*([\w$]*(?:Error|Exception)(?:: .+)?)$", re.MULTILINE)


class Signals:
    """Catches SIGINT and SIGTERM meanwhile, in place of PySpark's handler, which cancels jobs."""

    def __init__(self) -> None:
        self.caught: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others cannot
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def obey(self) -> None:
        """End this process as the first signal would have, if there was one."""
        if self.caught and self.caught[0] == signal.SIGINT:
            raise KeyboardInterrupt
        if self.caught:
            sys.exit(128 + self.caught[0])

    def _catch(self, number: int, _: FrameType | None) -> None:
        self.caught.append(number)


@contextmanager
def spark_session(
    master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session, the running one if there is one; stop it only if it was started here."""
    settings = dict(settings or {})
    given = settings.pop("spark.master", LOCAL_MASTER)
    try:
        SparkSession.active()
        is_running = True
    except PySparkRuntimeError:  # which says that there is none
        is_running = False
    # A JVM whose Python goes while it starts would stay, so a signal has to wait for it.
    with Signals() as signals, plain_words():
        chosen = master or given
        session = local_session(chosen, extra=command_settings(chosen, settings))
    noise = logging.getLogger()
    noise.addFilter(_is_no_interruption)
    try:
        signals.obey()
        with plain_words():
            yield session
    finally:
        if not is_running:
            # A JVM that a signal ended cannot be stopped any more.
            with suppress(*SPARK_IS_GONE):
                session.stop()
        noise.removeFilter(_is_no_interruption)


def command_settings(
    master: str, settings: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the settings of a command's session: the given ones, and quiet on a cluster as well.

    What tasks fail with is told in a sentence, and progress is Earshot's own. A log that an
    administrator has set up stays as it is.
    """
    if is_local(master):
        return dict(settings)
    chosen = {"spark.ui.showConsoleProgress": "false", **settings}
    homes = [environ.get("SPARK_CONF_DIR"), f"{environ.get('SPARK_HOME', '')}/conf"]
    own = (Path(home) / "log4j2.properties" for home in homes if home)
    if not any(path.exists() for path in own):
        given = chosen.get(JAVA_OPTIONS, "")
        chosen[JAVA_OPTIONS] = f"{_log4j_option(CLUSTER_LOG4J)} {given}".strip()
    return chosen


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Leave out Py4J's account of Ctrl-C, which is told in a word elsewhere."""
    return "while sending command" not in record.getMessage()


@contextmanager
def plain_words() -> Iterator[None]:
    """Tell in one sentence what went wrong in Spark."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        plain = plain_failure(error)
        if plain is not None:
            raise plain from None
        raise EarshotError(f"Spark failed: {_reason(str(error))}") from error


def _reason(account: str) -> str:
    """Return the line of a long account that says most: the first cause, else the first error."""
    causes = _CAUSE.findall(account)
    errors = _ERROR.findall(account)
    lines = [line.strip() for line in account.splitlines() if line.strip()]
    chosen = (causes[-1:] or errors[:1] or lines[:1] or ["it does not say why"])[0]
    return str(chosen)[:FAILURE_CHARACTERS]
