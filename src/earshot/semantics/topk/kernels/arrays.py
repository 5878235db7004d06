"""The arrays that top-k over a window works on.

A subscription is a *slot*, a message a *sequence* number (its arrival). Words of both are sorted
rarest first, by weight and then by token id, and carry the weights of a vector of length 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import Float64s, Int32s, Int64s

Float32s = npt.NDArray[np.float32]
UInt16s = npt.NDArray[np.uint16]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
UInt8s = npt.NDArray[np.uint8]
Int8s = npt.NDArray[np.int8]


class Vectors(NamedTuple):
    """Sparse vectors of length 1, one row each."""

    offsets: Int64s  # (n + 1,)
    tokens: Int32s  # rarest first
    weights: Float32s


class Subscribers(NamedTuple):
    """What every structure knows of the subscriptions, by slot."""

    places: Float64s  # (n, 3) Cartesian
    alphas: Float64s  # share of the place in the score
    ks: Int32s  # messages wanted
    token_offsets: Int64s  # (n + 1,)
    tokens: Int32s  # rarest first
    weights: Float32s
    thresholds: Float64s  # score that a message must reach to be noticed; NOTHING_LOST: any
    homes: Int8s  # the component that holds it: NO_HOME, BASE or YOUNG
    rows: Int32s  # its row in that component


class Changes(NamedTuple):
    """Changes of results, in order."""

    rows: Int32s  # which row of the batch caused it
    signs: Int8s  # +1 comes, -1 goes
    reasons: Int8s  # a position in REASONS
    slots: Int32s
    sequences: Int64s
    scores: Float64s


NO_HOME, BASE, YOUNG = 0, 1, 2

NOTHING_LOST = -1.0
"""Threshold of a subscription whose buffer knows of every relevant message of the window."""

REASONS = ("match", "refill", "subscribe", "move", "reweigh", "displaced", "expired")


class Probe(NamedTuple):
    """The message that is being disseminated."""

    place: Float64s  # (3,)
    tokens: Int32s  # rarest first; only the first ``length[0]`` count
    weights: Float32s
    length: Int64s  # (1,)
    weight_of: Float32s  # by token, 0 for those that the message does not have


class Dispatch(NamedTuple):
    """A message on its way to the subscriptions that it concerns."""

    subscribers: Subscribers
    probe: Probe
    max_distance: float
    slots: Int32s  # those found so far; as long as there are subscriptions
    scores: Float64s  # theirs
    counters: Int64s


class ScanArrays(NamedTuple):
    """A component without structure."""

    slots: Int32s


# ---- the window ----------------------------------------------------------------------------------


class WindowArrays(NamedTuple):
    """Messages in the order of their arrival; message ``first sequence + i`` is row i.

    Rows before ``facts[NEXT]`` have left the window, but for some that came late.
    """

    facts: Int64s  # by the names below
    places: Float64s  # (n_rows, 3)
    times: Int64s  # in a window by count, 0
    is_live: UInt8s  # whether it is in the window
    is_late: UInt8s  # whether it came after one with a later time
    token_offsets: Int64s  # (n_rows + 1,)
    tokens: Int32s  # rarest first
    weights: Float32s
    counts: UInt16s
    heads: Int32s  # first slot of those whose oldest message is this one, or -1
    late: UInt32s  # sequences of late messages, in the order in which they leave


(
    FIRST_SEQUENCE,  # sequence of row 0
    N_ROWS,
    NEXT,  # row of the oldest message that is in the window and did not come late
    N_LIVE,
    NEWEST_TIME,
    LATE_START,  # the late ones are late[LATE_START:LATE_STOP]
    LATE_STOP,
    N_FACTS,
) = range(8)


class SegmentArrays(NamedTuple):
    """Inverted lists over pieces of the window, and chains over its newest messages.

    A *segment* is a run of messages with, for each of their tokens, a list of postings in the order
    of a space-filling curve. Long lists are cut into blocks of postings and these into groups of
    blocks, each with a sphere around its places and the largest weight. Segments lie one after the
    other in the arrays. Messages that came since the last segment are in chains by token.
    """

    facts: Int64s  # by the names below
    first_sequences: Int64s  # (room for segments,) sequence of a segment's first message
    entry_offsets: Int64s  # (room for segments + 1,) entries, one per token of a segment
    bucket_offsets: Int64s  # (room for segments + 1,)
    tokens: Int32s  # (n_entries,) in the order of their mixed ids
    posting_offsets: Int64s  # (n_entries + 1,)
    block_offsets: Int64s  # (n_entries + 1,) equal for lists too short for blocks
    group_offsets: Int64s  # (n_entries + 1,)
    largest: Float32s  # (n_entries,) largest weight in the list
    messages: Int32s  # (n_postings,) number within the segment
    weights: Float32s  # (n_postings,) of the token in the message
    signatures: UInt64s  # (n_postings,) a bit for each token of the message
    cells: UInt32s  # (n_postings,) where the message is, in the segment's frame
    block_spheres: Float32s  # (n_blocks, 4) centre and radius
    block_largest: Float32s  # (n_blocks,) largest weight in the block
    group_spheres: Float32s  # (n_groups, 4)
    group_largest: Float32s  # (n_groups,)
    buckets: Int32s  # first entry, within the segment, of each range of mixed ids
    frames: Float64s  # (room for segments, 7) corner, sides and half diagonal of cells
    chain_heads: Int32s  # by token; -1
    chain_nexts: Int32s  # (room,) next posting of the chain, or -1
    chain_messages: UInt32s  # (room,) sequence
    chain_weights: Float32s  # (room,)
    chain_signatures: UInt64s  # (room,)


FIRST_SEGMENT, STOP_SEGMENT, N_CHAINED, N_SEGMENT_FACTS = range(4)

# ---- buffers -------------------------------------------------------------------------------------


class BufferArrays(NamedTuple):
    """The messages kept for each subscription, best first, and when to look at them again.

    A buffer is a run of entries of which the first k are the result. Slots are chained to the
    oldest message of their buffer, so that its expiry finds them.
    """

    facts: Int64s  # by the names below
    runs: Int32s  # (slots, 8) by the names below: what every visit needs, side by side
    boundaries: UInt32s  # by slot: sequence of the worst message that the threshold was taken from
    has_boundary: (
        UInt8s  # whether there is one: messages with the same score may have been left out
    )
    costs: Float32s  # work of its last search; 0: none so far
    scores: Float64s  # by entry
    sequences: UInt32s  # by entry: low 32 bits
    dominated: UInt16s  # by entry: newer messages with no lower score
    free: Int64s  # by size class: first entry of a free run, or -1


N_ENTRIES, N_BUFFERED, N_BUFFER_FACTS = range(3)

(
    START,  # first entry, by QUAD
    LENGTH,
    CAPACITY,  # entries that there is room for; 0 where there is none yet
    OLDEST,  # low 32 bits of the sequence of the message that the slot is chained to
    IS_CHAINED,
    AFTER,  # next slot in the chain of the same message, or -1
    BEFORE,  # the one before, or -1
    SIZE,  # messages that it should know of after a search; 0: not told yet
    N_RUN_FACTS,
) = range(9)

QUAD = 4
"""Runs start at multiples of this, so that 32 bits tell where."""


class Policy(NamedTuple):
    """How buffers are filled; numbers, so that kernels are compiled once."""

    kind: int  # KMAX, SKYBAND or CSKYBAND
    factor: float  # KMAX: size by k; SKYBAND: threshold by the k-th score
    search_weight: float  # CSKYBAND: cost of a step of a search, by that of an entry's
    typical_cost: float  # CSKYBAND: of a search, before there was one


KMAX, SKYBAND, CSKYBAND = range(3)


class SearchScratch(NamedTuple):
    """Working memory of searches."""

    scores: Float64s  # the best so far: a heap, the worst first
    rows: Int64s
    more_scores: Float64s  # those below, where a share of the k-th score is wanted
    more_rows: Int64s
    newest: Int64s  # rows of the newest messages, while a skyband is made
    order: Int64s  # positions of those that a skyband keeps
    counts: Int64s  # by position: how many dominate it
    found: Int64s  # (2,) how many are in the heap, and below it
    bar: Float64s  # (1,) what a message must score
    node_bounds: Float64s  # groups of blocks to look at: a heap, the most promising first
    nodes: Int64s  # (n, N_NODE_COLUMNS) by the names below
    caps: Float64s  # largest weight of each token of the subscription, by segment
    entries: Int64s  # entry of each token in a segment
    rest_squares: Float64s  # by token of the subscription: squares of the weights that follow
    rarer: UInt64s  # by token: signature of those before
    commoner: UInt64s  # by token: signature of those that follow
    positions: Int32s  # by token id: position in the subscription, from 1; only where it has many
    part_messages: Int32s  # a part of a chain, as a list
    part_weights: Float32s
    part_signatures: UInt64s
    part_cells: UInt32s
    no_frame: Float64s  # (7,) in which any cell may be anywhere


(
    NODE_GROUP,  # number within the list
    NODE_BLOCK,  # first block
    NODE_ENTRY,
    NODE_TOKEN,  # position of the token in the subscription
    NODE_SEGMENT,
    NODE_CAPS,  # where the caps of the segment are
    N_NODE_COLUMNS,
) = range(7)


# ---- what comes out ------------------------------------------------------------------------------


class Output(NamedTuple):
    """Changes as they are made, with room for more."""

    length: Int64s  # (1,)
    rows: Int32s
    signs: Int8s
    reasons: Int8s
    slots: Int32s
    sequences: Int64s
    scores: Float64s


(MATCH, REFILL, SUBSCRIBE, MOVE, REWEIGH, DISPLACED, EXPIRED) = range(7)

COUNTERS = (
    "arrivals",
    "expiries",
    "cells",
    "groups",
    "postings",
    "candidates",
    "admitted",
    "evicted",
    "visits",
    "reevaluations",
    "searches",
    "search_blocks",
    "search_postings",
    "search_candidates",
    "threshold_changes",
)
(
    ARRIVALS,
    EXPIRIES,
    CELLS,
    GROUPS,
    POSTINGS,
    CANDIDATES,
    ADMITTED,
    EVICTED,
    VISITS,
    REEVALUATIONS,
    SEARCHES,
    SEARCH_BLOCKS,
    SEARCH_POSTINGS,
    SEARCH_CANDIDATES,
    THRESHOLD_CHANGES,
) = range(15)

# ---- all of it -----------------------------------------------------------------------------------

NO_LIMIT = -1


class State(NamedTuple):
    """All that lives on from message to message, but the structures that find subscriptions."""

    window: WindowArrays
    segments: SegmentArrays
    subscribers: Subscribers
    buffers: BufferArrays
    probe: Probe
    scratch: SearchScratch
    found_slots: Int32s
    found_scores: Float64s
    pending: Int32s  # slots that no component holds
    counters: Int64s
    ticks: Int64s  # (2,) of the clock, that arrivals and expiries took


class Rules(NamedTuple):
    """What does not change."""

    window: int  # messages, or NO_LIMIT
    duration: int  # microseconds, or NO_LIMIT
    max_distance: float
    policy: Policy
