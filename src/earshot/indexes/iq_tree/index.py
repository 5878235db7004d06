"""The IQ-Tree as [VLDBJ15] §3.1 and §5.1.1 describe it: a rival of the AP-Tree.

One quadtree; each clause is attached to the cells that a cost model chooses
(:mod:`earshot.indexes.iq_tree.kernels.cost`), and stands there in the list of its least frequent
token. The paper that the IQ-Tree comes from is not among ours: how probabilities and costs combine
is our own choice.

Which token is a clause's key, and which cells are its own, is decided by frequencies and places as
of when the tree was filled. It is filled anew whenever it has grown to twice as many clauses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from earshot.indexes.contract import BuildInput, Parameters
from earshot.indexes.iq_tree.kernels.changes import (
    LIST_PLACES,
    NODES,
    CellTreeArrays,
    Postings,
    fill_lists,
    find_keys,
    insert_clauses,
    new_choice,
    post_clauses,
    remove_clauses,
)
from earshot.indexes.iq_tree.kernels.cost import N_HITS, count_hits
from earshot.indexes.iq_tree.kernels.match import STACK, CellTreeScratch
from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.indexes.quadtree.index import (
    QuadtreeIndex,
    check_number,
    check_whole,
    prepare_quadtree,
)
from earshot.indexes.quadtree.kernels.cells import BITS
from earshot.indexes.quadtree.kernels.nodes import N_NODES, Quadtree
from earshot.indexes.quadtree.tables import (
    checked_list_places,
    more_nodes,
    packed,
    with_more_places,
    with_nodes,
)
from earshot.kernels.growing import resized, with_room
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
)

_MOST_SAMPLED = 20_000
_USUAL_WORDS = 10.0
"""Tokens of a message where no sample tells."""


@dataclass(frozen=True)
class IqTreeParameters(Parameters):
    """Options of an IQ-Tree or RQ-Tree.

    Attributes:
        posting_cost: Cost of an entry of a list, in verifications per message. A clause is attached
            to another cell where that saves more.
        max_depth: Depth of the smallest cells.
    """

    posting_cost: float = 1e-5
    max_depth: int = 12

    def __post_init__(self) -> None:
        check_number("posting_cost", self.posting_cost, 1e-12, 1e6)
        check_whole("max_depth", self.max_depth, 1, BITS)


class IqTree(QuadtreeIndex):
    """Cells by a cost model; counters: nodes visited, clauses in lists of the message's tokens."""

    name = "iq_tree"
    parameters_type = IqTreeParameters
    arrays_type: ClassVar[type[tuple[Any, ...]]] = CellTreeArrays
    scratch_type: ClassVar[type[tuple[Any, ...]]] = CellTreeScratch
    parameters: IqTreeParameters

    _is_forest = False
    """Whether each key has a quadtree of its own."""

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> Any:
        boxes, words = sampled(given.sample)
        tree = prepare_quadtree(given.clauses, given.known)
        arrays = new_arrays(tree, given.parameters, boxes, words)
        rows = np.arange(len(given.clauses.subscriptions), dtype=np.int32)
        return filled(arrays, given.clauses, given.known, rows, is_forest=cls._is_forest)

    def _build_options(self, tokens: Int32s | None) -> dict[str, Any]:
        boxes, words = self.arrays.sample_boxes, self.arrays.sample_words[0]
        if len(boxes) == 0:
            return {}
        # Where messages were and how many tokens they had is all that is known of them.
        offsets = np.round(np.arange(len(boxes) + 1) * words).astype(np.int64)
        return {"sample": MessageArrays(offsets, np.zeros(offsets[-1], np.int32), boxes)}

    def _insert_some(self, first: int, stop: int) -> None:
        self._know_tokens_of_all()
        clauses, choice, done = self._keyed_clauses(), new_choice(), 0

        def insert() -> int:
            nonlocal first, done
            first, done, short_of = insert_clauses(self.arrays, clauses, first, stop, done, choice)
            return int(short_of)

        def make_room(short_of: int) -> None:
            self.arrays = _with_room(self.arrays, short_of)

        run_until_done(insert, make_room)

    def _know_tokens_of_all(self) -> None:
        """Give tokens that are new since the last filling the share of one that occurs once."""
        arrays = self.arrays
        n_keys = self._n_keys()
        if n_keys > len(arrays.shares):
            least = float(arrays.shares.min(initial=1.0))
            roots = arrays.roots
            if self._is_forest:
                roots = with_room(roots, n_keys, -1)
            shares = with_room(arrays.shares, n_keys, least)
            self.arrays = arrays._replace(shares=shares, roots=roots)

    def _remove_rows(self, rows: Int64s) -> None:
        remove_clauses(self.arrays, self._keyed_clauses(), rows, new_choice())

    def _keyed_clauses(self) -> ClauseArrays:
        """Return the clauses with the tokens that their keys are chosen from."""
        return self.clauses

    def _n_keys(self) -> int:
        """Return how many keys there may be."""
        return self.n_tokens

    def _is_outdated(self, frame: Float64s) -> bool:
        return True  # frequencies, which choose keys and cells, are others by now

    def _refill(self, tree: Quadtree, rows: Int32s) -> Any:
        old = self.arrays
        arrays = new_arrays(tree, self.parameters, old.sample_boxes, old.sample_words)
        return filled(arrays, self.clauses, self.frequencies, rows, is_forest=self._is_forest)

    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        return {
            "marks": (self.n_tokens, np.uint8),
            "serial": (1, np.int64),
            "signature": (SIGNATURE_WORDS, np.uint64),
            "stack": (STACK, np.int32),
        }


