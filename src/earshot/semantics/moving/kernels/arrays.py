"""The arrays that moving subscribers work on, whatever the structure.

A subscription is a *slot*. A live message is a *row*, which another message takes once it has
ended; its *sequence* is its arrival. Times are microseconds since 1970.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import POSITION, Float64s, Int32s, Int64s

Int8s = npt.NDArray[np.int8]
Int16s = npt.NDArray[np.int16]
UInt8s = npt.NDArray[np.uint8]
UInt64s = npt.NDArray[np.uint64]

REASONS = ("match", "entered", "left", "expired", "dwelled")
MATCH, ENTERED, LEFT, EXPIRED, DWELLED = range(len(REASONS))
HIDDEN = len(REASONS)
"""Instead of a reason: nobody is told."""


SAFE_POSITION = POSITION + 1
"""Kind of a report: a position at which the subscription holds the same as before."""
N_PROBES = 4


class Regions(NamedTuple):
    """Regions where they are now, by slot."""

    kinds: Int8s  # EVERYWHERE, BOX, CIRCLE or POLYGON of earshot.model.arrays
    # (n, 4) box: half its width, half its height; circle: x, y, radius; polygon: how far its middle
    # has moved in x and y. Then, of a box or polygon, its last position; 0 where there was none
    frames: Float64s
    # (n, 8) two boxes that hold the region, the second of them where it reaches the antimeridian;
    # else nothing touches that. The boxes of a rectangle are the region.
    boxes: Float64s
    shape_rows: Int32s  # row in the polygons, else -1


class Polygons(NamedTuple):
    """Outlines as they were given; they stay so, however far they move."""

    circles: Float64s  # (n, 3) x, y and a radius of -1: the shape is a polygon
    ring_offsets: Int64s  # (n + 1,)
    vertex_offsets: Int64s  # (n_rings + 1,)
    vertices: Float64s  # (n_vertices, 2)
    spans: Float64s  # (n, 4) the box around each; it may cross the antimeridian
    middles: Float64s  # (n, 2) middle of that box


class Subscribers(NamedTuple):
    """What every structure knows of subscriptions."""

    regions: Regions
    polygons: Polygons
    flags: UInt8s  # (n,) LIVE, SILENT, SILENT_LATER
    words: UInt64s  # (n,) bits that the words of every alternative have in common
    # (n, N_PROBES) places in the bit sets of leaves, of words that every alternative requires; -1
    probes: Int16s
    clause_offsets: Int64s  # (n + 1,) alternatives of slot i are [i]:[i+1]
    clause_slots: Int32s  # (n_clauses,)
    clause_words: UInt64s  # (n_clauses,) bits of the words it requires
    token_offsets: Int64s  # (n_clauses + 1,)
    token_ids: Int32s  # required tokens t >= 0, then forbidden ones as ~t


LIVE, SILENT, SILENT_LATER = 1, 2, 4
"""Flags: the subscription has not ended; nobody is told what leaves; the same where dwelling or
cooling down decides what is told at all."""


class Messages(NamedTuple):
    """The live messages, by row, and in which order they end."""

    facts: Int64s  # (N_MESSAGE_FACTS,)
    boxes: Float64s  # (n, 4) min_x > max_x crosses the antimeridian
    words: UInt64s  # (n,) bits of its words
    token_starts: Int64s  # (n,) where its tokens are
    n_tokens: Int32s  # (n,)
    sequences: Int64s  # (n,) -1 where the row is free
    ends: Int64s  # (n,)
    tokens: Int32s  # of all messages, ascending within each
    n_having: Int32s  # (n_tokens,) live messages that have each token
    free: Int32s  # rows that are free, as a stack
    heap: Int32s  # rows by (end, sequence), as a binary heap


N_ROWS, N_FREE, N_LIVE, N_TOKENS_USED, N_TOKENS_LIVE, NEXT_SEQUENCE, CLOCK, N_MESSAGE_FACTS = range(
    8
)
"""Facts: rows in use or free, rows free, messages, tokens stored, tokens of live messages, sequence
of the next message, the clock."""


class Tables(NamedTuple):
    """Everything that all structures have in common."""

    subscribers: Subscribers
    messages: Messages
    rules: Int64s  # (N_RULES,)


IS_LONLAT, N_RULES = 0, 1


class Query(NamedTuple):
    """Where a subscription was (0) and is now (1)."""

    regions: Regions  # (2,)
    # (2, 4) boxes that lie within each region as a whole; the search leaves out what is in both
    inner: Float64s


class Scratch(NamedTuple):
    """Working memory, and what was found last."""

    query: Query
    marks: UInt8s  # (n_tokens,) 1 while the message at hand has the token
    counts: Int64s  # (N_COUNTS,)
    found: Int64s  # slots of a message; or sequences of messages that leave
    entered: Int64s  # sequences of messages that enter
    stamps: Int32s  # of slots or rows: the search in which it was found last
    stack: Int64s  # of sorting, and of walks through trees


N_FOUND, N_ENTERED, STAMP, ROW, PHASE, NEXT, N_CANDIDATES, N_NODES, N_ENDED, STOP, N_COUNTS = range(
    11
)
"""Counts: slots or messages that leave, messages that enter, number of the search; where a kernel
goes on: event, phase, and next change; the work done: pairs compared, nodes visited, messages
ended; up to which event the order of moves is known."""


class Output(NamedTuple):
    """Changes of results, in order."""

    length: Int64s  # (1,)
    rows: Int32s  # which row of the batch caused it
    signs: Int8s
    reasons: Int8s  # a position in REASONS
    slots: Int32s
    sequences: Int64s
    times: Int64s  # when it happens


class Mix(NamedTuple):
    """What moves of a batch need to know of its other events."""

    clocks: Int64s  # (n,) the clock of each event, ascending
    moves: Int64s  # (n_moves,) events that are moves
    arrivals: Int64s  # (n_arrivals,) events that are arrivals
    first_sequence: int  # of the first message that arrives
    due_sequences: Int64s  # messages that end in the batch, ascending
    due_ends: Int64s  # and when they do


NEEDS_OUTPUT, NEEDS_ROWS, NEEDS_ROOM = 1, 2, 3
"""What a kernel may be short of: changes, rows or tokens of messages, room in the structure."""
