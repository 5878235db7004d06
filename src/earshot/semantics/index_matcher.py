"""Boolean matching, and ranking by a threshold: matchers over an index.

Both match each message against the subscriptions there are, and keep neither messages nor results.
They differ in the index they ask, which is told apart by its structure's form.

**Growth.** A large first load is built as one index; later changes go to the index's delta, or into
the index itself where that is a tree. When the delta has grown to a share of the index, a new one
is due. New subscriptions are collected and put into the index before its next use, so that a
million single calls cost about as much as some batches. One that ends before that is only marked,
so that a journal is replayed without a use of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, ClassVar, Self

import numpy as np

from earshot.encoding import REGIONS, Form
from earshot.encoding.columns import Bools
from earshot.errors import SavedIndexError, check_threads
from earshot.indexes import default_structure, index_type, open_index
from earshot.indexes.answers import Counters
from earshot.indexes.contract import Index, Snapshot
from earshot.indexes.ranked_contract import RankedIndex, RankedParameters
from earshot.kernels.growing import CollectedClauses
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Int32s,
    Int64s,
    MessageArrays,
    RegionArrays,
    Space,
    box_clauses,
    gather_ranges,
    largest_token,
    with_tokens,
)
from earshot.model.boolean import Boolean
from earshot.model.explanations import Explanation
from earshot.model.ranking import Ranking, idf_weights
from earshot.semantics.contract import Changes, Kept, Matcher, Question, Rebuild, kept_tokens
from earshot.semantics.index_explanation import explain_match, explain_score
from earshot.storage import Contents, Saved

REBUILD_SHARE = 0.05
"""Share of an index's subscriptions that may change before a rebuild is due."""
REBUILD_LEAST = 20_000
"""Changes that never make a rebuild due, however small the index."""
REBUILD_SMALL = 1_000
"""Changes from which a small index is rebuilt on the spot when they outnumber what it was built of.

Its box keys were made for those few, and tell the newcomers' boxes badly apart."""

UNBOUNDED = "has no keywords, so without a region every message would match; give a region"


