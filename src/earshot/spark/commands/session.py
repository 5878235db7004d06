"""Starting Spark for a command, and what a person is told when it fails."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from earshot.errors import EarshotError
from earshot.spark.notes import plain_failure
from earshot.spark.session import LOCAL_MASTER, local_session

SPARK_IS_GONE = (PySparkException, Py4JError, OSError)
"""What a Spark that is ending says."""
FAILURE_CHARACTERS = 500
"""Most that is told of what went wrong in Spark."""
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
_ERROR = re.compile(r"^(?:: )?(?:[\w$]+\.)*([\w$]*(?:Error|Exception): .+)$", re.MULTILINE)


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
        session = local_session(master or given, extra=settings)
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