def sampled(sample: MessageArrays | None) -> tuple[Float64s, Float64s]:
    """Return boxes of messages, none across the antimeridian, and their tokens on average."""
    if sample is None or len(sample.boxes) == 0:
        return np.empty((0, 4)), np.array([_USUAL_WORDS])
    boxes = sample.boxes[:: -(-len(sample.boxes) // _MOST_SAMPLED)]
    words = len(sample.token_ids) / len(sample.boxes)
    return np.ascontiguousarray(boxes[boxes[:, 0] <= boxes[:, 2]]), np.array([max(words, 1.0)])


def new_arrays(
    tree: Quadtree, parameters: IqTreeParameters, sample_boxes: Float64s, sample_words: Float64s
) -> CellTreeArrays:
    """Return a model of messages, and a tree that holds nothing yet."""
    return CellTreeArrays(
        tree=tree,
        rules=np.array([parameters.posting_cost, parameters.max_depth], np.float64),
        shares=np.empty(0),
        hits=np.zeros(N_HITS),
        roots=np.empty(0, np.int32),
        sample_boxes=sample_boxes,
        sample_words=sample_words,
    )


def _shares(frequencies: Int64s, words: float) -> Float64s:
    """Return the share of messages that have each token, if messages have so many of them."""
    counts = np.maximum(frequencies, 1).astype(np.float64)
    shares: Float64s = np.minimum(counts * (words / max(counts.sum(), 1.0)), 1.0)
    shares[EVERYWHERE_TOKEN : EVERYWHERE_TOKEN + 1] = 1.0
    return shares


def filled(
    arrays: Any,
    clauses: ClauseArrays,
    frequencies: Int64s,
    rows: Int32s,
    *,
    is_forest: bool,
) -> Any:
    """Attach clauses to the cells of a tree that holds nothing yet."""
    shares = _shares(frequencies, float(arrays.sample_words[0]))
    roots = np.full(len(shares) if is_forest else 0, -1, np.int32)
    arrays = arrays._replace(shares=shares, roots=roots)
    boxes = arrays.sample_boxes
    if len(boxes) == 0:
        boxes = _centres(clauses.boxes[rows[:: len(rows) // _MOST_SAMPLED + 1]])
    count_hits(arrays.tree.frame, boxes, arrays.hits)
    postings = Postings(*(np.empty(2 * len(rows) + 256, np.int32) for _ in range(2)))
    choice, done, n_posted = new_choice(), 0, 0

    def post() -> int:
        nonlocal done, n_posted
        done, n_posted, short_of = post_clauses(
            arrays, clauses, rows, done, n_posted, postings, choice
        )
        return int(short_of)

    def make_room(short_of: int) -> None:
        nonlocal arrays, postings
        if short_of == NODES:
            arrays = _with_room(arrays, short_of)
        else:
            n = 2 * len(postings.rows)
            postings = Postings(*(resized(part, n, fill=None) for part in postings))

    run_until_done(post, make_room)
    return _with_lists(arrays, clauses, Postings(*(part[:n_posted] for part in postings)))


def _with_lists(
    arrays: CellTreeArrays, clauses: ClauseArrays, postings: Postings
) -> CellTreeArrays:
    """Put what clauses are attached to into lists."""
    tree, n = arrays.tree, len(postings.rows)
    keys = np.empty(len(clauses.subscriptions), np.int32)
    find_keys(arrays.shares, clauses.token_offsets, clauses.token_ids, keys)
    order = np.lexsort((keys[postings.rows], postings.nodes))
    nodes, rows = postings.nodes[order], postings.rows[order]
    n_places = int(1.25 * n) + int(tree.facts[N_NODES]) + 64
    tables = tree.lists._replace(
        tokens=np.empty(n_places, np.int32),
        values=np.empty(n_places, np.int64),
        lists=np.empty(checked_list_places(n + n // 4 + 64), np.int32),
    )
    arrays = arrays._replace(tree=tree._replace(lists=tables))
    fill_lists(arrays.tree, nodes, keys[rows], rows)
    lists = packed(tables, int(tree.facts[N_NODES]), spare=0.0)
    return arrays._replace(tree=arrays.tree._replace(lists=lists))


def _centres(boxes: Float64s) -> Float64s:
    """Return the centres of boxes as boxes; those without one are left out."""
    boxes = boxes[np.isfinite(boxes).all(axis=1)]
    centres = boxes[:, :2] * 0.5 + boxes[:, 2:] * 0.5
    return np.concatenate([centres, centres], axis=1)


def _with_room(arrays: CellTreeArrays, short_of: int) -> CellTreeArrays:
    """Return the arrays with more of what a kernel is short of."""
    tree = arrays.tree
    if short_of == LIST_PLACES:
        lists = with_more_places(tree.lists, int(tree.facts[N_NODES]))
        return arrays._replace(tree=tree._replace(lists=lists))
    return arrays._replace(tree=with_nodes(tree, more_nodes(tree)))
