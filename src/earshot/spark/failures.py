"""What goes wrong in a task, told on the driver as if it had gone wrong there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from earshot import errors
from earshot.errors import EarshotError, InvalidInput

_RAISED = re.compile(r"^earshot\.errors\.(\w+): (.+)$", re.MULTILINE)


@contextmanager
def plain_failures() -> Iterator[None]:
    """Raise the error of a task instead of Spark's account of it, where it is one of ours."""
    try:
        yield
    except PySparkException as error:
        plain = plain_failure(error)
        if plain is None:
            raise
        raise plain from None


def plain_failure(error: BaseException) -> EarshotError | None:
    """Return the error of ours that failed a task, None where it was something else."""
    found = _RAISED.search(str(error))
    if found is None:
        return None
    kind = getattr(errors, found.group(1), InvalidInput)
    if kind is errors.InvalidRow or not issubclass(kind, EarshotError):
        kind = InvalidInput  # its parts cannot be told from its text
    failure: EarshotError = kind(found.group(2))
    return failure
