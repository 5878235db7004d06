"""Building an AP-Tree over clauses, and making room in one.

Shared by the AP-Tree and by the AP+-Tree of moving subscribers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from earshot.indexes.ap_tree.kernels import nodes
from earshot.indexes.ap_tree.kernels.build import (
    CHOICES_ARE_FULL,
    TASK_COLUMNS,
    TASKS_ARE_FULL,
    TREE_IS_FULL,
    WANTED,
    BuildScratch,
    push_task,
)
from earshot.indexes.ap_tree.kernels.changes import (
    ChangeScratch,
    change_tree,
    fill_extent,
    pack_pieces,
)
from earshot.indexes.ap_tree.kernels.motion import Motion
from earshot.indexes.ap_tree.kernels.nodes import (
    LIST,
    MAY_KEYWORDS,
    MAY_SPACE,
    ApTreeArrays,
)
from earshot.indexes.ap_tree.kernels.partition import MOST_MEASURED, PartitionScratch
from earshot.indexes.ap_tree.parameters import ApTreeParameters, KeywordOrder
from earshot.indexes.in_place import is_short, is_worth_packing, more_places, packed_places
from earshot.kernels.box_keys import BLOCK, DEAD_KEY
from earshot.kernels.growing import resized
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import (
    ClauseArrays,
    Int32s,
    Int64s,
    MessageArrays,
    gather_ranges,
    offsets_of,
    take_messages,
)

MOST_SAMPLED = 8192
"""Messages of a sample that are kept; of more, those at even steps."""

LEAST_ROWS = 4096
_SAMPLE_COPIES = 12


# ---- building ------------------------------------------------------------------------------------


def build_tree(
    parameters: ApTreeParameters, clauses: ClauseArrays, rows: Int32s, quantizer: Any,
    ranks: Int32s, sample: MessageArrays | None, motion: Motion | None = None,
) -> ApTreeArrays:  # fmt: skip
    """Return a tree of some of the clauses, which may move."""
    n = len(rows)
    tree = empty_tree(parameters, quantizer, ranks, sample)
    scratch = build_scratch(parameters, int(2.2 * n) + LEAST_ROWS, n, tree, motion)
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
            tree = with_room(tree, int(scratch.state[WANTED]))
        else:
            scratch = with_larger_scratch(scratch, why)

    change, no_rows = change_scratch(parameters), np.empty(0, np.int64)

    def build() -> int:
        return int(change_tree(tree, clauses, no_rows, 1, change, scratch))

    tree.facts[nodes.N_CLAUSES] = n
    run_until_done(build, make_way)
    return packed_tree(tree, spare=0.0)


def packed_if_worth(tree: ApTreeArrays) -> ApTreeArrays:
    """Return the tree, without garbage where there is much."""
    facts = tree.facts
    pieces = (
        (nodes.CHILD_GARBAGE, nodes.CHILD_END, 8),
        (nodes.CUT_GARBAGE, nodes.CUT_END, 8),
        (nodes.EDGE_GARBAGE, nodes.EDGE_END, 8),
        (nodes.LIST_GARBAGE, nodes.LIST_END, 16),
    )
    garbage = sum(int(facts[garbage]) * size for garbage, _, size in pieces)
    used = sum(int(facts[end]) * size for _, end, size in pieces)
    if garbage > 1 << 16 and is_worth_packing(garbage, used):
        return packed_tree(tree)
    return tree


def ranks_of(frequencies: Int64s, order: KeywordOrder) -> Int32s:
    """Return the place of each token in the order of keywords."""
    by_frequency = np.argsort(frequencies if order == "rare" else -frequencies, kind="stable")
    ranks = np.empty(len(frequencies), np.int32)
    ranks[by_frequency] = np.arange(len(frequencies), dtype=np.int32)
    return ranks


def empty_tree(
    parameters: ApTreeParameters, quantizer: Any, ranks: Int32s, sample: MessageArrays | None
) -> ApTreeArrays:
    """Return a tree that has a root and no clause."""
    facts = np.zeros(nodes.N_FACTS, np.int64)
    facts[nodes.FREE_NODE], facts[nodes.N_NODES] = -1, 1
    offsets, sample_ranks, places = ranked_sample(sample, ranks)
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
        prints=np.empty(0, np.uint64),
        sample_offsets=offsets,
        sample_ranks=sample_ranks,
        sample_places=places,
    )


def ranked_sample(
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


def change_scratch(parameters: ApTreeParameters) -> ChangeScratch:
    """Return working memory for changes."""
    n = 4 * (parameters.fanout + 2)
    return ChangeScratch(
        progress=np.zeros(4, np.int64),
        ways=np.zeros(n, np.int32),
        is_covered=np.zeros(n, np.int32),
        due=np.zeros(n, np.int32),
        region=np.zeros(4),
    )


def motion_of(fanout: int, reports: float, velocities: npt.NDArray[np.float32]) -> Motion:
    """Return how subscriptions move; see :mod:`earshot.indexes.ap_tree.kernels.motion`."""
    return Motion(np.array([reports]), velocities, np.empty((2, 4 * fanout + 16)))


def build_scratch(
    parameters: ApTreeParameters, n_rows: int, n_clauses: int, tree: ApTreeArrays,
    motion: Motion | None = None,
) -> BuildScratch:  # fmt: skip
    """Return working memory to build from so many clauses, with copies so many rows."""
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
        partition=partition_scratch(fanout, n_clauses, 0, 0, motion),
    )


def partition_scratch(
    fanout: int, n: int, n_costs: int, n_choices: int, motion: Motion | None = None
) -> PartitionScratch:
    """Return working memory to divide a node of ``n`` clauses."""
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
        motion=motion or motion_of(fanout, 0.0, np.empty((0, 2), np.float32)),
    )


def with_larger_scratch(scratch: BuildScratch, why: int) -> BuildScratch:
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
        return scratch._replace(partition=partition_scratch(fanout, n, n + 1, wanted, own.motion))
    larger = max(n, min(wanted, len(scratch.rows) * 2))
    if wanted > n:
        own = partition_scratch(fanout, max(larger, wanted), 0, 0, own.motion)
    rows = resized(scratch.rows, wanted + wanted // 4, None)
    return scratch._replace(rows=rows, partition=own)


# ---- room ----------------------------------------------------------------------------------------

BY_NODE = (
    "kinds", "offsets", "positions", "parents", "n_below", "n_changes", "sizes", "starts", "extras",
    "totals", "fixed", "moving",
)  # fmt: skip
PIECES = (
    (nodes.CHILD_END, nodes.CHILD_GARBAGE, ("children", "shares")),
    (nodes.CUT_END, nodes.CUT_GARBAGE, ("firsts", "lasts")),
    (nodes.EDGE_END, nodes.EDGE_GARBAGE, ("edges",)),
    (nodes.LIST_END, nodes.LIST_GARBAGE, ("rows", "prints", "keys")),
)


def with_room(tree: ApTreeArrays, n_places: int, n_children: int = 0) -> ApTreeArrays:
    """Return the tree with room for more nodes, and a list of so many more places.

    ``n_children`` of a node have room, or as many as it is built with.
    """
    fanout, facts = max(n_children, int(tree.rules[nodes.FANOUT])), tree.facts
    larger: dict[str, Any] = {}
    wanted = int(facts[nodes.N_NODES]) + fanout + 1
    if wanted > len(tree.kinds):
        n = max(wanted, more_places(len(tree.kinds)))
        larger |= {name: resized(getattr(tree, name), n) for name in BY_NODE}
    more = (fanout + 1, fanout, 2 * fanout + 2, n_places)
    for (end, _, names), n_more in zip(PIECES, more, strict=True):
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


def packed_tree(tree: ApTreeArrays, **spare: float) -> ApTreeArrays:
    """Return the tree without garbage, and with a share of each array to spare."""
    facts = tree.facts
    packed: dict[str, Any] = {}
    for end, garbage, names in PIECES:
        n = packed_places(int(facts[end]), int(facts[garbage]), **spare)
        for name in names:
            old = getattr(tree, name)
            if name == "keys":
                packed[name] = np.full(n + BLOCK, DEAD_KEY)
            else:
                packed[name] = np.empty(n, old.dtype)
    target = tree._replace(**packed)
    ends = pack_pieces(tree, target)
    for (end, garbage, _), n in zip(PIECES, ends, strict=True):
        facts[end], facts[garbage] = n, 0
    if spare.get("spare") == 0.0:
        n_nodes = int(facts[nodes.N_NODES])
        target = target._replace(**{name: getattr(tree, name)[:n_nodes].copy() for name in BY_NODE})
    return target
