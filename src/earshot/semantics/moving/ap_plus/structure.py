"""The AP+-Tree and its variants: with safe regions; AP+k and AP+s, whose messages lie elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from earshot.indexes.ap_tree.building import (
    LEAST_ROWS,
    build_scratch,
    build_tree,
    change_scratch,
    motion_of,
    packed_if_worth,
    with_larger_scratch,
)
from earshot.indexes.ap_tree.building import with_room as with_tree_room
from earshot.indexes.ap_tree.kernels import nodes
from earshot.indexes.ap_tree.kernels.build import (
    CHOICES_ARE_FULL,
    ROWS_ARE_FULL,
    TASKS_ARE_FULL,
    TREE_IS_FULL,
    WANTED,
)
from earshot.indexes.ap_tree.kernels.changes import N_DUE as N_TREE_DUE
from earshot.indexes.ap_tree.kernels.changes import change_tree, is_due
from earshot.indexes.ap_tree.kernels.match import MOST_COUNTED
from earshot.indexes.ap_tree.kernels.motion import Motion
from earshot.indexes.ap_tree.parameters import ApTreeParameters
from earshot.indexes.quadtree.index import check_whole
from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.box_keys import TOP
from earshot.kernels.growing import resized, with_room
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    Space,
    no_shapes,
)
from earshot.semantics.moving import cell_lists
from earshot.semantics.moving.ap_plus.kernels import arrays as ap
from earshot.semantics.moving.ap_plus.kernels.arrays import (
    ApPlusArrays,
    ApPlusCore,
    ApSafeArrays,
    ApSeparateArrays,
    MessageLists,
    Places,
    Walk,
)
from earshot.semantics.moving.ap_plus.kernels.changes import IS, LOCATED, WAS, change_slots, n_stack
from earshot.semantics.moving.ap_plus.kernels.messages import (
    collect_messages,
    fill_words,
    hand_down,
    lift_messages,
    sweep_messages,
)
from earshot.semantics.moving.cell_lists import (
    CELLS_OF_KEYS,
    KkIndex,
    SsIndex,
    knows_more,
    no_words,
    with_blocks,
)
from earshot.semantics.moving.contract import Structure
from earshot.semantics.moving.kernels.arrays import (
    IS_LONLAT,
    LIVE,
    N_LIVE,
    N_ROWS,
    NEXT_SEQUENCE,
    Messages,
    Tables,
)
from earshot.semantics.moving.kernels.hashed_lists import WordLists
from earshot.semantics.moving.kernels.quadtree import (
    N_TREE_FACTS,
    SPARE_BLOCKS,
    TREE_BLOCKS,
    TREE_FREE_BLOCK,
    TREE_N_FREE,
    fill_tree,
)
from earshot.semantics.moving.quad_lists import empty_tree, larger_tree
from earshot.semantics.moving.tables import live_rows

_MOST_DUE = 64
_LIFE = 4.0
"""Reports of a subscription in the life of a message, while nobody knows: the paper's defaults."""
_VERIFIED = 0.25
"""What it costs to pass a message of an m-list, in clauses of an s-list."""
_SPARE_WORD_BLOCKS = 1024
Velocities = npt.NDArray[np.float32]
_FARTHEST = np.finfo(np.float64).max / 4.0
"""Coordinates beyond are rounded to it in the keys of m-lists."""
_BY_BLOCK = ("entry_keys", "entry_words", "entry_rows", "entry_ages")