class IndexMatcher(Matcher):
    """Matches messages with the subscriptions of an index."""

    moves_to_new_slots = True

    def __init__(self, index: Index, n_threads: int = 1) -> None:
        check_threads(n_threads)
        self.n_threads = n_threads
        self._index = index
        # Clauses that were subscribed since the last use of the index.
        self._pending = CollectedClauses()
        self._n_pending = 0
        # Slots among these that have ended already.
        self._ended: list[Int32s] = []
        self._n_ended = 0
        self._kept: Kept | None = None  # what is left, where it was numbered anew
        self._n_changes_at_failure = 0  # when a rebuild failed; the next waits for twice as many

    @property
    def space(self) -> Space:  # type: ignore[override]  # the index knows it
        """Coordinates and metric."""
        return self._index.space

    @property
    def index(self) -> Index:
        """The index; it has all subscriptions once the matcher is settled."""
        return self._index

    @property
    def structure(self) -> str:
        """Name of the index structure."""
        return self._index.name

    @property
    def n_subscriptions(self) -> int:
        """Live subscriptions."""
        return self._index.n_subscriptions + self._n_pending - self._n_ended

    # ---- life cycle ---------------------------------------------------------------------------

    def contents(self) -> Contents:
        """Return what is to be saved: the index, which must be settled."""
        return self._index.contents()

    @classmethod
    def open(cls, saved: Saved, *, n_threads: int) -> Self:
        """Open the index by memory-mapping its arrays."""
        index = open_index(saved)
        if index.semantics != cls.name:
            raise SavedIndexError(f"{saved.where} holds a {index.semantics} index, not {cls.name}")
        return cls(index, n_threads)

    def rehearsal(self) -> None:
        """Publishing changes nothing."""
        return

    # ---- events -------------------------------------------------------------------------------

    def subscribe(self, asked: ClauseArrays) -> Changes:
        """Give the next slots these clauses, whose slots count from 0."""
        n = int(asked.subscriptions[-1]) + 1 if len(asked.subscriptions) else 0
        if n:
            first = np.int32(self._index.n_slots + self._n_pending)
            self._pending.append(asked._replace(subscriptions=asked.subscriptions + first))
            self._n_pending += n
        return self.no_changes(n)

    def unsubscribe(self, slots: Int32s) -> None:
        """End subscriptions."""
        is_pending = slots >= self._index.n_slots
        if not is_pending.all():
            self._index.remove(slots[~is_pending])
        ended = slots[is_pending]
        if len(ended):
            self._ended.append(ended)
            self._n_ended += len(ended)

    def move(self, slots: Int32s, places: RegionArrays) -> Changes:
        """Put other regions in the place of subscriptions, which get the next slots."""
        self._put_in()
        moved = _moved_clauses(self._index.clauses_of(slots), slots, places)
        self._index.remove(slots)
        return self.subscribe(moved)

    def refused_moves(self, slots: Int32s, places: RegionArrays) -> Iterator[tuple[int, str, str]]:
        """Yield the moves after which a subscription would match every message."""
        self._put_in()
        everywhere = np.flatnonzero(np.isinf(places.boxes[places.offsets[:-1], 0]))
        if not len(everywhere):
            return
        clauses = self._index.clauses_of(slots[everywhere])
        is_wordless = (np.diff(clauses.token_offsets) == 1) & (
            clauses.token_ids[clauses.token_offsets[:-1]] == EVERYWHERE_TOKEN
        )
        wordless = np.isin(slots[everywhere], clauses.subscriptions[is_wordless])
        for at in everywhere[wordless].tolist():
            yield at, "id", UNBOUNDED

    def publish(self, messages: MessageArrays) -> Changes:
        """Match messages; nothing changes."""
        found = self._index.match(messages, n_threads=self.n_threads)
        return Changes(found.offsets, found.subscriptions, found.counters, found.scores)

    def no_changes(self, n_rows: int) -> Changes:
        """Return that so many event rows changed nothing."""
        return Changes(
            np.zeros(n_rows + 1, np.int64),
            np.empty(0, np.int32),
            Counters(0, 0, 0),
            np.empty(0) if self.has_scores else None,
        )

    # ---- slots --------------------------------------------------------------------------------

    def drop_ended(self) -> Kept | None:
        """Give up the slots that ended while they were pending, where they are most of all."""
        index = self._index
        if self._n_ended > max(REBUILD_LEAST, (index.n_slots + self._n_pending) // 2):
            if index.n_slots:
                self._put_in()  # the next rebuild drops them
            else:
                self._kept = self._drop_pending()
        kept, self._kept = self._kept, None
        return kept

    def _drop_pending(self) -> Kept:
        """Give up what ended before anything was built, and the words that only it had."""
        index = self._index
        n_tokens = 1 + max(map(largest_token, self._pending.parts))
        clauses, old_slots = self._live_pending()
        tokens = kept_tokens(index.used_tokens(clauses, n_tokens))
        if tokens is not None:
            clauses = with_tokens(clauses, tokens)
            self._index = index.rebuilt_of(_nothing(), tokens)
        self._pending, self._n_pending = CollectedClauses(), len(old_slots)
        self._pending.append(clauses)
        self._ended, self._n_ended = [], 0
        return Kept(old_slots, tokens)

    def settle(self) -> Kept | None:
        """Put what is pending into the index."""
        n_pending, is_empty = self._n_pending, self._index.n_slots == 0
        self._put_in()
        index = self._index
        if n_pending and not is_empty:
            is_small = index.n_slots < REBUILD_LEAST and index.n_changes > REBUILD_SMALL
            if (is_small or n_pending > REBUILD_LEAST) and index.n_changes > index.n_base_slots:
                # More than what is there already: a delta would be slower than building now.
                rebuild = _IndexRebuild(self, index, self.n_threads)
                rebuild.build()
                self._kept = Kept(rebuild.old_slots, rebuild.old_tokens)
                self.take_over(rebuild)
        kept, self._kept = self._kept, None
        return kept

    def rebuild(self, *, is_forced: bool = False) -> Rebuild | None:
        """Begin to merge all changes into a new index; the matcher must be settled."""
        index = self._index
        share = int(REBUILD_SHARE * index.n_base_slots)
        due = max(REBUILD_LEAST, share, 2 * self._n_changes_at_failure)
        if index.n_changes < (1 if is_forced else due):
            return None
        return _IndexRebuild(self, index, self.n_threads if is_forced else 1)

    def take_over(self, rebuild: Rebuild) -> tuple[Int32s, Kept] | None:
        """Bring a rebuilt index up to date with what changed since its snapshot, and use it."""
        assert isinstance(rebuild, _IndexRebuild)
        old, new, old_slots, tokens = (
            self._index, rebuild.new, rebuild.old_slots, rebuild.old_tokens
        )  # fmt: skip
        if rebuild.index is not old:
            return None
        self._put_in()  # not by settling, which could rebuild what is being replaced here
        removed = np.flatnonzero(~old.is_alive(old_slots)).astype(np.int32)
        since = np.arange(len(rebuild.snapshot.alive), old.n_slots, dtype=np.int32)
        added = since[old.is_alive(since)]
        new.remove(removed)
        if len(added):
            clauses = old.clauses_of(added)
            new_slots = np.searchsorted(added, clauses.subscriptions) + len(old_slots)
            clauses = clauses._replace(subscriptions=new_slots.astype(np.int32))
            if tokens is not None:
                # What came meanwhile has words that are new, or were forgotten.
                asked = np.unique(np.maximum(clauses.token_ids, ~clauses.token_ids))
                tokens = np.append(tokens, np.setdiff1d(asked, tokens))
                clauses = with_tokens(clauses, tokens)
            new.insert(clauses)
        self._index = new
        self._n_changes_at_failure = 0
        return removed, Kept(np.append(old_slots, added), tokens)

    def _put_in(self) -> None:
        """Put what is pending into the index; slots stay what they are."""
        if self._n_pending:
            if self._index.n_slots == 0:
                # As a rebuild of what is pending, so that it is built as the index was.
                clauses = self._pending.joined()
                self._index = self._index.rebuilt_of(clauses, n_threads=self.n_threads)
            else:
                self._index.insert(self._pending.joined())
            # Only now: what failed to go in is tried again.
            self._pending, self._n_pending = CollectedClauses(), 0
        if self._n_ended:
            self._index.remove(np.concatenate(self._ended))
            self._ended, self._n_ended = [], 0

    def _live_pending(self) -> tuple[ClauseArrays, Int32s]:
        """Return what is pending and has not ended, with slots 0, 1, …, and their places there."""
        first = np.int32(self._index.n_slots)
        is_live = np.ones(self._n_pending, np.bool_)
        for ended in self._ended:
            is_live[ended - first] = False
        parts = [
            each._replace(subscriptions=each.subscriptions - first)
            for each in (_nothing(), *self._pending.parts)
        ]
        return Snapshot(parts, is_live).live_clauses()

    # ---- questions ----------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return what there is to know of the index."""
        index = self._index
        return {
            "n_clauses": len(index.clauses.subscriptions),
            "n_changes": index.n_changes,
            "index_bytes": index.nbytes,
            "subscription_bytes": index.stored_nbytes,
            "parameters": asdict(index.parameters),
        }

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory by part."""
        return {"structure": self._index.nbytes, "subscriptions": self._index.stored_nbytes}

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of the structure."""
        return (self._index.arrays,)


class BooleanMatcher(IndexMatcher):
    """A message goes to every subscription whose condition and region it meets."""

    name = "boolean"
    settings_type = Boolean
    form: ClassVar[Form] = REGIONS
    settings = Boolean()

    @classmethod
    def create(
        cls, settings: Any, *, structure: str | None, parameters: Any, space: Space, n_threads: int
    ) -> Self:
        """Return a matcher over an empty index."""
        kind = index_type(structure or default_structure(cls.name), cls.name)
        return cls(kind.build(_nothing(), space=space, parameters=parameters), n_threads)

    def explain(self, question: Question) -> Explanation:
        """Say in words why a message would be delivered, or why not."""
        slots = np.array([question.slot], np.int32)
        return explain_match(question, self._index.clauses_of(slots), self.space)


class RankedMatcher(IndexMatcher):
    """A message goes to every subscription for which it scores enough.

    All words weigh the same until :meth:`reweigh`, so that when an index is built changes no score.
    """

    name = "ranked"
    settings_type = Ranking
    form: ClassVar[Form] = Form("ranked matching", frozenset({"expression", "threshold"}))
    has_scores = True
    weighs_words_by = "subscriptions"
    _index: RankedIndex

    @classmethod
    def create(
        cls,
        settings: Ranking,
        *,
        structure: str | None,
        parameters: Any,
        space: Space,
        n_threads: int,
    ) -> Self:
        """Return a matcher over an empty index, in which all words weigh 1, later ones too."""
        kind = index_type(structure or default_structure(cls.name), cls.name)
        given = kind.parameters_type() if parameters is None else parameters
        if isinstance(given, RankedParameters):  # else the index says what it expects
            given = replace(given, alpha=settings.alpha, threshold=settings.threshold)
        assert issubclass(kind, RankedIndex)
        index = kind.build(
            _nothing(), space=space, parameters=given, weights=np.ones(1), later_weight=1.0
        )
        return cls(index, n_threads)

    @property
    def settings(self) -> Ranking:
        """How messages are scored, and what they must score."""
        return self._index.parameters.ranking

    def reweigh(self, n_tokens: int, frequencies: Int64s | None) -> Changes:
        """Weigh words by how rare they are among the subscriptions there are now.

        Nothing is delivered anew: the weights count from the next message on.
        """
        if self._index.n_slots == 0:
            # Nothing is built so far: what is pending will be, with these weights.
            if frequencies is None:
                frequencies = _subscriptions_by_token(self._live_pending()[0], n_tokens)
            self._index = self._weighed(_nothing(), frequencies)
            return self.no_changes(0)
        kept = self._kept = self.settle()  # kept also where what follows fails
        clauses, old_slots = self._index.snapshot().live_clauses()
        if frequencies is None:
            frequencies = _subscriptions_by_token(clauses, n_tokens)
        self._index = self._weighed(clauses, frequencies)
        self._kept = Kept(old_slots) if kept is None else Kept(kept.slots[old_slots], kept.tokens)
        return self.no_changes(0)

    def frequencies(self, n_tokens: int, is_live: Callable[[Int32s], Bools]) -> Int64s:
        """Return how many live subscriptions ask for each token."""
        clauses, slots = self._index.snapshot().live_clauses()
        return _subscriptions_by_token(clauses, n_tokens, is_live(slots))

    def _weighed(self, clauses: ClauseArrays, frequencies: Int64s) -> RankedIndex:
        """Return an index of clauses, with words weighed by how many ask for them."""
        index = self._index
        weights, later_weight = idf_weights(frequencies)
        return type(index).build(
            clauses,
            space=index.space,
            parameters=index.parameters,
            n_threads=self.n_threads,
            weights=weights,
            later_weight=later_weight,
        )

    def explain(self, question: Question) -> Explanation:
        """Say in words what a message would score, and whether that is enough."""
        index = self._index
        weights = np.full(len(question.vocabulary), index.later_weight)
        n_weighed = min(len(weights), len(index.weights))  # a tree has some to spare
        weights[:n_weighed] = index.weights[:n_weighed]
        clauses = index.clauses_of(np.array([question.slot], np.int32))
        return explain_score(question, clauses, self.space, self.settings, weights)


class _IndexRebuild:
    """A new index of the subscriptions that there were when it was begun."""

    def __init__(self, matcher: IndexMatcher, index: Index, n_threads: int) -> None:
        self._matcher = matcher
        self.index = index
        self.snapshot = index.snapshot()
        self._n_threads = n_threads
        self.new: Index
        self.old_slots: Int32s
        self.old_tokens: Int32s | None

    def build(self) -> None:
        """Build it; may run beside changes and matching in other threads."""
        try:
            clauses, self.old_slots = self.snapshot.live_clauses()
            n_tokens = 1 + max(map(largest_token, self.snapshot.parts))
            self.old_tokens = kept_tokens(self.index.used_tokens(clauses, n_tokens))
            self.new = self.index.rebuilt_of(clauses, self.old_tokens, n_threads=self._n_threads)
        except BaseException:
            self._matcher._n_changes_at_failure = self.index.n_changes
            raise


def _nothing() -> ClauseArrays:
    return box_clauses([0], [], np.empty((0, 4)))


def _subscriptions_by_token(
    clauses: ClauseArrays, n_tokens: int, counted: Bools | None = None
) -> Int64s:
    """Return how many subscriptions ask for each token; all do for the first."""
    is_required = clauses.token_ids >= 0
    n_slots = n_counted = int(clauses.subscriptions.max(initial=-1)) + 1
    if counted is not None:
        is_required &= np.repeat(counted[clauses.subscriptions], np.diff(clauses.token_offsets))
        n_counted = int(counted.sum())
    tokens = clauses.token_ids[is_required]
    if len(clauses.subscriptions) > n_slots:  # alternatives may ask for the same
        slots = np.repeat(clauses.subscriptions, np.diff(clauses.token_offsets))[is_required]
        tokens = np.unique(slots.astype(np.int64) * n_tokens + tokens) % n_tokens
    counts = np.bincount(tokens, minlength=n_tokens).astype(np.int64)
    counts[EVERYWHERE_TOKEN] = n_counted
    return counts


def _moved_clauses(old: ClauseArrays, slots: Int32s, regions: RegionArrays) -> ClauseArrays:
    """Return the clauses of ``slots`` with new regions, and with slots from 0 in that order."""
    order = np.argsort(slots, kind="stable")
    owners = order[np.searchsorted(slots[order], old.subscriptions)]
    rows = np.argsort(owners) if len(owners) == len(slots) else _distinct_rows(old, owners)
    n_boxes = np.diff(regions.offsets)[owners[rows]]
    _, boxes = gather_ranges(regions.offsets, owners[rows])
    token_rows = np.repeat(rows, n_boxes)
    token_offsets, positions = gather_ranges(old.token_offsets, token_rows)
    return ClauseArrays(
        np.repeat(owners[rows], n_boxes).astype(np.int32),
        token_offsets,
        old.token_ids[positions],
        regions.boxes[boxes],
        regions.shape_rows[boxes],
        regions.shapes,
        old.thresholds[token_rows] if len(old.thresholds) else old.thresholds,
    )


def _distinct_rows(clauses: ClauseArrays, owners: Int64s) -> Int64s:
    """Return one row for each list of tokens of an owner, owners ascending.

    A region in several boxes repeats its tokens.
    """
    found: dict[tuple[int, bytes], int] = {}
    for row, owner in enumerate(owners.tolist()):
        first, last = clauses.token_offsets[row], clauses.token_offsets[row + 1]
        found.setdefault((owner, clauses.token_ids[first:last].tobytes()), row)
    pairs = sorted((owner, row) for (owner, _), row in found.items())
    return np.array([row for _, row in pairs], np.int64)
