"""DuckDB: matching as the join that somebody who knows SQL writes, on one thread.

Subscriptions are sorted by their rarest keyword, so that DuckDB skips row groups; loading them is
not part of the rates. One statement says it all, and that is how it is kept. Testing boxes in a
materialised step before any list is looked at did 2,900 messages/s where this did 1,500 (headline,
1 M subscriptions, batches of 2,048); who goes that far can as well add a grid, as
:mod:`earshot.bench.competitors.duckdb_grid` does.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import pyarrow as pa

from earshot.bench.checksums import Pairs
from earshot.bench.competitors.contract import Competitor
from earshot.errors import InvalidInput, MissingExtra
from earshot.model.arrays import ClauseArrays, Int32s, MessageArrays, Space
from earshot.workloads.blocks import sides_of

try:
    import duckdb
except ImportError as error:
    raise MissingExtra(
        "the competitors 'duckdb' and 'duckdb_grid' need DuckDB: pip install 'earshot[bench]'"
    ) from error

TOUCHES = "s.min_x <= m.max_x and s.min_y <= m.max_y and s.max_x >= m.min_x and s.max_y >= m.min_y"


class DuckDB(Competitor):
    """DuckDB in memory, one thread: how subscriptions and messages get in, and answers out."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("set preserve_insertion_order = false")
        self.select = "select"

    def build(self, clauses: ClauseArrays, space: Space, n_tokens: int) -> None:
        """Load the subscriptions into a table."""
        if (clauses.token_ids < 0).any() or (clauses.shape_rows >= 0).any():
            raise InvalidInput(f"competitor '{self.name}' takes plain keywords and boxes only")
        # A region across the antimeridian has two clauses, but is reported once.
        repeats = len(np.unique(clauses.subscriptions)) < len(clauses.subscriptions)
        self.select = "select distinct" if repeats else "select"
        columns = {"slot": pa.array(clauses.subscriptions), **sides_of(clauses.boxes)}
        columns |= self.keyword_columns(clauses, n_tokens)
        self.connection.register("source", pa.table(columns))
        self.connection.execute(f"create or replace table subscriptions as {self.load_query()}")
        self.connection.unregister("source")

    def match(self, messages: MessageArrays, n_threads: int = 1) -> Pairs:
        """Return the answers to a batch, by one query."""
        if (messages.boxes[:, 0] > messages.boxes[:, 2]).any():
            raise InvalidInput(f"competitor '{self.name}' takes no boxes across the antimeridian")
        columns = {
            "message": pa.array(np.arange(len(messages.boxes), dtype=np.int32)),
            "tokens": _token_lists(messages),
            **sides_of(messages.boxes),
        }
        self.connection.register("messages", pa.table(columns))
        found = self.connection.execute(self.match_query(messages)).fetchnumpy()
        self.connection.unregister("messages")
        return Pairs(np.asarray(found["message"], np.int32), np.asarray(found["slot"], np.int32))

    def close(self) -> None:
        """Close the database."""
        self.connection.close()

    @abstractmethod
    def keyword_columns(self, clauses: ClauseArrays, n_tokens: int) -> dict[str, pa.Array]:
        """Return the columns that hold each subscription's keywords."""

    @abstractmethod
    def load_query(self) -> str:
        """Return the query that makes the table ``subscriptions`` of the table ``source``."""

    @abstractmethod
    def match_query(self, messages: MessageArrays) -> str:
        """Return the query that joins the tables ``messages`` and ``subscriptions``."""


class DuckDBJoin(DuckDB):
    """The plain join on the rarest keyword."""

    name = "duckdb"

    def keyword_columns(self, clauses: ClauseArrays, n_tokens: int) -> dict[str, pa.Array]:
        """Return the rarest keyword, and the list of all."""
        rarest = tokens_by_rarity(clauses, n_tokens)[:, 0].copy()
        return {"rarest": pa.array(rarest), "keywords": _token_lists(clauses)}

    def load_query(self) -> str:
        """Sort by the rarest keyword."""
        return "select * from source order by rarest"

    def match_query(self, messages: MessageArrays) -> str:
        """Join on the rarest keyword, then test the box and all keywords."""
        return f"""{self.select} m.message, s.slot
            from (select *, unnest(tokens) as token from messages) m
            join subscriptions s on s.rarest = m.token
            where {TOUCHES} and list_has_all(m.tokens, s.keywords)"""


def _token_lists(rows: ClauseArrays | MessageArrays) -> pa.Array:
    offsets = pa.array(rows.token_offsets, pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(rows.token_ids))


def tokens_by_rarity(clauses: ClauseArrays, n_tokens: int) -> Int32s:
    """Return each clause's tokens as a row, the rarest first, padded with -1."""
    lengths = np.diff(clauses.token_offsets)
    frequencies = np.bincount(clauses.token_ids, minlength=n_tokens)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((frequencies[clauses.token_ids], rows))
    tokens = np.full((len(lengths), int(lengths.max(initial=1))), -1, np.int32)
    tokens[rows, np.arange(len(rows)) - clauses.token_offsets[rows]] = clauses.token_ids[order]
    return tokens