@dataclass(frozen=True)
class ApPlusTree(Structure):
    """The AP+-Tree: keywords and space in turns, subscriptions and messages in the same lists.

    Attributes:
        fanout: Most cuts of a k-node and cells of an s-node, ``f`` in the paper.
        max_list: Length from which an s-list is split, ``theta_p``.
        max_copies: Nodes that keep a message at most.
        max_divergence: KL divergence beyond which a subtree is built anew, ``theta_KL``.
        min_share: Share of all subscriptions that a subtree must have for that.
    """

    name = "ap_plus_tree"
    arrays_type: ClassVar[type] = ApPlusArrays
    is_separate: ClassVar[bool] = False
    """Whether messages are in lists of their own."""

    fanout: int = 200
    max_list: int = 40
    max_copies: int = 64
    max_divergence: float = 0.001
    min_share: float = 0.001

    def __post_init__(self) -> None:
        self._tree_parameters()
        check_whole("max_copies", self.max_copies, 1, 4096)

    def _tree_parameters(self) -> ApTreeParameters:
        return ApTreeParameters(
            fanout=self.fanout, max_list=self.max_list, max_divergence=self.max_divergence,
            min_share=self.min_share,
        )  # fmt: skip

    # ---- building -----------------------------------------------------------------------------

    def build(self, tables: Tables, space: Space, held: ApPlusArrays | None = None) -> ApPlusArrays:
        """Return arrays with every live subscription and message."""
        subscribers, messages = tables.subscribers, tables.messages
        is_live = subscribers.flags[subscribers.clause_slots] & LIVE != 0
        rows = np.flatnonzero(is_live).astype(np.int32)
        boxes = _clause_boxes(tables)
        required = subscribers.token_ids[subscribers.token_ids >= 0]
        asked = np.bincount(required, minlength=len(messages.n_having))
        ranks = np.empty(len(asked), np.int32)
        # The words that the fewest messages have come first; of equals, those asked for least.
        ranks[np.lexsort((asked, messages.n_having))] = np.arange(len(asked), dtype=np.int32)
        velocities = np.zeros((len(boxes), 2), np.float32)
        if held is not None and held.core.facts[ap.N_TAKEN] <= len(boxes):  # by the same numbers
            n = min(len(boxes), len(held.core.places.velocities))
            velocities[:n] = held.core.places.velocities[:n]
        tree = build_tree(
            self._tree_parameters(), _clauses(tables, boxes), rows,
            quantizer_of(boxes[rows], space, CELLS_OF_KEYS), ranks, _sampled(messages),
            self._motion(tables, held, velocities),
        )  # fmt: skip
        facts = np.zeros(ap.N_PLUS_FACTS, np.int64)
        facts[ap.CLAUSE] = -1
        lengths = np.diff(subscribers.token_offsets)
        facts[ap.MOST_KEYWORDS] = lengths.max(initial=1)
        facts[ap.MOST_CHILDREN] = self.fanout + 2
        if held is not None:
            facts[ap.N_SEEN] = facts[ap.N_SEEN_BEFORE] = held.core.facts[ap.N_SEEN]
        facts[ap.N_TAKEN], facts[ap.FIRST_SEQUENCE] = len(boxes), messages.facts[NEXT_SEQUENCE]
        rules = np.zeros(ap.N_PLUS_RULES)
        rules[ap.MOST_COPIES] = self.max_copies
        rules[ap.IS_SEPARATE] = self.is_separate
        none = np.zeros(0, np.int32)
        states, flags = (
            np.where(is_live, ap.INSIDE, ap.OUTSIDE).astype(np.uint8),
            none.astype(np.uint8),
        )
        places = Places(
            boxes, states, velocities, np.full(len(boxes), -1, np.int32),
            np.full((len(boxes), ap.MOST_NODES), -1, np.int32),
            np.zeros((len(boxes), 8), np.float32), flags, np.zeros(_MOST_DUE, np.int32),
            np.zeros(4), np.zeros((0, 2), np.int32), none,
        )  # fmt: skip
        kept = np.zeros(self.max_copies + 1, np.int64)
        walk = Walk(none, none, none, np.zeros(2 * MOST_COUNTED, np.int32), none, kept)
        lists = _no_lists(tree.extent)
        core = ApPlusCore(facts, rules, tree, lists, no_words(), places, walk)
        arrays = self._grown(self._joined(core, tables), tables)
        arrays = self._changed(arrays, tables, rows, LOCATED)
        if self.is_separate:
            return arrays
        row = 0
        while (row := _filled_words(arrays.core, messages, row)) < messages.facts[N_ROWS]:
            arrays = self._grown(arrays, tables)
        return self._handed_down(arrays, tables, 0, live_rows(messages).astype(np.int32))

    def _motion(self, tables: Tables, held: ApPlusArrays | None, ways: Velocities) -> Motion:
        """Return how subscriptions move, from what was seen since all was built."""
        facts = tables.messages.facts
        velocities, arrivals = np.empty((0, 2), np.float32), facts[N_LIVE] / _LIFE
        if held is not None:
            n_clauses = max(int(held.core.tree.facts[nodes.N_CLAUSES]), 1)
            n_reports = held.core.facts[ap.N_MOVES] / n_clauses
            if n_reports >= 1.0:
                seen = facts[NEXT_SEQUENCE] - held.core.facts[ap.FIRST_SEQUENCE]
                velocities, arrivals = ways, seen / n_reports
        reports = 1 / max(arrivals, 1.0)
        # A report compares a subscription with each message of its m-lists, whatever the node is.
        compared = 1.0 + _VERIFIED * reports * facts[N_LIVE]
        return motion_of(self.fanout, reports / compared, velocities)

    def _handed_down(
        self, arrays: ApPlusArrays, tables: Tables, node: int, rows: Int32s
    ) -> ApPlusArrays:
        """Return arrays in which messages have come to a node, and are kept below."""
        at = 0
        while (at := hand_down(arrays.core, tables.messages, node, rows, at)) < len(rows):
            arrays = self._grown(arrays, tables)
        return arrays

    # ---- room ---------------------------------------------------------------------------------

    def with_room(self, arrays: ApPlusArrays, tables: Tables) -> ApPlusArrays:
        """Return arrays with more room.

        Between changes, subscriptions that came are put in, those that ended are taken out, nodes
        that are due are built anew, and messages that have ended are taken out of lists.
        """
        core = arrays.core
        facts, messages = core.facts, tables.messages
        if facts[ap.CLAUSE] >= 0:
            return self._grown(arrays, tables)
        n_now, n_clauses = (
            int(core.tree.facts[nodes.N_CLAUSES]),
            len(tables.subscribers.clause_slots),
        )
        if n_clauses - facts[ap.N_TAKEN] > max(cell_lists.LEAST, n_now):
            return self.build(tables, _space(tables), arrays)
        if facts[ap.N_DEAD] > messages.facts[N_LIVE] and not self.is_separate:
            sweep_messages(facts, core.tree, core.lists, core.words, messages)
        arrays = self._grown(arrays, tables)
        if facts[ap.N_GONE] > max(cell_lists.LEAST, n_now // 8):
            gone = np.flatnonzero(core.places.states == ap.GONE)
            facts[ap.N_GONE] = 0
            arrays = self._changed(arrays, tables, gone, WAS)
        first, facts[ap.N_TAKEN] = int(facts[ap.N_TAKEN]), n_clauses
        if first < n_clauses:
            lengths = np.diff(tables.subscribers.token_offsets[first:])
            facts[ap.MOST_KEYWORDS] = max(facts[ap.MOST_KEYWORDS], lengths.max())
            arrays = self._changed(arrays, tables, np.arange(first, n_clauses), IS)
        return self._settled(arrays, tables)

    def _changed(
        self, arrays: ApPlusArrays, tables: Tables, clauses: Int32s | Int64s, mode: int
    ) -> ApPlusArrays:
        """Return arrays to which the subscriptions of alternatives have come, or from which."""
        slots, at = np.unique(tables.subscribers.clause_slots[clauses]), 0
        while (at := change_slots(arrays.core, tables, slots, mode, at)) < len(slots):
            if arrays.core.facts[ap.CLAUSE] < 0:
                arrays = self._settled(arrays, tables)
            else:
                arrays = self._grown(arrays, tables)
        return arrays

    def _settled(self, arrays: ApPlusArrays, tables: Tables) -> ApPlusArrays:
        """Return arrays in which nodes that were due are built anew."""
        facts, places = arrays.core.facts, arrays.core.places
        n_due, facts[ap.N_DUE] = int(facts[ap.N_DUE]), 0
        due = places.due[:n_due].tolist()
        places.is_noted[due] = 0
        if 0 in due and is_due(arrays.core.tree, 0):
            return self.build(tables, _space(tables), arrays)
        for node in due:
            arrays = self._built_anew(arrays, tables, node)
        return self._grown(arrays, tables)

    def _grown(self, arrays: ApPlusArrays, tables: Tables) -> ApPlusArrays:
        """Return arrays with more room wherever there is little left."""
        core = arrays.core
        facts, places, walk = core.facts, core.places, core.walk
        n_tokens, n_clauses = len(tables.messages.n_having), len(tables.subscribers.clause_slots)
        tree = packed_if_worth(core.tree)
        most = max(int(facts[ap.MOST_CHILDREN]), self.max_copies)
        tree = with_tree_room(tree, int(facts[ap.WANTED_PLACES]), most)
        if len(tree.ranks) < n_tokens:
            # The rarest, as nobody knows them.
            new = ~np.arange(len(tree.ranks), n_tokens + n_tokens // 8, dtype=np.int32)
            tree = tree._replace(ranks=np.concatenate([tree.ranks, new]))
        n_nodes, n_stacked = len(tree.kinds), int(n_stack(facts))
        n_blocks = self.max_copies + int(facts[ap.WANTED_BLOCKS]) + 2 * SPARE_BLOCKS
        facts[[ap.WANTED_PLACES, ap.WANTED_BLOCKS]] = 0
        grown = core._replace(
            tree=tree,
            lists=_grown_lists(core.lists, n_nodes, n_blocks),
            words=_grown_words(core.words, n_tokens, int(facts[ap.WANTED_WORDS])),
            places=places._replace(
                boxes=with_room(places.boxes, n_clauses),
                states=with_room(places.states, n_clauses, ap.OUTSIDE),
                velocities=with_room(places.velocities, n_clauses),
                homes=with_room(places.homes, n_clauses, -1),
                nodes=with_room(places.nodes, n_clauses, -1),
                bounds=with_room(places.bounds, n_clauses),
                is_noted=_longer(places.is_noted, n_nodes),
                ways=with_room(places.ways, n_stacked),
                found_rows=with_room(places.found_rows, int(facts[ap.WANTED_ROWS])),
            ),
            walk=walk._replace(
                stack=with_room(walk.stack, n_stacked),
                etas=with_room(walk.etas, n_stacked),
                ranks=with_room(walk.ranks, len(tree.ranks) + 1),
                reached=_longer(walk.reached, n_nodes),
            ),
        )
        return arrays._replace(core=grown)

    def _joined(self, core: ApPlusCore, tables: Tables) -> Any:
        """Return the arrays of the structure, with its messages if they are elsewhere."""
        return ApPlusArrays(core)

    # ---- nodes that are due -------------------------------------------------------------------

    def _built_anew(self, arrays: ApPlusArrays, tables: Tables, node: int) -> ApPlusArrays:
        """Return arrays in which a node was split, collapsed or built anew, if that is due."""
        core = arrays.core
        if core.tree.kinds[node] == nodes.FREE or not is_due(core.tree, node):
            return arrays
        rows = _lifted(core, tables.messages, node, not self.is_separate)
        tree = _tree_built_anew(
            self._tree_parameters(), core.tree, _clauses(tables, core.places.boxes), node,
            self._motion(tables, arrays, core.places.velocities),
        )  # fmt: skip
        arrays = self._grown(arrays._replace(core=core._replace(tree=tree)), tables)
        if tree.kinds[node] == nodes.FREE:  # nothing was left below
            return arrays
        return self._handed_down(arrays, tables, node, rows)

    def is_due(self, arrays: ApPlusArrays, tables: Tables) -> bool:
        """Whether more is known of words and places than when all was built."""
        facts = arrays.core.facts
        if facts[ap.IS_INCOMPLETE]:
            return True
        n_clauses = int(arrays.core.tree.facts[nodes.N_CLAUSES])
        return knows_more(n_clauses, int(facts[ap.N_SEEN]), int(facts[ap.N_SEEN_BEFORE]))


@dataclass(frozen=True)
class ApPlusSafe(ApPlusTree):
    """AP+-Tree-Safe: an AP+-Tree with safe and impact regions, in which moves change nothing.

    Beside it, a quadtree has all messages by place: m-lists tell only what is near one of the
    subscriptions, and not how far the next message is. [VLDBJ15] section 5.2 has it for clients
    that report only when they leave; here those who report all the same cost no search.
    """

    name = "ap_plus_tree_safe"
    arrays_type = ApSafeArrays
    keeps_safe_regions = True

    def build(self, tables: Tables, space: Space, held: Any = None) -> Any:
        """Return arrays with every live subscription and message."""
        built: Any = super().build(tables, space, held)
        tree = built.messages if held is None else held.messages
        row = 0 if held is None else int(tables.messages.facts[N_ROWS])
        while (row := fill_tree(tree, tables.messages, row)) < tables.messages.facts[N_ROWS]:
            tree = tree._replace(**larger_tree(tree))
        return built._replace(messages=tree)

    def _joined(self, core: ApPlusCore, tables: Tables) -> ApSafeArrays:
        return ApSafeArrays(core, empty_tree())

    def _grown(self, arrays: Any, tables: Tables) -> Any:
        """Return arrays with more room, for messages by place too."""
        grown: Any = super()._grown(arrays, tables)
        tree = grown.messages
        return grown._replace(messages=tree._replace(**larger_tree(tree)))


@dataclass(frozen=True)
class _ApSeparate(ApPlusTree):
    """An AP+-Tree of subscriptions, and messages in lists by cell and word.

    Attributes:
        n_columns: Columns of the grid of messages, and rows.
    """

    arrays_type = ApSeparateArrays
    is_separate = True
    messages_type: ClassVar[type[KkIndex] | type[SsIndex]]

    n_columns: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self.messages_type(self.n_columns)

    def _joined(self, core: ApPlusCore, tables: Tables) -> ApSeparateArrays:
        return ApSeparateArrays(core, self.messages_type(self.n_columns).messages_alone(tables))

    def _grown(self, arrays: Any, tables: Tables) -> Any:
        """Return arrays with more room, for messages too."""
        cells = self.messages_type(self.n_columns).with_room(arrays.cells, tables)
        grown: Any = super()._grown(arrays, tables)
        return grown._replace(cells=cells)


@dataclass(frozen=True)
class ApPlusK(_ApSeparate):
    """AP+k: an AP+-Tree of subscriptions; lists of messages by word, each with a grid."""

    name = "ap_plus_k"
    messages_type = KkIndex


@dataclass(frozen=True)
class ApPlusS(_ApSeparate):
    """AP+s: an AP+-Tree of subscriptions; a grid of messages with lists by word in each cell."""

    name = "ap_plus_s"
    messages_type = SsIndex


# ---- parts ---------------------------------------------------------------------------------------


def _space(tables: Tables) -> Space:
    return "lonlat" if tables.rules[IS_LONLAT] else "planar"


def _longer(array: Any, n: int, fill: int = 0) -> Any:
    """Return an array of ``n`` rows."""
    return array if len(array) == n else resized(array, n, fill)


def _clause_boxes(tables: Tables) -> Float64s:
    """Return the box of each alternative; one at the antimeridian has all longitudes."""
    boxes = tables.subscribers.regions.boxes
    found = boxes[:, :4].copy()
    is_split = boxes[:, 4] <= boxes[:, 6]
    found[is_split, 0], found[is_split, 2] = -np.inf, np.inf
    return found[tables.subscribers.clause_slots]


def _clauses(tables: Tables, boxes: Float64s) -> ClauseArrays:
    """Return the alternatives as the AP-Tree takes them; all of them may have other shapes."""
    subscribers = tables.subscribers
    return ClauseArrays(
        subscribers.clause_slots, subscribers.token_offsets, subscribers.token_ids, boxes,
        subscribers.clause_slots, no_shapes(),
    )  # fmt: skip


def _sampled(messages: Messages) -> MessageArrays | None:
    """Return the live messages, for the hit probabilities."""
    rows = live_rows(messages)
    if len(rows) == 0:
        return None
    starts, lengths = messages.token_starts[rows], messages.n_tokens[rows].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    boxes = messages.boxes[rows]
    boxes[boxes[:, 0] > boxes[:, 2], 0] = -180.0
    return MessageArrays(offsets, messages.tokens[positions], boxes)


def _no_lists(extent: Float64s) -> MessageLists:
    facts = np.zeros(N_TREE_FACTS, np.int64)
    facts[TREE_FREE_BLOCK] = -1
    none, no_keys = np.zeros(0, np.int32), np.zeros(0, np.uint64)
    frame = np.array([0.0, 0.0, 1.0, 1.0])
    if extent[0] <= extent[2]:
        extent = np.clip(extent, -_FARTHEST, _FARTHEST)  # so that it has a width
        frame[:2] = extent[:2]
        frame[2:] = TOP / np.maximum(extent[2:] - extent[:2], 1e-9 * np.abs(extent).max() + 1e-300)
    return MessageLists(facts, frame, none, none, none, no_keys, no_keys, none, none)


def _filled_words(core: ApPlusCore, messages: Messages, row: int) -> int:
    return int(fill_words(core.facts, core.words, messages, row))


def _grown_lists(lists: MessageLists, n_nodes: int, n_blocks: int) -> MessageLists:
    """Return m-lists of so many nodes, with room for so many more blocks."""
    lists = lists._replace(
        node_blocks=_longer(lists.node_blocks, n_nodes, -1),
        node_sizes=_longer(lists.node_sizes, n_nodes),
    )
    n_used = int(lists.tree_facts[TREE_BLOCKS] - lists.tree_facts[TREE_N_FREE])
    if n_used + n_blocks <= len(lists.block_next):
        return lists
    n = n_used + n_blocks + len(lists.block_next) // 4
    longer: dict[str, Any] = {
        name: resized(getattr(lists, name), n * ap.LIST_BLOCK) for name in _BY_BLOCK
    }
    return lists._replace(block_next=resized(lists.block_next, n), **longer)


def _grown_words(words: WordLists, n_tokens: int, n_wanted: int) -> WordLists:
    """Return lists of so many words with room for a message of so many."""
    words = words._replace(lists=with_room(words.lists, n_tokens))
    grown: WordLists = with_blocks(words, max(_SPARE_WORD_BLOCKS, n_wanted))
    return grown


def _lifted(core: ApPlusCore, messages: Messages, node: int, has_messages: bool) -> Int32s:
    """Take the messages out of the lists of a node and below; return all that come to it."""
    tree, parts = core.tree, (core.tree, core.lists, core.places, core.walk.stack)
    n, is_whole = lift_messages(*parts, messages, node, np.empty(0, np.int32))
    rows = np.empty(n + 1, np.int32)
    n, _ = lift_messages(*parts, messages, node, rows)
    if has_messages and not is_whole:
        rows = np.empty(messages.facts[N_ROWS], np.int32)
        n = collect_messages(core.facts, tree, core.words, messages, node, -1, rows)
    return np.unique(rows[:n])


def _tree_built_anew(
    parameters: ApTreeParameters,
    tree: nodes.ApTreeArrays,
    clauses: ClauseArrays,
    node: int,
    motion: Motion,
) -> nodes.ApTreeArrays:
    """Return the tree after one of its nodes was built anew."""
    change = change_scratch(parameters)
    scratch = build_scratch(parameters, LEAST_ROWS, LEAST_ROWS, tree, motion)
    change.due[0], change.progress[N_TREE_DUE] = node, 1
    no_rows: Int64s = np.empty(0, np.int64)

    def run() -> int:
        return int(change_tree(tree, clauses, no_rows, 1, change, scratch))

    def make_way(why: int) -> None:
        nonlocal tree, scratch, change
        if why == TREE_IS_FULL:
            tree = with_tree_room(tree, int(scratch.state[WANTED]))
        elif why in (ROWS_ARE_FULL, TASKS_ARE_FULL, CHOICES_ARE_FULL):
            scratch = with_larger_scratch(scratch, why)
        else:
            longer = {
                name: resized(getattr(change, name), 2 * len(change.ways))
                for name in ("ways", "is_covered", "due")
            }
            change = change._replace(**longer)

    run_until_done(run, make_way)
    return tree
