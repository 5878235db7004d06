"""Cutting a plan from samples of subscriptions and messages.

Each sampled subscription gets a weight: how often the sampled messages would examine it in the
default index, where lists are examined in blocks of sixteen neighbours. From the top, each node
with k shards to make tries all cuts that divide the weights as k // 2 to k - k // 2, routes its
sampled messages over either half, and takes the cut that costs least: the work of the busier half,
and handing the messages over. What a subscription costs depends on the shard that it ends up in, so
weights are then taken again in the shards, and the same tree is cut by these, a few times. Crowded
places end up cut by token, frequent tokens by place, and large regions, which would draw messages
from everywhere to every shard, away from small ones. PS2Stream's kdt-tree chooses between space and
text in this way.

Two ways of dividing tokens that sent fewer messages to several shards were not taken: trees of
token cuts alone, and growing sets of tokens that come together. On road reports they balanced the
messages that they were cut from, but with later ones the busiest of 64 shards had 2.0 and 4.3 times
the mean candidates, against 1.7.

Work and memory may lie in different places: where nothing happens, subscriptions are many and cost
nothing. Where a shard would then hold much more than its share of bytes, the same way of cutting
makes several *pieces* for each shard, small in work and in bytes alike, and these are dealt out so
that both are spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidParameter
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s, MessageArrays, offsets_of
from earshot.placement.kernels import (
    CUT_CONTENT,
    CUT_SIZE,
    CUT_TOKEN,
    CUT_X,
    CUT_Y,
    LEAF,
    LEFT,
    RIGHT,
    node_tokens,
    route_sides,
    side_tokens,
    token_messages,
)
from earshot.placement.plan import Int8s, PlanArrays, ShardPlan
from earshot.placement.samples import Samples, thinned_clauses, thinned_messages

MESSAGE_COST = 1000.0
"""Candidates that cost about as much as handing one message to one shard."""
TAKE_COST = 300.0
"""Candidates that cost a shard about as much as taking up a message at all."""
STORAGE_SHARE = 0.1
"""Share of the load that is spread evenly over all subscriptions, whether examined or not."""
PIECES = 4
"""Pieces for each shard, where work and bytes lie in different places."""
EVEN_BYTES = 1.3
"""Bytes of the largest shard, as a multiple of the mean, up to which shards are cut by work."""
EVEN_LOAD = 1.15
"""Load of a shard, as a multiple of the mean, up to which it takes pieces that share messages."""
TOKEN_SLACK, TOKEN_ROUNDS = 0.02, 2
"""How far a side may exceed its share when tokens are divided, and how often they are revised."""
ROUNDS = 4
"""How often a tree is cut again by what its shards turned out to cost."""
SEARCH_SUBSCRIPTIONS, SEARCH_MESSAGES = 50_000, 5_000
"""What the search for a way to cut looks at; more for many shards.

How to cut shows in fewer than where to cut does.
"""
UNEVEN = 1.2
"""Imbalance from which on a cut by content is considered, which sends all messages both ways."""
SHIFTS = 3
"""How often a cut is shifted to where the work is balanced."""


@dataclass(frozen=True)
class PlanReport:
    """What a plan's samples say of its shards."""

    subscriptions: Float64s  # expected in each shard
    n_bytes: Float64s  # expected to be saved of each shard, relative to the others
    messages: Int64s  # sampled ones that go to each shard
    candidates: Float64s  # subscriptions that they are expected to examine there
    n_messages: int  # sampled ones
    cuts: dict[str, int]  # how many nodes cut by what

    @property
    def replication(self) -> float:
        """Mean number of shards that a message goes to."""
        return float(self.messages.sum() / max(self.n_messages, 1))

    @property
    def balance(self) -> float:
        """Work of the busiest shard, as a multiple of the mean; 1 is perfect."""
        return busiest_share(self.candidates + TAKE_COST * self.messages)

    @property
    def balance_of_bytes(self) -> float:
        """Bytes of the largest shard, as a multiple of the mean."""
        return busiest_share(self.n_bytes)

    def facts(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "n_shards": len(self.subscriptions),
            "n_messages": self.n_messages,
            "shards_per_message": self.replication,
            "balance": self.balance,
            "balance_of_bytes": self.balance_of_bytes,
            "balance_of_subscriptions": busiest_share(self.subscriptions),
            "balance_of_messages": busiest_share(self.messages),
            "balance_of_candidates": busiest_share(self.candidates),
            "cuts": self.cuts,
            "subscriptions": np.rint(self.subscriptions).astype(np.int64).tolist(),
            "messages": self.messages.tolist(),
            "candidates": np.rint(self.candidates).astype(np.int64).tolist(),
        }


