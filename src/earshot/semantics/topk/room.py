"""Arrays that the monitor works on: empty ones, and larger ones where there is no room left."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from earshot.kernels.growing import resized, with_room
from earshot.model.arrays import Float64s, Int32s
from earshot.semantics.topk.kernels.arrays import (
    N_BUFFER_FACTS,
    N_NODE_COLUMNS,
    N_RUN_FACTS,
    NO_HOME,
    NOTHING_LOST,
    BufferArrays,
    Output,
    SearchScratch,
    Subscribers,
    Vectors,
)
from earshot.semantics.topk.kernels.buffers import size_of

BY_SLOT = ("runs", "boundaries", "has_boundary", "costs")
"""Arrays of the buffers that have a row for each slot."""

_BY_ENTRY = ("scores", "sequences", "dominated")
_N_CLASSES = 64
_PART = 256


_Arrays = TypeVar("_Arrays", bound=tuple[Any, ...])


def empty_of(kind: type[_Arrays], n: int = 0, /, **given: Any) -> _Arrays:
    """Return arrays of ``n`` rows, of the types that a NamedTuple declares, but for those given."""
    hints = get_type_hints(kind).items()  # such as ndarray[shape, dtype[int64]]
    types = {name: get_args(get_args(hint)[1])[0] for name, hint in hints if name not in given}
    return kind(**given, **{name: np.empty(n, each) for name, each in types.items()})


# ---- subscriptions -------------------------------------------------------------------------------


def no_subscribers() -> Subscribers:
    """Return arrays without slots."""
    return empty_of(Subscribers, places=np.empty((0, 3)), token_offsets=np.zeros(1, np.int64))


def with_subscribers(
    held: Subscribers, n: int, places: Float64s, alphas: Float64s, ks: Int32s, vectors: Vectors
) -> Subscribers:
    """Return the arrays with further slots behind the first ``n``."""
    used = int(held.token_offsets[n])
    stop, stop_token = n + len(places), used + len(vectors.tokens)
    new = Subscribers(
        places=with_room(held.places, stop),
        alphas=with_room(held.alphas, stop),
        ks=with_room(held.ks, stop),
        token_offsets=with_room(held.token_offsets, stop + 1),
        tokens=with_room(held.tokens, stop_token),
        weights=with_room(held.weights, stop_token),
        thresholds=with_room(held.thresholds, stop, NOTHING_LOST),
        homes=with_room(held.homes, stop, NO_HOME),
        rows=with_room(held.rows, stop),
    )
    new.places[n:stop] = places
    new.alphas[n:stop] = alphas
    new.ks[n:stop] = ks
    new.token_offsets[n : stop + 1] = vectors.offsets + used
    new.tokens[used:stop_token] = vectors.tokens
    new.weights[used:stop_token] = vectors.weights
    return new


def first_subscribers(held: Subscribers, n: int) -> Subscribers:
    """Return the first ``n`` slots, without room to grow."""
    n_tokens = int(held.token_offsets[n])
    by_slot = Subscribers._make(array[:n] for array in held)
    return by_slot._replace(
        token_offsets=held.token_offsets[: n + 1],
        tokens=held.tokens[:n_tokens],
        weights=held.weights[:n_tokens],
    )


# ---- buffers -------------------------------------------------------------------------------------


def no_buffers() -> BufferArrays:
    """Return buffers of no slots."""
    return empty_of(
        BufferArrays,
        facts=np.zeros(N_BUFFER_FACTS, np.int64),
        runs=np.empty((0, N_RUN_FACTS), np.int32),
        free=np.full(_N_CLASSES, -1, np.int64),
    )


def with_slots(buffers: BufferArrays, n: int) -> BufferArrays:
    """Return buffers with room for so many slots."""
    more: dict[str, Any] = {name: with_room(getattr(buffers, name), n) for name in BY_SLOT}
    return buffers._replace(**more)


def without_entries(buffers: BufferArrays, n: int = 0) -> BufferArrays:
    """Return buffers of the same slots, with room for ``n`` entries and without any."""
    entries = {name: np.empty(n, getattr(buffers, name).dtype) for name in _BY_ENTRY}
    none = no_buffers()
    return buffers._replace(facts=none.facts, free=none.free, **entries)


def packed_size(lengths: npt.NDArray[Any]) -> int:
    """Return how many entries runs take that are just large enough for so many each."""
    sizes = np.array([0, *(size_of.py_func(number) for number in range(_N_CLASSES))])
    return int(sizes[np.searchsorted(sizes, lengths)].sum())


def with_entries(buffers: BufferArrays) -> BufferArrays:
    """Return buffers with room for more entries."""
    n = len(buffers.scores) + 4096
    more: dict[str, Any] = {
        name: with_room(getattr(buffers, name), n, fill=None) for name in _BY_ENTRY
    }
    return buffers._replace(**more)


# ---- working memory ------------------------------------------------------------------------------


def new_scratch(n: int, n_more: int, k: int, n_words: int) -> SearchScratch:
    """Return working memory of searches.

    Args:
        n: Messages that a search may find.
        n_more: And below those; also nodes, and tokens of a subscription times segments.
        k: Most messages that a subscription wants.
        n_words: Words that there are.
    """
    return empty_of(
        SearchScratch,
        n_more,
        scores=np.empty(n, np.float64),
        rows=np.empty(n, np.int64),
        newest=np.empty(k, np.int64),
        order=np.empty(n, np.int64),
        counts=np.empty(n, np.int64),
        found=np.zeros(2, np.int64),
        bar=np.zeros(1, np.float64),
        nodes=np.empty((n_more, N_NODE_COLUMNS), np.int64),
        positions=np.zeros(n_words, np.int32),
        part_messages=np.empty(_PART, np.int32),
        part_weights=np.empty(_PART, np.float32),
        part_signatures=np.empty(_PART, np.uint64),
        part_cells=np.zeros(_PART, np.uint32),
        no_frame=np.array([0.0] * 6 + [np.inf]),
    )


def scratch_like(scratch: SearchScratch, times: int = 1) -> SearchScratch:
    """Return working memory like this one, or as many times as large."""
    return new_scratch(
        times * len(scratch.scores),
        times * len(scratch.more_scores),
        len(scratch.newest),
        len(scratch.positions),
    )


# ---- what comes out ------------------------------------------------------------------------------


def new_output(n: int) -> Output:
    """Return room for ``n`` changes."""
    return empty_of(Output, n, length=np.zeros(1, np.int64))


def larger_output(output: Output) -> Output:
    """Return the changes with as much room again."""
    n = 2 * len(output.rows)
    return Output(output.length, *(resized(array, n, fill=None) for array in output[1:]))
