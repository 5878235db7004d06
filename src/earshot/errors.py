"""Every exception that Earshot raises on purpose.

::

    EarshotError
    ├── InvalidInput (ValueError)      a value that a caller or a file supplied is wrong
    │   ├── InvalidRegion              a box, circle or polygon that is not one
    │   ├── InvalidExpression          a boolean expression that cannot be read or matched
    │   ├── InvalidRow                 a row of a batch: names row, field, what was expected
    │   │   ├── LateRow                a message or position that came too late
    │   │   └── UnknownRow             an id that is not subscribed; an UnknownSubscription too
    │   ├── InvalidFile                a file that cannot be read as what it claims to be
    │   ├── InvalidParameter           an option outside its valid range
    │   └── DuplicateSubscription      an id that is already subscribed
    ├── UnknownSubscription (KeyError) an id that is not subscribed
    ├── SavedIndexError (OSError)      a directory that is not an index of this version
    ├── InUse (OSError)                a directory that belongs to another process or pipeline
    └── MissingExtra (ImportError)     an optional package is needed; the message says which
"""

from __future__ import annotations


class EarshotError(Exception):
    """Base of all errors raised on purpose."""


class InvalidInput(EarshotError, ValueError):
    """A value that a caller or a file supplied is wrong."""


class InvalidRegion(InvalidInput):
    """A box, circle or polygon that is not one."""


class InvalidExpression(InvalidInput):
    """A boolean expression that cannot be read, or that cannot be matched efficiently."""


class InvalidParameter(InvalidInput):
    """An option outside its valid range."""


class InvalidFile(InvalidInput):
    """A file that cannot be read as what it claims to be."""


class InvalidRow(InvalidInput):
    """One row of a batch is wrong.

    Attributes:
        source: File or batch the row came from, or ``""`` when it was passed in memory.
        row: Zero-based row number in ``source``.
        field: Column that holds the wrong value, or ``""`` when the row as a whole is wrong.
        reason: What was wrong and what was expected.
    """

    def __init__(self, source: str, row: int, field: str, reason: str) -> None:
        where = f"{source}, row {row}" if source else f"row {row}"
        super().__init__(f"{where}, field '{field}': {reason}" if field else f"{where}: {reason}")
        self.source = source
        self.row = row
        self.field = field
        self.reason = reason

    def __reduce__(self) -> tuple[type[InvalidRow], tuple[str, int, str, str]]:
        return (type(self), (self.source, self.row, self.field, self.reason))


class LateRow(InvalidRow):
    """A message that is older than the window or the allowed lateness."""


class DuplicateSubscription(InvalidInput):
    """The id is already subscribed."""


class UnknownSubscription(EarshotError, KeyError):
    """The id is not subscribed."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return str(self.args[0])


class UnknownRow(InvalidRow, UnknownSubscription):
    """A row of a batch names an id that is not subscribed."""


class SavedIndexError(EarshotError, OSError):
    """A directory is not a saved index, or one of another format version."""


class InUse(EarshotError, OSError):
    """A directory belongs to another process or pipeline; the message says what to do."""


class MissingExtra(EarshotError, ImportError):
    """An optional package is needed; the message says how to install it."""


def described(value: object) -> str:
    """Return a value as Python writes it, shortened, for an error."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a huge integer"
    return text if len(text) <= 80 else f"{text[:80]}…"


def raise_first(rejects: list[InvalidRow]) -> None:
    """Raise the first of the rows that are wrong, if any is."""
    if rejects:
        raise rejects[0]


def check_threads(n_threads: int) -> None:
    """Raise unless there is a thread to work."""
    if not isinstance(n_threads, int) or isinstance(n_threads, bool) or n_threads < 1:
        raise InvalidParameter(f"n_threads is {described(n_threads)}; expected 1 or more")
