"""Writing down in the journal what changes."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from earshot.engine.guard import Guard
from earshot.engine.journal import Journal, Kind, Record, rows_of
from earshot.engine.state import State
from earshot.errors import InvalidRow, SavedIndexError, raise_first
from earshot.semantics.contract import Changes

Batch: TypeAlias = pa.RecordBatch | pa.Table


class Noting:
    """The part of an engine that keeps the journal."""

    _state: State
    _lock: Guard
    _journal: Journal | None

    def _note(self, record: Record) -> None:
        """Write down what has changed, within the change: the engine is no further than that."""
        if self._journal is not None:
            self._journal.append(record)

    def _note_batch(self, kind: Kind, batch: Batch, rejects: list[InvalidRow]) -> None:
        if self._journal is not None and len(batch):
            self._note(Record(kind, rows_of(batch), is_clean=not rejects, rejects=True))

    def _note_refused(self, kind: Kind, batch: Batch, n_words: int) -> None:
        """Write down a call that changed nothing but the words: those have come to stay."""
        if self._journal is not None and len(self._state.vocabulary) > n_words:
            with self._lock.change():
                self._note(Record(kind, rows_of(batch), is_clean=False))

    def _refuse(self, rejects: list[InvalidRow], kind: Kind, batch: Batch, n_words: int) -> None:
        """Raise the first wrong row, if any."""
        if rejects:
            self._note_refused(kind, batch, n_words)
        raise_first(rejects)

    def _advance(self, clock_us: int) -> Changes:
        if clock_us > self._state.clock_us:
            self._note(Record("advance", argument=clock_us))
        return self._state.advance(clock_us)

    def _commit(self) -> None:
        """Have what was noted on disk; where that fails, nobody knows what a crash would leave."""
        journal = self._journal
        if journal is not None:
            try:
                journal.commit()
            except SavedIndexError:
                self._lock.give_up()
                raise