def busiest_share(values: npt.NDArray[Any]) -> float:
    """Return the largest value as a multiple of the mean; 1 where all are 0."""
    total = float(values.sum())
    return float(values.max()) * len(values) / total if total > 0 else 1.0


def cut_plan(
    clauses: ClauseArrays,
    messages: MessageArrays,
    n_shards: int,
    *,
    frequencies: Int64s,
    n_subscriptions: int | None = None,
    message_cost: float = MESSAGE_COST,
) -> tuple[ShardPlan, PlanReport]:
    """Cut a plan from samples.

    Args:
        clauses: Sampled subscriptions, each with all its clauses.
        messages: Sampled messages, with tokens of the same vocabulary.
        n_shards: Number of shards.
        frequencies: How often each token of the vocabulary occurs in messages.
        n_subscriptions: How many subscriptions the sample stands for; by default itself.
        message_cost: What handing a message to a shard costs, in candidates.

    Returns:
        The plan, and what the samples say of it.
    """
    if n_shards < 1:
        raise InvalidParameter(f"n_shards is {n_shards}; expected 1 or more")
    if not message_cost >= 0:
        raise InvalidParameter(f"message_cost is {message_cost}; expected 0 or more")
    slots, numbers = np.unique(clauses.subscriptions, return_inverse=True)
    clauses = clauses._replace(subscriptions=numbers.astype(np.int32))
    n_sampled = len(slots)
    n_subscriptions = n_sampled if n_subscriptions is None else n_subscriptions
    if n_subscriptions < n_sampled:
        raise InvalidParameter(
            f"n_subscriptions is {n_subscriptions}, but the sample has {n_sampled} of them; "
            f"expected the number that the sample was drawn from"
        )
    some = Samples(
        thinned_clauses(clauses, max(SEARCH_SUBSCRIPTIONS, 256 * n_shards)),
        thinned_messages(messages, max(SEARCH_MESSAGES, 32 * n_shards)),
        frequencies,
        n_subscriptions,
    )
    all_of_them = Samples(clauses, messages, frequencies, n_subscriptions)
    tree = Cutter(some, message_cost).tree(n_shards)
    plan, report = Cutter(all_of_them, message_cost).cut(n_shards, tree)
    if report.balance_of_bytes <= EVEN_BYTES:
        return plan, report
    tree = Cutter(some, message_cost, storage_share=1.0).tree(PIECES * n_shards)
    dealt = Cutter(all_of_them, message_cost, storage_share=1.0).cut(n_shards, tree)
    return dealt if dealt[1].balance_of_bytes < report.balance_of_bytes else (plan, report)


