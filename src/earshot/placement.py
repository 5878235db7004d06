"""Cutting subscriptions into shards, and routing messages to the shards that can match them.

**Plan.** A binary tree over subscriptions. Each node cuts in two by one property of a subscription's
first clause: the centre of its box in x or y, the size of its box, the token that it is filed
under (its rarest known one), or, where nothing else tells subscriptions apart, a hash of what it
says. A leaf is a shard, so every subscription is in exactly one.

**Units.** What a shard holds is told by its units: for each token that one of its clauses is filed
under, the box around those clauses. A message goes to the shards with a unit of one of its tokens
whose box it meets. A clause matches only messages that carry all its tokens and meet its box, so
no match is lost, whatever the plan was cut from and however many clauses a subscription has.

**Cutting.** A plan is cut from samples. Each sampled subscription gets a load: how often the sampled
messages would examine it in the default index, where a list is examined in blocks of sixteen
neighbours. From the top, each node with k shards to make tries all cuts that split the load
k // 2 : k - k // 2, routes its sampled messages over either half, and takes the cut whose busier
half has the least work, in messages and candidates. Crowded places end up cut by token, frequent
tokens by place, and large regions, which would draw messages from everywhere to every shard, away
from small ones. PS2Stream's kdt-tree chooses between space and text in this way.
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
from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.block_trie_build import fill_codes
from earshot.kernels.box_keys import BLOCK, build_keys
from earshot.kernels.placement import (
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
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    gather_ranges,
)

Int8s = npt.NDArray[np.int8]

MESSAGE_COST = 500.0
"""Candidates that cost about as much as handing one message to one shard."""
STORAGE_SHARE = 0.1
"""Share of the load that is spread evenly over all subscriptions, whether examined or not."""
LIST_SPLIT_ABOVE, LIST_MIN_CHILD = 64, 16
"""When a list is split by the next token; the defaults of ``block_trie``."""
TOKEN_SLACK = 0.02
TOKEN_ROUNDS = 2


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
        message_cost: What handing a message to a shard was taken to cost, in candidates.
        cuts: How many nodes cut by what.
    """

    subscriptions: Float64s
    messages: Int64s
    candidates: Float64s
    n_messages: int
    message_cost: float
    cuts: dict[str, int]

    @property
    def replication(self) -> float:
        """Mean number of shards that a message goes to."""
        return float(self.messages.sum() / max(self.n_messages, 1))

    @property
    def balance(self) -> float:
        """Work of the busiest shard, as a multiple of the mean; 1 is perfect."""
        return busiest_share(self.candidates + self.message_cost * self.messages)

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
            f"{self.replication:.2f} of them; the busiest has {self.balance:.2f} times the mean work"
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
        scale = n_subscriptions / n_sampled if n_sampled else 1.0
        cutter = _Cutter(clauses, messages, frequencies, scale, message_cost)
        arrays, report = cutter.cut(n_shards)
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
    if len(starts) == 0:
        return UnitArrays(np.empty(0, np.int32), np.empty(0, np.int32), np.empty((0, 4)))
    boxes = boxes[order]
    joined = np.empty((len(starts), 4))
    np.minimum.reduceat(boxes[:, :2], starts, axis=0, out=joined[:, :2])
    np.maximum.reduceat(boxes[:, 2:], starts, axis=0, out=joined[:, 2:])
    pairs = pairs[starts]
    return UnitArrays((pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32), joined)


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
    """The lists of the default index over the sample, as far as loads need them."""

    token_starts: Int64s  # (n_tokens + 1,) groups of each token
    next_tokens: Int32s  # (n_groups,) token that a message must also carry, or negative
    group_starts: Int64s  # (n_groups + 1,) blocks of each group
    block_starts: Int64s  # (n_blocks + 1,) entries of each block
    block_boxes: Float64s  # (n_blocks, 4)
    entries: Int64s  # (n_clauses,) clauses


class _Node(NamedTuple):
    number: int
    first_shard: int
    n_shards: int
    rows: Int64s  # slots
    messages: Int64s  # rows of messages
    content: tuple[float, float]  # range of the content keys that can come here


class _Cut(NamedTuple):
    cost: float
    kind: int
    threshold: float
    sides: Int8s
    flags: npt.NDArray[np.uint8]
    listed: tuple[Int32s, Int8s] | None


