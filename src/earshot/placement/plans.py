"""Cutting subscriptions into shards, and routing messages to the shards that can match them.

**Plan.** A binary tree over subscriptions. Each node cuts in two by one property of the first
clause of a subscription: the centre of its box in x or y, the size of its box, the token that it is
filed under (its rarest known one), or, where nothing else tells subscriptions apart, a hash of what
it says. A leaf is a shard, so every subscription is in exactly one.

**Units.** What a shard holds is told by its units: for each token that one of its clauses is filed
under, the box around those clauses. A message goes to the shards with a unit of one of its tokens
whose box it meets. A clause matches only messages that carry all its tokens and meet its box, so
no match is lost, whatever the plan was cut from and however many clauses a subscription has.

**Cutting.** A plan is cut from samples. Each sampled subscription gets a weight: how often the
sampled messages would examine it in the default index, where lists are examined in blocks of
sixteen neighbours. From the top, each node with k shards to make tries all cuts that divide the
weights as k // 2 to k - k // 2, routes its sampled messages over either half, and takes the cut
that costs least: the work of the busier half, and handing the messages over. What a subscription
costs depends on the shard that it ends up in, so weights are then taken again in the shards, and
the same tree is cut by these, a few times. Crowded places end up cut by token, frequent tokens by
place, and large regions, which would draw messages from everywhere to every shard, away from small
ones. PS2Stream's kdt-tree chooses between space and text in this way.

Two ways of dividing tokens that sent fewer messages to several shards were not taken: trees of
token cuts alone, and growing sets of tokens that come together. On road reports they balanced the
messages that they were cut from, but with later ones the busiest of 64 shards had 2.0 and 4.3 times
the mean candidates, against 1.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from earshot import storage
from earshot.errors import InvalidInput, InvalidParameter
from earshot.indexes.answers import collect_answers
from earshot.indexes.block_trie.kernels.build import fill_codes
from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.box_keys import BLOCK, build_keys
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    gather_ranges,
    take_clauses,
    take_messages,
)
from earshot.placement.kernels import (
    CUT_CONTENT,
    CUT_SIZE,
    CUT_TOKEN,
    CUT_X,
    CUT_Y,
    LEAF,
    LEFT,
    N_KEYS,
    RIGHT,
    assign_slots,
    count_hits,
    file_clauses,
    key_slots,
    node_tokens,
    route_messages,
    route_sides,
    side_tokens,
    token_messages,
)

Int8s = npt.NDArray[np.int8]

MESSAGE_COST = 1000.0
"""Candidates that cost about as much as handing one message to one shard."""
TAKE_COST = 300.0
"""Candidates that cost a shard about as much as taking up a message at all."""
STORAGE_SHARE = 0.1
"""Share of the load that is spread evenly over all subscriptions, whether examined or not."""
LIST_SPLIT_ABOVE, LIST_MIN_CHILD = 64, 16
"""When a list is split by the next token; the defaults of ``block_trie``."""
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
WEIGHING_MESSAGES = 3_000
"""Messages that tell how busy a shard is; more are thinned."""
SHIFTS = 3
"""How often a cut is shifted to where the work is balanced."""


class PlanArrays(NamedTuple):
    """A plan's tree; node 0 is the root."""

    kinds: Int32s  # (n_nodes,) CUT_… or LEAF
    # Smaller keys go left. For CUT_TOKEN: the share of tokens that goes left of those not listed.
    thresholds: Float64s  # (n_nodes,)
    children: Int32s  # (n_nodes, 2) left and right node; of a leaf, its shard twice
    token_starts: Int64s  # (n_nodes + 1,) tokens listed for node i are [i]:[i+1]; CUT_TOKEN only
    tokens: Int32s  # ascending within a node
    token_sides: Int8s  # LEFT or RIGHT


class UnitArrays(NamedTuple):
    """Which shards hold clauses filed under which tokens, and where; sorted by token, shard."""

    tokens: Int32s  # (n_units,)
    shards: Int32s  # (n_units,)
    boxes: Float64s  # (n_units, 4) around those clauses


