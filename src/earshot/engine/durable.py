"""The part of an engine that outlives its process: saving and opening, and the journal between."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias, cast

import pyarrow as pa

from earshot import storage
from earshot.engine.guard import Guard
from earshot.engine.journal import (
    Journal,
    Kind,
    Record,
    Replayable,
    new_journal,
    read_records,
    replay,
    rows_of,
)
from earshot.engine.state import State
from earshot.errors import InvalidRow, SavedIndexError, check_threads, raise_first
from earshot.text import Analyzer

Batch: TypeAlias = pa.RecordBatch | pa.Table


class Durable:
    """Saves an engine, opens it, and notes in its journal what happens to it."""

    analyzer: Analyzer
    rebuild_in_background: bool
    _state: State
    _lock: Guard
    _journal: Journal | None

    @abstractmethod
    def _start(self, state: State, analyzer: Analyzer, rebuild_in_background: bool) -> None:
        """Begin with a state."""

    @abstractmethod
    def _settle(self) -> None:
        """Let the matcher do what it put off."""

    def save(self, directory: str | Path) -> None:
        """Write everything to a directory, messages that are kept included.

        A state that was saved there before is replaced: at any moment, and after a crash, the old
        one is there or the new one. Who has the old one open keeps it.
        """
        path = storage.checked_path(directory)
        with self._lock:
            self._settle()
            contents = self._state.contents({"analyzer": asdict(self.analyzer)})
            journal = self._journal
            if journal is None or journal.directory != path.resolve():
                storage.save(directory, contents)
                return
            try:
                state = storage.save(directory, contents, has_journal=True)
                deque(journal.follow(state), maxlen=0)  # a new one, without records
            except BaseException:
                if storage.current_state(journal.directory) != journal.state:
                    self._lock.give_up()  # what is noted from now on would follow nothing
                raise

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        n_threads: int = 1,
        rebuild_in_background: bool = True,
        verify: bool = False,
        journal: bool | timedelta = False,
    ) -> Self:
        """Open a saved engine of any semantics by memory-mapping its arrays.

        It goes on where that one was, and after what its journal has, if there is one.

        Args:
            directory: Where it was saved.
            n_threads: As for an engine.
            rebuild_in_background: The same.
            verify: Whether to compare every byte with its checksum even if this process has
                compared the same file before. A damaged state is refused either way.
            journal: Whether changes outlive this process. With True each call has them on disk
                before it returns; with a time that happens so often. Else they stay in this
                process, until it is saved.
        """
        check_threads(n_threads)
        path = storage.checked_path(directory).resolve()
        kept = new_journal(path, journal)
        follow = partial(read_records, path) if kept is None else kept.follow
        self = cls.__new__(cls)
        try:
            for _ in range(storage.N_TRIES):
                saved = storage.Saved.open(directory, verify=verify)
                with storage.understood(directory):
                    state, facts = State.open(saved, n_threads=n_threads)
                    self._start(state, Analyzer(**facts["analyzer"]), rebuild_in_background=False)
                replay(cast(Replayable, self), follow(saved.state))
                if storage.current_state(path) == saved.state:
                    break  # else another process has saved, and its journal is another one
        except BaseException:
            if kept is not None:
                kept.close()
            raise
        self.rebuild_in_background = rebuild_in_background
        self._journal = kept
        return self

    def close(self) -> None:
        """End the journal, if there is one: changes stay in this process from now on."""
        with self._lock.even_so():
            journal = self._journal
            try:
                if journal is not None:
                    journal.close()
            finally:
                self._journal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- notes --------------------------------------------------------------------------------

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

    def _commit(self) -> None:
        """Have what was noted on disk; where that fails, nobody knows what a crash would leave."""
        journal = self._journal
        if journal is not None:
            try:
                journal.commit()
            except SavedIndexError:
                self._lock.give_up()
                raise
