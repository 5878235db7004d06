"""DuckDB: matching as the join that somebody who knows SQL writes, and as fast as we could make it.

Both run on one thread. Subscriptions are sorted by their rarest keyword, so that DuckDB skips row
groups; loading them is not part of the rates. For ``duckdb`` one statement says it all, and that is
how it is kept. Testing boxes in a materialised step before any list is looked at did 2,900
messages/s where this did 1,500 (headline, 1 M subscriptions, batches of 2,048); who goes that far
can as well add a grid, as ``duckdb_grid`` does.

There, subscriptions are joined on their rarest keyword and on the grid cell of their region; the
box and the other keywords are checked in the join. A region lies in every cell it touches, so the
cell that holds the lower left corner of the overlap with the message's box reports it, and no other
does.

What was tried, with batches of 10,000 headline messages, in messages/s on one core of a busy
machine; only figures of the same sentence were measured in the same run. 1 M subscriptions:
join on the two rarest keywords 7,800, on the rarest 9,300, the same with the list test after the
join 10,900, with the other keywords as columns and ``list_contains`` 11,200, and that plus a grid
of 32 x 32 cells 37,500. In an earlier run ``list_has_all`` on all keywords did 5,500 against 11,700
on all but the rarest. Grids of 8, 16, 32, 64 and 128 cells per axis did 45,000, 63,000, 60,000,
34,000 and 19,000 (a region is 0.75 cells wide at 32); the run after that gave 26,000 at 32, so the
load matters as much as the choice. At 10 M, 16 cells did 6,000 and 32 did 7,700. Long messages
would copy their token lists into the hash table of the join; looking each keyword up by a join of
its own did 1,600 against 360 (1 M, 200 messages, 16 cells).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from earshot.bench.checksums import Pairs
from earshot.bench.competitors import Competitor
from earshot.errors import InvalidInput, MissingExtra
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, MessageArrays, Space
from earshot.workloads.blocks import sides_of

try:
    import duckdb
except ImportError as error:
    raise MissingExtra(
        "the competitors 'duckdb' and 'duckdb_grid' need DuckDB: pip install 'earshot[bench]'"
    ) from error

CELL_PER_REGION = 2.0
"""Width of a grid cell over the mean width of a region."""

MAX_CELLS_PER_AXIS = 512
LONG_MESSAGE_TOKENS = 50
"""Mean number of tokens from which on lists are not copied into the join."""

TOUCHES = "s.min_x <= m.max_x and s.min_y <= m.max_y and s.max_x >= m.min_x and s.max_y >= m.min_y"


class DuckDBJoin(Competitor):
    """The plain join on the rarest keyword, in memory."""

    name = "duckdb"

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

    def keyword_columns(self, clauses: ClauseArrays, n_tokens: int) -> dict[str, pa.Array]:
        """Return the columns that hold keywords: the rarest one, and the list of all."""
        rarest = tokens_by_rarity(clauses, n_tokens)[:, 0].copy()
        return {"rarest": pa.array(rarest), "keywords": _token_lists(clauses)}

    def load_query(self) -> str:
        """Return what the table ``subscriptions`` has of ``source``, by the rarest keyword."""
        return "select * from source order by rarest"

    def match_query(self, messages: MessageArrays) -> str:
        """Return the join on the rarest keyword, which then tests the box and all keywords."""
        return f"""{self.select} m.message, s.slot
            from (select *, unnest(tokens) as token from messages) m
            join subscriptions s on s.rarest = m.token
            where {TOUCHES} and list_has_all(m.tokens, s.keywords)"""


class DuckDBGrid(DuckDBJoin):
    """The join on the rarest keyword and on a grid cell."""

    name = "duckdb_grid"

    def keyword_columns(self, clauses: ClauseArrays, n_tokens: int) -> dict[str, pa.Array]:
        """Return a column for each of the keywords, the rarest first; choose the grid."""
        self._choose_grid(clauses.boxes)
        tokens = tokens_by_rarity(clauses, n_tokens)
        self.n_columns = tokens.shape[1]
        columns = {}
        for k in range(self.n_columns):
            token = tokens[:, k].copy()
            columns[f"t{k}"] = pa.array(token, mask=token < 0)
        return columns

    def load_query(self) -> str:
        """Put each region into all cells it touches; sort by rarest keyword and cell."""
        return f"""select a.*, (cx * {self.n_cells} + cy)::int as cell
            from (select *, {self._cells("min_x", "max_x", 0)} as cx from source) a,
                 lateral (select {self._cells("a.min_y", "a.max_y", 1)} as cy) b
            order by t0, cell"""

    def match_query(self, messages: MessageArrays) -> str:
        """Join on rarest keyword and cell; how the rest is tested depends on the messages."""
        is_long = len(messages.token_ids) > LONG_MESSAGE_TOKENS * len(messages.boxes)
        are_points = bool((messages.boxes[:, :2] == messages.boxes[:, 2:]).all())
        return self._long_query(are_points) if is_long else self._short_query(are_points)

    def _choose_grid(self, boxes: Float64s) -> None:
        finite = np.where(np.isfinite(boxes), boxes, np.nan)
        lower, upper = np.nanmin(finite[:, :2], axis=0), np.nanmax(finite[:, 2:], axis=0)
        extents = np.maximum(upper - lower, np.finfo(np.float64).tiny)
        widths = np.nan_to_num(finite[:, 2:] - finite[:, :2], nan=1.0) / extents
        wanted = 1.0 / (CELL_PER_REGION * max(float(widths.mean()), 1e-9))
        self.n_cells = int(np.clip(wanted, 1, MAX_CELLS_PER_AXIS))
        self.lower, self.upper = lower.tolist(), upper.tolist()
        self.scales = (self.n_cells / extents).tolist()

    def _cell(self, value: str, axis: int) -> str:
        low, high = self.lower[axis], self.upper[axis]
        inside = f"least(greatest({value}, {low!r}), {high!r}) - {low!r}"
        return f"least(floor(({inside}) * {self.scales[axis]!r}), {self.n_cells - 1})::int"

    def _cells(self, first: str, last: str, axis: int) -> str:
        return f"unnest(range({self._cell(first, axis)}, {self._cell(last, axis)} + 1))"

    def _message_cells(self, columns: str, are_points: bool) -> str:
        """Messages with one row per token and cell."""
        if are_points:
            cell = f"{self._cell('min_x', 0)} * {self.n_cells} + {self._cell('min_y', 1)}"
            return f"(select {columns}, unnest(tokens) as token, {cell} as cell from messages)"
        return f"""(select a.*, (cx * {self.n_cells} + cy)::int as cell
            from (select {columns}, unnest(tokens) as token,
                         {self._cell("min_x", 0)} as first_x, {self._cell("max_x", 0)} as last_x,
                         {self._cell("min_y", 1)} as first_y, {self._cell("max_y", 1)} as last_y
                  from messages) a,
                 lateral (select unnest(range(first_x, last_x + 1)) as cx) b,
                 lateral (select unnest(range(first_y, last_y + 1)) as cy) c)"""

    def _reported_here(self, are_points: bool) -> str:
        if are_points:
            return "true"  # a point lies in one cell
        corner_x = self._cell("greatest(s.min_x, m.min_x)", 0)
        corner_y = self._cell("greatest(s.min_y, m.min_y)", 1)
        return f"s.cell = {corner_x} * {self.n_cells} + {corner_y}"

    def _short_query(self, are_points: bool) -> str:
        rest = "".join(
            f" and (t{k} is null or list_contains(m.tokens, t{k}))"
            for k in range(1, self.n_columns)
        )
        return f"""{self.select} m.message, s.slot
            from {self._message_cells("*", are_points)} m
            join subscriptions s on s.t0 = m.token and s.cell = m.cell
            where {TOUCHES} and {self._reported_here(are_points)} {rest}"""

    def _long_query(self, are_points: bool) -> str:
        others = range(1, self.n_columns)
        lookups = "".join(
            f" left join carried k{k} on k{k}.message = c.message and k{k}.token = c.t{k}"
            for k in others
        )
        rest = "".join(f" and (c.t{k} is null or k{k}.token is not null)" for k in others)
        columns = "".join(f", t{k}" for k in others)
        return f"""with carried as materialized (
                select message, unnest(tokens) as token from messages),
            c as materialized (
                select m.message, s.slot {columns}
                from {self._message_cells("* exclude (tokens)", are_points)} m
                join subscriptions s on s.t0 = m.token and s.cell = m.cell
                where {TOUCHES} and {self._reported_here(are_points)})
            {self.select} c.message, c.slot from c {lookups} where true {rest}"""


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