@dataclass(frozen=True)
class PlanReport:
    """What a plan's samples say of its shards.

    Attributes:
        subscriptions: Expected subscriptions per shard.
        messages: Sampled messages that go to each shard.
        candidates: Subscriptions that they are expected to examine there.
        n_messages: Sampled messages.
        cuts: How many nodes cut by what.
    """

    subscriptions: Float64s
    messages: Int64s
    candidates: Float64s
    n_messages: int
    cuts: dict[str, int]

    @property
    def replication(self) -> float:
        """Mean number of shards that a message goes to."""
        return float(self.messages.sum() / max(self.n_messages, 1))

    @property
    def balance(self) -> float:
        """Work of the busiest shard, as a multiple of the mean; 1 is perfect."""
        return busiest_share(self.candidates + TAKE_COST * self.messages)

    def facts(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "n_shards": len(self.subscriptions),
            "n_messages": self.n_messages,
            "shards_per_message": self.replication,
            "balance": self.balance,
            "balance_of_subscriptions": busiest_share(self.subscriptions),
            "balance_of_messages": busiest_share(self.messages),
            "balance_of_candidates": busiest_share(self.candidates),
            "cuts": self.cuts,
            "subscriptions": np.rint(self.subscriptions).astype(np.int64).tolist(),
            "messages": self.messages.tolist(),
            "candidates": np.rint(self.candidates).astype(np.int64).tolist(),
        }

    def lines(self) -> list[str]:
        """Return the report for people."""
        cuts = ", ".join(f"{n} by {name}" for name, n in self.cuts.items() if n)
        lines = [
            f"{len(self.subscriptions)} shards ({cuts or 'no cut'}); a message goes to "
            f"{self.replication:.2f} of them; the busiest has {self.balance:.2f} times the mean "
            f"work"
        ]
        n = max(self.n_messages, 1)
        for name, values in (
            ("subscriptions", self.subscriptions),
            ("% of messages", 100 * self.messages / n),
            ("candidates per message", self.candidates / n),
        ):
            lines.append(
                f"{name} per shard: {values.min():,.0f} to {values.max():,.0f}, "
                f"mean {values.mean():,.0f}"
            )
        return lines


@dataclass(frozen=True)
class Plan:
    """Which shard each subscription belongs to.

    Attributes:
        n_shards: Number of shards.
        arrays: The tree.
    """

    n_shards: int
    arrays: PlanArrays

    @classmethod
    def cut(
        cls,
        clauses: ClauseArrays,
        messages: MessageArrays,
        n_shards: int,
        *,
        frequencies: Int64s,
        n_subscriptions: int | None = None,
        message_cost: float = MESSAGE_COST,
    ) -> tuple[Plan, PlanReport]:
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
        searcher = _Cutter(
            _thinned_clauses(clauses, max(SEARCH_SUBSCRIPTIONS, 256 * n_shards)),
            _thinned_messages(messages, max(SEARCH_MESSAGES, 32 * n_shards)),
            frequencies,
            n_subscriptions,
            message_cost,
        )
        cutter = _Cutter(clauses, messages, frequencies, n_subscriptions, message_cost)
        arrays, report = cutter.cut(n_shards, searcher.tree(n_shards))
        return cls(n_shards, arrays), report

    def assign(self, clauses: ClauseArrays, frequencies: Int64s) -> Int32s:
        """Return the shard of each slot from 0 on; -1 for a slot that has no clause.

        Any subscriptions can be assigned, not only sampled ones. Tokens beyond the frequencies are
        ignored. The same frequencies give the same shard at any time.
        """
        filed = _filed_tokens(clauses, frequencies)[0]
        keys, tokens = _slot_keys(clauses, filed, len(frequencies))
        shards = np.empty(len(tokens), np.int32)
        assign_slots(self.arrays, keys, tokens, shards)
        return shards

    def save(self, directory: str | Path) -> None:
        """Write the plan to ``directory``, which must not hold anything else."""
        storage.save(directory, {"plan": {"n_shards": self.n_shards}}, {"arrays": self.arrays})

    @classmethod
    def open(cls, directory: str | Path) -> Self:
        """Open a saved plan."""
        facts = storage.read_facts(directory)
        arrays = storage.open_group(directory, "arrays", PlanArrays)
        return cls(facts["plan"]["n_shards"], arrays)