class _Cutter:
    """One run of :meth:`Plan.cut`."""

    def __init__(
        self,
        clauses: ClauseArrays,
        messages: MessageArrays,
        frequencies: Int64s,
        scale: float,
        message_cost: float,
    ) -> None:
        filed, next_tokens = _filed_tokens(clauses, frequencies)
        keys, tokens = _slot_keys(clauses, filed, len(frequencies))
        self.vocabulary = np.unique(filed)
        numbers = np.full(len(frequencies) + 1, -1, np.int32)
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
        self.scale = scale
        self.message_cost = message_cost
        next_numbers = np.where(next_tokens >= 0, numbers[next_tokens], -1)[order]
        # A next token that no clause is filed under has no number; its lists stay whole.
        self.lists = _sample_lists(
            self.sample, next_numbers, next_tokens[order] >= 0, len(self.vocabulary), scale
        )
        self._weigh()
        n_tokens = len(self.vocabulary)
        self.units = np.tile([np.inf, np.inf, -np.inf, -np.inf], (2 * n_tokens, 1))
        self.numbers = np.full(n_tokens, -1, np.int32)

    def _weigh(self) -> None:
        """Set the candidates that each slot stands for, and the weight that is to be balanced."""
        n_messages, n_slots = len(self.messages.boxes), len(self.sample.tokens)
        slots = np.repeat(np.arange(n_slots), np.diff(self.sample.clause_starts))

        def per_slot(message_weights: Float64s) -> tuple[Float64s, Int64s]:
            hits = np.zeros(len(self.lists.block_boxes))
            n_examined = np.zeros(n_messages, np.int64)
            count_hits(
                self.lists, self.messages, len(self.vocabulary), message_weights, hits, n_examined
            )
            loads = np.zeros(n_slots)
            entry_hits = np.repeat(hits, np.diff(self.lists.block_starts))
            np.add.at(loads, slots[self.lists.entries], entry_hits)
            return loads, n_examined

        loads, n_examined = per_slot(np.ones(n_messages))
        self.candidates = self.scale * loads
        # Handing over a message costs as well; those that it is for share that.
        shares, _ = per_slot(self.message_cost / np.maximum(n_examined, 1))
        self.weights = self.candidates + shares
        even = STORAGE_SHARE * self.weights.sum() / max(n_slots, 1)
        self.weights += even if even > 0 else 1.0

    def cut(self, n_shards: int) -> tuple[PlanArrays, PlanReport]:
        kinds = np.full(2 * n_shards - 1, LEAF, np.int32)
        thresholds = np.zeros(len(kinds))
        children = np.empty((len(kinds), 2), np.int32)
        listed: list[tuple[Int32s, Int8s]] = [(np.empty(0, np.int32), np.empty(0, np.int8))] * len(
            kinds
        )
        subscriptions = np.zeros(n_shards)
        candidates = np.zeros(n_shards)
        n_messages = np.zeros(n_shards, np.int64)
        n_slots = len(self.sample.tokens)
        n_nodes = 1
        stack = [
            _Node(
                0, 0, n_shards, np.arange(n_slots), np.arange(len(self.messages.boxes)), (0.0, 1.0)
            )
        ]
        while stack:
            node = stack.pop()
            if node.n_shards == 1:
                shard = node.first_shard
                children[node.number] = shard
                subscriptions[shard] = self.scale * len(node.rows)
                candidates[shard] = self.candidates[node.rows].sum()
                n_messages[shard] = len(node.messages)
                continue
            best = self._best_cut(node)
            kinds[node.number] = best.kind
            thresholds[node.number] = best.threshold
            children[node.number] = n_nodes, n_nodes + 1
            if best.listed is not None:
                listed[node.number] = best.listed
            n_left = node.n_shards // 2
            low, high = node.content
            middle = best.threshold if best.kind == CUT_CONTENT else low
            for side in (RIGHT, LEFT):
                is_left = side == LEFT
                bounds = node.content
                if best.kind == CUT_CONTENT:
                    bounds = (low, middle) if is_left else (middle, high)
                stack.append(
                    _Node(
                        n_nodes + side,
                        node.first_shard + (0 if is_left else n_left),
                        n_left if is_left else node.n_shards - n_left,
                        node.rows[best.sides == side],
                        node.messages[best.flags & (1 if is_left else 2) != 0],
                        bounds,
                    )
                )
            n_nodes += 2
        arrays = PlanArrays(
            kinds,
            thresholds,
            children,
            np.append(0, np.cumsum([len(tokens) for tokens, _ in listed])),
            np.concatenate([tokens for tokens, _ in listed]),
            np.concatenate([sides for _, sides in listed]),
        )
        report = PlanReport(
            subscriptions,
            n_messages,
            candidates,
            len(self.messages.boxes),
            self.message_cost,
            {name: int((kinds == kind).sum()) for kind, name in _CUT_NAMES.items()},
        )
        return arrays, report

    def _best_cut(self, node: _Node) -> _Cut:
        share = (node.n_shards // 2) / node.n_shards
        cuts = [self._key_cut(node, share, kind) for kind in (CUT_X, CUT_Y, CUT_SIZE)]
        cuts.append(self._token_cut(node, share))
        found = [cut for cut in cuts if cut is not None]
        if not found:
            found = [self._content_cut(node, share)]
        return min(found, key=lambda cut: cut.cost)

    def _key_cut(self, node: _Node, share: float, kind: int) -> _Cut | None:
        """Return the cut by a key that comes closest to the share, if there are two keys at all."""
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

    def _token_cut(self, node: _Node, share: float) -> _Cut | None:
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

    def _content_cut(self, node: _Node, share: float) -> _Cut:
        """Return a cut by what clauses say; also one that has nothing to cut in this sample."""
        cut = self._key_cut(node, share, CUT_CONTENT)
        if cut is not None:
            return cut
        low, high = node.content
        threshold = low + share * (high - low)
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
        """Return the cut with its cost: the mean work of a shard in the half that has more."""
        flags = np.zeros(len(node.messages), np.uint8)
        n_left, n_right = route_sides(
            self.sample, self.messages, node.rows, sides, node.messages, self.units, flags
        )
        weights = self.weights[node.rows]
        right = float(weights[sides == RIGHT].sum())
        left = float(weights.sum()) - right
        k = node.n_shards // 2
        cost = max(
            (left + self.message_cost * n_left) / k,
            (right + self.message_cost * n_right) / (node.n_shards - k),
        )
        return _Cut(cost, kind, threshold, sides, flags, listed)


_CUT_NAMES = {
    CUT_X: "x",
    CUT_Y: "y",
    CUT_SIZE: "size",
    CUT_TOKEN: "token",
    CUT_CONTENT: "content",
}


def _known_tokens(messages: MessageArrays, numbers: Int32s) -> MessageArrays:
    """Return messages with the numbers of their tokens, without tokens that have none."""
    ids = numbers[np.minimum(messages.token_ids, len(numbers) - 1)]
    known = ids >= 0
    sums = np.append(0, np.cumsum(known))
    return MessageArrays(
        sums[messages.token_offsets], ids[known], np.ascontiguousarray(messages.boxes)
    )


def _sample_lists(
    sample: SampleArrays, next_tokens: Int32s, is_open: Any, n_tokens: int, scale: float
) -> SampleLists:
    """Arrange the sampled clauses as the default index would arrange all of them."""
    n = len(sample.clause_tokens)
    keys, codes = np.empty(n, np.uint64), np.empty(n, np.int64)
    build_keys(quantizer_of(sample.boxes, "planar"), sample.boxes, 0, keys)
    fill_codes(keys, 0, codes)
    # Open lists of more than LIST_SPLIT_ABOVE clauses are split by next token.
    n_open = np.bincount(sample.clause_tokens[is_open], minlength=n_tokens)
    pairs = sample.clause_tokens.astype(np.int64) << 32 | (next_tokens + 2)
    _, inverse, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    has_list = (
        (next_tokens >= 0)
        & (n_open[sample.clause_tokens] * scale > LIST_SPLIT_ABOVE)
        & (counts[inverse] * scale >= LIST_MIN_CHILD)
    )
    groups = np.where(has_list, next_tokens + 2, is_open.astype(np.int32))
    entries = np.lexsort((codes, groups, sample.clause_tokens))
    pairs = sample.clause_tokens[entries].astype(np.int64) << 32 | groups[entries]
    firsts = np.flatnonzero(np.diff(pairs, prepend=-1))
    lengths = np.diff(np.append(firsts, n))
    per_block = max(1, round(BLOCK / scale))
    n_blocks = -(-lengths // per_block)
    group_starts = np.append(0, np.cumsum(n_blocks))
    within = np.arange(group_starts[-1]) - np.repeat(group_starts[:-1], n_blocks)
    block_starts = np.append(np.repeat(firsts, n_blocks) + within * per_block, n)
    boxes = sample.boxes[entries]
    block_boxes = np.empty((len(within), 4))
    if n:
        np.minimum.reduceat(boxes[:, :2], block_starts[:-1], axis=0, out=block_boxes[:, :2])
        np.maximum.reduceat(boxes[:, 2:], block_starts[:-1], axis=0, out=block_boxes[:, 2:])
    group_tokens = (pairs[firsts] >> 32).astype(np.int64)
    return SampleLists(
        np.searchsorted(group_tokens, np.arange(n_tokens + 1)).astype(np.int64),
        ((pairs[firsts] & 0xFFFFFFFF) - 2).astype(np.int32),
        group_starts,
        block_starts,
        block_boxes,
        entries,
    )
