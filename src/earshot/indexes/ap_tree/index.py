"""The AP-Tree of [VLDBJ15] section 3: built by a cost model, changed in place.

:mod:`earshot.indexes.ap_tree.kernels.nodes` describes the tree. Its hit probabilities come from a
sample of messages, if :meth:`~earshot.indexes.contract.Index.build` is given one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from earshot import storage
from earshot.errors import InvalidParameter
from earshot.indexes.ap_tree.kernels import nodes
from earshot.indexes.ap_tree.kernels.build import (
    CHOICES_ARE_FULL,
    N_TASKS,
    ROWS_ARE_FULL,
    TASK_COLUMNS,
    TASKS_ARE_FULL,
    TREE_IS_FULL,
    WANTED,
    BuildScratch,
    push_task,
)
from earshot.indexes.ap_tree.kernels.changes import (
    IS_ORDERED,
    ORDER_IS_OLD,
    ChangeScratch,
    change_tree,
    fill_extent,
    make_keys_anew,
    pack_pieces,
)
from earshot.indexes.ap_tree.kernels.match import ApScratch
from earshot.indexes.ap_tree.kernels.nodes import (
    FREE,
    KEYWORDS,
    LIST,
    MAY_KEYWORDS,
    MAY_SPACE,
    MOST_REPEATS,
    MOST_SPACE_LEVELS,
    SPACE,
    ApTreeArrays,
)
from earshot.indexes.ap_tree.kernels.partition import MOST_MEASURED, PartitionScratch
from earshot.indexes.consistency import checking, demand, members
from earshot.indexes.contract import BuildInput, Parameters
from earshot.indexes.in_place import (
    InPlaceIndex,
    is_short,
    is_worth_packing,
    more_places,
    packed_places,
)
from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.box_keys import BLOCK, DEAD_KEY
from earshot.kernels.growing import resized
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import (
    Int32s,
    Int64s,
    MessageArrays,
    gather_ranges,
    numbers_of,
    offsets_of,
    take_messages,
)

KeywordPartition = Literal["heuristic", "dp"]
Priority = Literal["cost", "keyword", "space"]
KeywordOrder = Literal["frequent", "rare"]

MOST_SAMPLED = 8192
"""Messages of a sample that are kept; of more, those at even steps."""

_LEAST_QUANTIZED = 256
_MOST_FANOUT = 4096
_LEAST_ROWS = 4096
_SAMPLE_COPIES = 12


@dataclass(frozen=True)
class ApTreeParameters(Parameters):
    """Options of an AP-Tree.

    Attributes:
        fanout: Most cuts of a k-node and cells of an s-node, ``f`` in the paper.
        max_list: Length from which a list is split, ``theta_p``.
        keyword_partition: ``heuristic`` (HR) or ``dp``, the optimal one by dynamic programming.
        priority: ``cost`` chooses by the cost model; ``keyword`` (KPriority) and ``space``
            (SPriority) always take the one where it gains anything.
        keyword_order: Which keywords come first: the ``rare`` ones, or the ``frequent`` ones as in
            the paper. Rare ones first made messages of 30 and 50 words 1.8 times as fast, and
            shorter ones 1.2 times.
        rebuilds: Whether subtrees are rebuilt where weights have drifted; not so in AP-Tree-NR.
        max_divergence: KL divergence beyond which they are, ``theta_KL``.
        min_share: Share of all clauses that a subtree must have to be rebuilt.
    """

    fanout: int = 200
    max_list: int = 40
    keyword_partition: KeywordPartition = "heuristic"
    priority: Priority = "cost"
    keyword_order: KeywordOrder = "rare"
    rebuilds: bool = True
    max_divergence: float = 0.001
    min_share: float = 0.001

    def __post_init__(self) -> None:
        for name, least, most in (("fanout", 2, _MOST_FANOUT), ("max_list", 4, 1 << 20)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidParameter(
                    f"{name} is {value!r}; expected a whole number, {least} to {most}"
                )
        for name, kind in (
            ("keyword_partition", KeywordPartition),
            ("priority", Priority),
            ("keyword_order", KeywordOrder),
        ):
            if (value := getattr(self, name)) not in get_args(kind):
                raise InvalidParameter(
                    f"{name} is {value!r}; expected one of {', '.join(get_args(kind))}"
                )
        if not isinstance(self.rebuilds, bool):
            raise InvalidParameter(f"rebuilds is {self.rebuilds!r}; expected True or False")
        for name, above in (("max_divergence", np.inf), ("min_share", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidParameter(f"{name} is {value!r}; expected a number")
            if not 0 < value <= above:
                raise InvalidParameter(
                    f"{name} is {value!r}; expected a number above 0"
                    + ("" if above == np.inf else f", up to {above:g}")
                )

    def rules(self) -> npt.NDArray[np.float64]:
        """Return the parameters as kernels read them."""
        rules = np.zeros(nodes.N_RULES)
        rules[nodes.FANOUT] = self.fanout
        rules[nodes.MOST_IN_LIST] = self.max_list
        rules[nodes.LEAST_DIVERGENCE] = self.max_divergence if self.rebuilds else np.inf
        rules[nodes.LEAST_SHARE] = self.min_share
        rules[nodes.PARTITION] = ("heuristic", "dp").index(self.keyword_partition)
        rules[nodes.PRIORITY] = ("cost", "keyword", "space").index(self.priority)
        rules[nodes.IS_RARE_FIRST] = self.keyword_order == "rare"
        return rules


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
        n = len(clauses.subscriptions)
        ranks = ranks_of(given.known, parameters.keyword_order)
        tree = _empty_tree(parameters, quantizer_of(clauses.boxes, "lonlat"), ranks, given.sample)
        scratch = _build_scratch(parameters, int(2.2 * n) + _LEAST_ROWS, n, tree)
        rows = np.arange(n, dtype=np.int32)
        fill_extent(clauses, rows, tree.extent)
        n_sampled = len(tree.sample_places)
        scratch.rows[:n] = rows
        scratch.messages[:n_sampled] = np.arange(n_sampled)
        scratch.etas[:n_sampled] = 0
        flags = MAY_KEYWORDS | (MAY_SPACE if tree.extent[0] <= tree.extent[2] else 0)
        push_task(scratch, 0, 0, n, 0, n_sampled, 1, flags, 0, 0, tree.extent)

        def make_way(why: int) -> None:
            nonlocal tree, scratch
            if why == TREE_IS_FULL:
                tree = _with_room(tree, int(scratch.state[WANTED]))
            else:
                scratch = _with_larger_scratch(scratch, why)

        change, no_rows = _change_scratch(parameters), np.empty(0, np.int64)

        def build() -> int:
            return int(change_tree(tree, clauses, no_rows, 1, change, scratch))

        run_until_done(build, make_way)
        tree.facts[nodes.N_CLAUSES] = n
        return _packed(tree, spare=0.0)

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
        self._pack_if_worth()

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
                self._pack_if_worth()
                self.arrays = _with_room(self.arrays, wanted)
            elif why in (ROWS_ARE_FULL, TASKS_ARE_FULL, CHOICES_ARE_FULL):
                scratch = _with_larger_scratch(scratch, why)
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
        if len(scratch.rows) <= 64 * _LEAST_ROWS:
            self._working = change, scratch

    def _order_anew(self) -> None:
        """Put keywords in the order of their frequencies now; all nodes must be built anew."""
        sample = self._sample(None)
        ranks = ranks_of(self.frequencies, self.parameters.keyword_order)
        offsets, sample_ranks, places = _ranked_sample(sample, ranks)
        self.arrays = self.arrays._replace(
            ranks=ranks,
            sample_offsets=offsets,
            sample_ranks=sample_ranks,
            sample_places=places,
        )

    def _new_working(self) -> tuple[ChangeScratch, BuildScratch]:
        scratch = _build_scratch(self.parameters, _LEAST_ROWS, _LEAST_ROWS, self.arrays)
        return _change_scratch(self.parameters), scratch

    def _pack_if_worth(self) -> None:
        facts = self.arrays.facts
        pieces = (
            (nodes.CHILD_GARBAGE, nodes.CHILD_END, 8),
            (nodes.CUT_GARBAGE, nodes.CUT_END, 8),
            (nodes.EDGE_GARBAGE, nodes.EDGE_END, 8),
            (nodes.LIST_GARBAGE, nodes.LIST_END, 16),
        )
        garbage = sum(int(facts[garbage]) * size for garbage, _, size in pieces)
        used = sum(int(facts[end]) * size for _, end, size in pieces)
        if garbage > 1 << 16 and is_worth_packing(garbage, used):
            self.arrays = _packed(self.arrays)

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
            "stack": (n_stack, np.int32),
            "etas": (n_stack, np.int32),
            "region": (4, np.float64),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_working": None}


# ---- building ------------------------------------------------------------------------------------


def ranks_of(frequencies: Int64s, order: KeywordOrder) -> Int32s:
    """Return the place of each token in the order of keywords."""
    by_frequency = np.argsort(frequencies if order == "rare" else -frequencies, kind="stable")
    ranks = np.empty(len(frequencies), np.int32)
    ranks[by_frequency] = np.arange(len(frequencies), dtype=np.int32)
    return ranks


def _empty_tree(
    parameters: ApTreeParameters, quantizer: Any, ranks: Int32s, sample: MessageArrays | None
) -> ApTreeArrays:
    """Return a tree that has a root and no clause."""
    facts = np.zeros(nodes.N_FACTS, np.int64)
    facts[nodes.FREE_NODE], facts[nodes.N_NODES] = -1, 1
    offsets, sample_ranks, places = _ranked_sample(sample, ranks)
    kinds = np.zeros(1, np.uint8)
    kinds[0] = LIST
    return ApTreeArrays(
        facts=facts,
        rules=parameters.rules(),
        extent=np.zeros(4),
        quantizer=quantizer,
        ranks=ranks,
        kinds=kinds,
        offsets=np.zeros(1, np.int16),
        positions=np.zeros(1, np.int16),
        parents=np.full(1, -1, np.int32),
        n_below=np.zeros(1, np.int32),
        n_changes=np.zeros(1, np.int32),
        sizes=np.zeros(1, np.int32),
        starts=np.zeros(1, np.int64),
        extras=np.zeros(1, np.int64),
        totals=np.zeros(1, np.int32),
        fixed=np.zeros(1),
        moving=np.zeros(1),
        children=np.empty(0, np.int32),
        shares=np.empty(0, np.float32),
        firsts=np.empty(0, np.int32),
        lasts=np.empty(0, np.int32),
        edges=np.empty(0),
        keys=np.full(BLOCK, DEAD_KEY),
        rows=np.empty(0, np.int32),
        prints=np.empty(0, np.uint32),
        sample_offsets=offsets,
        sample_ranks=sample_ranks,
        sample_places=places,
    )


def _ranked_sample(
    sample: MessageArrays | None, ranks: Int32s
) -> tuple[Int64s, Int32s, npt.NDArray[np.float64]]:
    """Return messages of a sample by the ranks of their tokens and the centres of their boxes."""
    if sample is None or len(sample.boxes) == 0:
        return np.zeros(1, np.int64), np.empty(0, np.int32), np.empty((0, 2))
    if len(sample.boxes) > MOST_SAMPLED:
        sample = take_messages(
            sample, np.linspace(0, len(sample.boxes) - 1, MOST_SAMPLED).astype(np.int64)
        )
    _, positions = gather_ranges(sample.token_offsets, np.arange(len(sample.boxes)))
    tokens = sample.token_ids[positions]
    messages = np.repeat(np.arange(len(sample.boxes)), np.diff(sample.token_offsets))
    messages, tokens = messages[tokens < len(ranks)], tokens[tokens < len(ranks)]
    order = np.lexsort((ranks[tokens], messages))
    lengths = np.bincount(messages, minlength=len(sample.boxes))
    boxes = np.clip(sample.boxes, -np.finfo(np.float64).max / 4, np.finfo(np.float64).max / 4)
    return offsets_of(lengths), ranks[tokens[order]], 0.5 * (boxes[:, :2] + boxes[:, 2:])


def _change_scratch(parameters: ApTreeParameters) -> ChangeScratch:
    n = 4 * (parameters.fanout + 2)
    return ChangeScratch(
        progress=np.zeros(4, np.int64),
        ways=np.zeros(n, np.int32),
        is_covered=np.zeros(n, np.int32),
        due=np.zeros(n, np.int32),
        region=np.zeros(4),
    )


def _build_scratch(
    parameters: ApTreeParameters, n_rows: int, n_clauses: int, tree: ApTreeArrays
) -> BuildScratch:
    fanout, n_sampled = parameters.fanout, len(tree.sample_places)
    n_tasks = 8 * (fanout + 2)
    return BuildScratch(
        state=np.zeros(2, np.int64),
        tasks=np.empty((n_tasks, TASK_COLUMNS), np.int64),
        regions=np.empty((n_tasks, 4)),
        rows=np.empty(n_rows, np.int32),
        messages=np.empty(_SAMPLE_COPIES * n_sampled, np.int32),
        etas=np.empty(_SAMPLE_COPIES * n_sampled, np.int32),
        ends=np.empty(fanout + 2, np.int64),
        sample_ends=np.empty(fanout + 2, np.int64),
        partition=_partition_scratch(fanout, n_clauses, 0, 0),
    )


def _partition_scratch(fanout: int, n: int, n_costs: int, n_choices: int) -> PartitionScratch:
    ranks, sorted_ranks, spare, distinct = (np.empty(n, np.int32) for _ in range(4))
    lows, highs, middles, seen = (np.empty(MOST_MEASURED + 1) for _ in range(4))
    return PartitionScratch(
        ranks=ranks,
        sorted_ranks=sorted_ranks,
        spare=spare,
        distinct=distinct,
        weights=np.empty(n + 1),
        chances=np.empty(n + 1),
        counts=np.empty(512, np.int64),
        cuts=np.empty(fanout + 2, np.int64),
        costs=np.empty((2, n_costs)),
        choices=np.empty(n_choices, np.int32),
        lows=lows,
        highs=highs,
        middles=middles,
        seen=seen,
        edges=np.empty(2 * fanout + 4),
        grid=np.empty((2, 4 * fanout + 16)),
    )


def _with_larger_scratch(scratch: BuildScratch, why: int) -> BuildScratch:
    """Return working memory with more room for what was full."""
    wanted, own = int(scratch.state[WANTED]), scratch.partition
    fanout, n = len(scratch.ends) - 2, len(own.ranks)
    if why == TASKS_ARE_FULL:
        n_tasks = 2 * len(scratch.tasks)
        return scratch._replace(
            tasks=resized(scratch.tasks, n_tasks), regions=resized(scratch.regions, n_tasks)
        )
    if why == CHOICES_ARE_FULL:
        # Never more keywords than clauses.
        return scratch._replace(partition=_partition_scratch(fanout, n, n + 1, wanted))
    larger = max(n, min(wanted, len(scratch.rows) * 2))
    if wanted > n:
        own = _partition_scratch(fanout, max(larger, wanted), 0, 0)
    rows = resized(scratch.rows, wanted + wanted // 4, None)
    return scratch._replace(rows=rows, partition=own)


# ---- room ----------------------------------------------------------------------------------------

_BY_NODE = (
    "kinds", "offsets", "positions", "parents", "n_below", "n_changes", "sizes", "starts", "extras",
    "totals", "fixed", "moving",
)  # fmt: skip
_PIECES = (
    (nodes.CHILD_END, nodes.CHILD_GARBAGE, ("children", "shares")),
    (nodes.CUT_END, nodes.CUT_GARBAGE, ("firsts", "lasts")),
    (nodes.EDGE_END, nodes.EDGE_GARBAGE, ("edges",)),
    (nodes.LIST_END, nodes.LIST_GARBAGE, ("rows", "prints", "keys")),
)


def _with_room(tree: ApTreeArrays, n_places: int) -> ApTreeArrays:
    """Return the tree with room for more nodes, and a list of so many more places."""
    fanout, facts = int(tree.rules[nodes.FANOUT]), tree.facts
    larger: dict[str, Any] = {}
    wanted = int(facts[nodes.N_NODES]) + fanout + 1
    if wanted > len(tree.kinds):
        n = max(wanted, more_places(len(tree.kinds)))
        larger |= {name: resized(getattr(tree, name), n) for name in _BY_NODE}
    more = (fanout + 1, fanout, 2 * fanout + 2, n_places)
    for (end, _, names), n_more in zip(_PIECES, more, strict=True):
        used, n_now = int(facts[end]), len(getattr(tree, names[0]))
        if used + n_more <= n_now and not is_short(n_now, used):
            continue
        n = max(used + n_more, more_places(n_now))
        larger |= _with_length(tree, names, n)
    return tree._replace(**larger)


def _with_length(tree: ApTreeArrays, names: tuple[str, ...], n: int) -> dict[str, Any]:
    larger = {name: resized(getattr(tree, name), max(n, len(getattr(tree, name))), None)
              for name in names if name != "keys"}  # fmt: skip
    if "keys" in names:
        larger["keys"] = resized(tree.keys, max(n + BLOCK, len(tree.keys)), DEAD_KEY)
    return larger


def _packed(tree: ApTreeArrays, **spare: float) -> ApTreeArrays:
    """Return the tree without garbage, and with a share of each array to spare."""
    facts = tree.facts
    packed: dict[str, Any] = {}
    for end, garbage, names in _PIECES:
        n = packed_places(int(facts[end]), int(facts[garbage]), **spare)
        for name in names:
            old = getattr(tree, name)
            if name == "keys":
                packed[name] = np.full(n + BLOCK, DEAD_KEY)
            else:
                packed[name] = np.empty(n, old.dtype)
    target = tree._replace(**packed)
    ends = pack_pieces(tree, target)
    for (end, garbage, _), n in zip(_PIECES, ends, strict=True):
        facts[end], facts[garbage] = n, 0
    if spare.get("spare") == 0.0:
        n_nodes = int(facts[nodes.N_NODES])
        target = target._replace(
            **{name: getattr(tree, name)[:n_nodes].copy() for name in _BY_NODE}
        )
    return target


# ---- what was saved ------------------------------------------------------------------------------


def _check(tree: ApTreeArrays, n_clauses: int, n_tokens: int) -> None:
    """Refuse a tree whose numbers lead out of its arrays, before a kernel follows them."""
    facts = tree.facts
    demand("facts", len(facts) == nodes.N_FACTS, len(tree.rules) == nodes.N_RULES)
    n = int(facts[nodes.N_NODES])
    demand("nodes", 1 <= n <= min(len(getattr(tree, name)) for name in _BY_NODE))
    for end, _, names in _PIECES:
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
    offsets = tree.sample_offsets
    demand("sample_offsets", len(offsets) > 0, offsets[:1] == 0, np.diff(offsets) >= 0)
    demand("sample_ranks", offsets[-1] <= len(tree.sample_ranks))
    demand("sample_places", tree.sample_places.shape == (len(offsets) - 1, 2))