def busiest_share(values: npt.NDArray[Any]) -> float:
    """Return the largest value as a multiple of the mean; 1 where all are 0."""
    total = float(values.sum())
    return float(values.max()) * len(values) / total if total > 0 else 1.0


# ---- units and routing --------------------------------------------------------------------------


def units_of(clauses: ClauseArrays, shards: Int32s, frequencies: Int64s) -> UnitArrays:
    """Return the units of clauses whose slots were assigned to ``shards``.

    ``frequencies`` must be those of the assignment.
    """
    filed = _filed_tokens(clauses, frequencies)[0]
    return _joined(filed, shards[clauses.subscriptions], clauses.boxes)


def merge_units(parts: Sequence[UnitArrays]) -> UnitArrays:
    """Return the units of all parts, with the boxes of equal token and shard joined."""
    if not parts:
        return _joined(np.empty(0, np.int32), np.empty(0, np.int32), np.empty((0, 4)))
    return _joined(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _joined(tokens: Int32s, shards: Int32s, boxes: Float64s) -> UnitArrays:
    pairs = tokens.astype(np.int64) << 32 | shards
    order = np.argsort(pairs, kind="stable")
    pairs = pairs[order]
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    pairs = pairs[starts]
    return UnitArrays(
        (pairs >> 32).astype(np.int32),
        (pairs & 0xFFFFFFFF).astype(np.int32),
        _boxes_around(boxes[order], starts),
    )


class Router:
    """Sends messages to the shards that can match them."""

    def __init__(self, units: UnitArrays, n_shards: int) -> None:
        outside = (units.shards < 0) | (units.shards >= n_shards)
        if outside.any():
            raise InvalidInput(
                f"units of shard {units.shards[outside][0]}; expected shards 0 to {n_shards - 1}"
            )
        self.units = units
        self.n_shards = n_shards
        self._starts = np.searchsorted(
            units.tokens, np.arange(int(units.tokens.max(initial=-1)) + 2)
        ).astype(np.int64)

    def route(self, messages: MessageArrays) -> tuple[Int64s, Int32s]:
        """Return offsets and the shards of each message, each once and ascending.

        A message box with ``min_x > max_x`` is taken to cross the antimeridian.
        """
        last_seen = np.full(self.n_shards, -1, np.int64)
        units = self.units

        def run(row: int, answers: Int32s, offsets: Int64s) -> int:
            next_row: int = route_messages(
                self._starts, units.shards, units.boxes, messages, row, last_seen, answers, offsets
            )
            return next_row

        return collect_answers(len(messages.boxes), run)


# ---- properties of clauses and slots ------------------------------------------------------------


def _filed_tokens(clauses: ClauseArrays, frequencies: Int64s) -> tuple[Int32s, Int32s]:
    """Return the token that each clause is filed under, and the next rarest one or -1."""
    n = len(clauses.subscriptions)
    tokens, next_tokens = np.empty(n, np.int32), np.empty(n, np.int32)
    file_clauses(clauses, frequencies, tokens, next_tokens)
    return tokens, next_tokens


def _slot_keys(clauses: ClauseArrays, filed: Int32s, n_known: int) -> tuple[Float64s, Int32s]:
    """Return what a plan looks at: keys (n_slots, N_KEYS), and the token of each slot."""
    n_slots = int(clauses.subscriptions.max(initial=-1)) + 1
    keys = np.zeros((n_slots, N_KEYS))
    tokens = np.empty(n_slots, np.int32)
    key_slots(clauses, filed, n_known, clauses.boxes.view(np.uint64), keys, tokens)
    return keys, tokens


# ---- cutting ------------------------------------------------------------------------------------


class SampleArrays(NamedTuple):
    """Sampled subscriptions; tokens are numbers of filed tokens."""

    keys: Float64s  # (n_slots, N_KEYS)
    tokens: Int32s  # (n_slots,)
    clause_starts: Int64s  # (n_slots + 1,) clauses of slot i are [i]:[i+1]
    clause_tokens: Int32s  # (n_clauses,)
    boxes: Float64s  # (n_clauses, 4)


class SampleLists(NamedTuple):
    """The lists that the default index would have over sampled clauses, as far as loads need them.

    A block holds as many sampled clauses as stand for a block of the index, but at least one.
    """

    group_tokens: Int32s  # (n_groups,) ascending; groups are the lists of a token
    next_tokens: Int32s  # (n_groups,) token that a message must also carry, or negative
    group_starts: Int64s  # (n_groups + 1,) blocks of each group
    block_starts: Int64s  # (n_blocks + 1,) entries of each block
    block_boxes: Float64s  # (n_blocks, 4)
    root_starts: Int64s  # (n_root_blocks + 1,) entries of each block of the root list
    root_boxes: Float64s  # (n_root_blocks, 4)
    upper_boxes: Float64s  # around BLOCK blocks of the root list each


class _Node(NamedTuple):
    """Sampled subscriptions to spread over some shards, and the messages that reach them."""

    n_shards: int
    rows: Int64s  # slots
    messages: Int64s  # rows of messages
    content: tuple[float, float]  # range of the content keys that can come here


class _Cut(NamedTuple):
    cost: float
    kind: int
    threshold: float
    sides: Int8s  # (n_rows,)
    flags: npt.NDArray[np.uint8]  # (n_messages,) 1 goes left, 2 right, 3 both
    work: tuple[float, float]  # left and right
    imbalance: float  # work of a shard in the busier half, as a multiple of the mean
    listed: tuple[Int32s, Int8s] | None  # tokens, ascending, and their sides


class _Tree(NamedTuple):
    cut: _Cut | None  # None for a leaf
    children: tuple[_Tree, ...]
    leaves: list[_Node]


class _Cutter:
    """One run of :meth:`Plan.cut`."""

    def __init__(
        self,
        clauses: ClauseArrays,
        messages: MessageArrays,
        frequencies: Int64s,
        n_subscriptions: int,
        message_cost: float,
    ) -> None:
        filed, next_tokens = _filed_tokens(clauses, frequencies)
        keys, tokens = _slot_keys(clauses, filed, len(frequencies))
        self.vocabulary = np.unique(filed)
        # The last one stands for all tokens beyond the frequencies.
        numbers = np.full(max(len(frequencies), 1) + 1, -1, np.int32)
        numbers[self.vocabulary] = np.arange(len(self.vocabulary))
        order = np.argsort(clauses.subscriptions, kind="stable")
        counts = np.bincount(clauses.subscriptions, minlength=len(tokens))
        self.sample = SampleArrays(
            keys,
            numbers[tokens],
            np.append(0, np.cumsum(counts)),
            numbers[filed[order]],
            np.ascontiguousarray(clauses.boxes[order]),
        )
        self.messages = _known_tokens(messages, numbers)
        self.candidates = np.zeros(len(tokens))
        self.weights = np.zeros(len(tokens))
        # What one sampled subscription stands for.
        self.scale = n_subscriptions / len(tokens) if len(tokens) else 1.0
        self.message_cost = message_cost
        # A next token that no clause is filed under has no number; its lists stay whole.
        self.next_tokens = np.where(next_tokens >= 0, numbers[next_tokens], -2)[order]
        self.codes = _spatial_codes(self.sample.boxes)
        self.n_message_tokens = np.diff(messages.token_offsets)
        n_tokens = len(self.vocabulary)
        self.units = np.tile([np.inf, np.inf, -np.inf, -np.inf], (2 * n_tokens, 1))
        self.numbers = np.full(n_tokens, -1, np.int32)
        self.marks = np.zeros(n_tokens, np.uint8)

    def _candidates(self, node: _Node) -> Float64s:
        """Return how many candidates each slot of a shard gives, for the sampled messages."""
        offsets, clauses = gather_ranges(self.sample.clause_starts, node.rows)
        lists, entries, root_entries = _sample_lists(
            self.sample.clause_tokens[clauses],
            self.next_tokens[clauses],
            self.codes[clauses],
            self.sample.boxes[clauses],
            self.scale,
        )
        list_hits = np.zeros(len(lists.block_boxes), np.int64)
        root_hits = np.zeros(len(lists.root_boxes), np.int64)
        step = max(1, -(-len(node.messages) // WEIGHING_MESSAGES))
        count_hits(
            lists, self.messages, node.messages[::step], self.n_message_tokens,
            _clauses_per_block(self.scale) * self.scale / BLOCK, self.numbers, self.marks,
            list_hits, root_hits,
        )  # fmt: skip
        hits = np.zeros(len(clauses))
        hits[entries] += np.repeat(list_hits, np.diff(lists.block_starts))
        hits[root_entries] += np.repeat(root_hits, np.diff(lists.root_starts))
        sums: Float64s = np.append(0.0, np.cumsum(hits))
        weight = len(node.messages) / max(len(node.messages[::step]), 1)
        candidates: Float64s = self.scale * weight * (sums[offsets[1:]] - sums[offsets[:-1]])
        return candidates

    def _weigh(self, shards: Sequence[_Node]) -> list[float]:
        """Weigh slots by the work that they are in these shards; return the work of each shard.

        Taking up a message is also work; it is laid on a shard's slots like the candidates.
        """
        works = []
        weights = np.zeros(len(self.weights))
        for node in shards:
            candidates = self._candidates(node)
            taking = TAKE_COST * len(node.messages)
            total = float(candidates.sum())
            self.candidates[node.rows] = candidates
            if total > 0:
                weights[node.rows] = candidates * (1.0 + taking / total)
            else:
                weights[node.rows] = taking / max(len(node.rows), 1)
            works.append(total + taking)
        n = max(len(weights), 1)
        even = STORAGE_SHARE * sum(works) / n if sum(works) > 0 else 1.0
        weights += even
        # Halfway between what was thought and what was found, so that it settles.
        self.weights = weights if len(shards) == 1 else np.sqrt(self.weights * weights)
        self.loads = self.candidates + even
        return works

    def _root(self, n_shards: int) -> _Node:
        slots, rows = np.arange(len(self.sample.tokens)), np.arange(len(self.messages.boxes))
        return _Node(n_shards, slots, rows, (0.0, 1.0))

    def tree(self, n_shards: int) -> _Tree:
        """Search for a good way to cut."""
        root = self._root(n_shards)
        self._weigh([root])
        return self._grown(root)

    def cut(self, n_shards: int, tree: _Tree) -> tuple[PlanArrays, PlanReport]:
        """Cut into shards as in the given tree, but where the work of these samples wants it."""
        root = self._root(n_shards)
        rows = root.messages
        self._weigh([root])
        tree = self._recut(tree, root)
        best, least, candidates = tree, np.inf, self.candidates
        # What a subscription costs depends on the shard that it is in, so weights are taken again
        # in the shards, and the same tree is cut by those.
        for turn in range(ROUNDS + 1):
            works = self._weigh(tree.leaves)
            n_messages = sum(len(leaf.messages) for leaf in tree.leaves)
            cost = max(works) * n_shards + self.message_cost * n_messages
            if cost < least:
                best, least, candidates = tree, cost, self.candidates.copy()
            if turn < ROUNDS:
                tree = self._recut(tree, root)
        arrays = _flattened(best)
        report = PlanReport(
            np.array([self.scale * len(leaf.rows) for leaf in best.leaves]),
            np.array([len(leaf.messages) for leaf in best.leaves], np.int64),
            np.array([candidates[leaf.rows].sum() for leaf in best.leaves]),
            len(rows),
            {name: int((arrays.kinds == kind).sum()) for kind, name in _CUT_NAMES.items()},
        )
        return arrays, report

    def _recut(self, tree: _Tree, node: _Node) -> _Tree:
        """Return the same cuts of a node by the weights as they are now."""
        if tree.cut is None:
            return _Tree(None, (), [node])
        if tree.cut.kind == CUT_TOKEN:
            cut = self._token_cut(node)
        else:
            cut = self._key_cut(node, tree.cut.kind)
        if cut is None:
            cut = self._best_cut(node)
        left, right = _halves(node, cut)
        children = (
            self._recut(tree.children[LEFT], left),
            self._recut(tree.children[RIGHT], right),
        )
        return _Tree(cut, children, [*children[LEFT].leaves, *children[RIGHT].leaves])

    def _grown(self, node: _Node) -> _Tree:
        """Return the tree of the best cuts below a node."""
        if node.n_shards == 1:
            return _Tree(None, (), [node])
        cut = self._best_cut(node)
        left, right = (self._grown(child) for child in _halves(node, cut))
        return _Tree(cut, (left, right), [*left.leaves, *right.leaves])

    def _best_cut(self, node: _Node) -> _Cut:
        found = [self._key_cut(node, kind) for kind in (CUT_X, CUT_Y, CUT_SIZE)]
        cuts = [cut for cut in found if cut is not None]
        if cuts:
            best = min(cuts, key=lambda cut: cut.cost)
            cuts = [best, *self._shifted(node, best)]
        token_cut = self._token_cut(node)
        if token_cut is not None:
            cuts.append(token_cut)
        if all(cut.imbalance > UNEVEN for cut in cuts):
            cuts.append(self._content_cut(node))
        return min(cuts, key=lambda cut: cut.cost)

    def _shifted(self, node: _Node, cut: _Cut) -> list[_Cut]:
        """Return cuts by the same key nearer to where both sides have their share of the work.

        A cut is first made by the weights of subscriptions, but messages that go to both sides are
        work on both.
        """
        share = wanted = (node.n_shards // 2) / node.n_shards
        cuts: list[_Cut] = []
        for _ in range(SHIFTS):
            left, right = cut.work
            share = min(max(share + wanted - left / (left + right), 0.0), 1.0)
            shifted = self._key_cut(node, cut.kind, share)
            if shifted is None or shifted.threshold == cut.threshold:
                break
            cuts.append(shifted)
            cut = shifted
        return cuts

    def _key_cut(self, node: _Node, kind: int, share: float | None = None) -> _Cut | None:
        """Return the cut by a key that comes closest to the share, if there are two keys at all."""
        if share is None:
            share = (node.n_shards // 2) / node.n_shards
        keys = self.sample.keys[node.rows, kind]
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

    def _token_cut(self, node: _Node) -> _Cut | None:
        share = (node.n_shards // 2) / node.n_shards
        tokens, sums = node_tokens(self.sample, node.rows, self.weights, self.numbers)
        try:
            if len(tokens) < 2:
                return None
            starts, places = token_messages(
                self.sample, self.messages, node.rows, node.messages, self.units,
                self.numbers, len(tokens),
            )  # fmt: skip
            sides = side_tokens(
                np.argsort(-sums, kind="stable"), sums, share, TOKEN_SLACK, TOKEN_ROUNDS,
                starts, places, len(node.messages),
            )  # fmt: skip
            row_sides = sides[self.numbers[self.sample.tokens[node.rows]]]
        finally:
            self.numbers[tokens] = -1
        order = np.argsort(tokens)
        listed = (self.vocabulary[tokens[order]], sides[order])
        return self._rated(node, CUT_TOKEN, share, row_sides, listed)

    def _content_cut(self, node: _Node) -> _Cut:
        """Return a cut by what clauses say; also one that has nothing to cut in this sample."""
        cut = self._key_cut(node, CUT_CONTENT)
        if cut is not None:
            return cut
        low, high = node.content
        threshold = low + (high - low) * (node.n_shards // 2) / node.n_shards
        keys = self.sample.keys[node.rows, CUT_CONTENT]
        return self._rated(node, CUT_CONTENT, threshold, (keys >= threshold).astype(np.int8))

    def _rated(
        self,
        node: _Node,
        kind: int,
        threshold: float,
        sides: Int8s,
        listed: tuple[Int32s, Int8s] | None = None,
    ) -> _Cut:
        """Return the cut with its cost, as if the shards of either side were equally busy.

        All shards together take as long as the busiest one of them.
        """
        flags = np.zeros(len(node.messages), np.uint8)
        n_left, n_right = route_sides(
            self.sample, self.messages, node.rows, sides, node.messages, self.units, flags
        )
        loads = self.loads[node.rows]
        right = float(loads[sides == RIGHT].sum())
        work = (float(loads.sum()) - right + TAKE_COST * n_left, right + TAKE_COST * n_right)
        n_left_shards = node.n_shards // 2
        per_shard = (
            work[LEFT] / n_left_shards,
            work[RIGHT] / (node.n_shards - n_left_shards),
        )
        busiest, total = max(per_shard) * node.n_shards, sum(work)
        cost = busiest + self.message_cost * (n_left + n_right)
        imbalance = busiest / total if total > 0 else 1.0
        return _Cut(cost, kind, threshold, sides, flags, work, imbalance, listed)


def _halves(node: _Node, cut: _Cut) -> tuple[_Node, _Node]:
    n_left = node.n_shards // 2
    bounds = (node.content, node.content)
    if cut.kind == CUT_CONTENT:
        low, high = node.content
        bounds = ((low, cut.threshold), (cut.threshold, high))
    left, right = (
        _Node(n, node.rows[cut.sides == side], node.messages[cut.flags & flag != 0], bounds[side])
        for side, flag, n in ((LEFT, 1, n_left), (RIGHT, 2, node.n_shards - n_left))
    )
    return left, right


def _flattened(tree: _Tree) -> PlanArrays:
    """Return a tree as arrays; its leaves are the shards, from left to right."""
    n_shards = len(tree.leaves)
    kinds = np.full(2 * n_shards - 1, LEAF, np.int32)
    thresholds = np.zeros(len(kinds))
    children = np.empty((len(kinds), 2), np.int32)
    tokens = [np.empty(0, np.int32)] * len(kinds)
    sides = [np.empty(0, np.int8)] * len(kinds)
    shard, n_nodes = 0, 1
    stack = [(0, tree)]
    while stack:
        node, part = stack.pop()
        if part.cut is None:
            children[node] = shard
            shard += 1
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
        np.append(0, np.cumsum([len(each) for each in tokens])),
        np.concatenate(tokens),
        np.concatenate(sides),
    )


_CUT_NAMES = {
    CUT_X: "x",
    CUT_Y: "y",
    CUT_SIZE: "size",
    CUT_TOKEN: "token",
    CUT_CONTENT: "content",
}


def _thinned_clauses(clauses: ClauseArrays, most: int) -> ClauseArrays:
    """Return the clauses of every nth slot, renumbered from 0, so that at most so many are left."""
    step = -(-(int(clauses.subscriptions.max(initial=-1)) + 1) // most)
    if step <= 1:
        return clauses
    kept = take_clauses(clauses, np.flatnonzero(clauses.subscriptions % step == 0))
    return kept._replace(subscriptions=kept.subscriptions // np.int32(step))


def _thinned_messages(messages: MessageArrays, most: int) -> MessageArrays:
    """Return every nth message, so that at most so many are left."""
    step = -(-len(messages.boxes) // most)
    return (
        messages if step <= 1 else take_messages(messages, np.arange(0, len(messages.boxes), step))
    )


def _known_tokens(messages: MessageArrays, numbers: Int32s) -> MessageArrays:
    """Return messages with the numbers of their tokens, without tokens that have none."""
    ids = numbers[np.minimum(messages.token_ids, len(numbers) - 1)]
    known = ids >= 0
    sums = np.append(0, np.cumsum(known))
    return MessageArrays(
        sums[messages.token_offsets], ids[known], np.ascontiguousarray(messages.boxes)
    )


def _spatial_codes(boxes: Float64s) -> Int64s:
    """Return the order in which the default index keeps boxes."""
    n = len(boxes)
    keys, codes = np.empty(n, np.uint64), np.empty(n, np.int64)
    build_keys(quantizer_of(boxes, "planar"), boxes, 0, keys)
    fill_codes(keys, 0, codes)
    return codes


def _clauses_per_block(scale: float) -> int:
    """Return how many sampled clauses stand for a block of the index."""
    return max(1, round(BLOCK / scale))


def _sample_lists(
    tokens: Int32s, next_tokens: Int32s, codes: Int64s, boxes: Float64s, scale: float
) -> tuple[SampleLists, Int64s, Int64s]:
    """Arrange sampled clauses as the default index would arrange all that they stand for.

    Returns the lists, and the clauses in the order of the lists and of the root list.
    """
    n = len(tokens)
    per_block = _clauses_per_block(scale)
    # Open lists of more than LIST_SPLIT_ABOVE clauses are split by next token.
    is_open = next_tokens != -2
    pairs = tokens.astype(np.int64) << 32 | (next_tokens + 2)
    _, pair_numbers, pair_counts = np.unique(pairs, return_inverse=True, return_counts=True)
    _, numbers = np.unique(tokens, return_inverse=True)
    n_open = np.bincount(numbers, is_open)
    has_list = (
        (next_tokens >= 0)
        & (n_open[numbers] * scale > LIST_SPLIT_ABOVE)
        & (pair_counts[pair_numbers] * scale >= LIST_MIN_CHILD)
    )
    groups = np.where(has_list, next_tokens + 2, is_open)
    pairs = tokens.astype(np.int64) << 32 | groups
    entries = np.lexsort((codes, pairs))
    pairs = pairs[entries]
    firsts = np.flatnonzero(np.diff(pairs, prepend=-1))
    n_blocks = -(-np.diff(np.append(firsts, n)) // per_block)
    group_starts = np.append(0, np.cumsum(n_blocks))
    within = np.arange(group_starts[-1]) - np.repeat(group_starts[:-1], n_blocks)
    block_starts = np.append(np.repeat(firsts, n_blocks) + within * per_block, n)
    root_entries = np.argsort(codes)
    root_starts = np.append(np.arange(0, n, per_block), n)
    root_boxes = _boxes_around(boxes[root_entries], root_starts[:-1])
    lists = SampleLists(
        (pairs[firsts] >> 32).astype(np.int32),
        ((pairs[firsts] & 0xFFFFFFFF) - 2).astype(np.int32),
        group_starts,
        block_starts,
        _boxes_around(boxes[entries], block_starts[:-1]),
        root_starts,
        root_boxes,
        _boxes_around(root_boxes, np.arange(0, len(root_boxes), BLOCK)),
    )
    return lists, entries, root_entries


def _boxes_around(boxes: Float64s, starts: Int64s) -> Float64s:
    """Return the box around each run of boxes, none of which is empty."""
    around = np.empty((len(starts), 4))
    if len(starts):
        np.minimum.reduceat(boxes[:, :2], starts, axis=0, out=around[:, :2])
        np.maximum.reduceat(boxes[:, 2:], starts, axis=0, out=around[:, 2:])
    return around