class Node(NamedTuple):
    """Sampled subscriptions to spread over some shards, and the messages that reach them."""

    n_shards: int
    rows: Int64s  # slots
    messages: Int64s  # rows of messages
    content: tuple[float, float]  # range of the content keys that can come here

    @property
    def left_share(self) -> float:
        """Share of the shards that goes to the left half."""
        return (self.n_shards // 2) / self.n_shards


class Cut(NamedTuple):
    """A node's subscriptions in two halves."""

    cost: float
    kind: int
    threshold: float
    sides: Int8s  # (n_rows,)
    flags: npt.NDArray[np.uint8]  # (n_messages,) 1 goes left, 2 right, 3 both
    work: tuple[float, float]  # left and right
    imbalance: float  # work of a shard in the busier half, as a multiple of the mean
    listed: tuple[Int32s, Int8s] | None  # tokens, ascending, and their sides


class Tree(NamedTuple):
    """Cuts below a node, and the shards that they make."""

    cut: Cut | None  # None for a leaf
    children: tuple[Tree, ...]
    leaves: list[Node]


class Cutter:
    """One run of :func:`cut_plan`."""

    def __init__(
        self, samples: Samples, message_cost: float, storage_share: float = STORAGE_SHARE
    ) -> None:
        self.samples = samples
        self.message_cost = message_cost
        self.storage_share = storage_share
        n_slots, n_tokens = len(samples.arrays.tokens), len(samples.vocabulary)
        self.candidates = np.zeros(n_slots)
        self.weights = np.zeros(n_slots)
        self.units = np.tile([np.inf, np.inf, -np.inf, -np.inf], (2 * n_tokens, 1))
        self.numbers = np.full(n_tokens, -1, np.int32)

    def _weigh(self, shards: Sequence[Node]) -> list[float]:
        """Weigh slots by the work that they are in these shards; return the work of each shard.

        Taking up a message is also work; it is laid on a shard's slots like the candidates.
        """
        works = []
        weights = np.zeros(len(self.weights))
        for node in shards:
            candidates = self.samples.candidates(node.rows, node.messages)
            taking = TAKE_COST * len(node.messages)
            total = float(candidates.sum())
            self.candidates[node.rows] = candidates
            if total > 0:
                weights[node.rows] = candidates * (1.0 + taking / total)
            else:
                weights[node.rows] = taking / max(len(node.rows), 1)
            works.append(total + taking)
        sizes = self.samples.sizes
        even = sizes * (
            self.storage_share * sum(works) / max(sizes.sum(), 1.0) if sum(works) > 0 else 1.0
        )
        weights += even
        # Halfway between what was thought and what was found, so that it settles.
        self.weights = weights if len(shards) == 1 else np.sqrt(self.weights * weights)
        self.loads = self.candidates + even
        return works

    def _weighed_root(self, n_shards: int) -> Node:
        slots = np.arange(len(self.samples.arrays.tokens))
        rows = np.arange(len(self.samples.messages.boxes))
        root = Node(n_shards, slots, rows, (0.0, 1.0))
        self._weigh([root])
        return root

    def tree(self, n_shards: int) -> Tree:
        """Search for a good way to cut."""
        return self._divided(self._weighed_root(n_shards))

    def cut(self, n_shards: int, tree: Tree) -> tuple[ShardPlan, PlanReport]:
        """Cut into shards as in the given tree, but where the work of these samples wants it.

        A tree of more leaves than shards makes pieces, of which each shard gets several.
        """
        root = self._weighed_root(len(tree.leaves))
        tree = self._divided(root, tree)
        best, least, candidates = tree, np.inf, self.candidates
        # What a subscription costs depends on the shard that it is in, so weights are taken again
        # in the shards, and the same tree is cut by those.
        for turn in range(ROUNDS + 1):
            works = self._weigh(tree.leaves)
            n_messages = sum(len(leaf.messages) for leaf in tree.leaves)
            cost = max(works) * len(works) + self.message_cost * n_messages
            if cost < least:
                best, least, candidates = tree, cost, self.candidates.copy()
            if turn < ROUNDS:
                tree = self._divided(root, tree)
        numbers = np.arange(n_shards)
        shards = best.leaves
        if len(shards) > n_shards:
            numbers = self._dealt(shards, candidates, n_shards)
            shards = [
                _joined([shards[at] for at in np.flatnonzero(numbers == shard)])
                for shard in range(n_shards)
            ]
            self._weigh(shards)
            candidates = self.candidates
        arrays = _flattened(best, numbers.astype(np.int32))
        report = PlanReport(
            np.array([self.samples.scale * len(shard.rows) for shard in shards]),
            np.array([self.samples.sizes[shard.rows].sum() for shard in shards]),
            np.array([len(shard.messages) for shard in shards], np.int64),
            np.array([candidates[shard.rows].sum() for shard in shards]),
            len(root.messages),
            {name: int((arrays.kinds == kind).sum()) for kind, name in _CUT_NAMES.items()},
        )
        return ShardPlan(n_shards, arrays), report

    def _dealt(self, pieces: Sequence[Node], candidates: Float64s, n_shards: int) -> Int64s:
        """Return the shard of each piece, so that work and bytes are spread.

        The largest piece comes first. Of the shards that have room for it, it goes to the one that
        gets most of its messages anyway; if none has, to the one that it fills least.
        """
        loads = np.array(
            [
                [candidates[piece.rows].sum() + TAKE_COST * len(piece.messages),
                 self.samples.sizes[piece.rows].sum()]
                for piece in pieces
            ]
        )  # fmt: skip
        loads *= n_shards / np.maximum(loads.sum(axis=0), 1e-300)
        goes = np.zeros((len(pieces), len(self.samples.messages.boxes)), bool)
        for at, piece in enumerate(pieces):
            goes[at, piece.messages] = True
        numbers = np.empty(len(pieces), np.int64)
        filled, gets = np.zeros((n_shards, 2)), np.zeros((n_shards, goes.shape[1]), bool)
        for at in np.argsort(-loads.max(axis=1), kind="stable"):
            fullest = (filled + loads[at]).max(axis=1)
            n_new = (goes[at] & ~gets).sum(axis=1)
            has_room = fullest <= EVEN_LOAD
            shard = int(
                np.lexsort((fullest, n_new, ~has_room))[0] if has_room.any() else fullest.argmin()
            )
            numbers[at] = shard
            filled[shard] += loads[at]
            gets[shard] |= goes[at]
        return numbers

    def _divided(self, node: Node, like: Tree | None = None) -> Tree:
        """Return the best cuts below a node, or those of a tree by the weights as they are now."""
        if node.n_shards == 1:
            return Tree(None, (), [node])
        cut = None
        if like is not None and like.cut is not None:
            is_token = like.cut.kind == CUT_TOKEN
            cut = self._token_cut(node) if is_token else self.key_cut(node, like.cut.kind)
        if cut is None:
            cut = self.best_cut(node)
        examples = (None, None) if like is None else like.children
        left, right = map(self._divided, _halves(node, cut), examples)
        return Tree(cut, (left, right), [*left.leaves, *right.leaves])

    def best_cut(self, node: Node) -> Cut:
        """Return the cut of a node that costs least."""
        found = [self.key_cut(node, kind) for kind in (CUT_X, CUT_Y, CUT_SIZE)]
        cuts = [cut for cut in found if cut is not None]
        if cuts:
            best = min(cuts, key=lambda cut: cut.cost)
            cuts = [best, *self._shifted(node, best)]
        token_cut = self._token_cut(node)
        if token_cut is not None:
            cuts.append(token_cut)
        if all(cut.imbalance > UNEVEN for cut in cuts):
            cuts.append(self.content_cut(node))
        return min(cuts, key=lambda cut: cut.cost)

    def _shifted(self, node: Node, cut: Cut) -> list[Cut]:
        """Return cuts by the same key nearer to where both sides have their share of the work.

        A cut is first made by the weights of subscriptions, but messages that go to both sides are
        work on both.
        """
        share = wanted = node.left_share
        cuts: list[Cut] = []
        for _ in range(SHIFTS):
            left, right = cut.work
            share = min(max(share + wanted - left / (left + right), 0.0), 1.0)
            shifted = self.key_cut(node, cut.kind, share)
            if shifted is None or shifted.threshold == cut.threshold:
                break
            cuts.append(shifted)
            cut = shifted
        return cuts

    def key_cut(self, node: Node, kind: int, share: float | None = None) -> Cut | None:
        """Return the cut by a key that comes closest to the share, if there are two keys at all."""
        if share is None:
            share = node.left_share
        keys = self.samples.arrays.keys[node.rows, kind]
        order = np.argsort(keys)
        ordered = keys[order]
        ends = np.flatnonzero(ordered[1:] > ordered[:-1])
        if len(ends) == 0:
            return None
        sums = np.cumsum(self.weights[node.rows[order]])
        at = int(np.argmin(np.abs(sums[ends] - share * sums[-1])))
        low, high = float(ordered[ends[at]]), float(ordered[ends[at] + 1])
        middle = 0.5 * low + 0.5 * high
        threshold = middle if low < middle < high else high
        sides = (keys >= threshold).astype(np.int8)
        return self._rated(node, kind, threshold, sides)

    def _token_cut(self, node: Node) -> Cut | None:
        share = node.left_share
        tokens, sums = node_tokens(self.samples.arrays, node.rows, self.weights, self.numbers)
        try:
            if len(tokens) < 2:
                return None
            starts, places = token_messages(
                self.samples.arrays, self.samples.messages, node.rows, node.messages, self.units,
                self.numbers, len(tokens),
            )  # fmt: skip
            sides = side_tokens(
                np.argsort(-sums, kind="stable"), sums, share, TOKEN_SLACK, TOKEN_ROUNDS,
                starts, places, len(node.messages),
            )  # fmt: skip
            row_sides = sides[self.numbers[self.samples.arrays.tokens[node.rows]]]
        finally:
            self.numbers[tokens] = -1
        order = np.argsort(tokens)
        listed = (self.samples.vocabulary[tokens[order]], sides[order])
        return self._rated(node, CUT_TOKEN, share, row_sides, listed)

    def content_cut(self, node: Node) -> Cut:
        """Return a cut by what clauses say; also one that has nothing to cut in this sample."""
        cut = self.key_cut(node, CUT_CONTENT)
        if cut is not None:
            return cut
        low, high = node.content
        threshold = low + (high - low) * node.left_share
        keys = self.samples.arrays.keys[node.rows, CUT_CONTENT]
        return self._rated(node, CUT_CONTENT, threshold, (keys >= threshold).astype(np.int8))

    def _rated(
        self,
        node: Node,
        kind: int,
        threshold: float,
        sides: Int8s,
        listed: tuple[Int32s, Int8s] | None = None,
    ) -> Cut:
        """Return the cut with its cost, as if the shards of either side were equally busy.

        All shards together take as long as the busiest one of them.
        """
        flags = np.zeros(len(node.messages), np.uint8)
        n_left, n_right = route_sides(
            self.samples.arrays, self.samples.messages, node.rows, sides, node.messages,
            self.units, flags,
        )  # fmt: skip
        loads = self.loads[node.rows]
        right = float(loads[sides == RIGHT].sum())
        work = (float(loads.sum()) - right + TAKE_COST * n_left, right + TAKE_COST * n_right)
        n_left_shards = node.n_shards // 2
        per_shard = work[LEFT] / n_left_shards, work[RIGHT] / (node.n_shards - n_left_shards)
        busiest, total = max(per_shard) * node.n_shards, sum(work)
        cost = busiest + self.message_cost * (n_left + n_right)
        imbalance = busiest / total if total > 0 else 1.0
        return Cut(cost, kind, threshold, sides, flags, work, imbalance, listed)


def _halves(node: Node, cut: Cut) -> tuple[Node, Node]:
    n_left = node.n_shards // 2
    bounds = (node.content, node.content)
    if cut.kind == CUT_CONTENT:
        low, high = node.content
        bounds = ((low, cut.threshold), (cut.threshold, high))
    left, right = (
        Node(n, node.rows[cut.sides == side], node.messages[cut.flags & flag != 0], bounds[side])
        for side, flag, n in ((LEFT, 1, n_left), (RIGHT, 2, node.n_shards - n_left))
    )
    return left, right


def _joined(pieces: Sequence[Node]) -> Node:
    """Return a shard of several pieces."""
    rows, messages = ([getattr(piece, name) for piece in pieces] for name in ("rows", "messages"))
    none = np.empty(0, np.int64)
    return Node(
        1,
        np.sort(np.concatenate([none, *rows])),
        np.unique(np.concatenate([none, *messages])),
        (0.0, 1.0),
    )


def _flattened(tree: Tree, piece_shards: Int32s) -> PlanArrays:
    """Return a tree as arrays; its leaves are the pieces, from left to right."""
    kinds = np.full(2 * len(tree.leaves) - 1, LEAF, np.int32)
    thresholds = np.zeros(len(kinds))
    children = np.empty((len(kinds), 2), np.int32)
    tokens = [np.empty(0, np.int32)] * len(kinds)
    sides = [np.empty(0, np.int8)] * len(kinds)
    n_leaves, n_nodes = 0, 1
    stack = [(0, tree)]
    while stack:
        node, part = stack.pop()
        if part.cut is None:
            children[node] = n_leaves
            n_leaves += 1
            continue
        kinds[node], thresholds[node] = part.cut.kind, part.cut.threshold
        if part.cut.listed is not None:
            tokens[node], sides[node] = part.cut.listed
        children[node] = n_nodes, n_nodes + 1
        stack += [(n_nodes + 1, part.children[RIGHT]), (n_nodes, part.children[LEFT])]
        n_nodes += 2
    return PlanArrays(
        kinds,
        thresholds,
        children,
        offsets_of(np.array([len(each) for each in tokens])),
        np.concatenate(tokens),
        np.concatenate(sides),
        piece_shards,
    )


_CUT_NAMES = {
    CUT_X: "x",
    CUT_Y: "y",
    CUT_SIZE: "size",
    CUT_TOKEN: "token",
    CUT_CONTENT: "content",
}
