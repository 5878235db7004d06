"""The AP-Tree of [VLDBJ15] section 3: built by a cost model, changed in place.

:mod:`earshot.indexes.ap_tree.kernels.nodes` describes the tree. Its hit probabilities come from a
sample of messages, if :meth:`~earshot.indexes.contract.Index.build` is given one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from earshot import storage
from earshot.indexes.ap_tree.building import (
    BY_NODE,
    LEAST_ROWS,
    PIECES,
    build_scratch,
    build_tree,
    change_scratch,
    packed_if_worth,
    ranked_sample,
    ranks_of,
    with_larger_scratch,
    with_room,
)
from earshot.indexes.ap_tree.kernels import nodes
from earshot.indexes.ap_tree.kernels.build import (
    CHOICES_ARE_FULL,
    N_TASKS,
    ROWS_ARE_FULL,
    TASKS_ARE_FULL,
    TREE_IS_FULL,
    WANTED,
    BuildScratch,
)
from earshot.indexes.ap_tree.kernels.changes import (
    IS_ORDERED,
    ORDER_IS_OLD,
    ChangeScratch,
    change_tree,
    make_keys_anew,
)
from earshot.indexes.ap_tree.kernels.match import MOST_COUNTED, ApScratch
from earshot.indexes.ap_tree.kernels.nodes import (
    FREE,
    KEYWORDS,
    LIST,
    MOST_REPEATS,
    MOST_SPACE_LEVELS,
    SPACE,
    ApTreeArrays,
)
from earshot.indexes.ap_tree.parameters import ApTreeParameters
from earshot.indexes.consistency import checking, demand, members
from earshot.indexes.contract import BuildInput
from earshot.indexes.in_place import InPlaceIndex
from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.box_keys import BLOCK
from earshot.kernels.growing import resized
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import Int32s, Int64s, MessageArrays, numbers_of, offsets_of

_LEAST_QUANTIZED = 256


class ApTree(InPlaceIndex):
    """Keywords and space in turns; counters: nodes visited, clauses in the lists visited."""

    name = "ap_tree"
    parameters_type = ApTreeParameters
    parameters: ApTreeParameters
    arrays_type = ApTreeArrays
    scratch_type = ApScratch

    _n_quantized: int | None = None
    """Clauses that there were when the cells of the box keys were chosen."""
    _working: tuple[ChangeScratch, BuildScratch] | None = None

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> ApTreeArrays:
        clauses, parameters = given.clauses, given.parameters
        ranks = ranks_of(given.known, parameters.keyword_order)
        rows = np.arange(len(clauses.subscriptions), dtype=np.int32)
        quantizer = quantizer_of(clauses.boxes, "lonlat")
        return build_tree(parameters, clauses, rows, quantizer, ranks, given.sample)

    @classmethod
    def open(cls, directory: str | Path | storage.Saved) -> Self:
        """Open a saved index by memory-mapping its arrays; changes stay in this process."""
        index = super().open(directory)
        with checking(directory):
            _check(index.arrays, len(index.clauses.subscriptions), index.n_tokens)
        return index

    def _build_options(self, tokens: Int32s | None) -> dict[str, Any]:
        return {"sample": self._sample(tokens)}

    def _sample(self, kept: Int32s | None) -> MessageArrays | None:
        """Return the sample of messages, with the tokens that are left, as it was given."""
        tree = self.arrays
        if len(tree.sample_places) == 0:
            return None
        order = np.argsort(tree.ranks, kind="stable")
        tokens = order[np.searchsorted(tree.ranks[order], tree.sample_ranks)].astype(np.int32)
        lengths = np.diff(tree.sample_offsets)
        if kept is not None:
            tokens = numbers_of(kept, self.n_tokens)[tokens]
            messages = np.repeat(np.arange(len(lengths)), lengths)
            lengths = np.bincount(messages[tokens >= 0], minlength=len(lengths))
            tokens = tokens[tokens >= 0]
        places = tree.sample_places
        return MessageArrays(offsets_of(lengths), tokens, np.hstack([places, places]))

    # ---- changes -----------------------------------------------------------------------------

    def _insert_rows(self, first: int, stop: int) -> None:
        self._n_quantized = first if self._n_quantized is None else self._n_quantized
        self._know_new_tokens()
        while first < stop:
            # Few at a time into a small tree: its box keys tell newcomers badly apart.
            last = min(stop, first + max(_LEAST_QUANTIZED, self._n_quantized))
            self._change(np.arange(first, last), 1)
            if last - self._n_quantized >= max(_LEAST_QUANTIZED, self._n_quantized):
                boxes = self.clauses.boxes
                quantizer = quantizer_of(boxes[:last], "lonlat")
                self.arrays = self.arrays._replace(quantizer=quantizer)
                make_keys_anew(self.arrays, boxes)
                self._n_quantized = last
            first = last

    def _remove_rows(self, rows: Int64s) -> None:
        self._change(rows, -1)
        self.arrays = packed_if_worth(self.arrays)

    def _know_new_tokens(self) -> None:
        """Put tokens that came with the last clauses into the order: they are the rarest."""
        ranks = self.arrays.ranks
        if len(ranks) >= self.n_tokens:
            return
        new = np.arange(len(ranks), self.n_tokens + self.n_tokens // 8, dtype=np.int32)
        if self.parameters.keyword_order == "rare":
            new = ~new
        self.arrays = self.arrays._replace(ranks=np.concatenate([ranks, new]))

    def _change(self, rows: Int64s, step: int) -> None:
        """Insert clauses (``step`` 1) or remove them (-1), and make room where the kernel stops."""
        change, scratch = self._working or self._new_working()
        change.progress[:] = 0
        scratch.state[N_TASKS] = 0
        self._working = None  # not for another change, if this one fails

        def make_way(why: int) -> None:
            nonlocal change, scratch
            if why == TREE_IS_FULL:
                wanted = int(scratch.state[WANTED])
                self.arrays = packed_if_worth(self.arrays)
                self.arrays = with_room(self.arrays, wanted)
            elif why in (ROWS_ARE_FULL, TASKS_ARE_FULL, CHOICES_ARE_FULL):
                scratch = with_larger_scratch(scratch, why)
            elif why == ORDER_IS_OLD:
                self._order_anew()
                change.progress[IS_ORDERED] = 1
            else:
                larger = {
                    name: resized(getattr(change, name), 2 * len(change.ways))
                    for name in ("ways", "is_covered", "due")
                }
                change = change._replace(**larger)

        def run() -> int:
            return int(change_tree(self.arrays, self.clauses, rows, step, change, scratch))

        run_until_done(run, make_way)
        if len(scratch.rows) <= 64 * LEAST_ROWS:
            self._working = change, scratch

    def _order_anew(self) -> None:
        """Put keywords in the order of their frequencies now; all nodes must be built anew."""
        sample = self._sample(None)
        ranks = ranks_of(self.frequencies, self.parameters.keyword_order)
        offsets, sample_ranks, places = ranked_sample(sample, ranks)
        self.arrays = self.arrays._replace(
            ranks=ranks,
            sample_offsets=offsets,
            sample_ranks=sample_ranks,
            sample_places=places,
        )

    def _new_working(self) -> tuple[ChangeScratch, BuildScratch]:
        scratch = build_scratch(self.parameters, LEAST_ROWS, LEAST_ROWS, self.arrays)
        return change_scratch(self.parameters), scratch

    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        n_tokens = max(self.n_tokens, 1)
        # Each node on the stack leaves its siblings behind it; a path has a level per keyword.
        n_levels = MOST_REPEATS + MOST_SPACE_LEVELS + 1
        deepest = int(self.arrays.offsets.max(initial=1)) + n_levels
        n_stack = deepest * (self.parameters.fanout + 1)
        return {
            "marks": (n_tokens, np.uint8),
            "serial": (1, np.int64),
            "signature": (SIGNATURE_WORDS, np.uint64),
            "ranks": (len(self.arrays.ranks) + 1, np.int32),
            "counting": (2 * MOST_COUNTED, np.int32),
            "stack": (n_stack, np.int32),
            "etas": (n_stack, np.int32),
            "region": (4, np.float64),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_working": None}


# ---- what was saved ------------------------------------------------------------------------------


def _check(tree: ApTreeArrays, n_clauses: int, n_tokens: int) -> None:
    """Refuse a tree whose numbers lead out of its arrays, before a kernel follows them."""
    facts = tree.facts
    demand("facts", len(facts) == nodes.N_FACTS, len(tree.rules) == nodes.N_RULES)
    n = int(facts[nodes.N_NODES])
    demand("nodes", 1 <= n <= min(len(getattr(tree, name)) for name in BY_NODE))
    for end, _, names in PIECES:
        most = min(len(getattr(tree, name)) - (BLOCK if name == "keys" else 0) for name in names)
        demand(names[0], 0 <= facts[end] <= most)
    demand("ranks", len(tree.ranks) >= n_tokens, len(tree.extent) == 4)
    kinds, parents, positions = tree.kinds[:n], tree.parents[:n], tree.positions[:n]
    demand("kinds", kinds[0] != FREE, kinds <= SPACE)
    demand("parents", parents >= -1, parents < n, -1 <= facts[nodes.FREE_NODE] < n)
    is_list, is_keywords, is_space = (kinds == kind for kind in (LIST, KEYWORDS, SPACE))
    starts, extras, sizes = tree.starts[:n], tree.extras[:n], tree.sizes[:n].astype(np.int64)
    columns, rows = sizes & 0xFFFF, sizes >> 16
    demand("sizes", sizes >= 0, sizes[is_keywords] >= 1, (columns * rows)[is_space] >= 1)
    n_children = np.where(is_keywords, sizes + 1, columns * rows + 1)
    for chosen, begins, lengths, end in (
        (is_list, starts, sizes, nodes.LIST_END),
        (is_keywords | is_space, starts, n_children, nodes.CHILD_END),
        (is_keywords, extras, sizes, nodes.CUT_END),
        (is_space, extras, columns + rows + 2, nodes.EDGE_END),
    ):
        stops = begins[chosen] + lengths[chosen]
        demand("starts", begins[chosen] >= 0, stops <= facts[end])
    n_below = tree.n_below[:n].astype(np.int64)
    demand("n_below", n_below[is_list] >= 0, n_below[is_list] <= sizes[is_list])
    inner = np.flatnonzero(is_keywords | is_space)
    owners, places = members(inner, n_children[inner])
    children = tree.children[starts[owners] + places]
    demand("children", children >= -1, children != 0, children < n)
    owners, places, children = (each[children > 0] for each in (owners, places, children))
    demand("children", parents[children] == owners, positions[children] == places)
    demand("children", kinds[children] != FREE)
    lists = np.flatnonzero(is_list)
    owners, places = members(lists, n_below[lists])
    entries = tree.rows[starts[owners] + places]
    demand("rows", entries >= 0, entries < n_clauses)
    prints = tree.prints[starts[owners] + places]
    for shift in (0, 32):
        demand("prints", (prints >> np.uint64(shift) & nodes.TOKEN) < n_tokens)
    offsets = tree.sample_offsets
    demand("sample_offsets", len(offsets) > 0, offsets[:1] == 0, np.diff(offsets) >= 0)
    demand("sample_ranks", offsets[-1] <= len(tree.sample_ranks))
    demand("sample_places", tree.sample_places.shape == (len(offsets) - 1, 2))
