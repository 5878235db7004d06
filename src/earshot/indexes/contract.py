"""What every index is: built from clauses, asked with messages, changed, saved and opened.

An index is ``parameters`` (frozen) + ``arrays`` (a NamedTuple of NumPy arrays built from the
clauses) and nothing else. A structure supplies how its arrays are built and how messages are
matched against them; this class supplies the rest in one way for all: changes, threads, saving.

Changes take effect at once. Inserted clauses go to a small :class:`~earshot.indexes.delta.Delta`
beside the immutable arrays, removed subscriptions are marked dead; :meth:`Index.rebuilt` merges
both into a new index. A structure that can change in place overrides :meth:`Index._take_in` and
:meth:`Index._bury`.

An index is not locked: a caller that changes it while another thread matches must serialise the
two, as :class:`earshot.engine.engine.Engine` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from earshot import storage
from earshot.errors import InvalidInput, InvalidParameter, SavedIndexError, check_threads
from earshot.indexes.answers import Matches, concat_matches, match_rows, merge_matches
from earshot.indexes.delta import ChainedDelta, Delta
from earshot.indexes.kernels.matching import Scratch, View
from earshot.indexes.quantizing import quantizer_of
from earshot.indexes.threads import Scratches, share
from earshot.kernels.answers import drop_repeats
from earshot.kernels.box_keys import Quantizer
from earshot.kernels.steady import SteadyCalls
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    Space,
    concat_clauses,
    gather_ranges,
    largest_token,
    nbytes,
    take_clauses,
    take_messages,
    with_tokens,
)

SPACES: tuple[Space, ...] = ("lonlat", "planar")


class Snapshot(NamedTuple):
    """The subscriptions of an index at one moment."""

    parts: list[ClauseArrays]
    alive: npt.NDArray[np.bool_]  # (n_slots,)

    def live_clauses(self) -> tuple[ClauseArrays, Int32s]:
        """Return the clauses of live subscriptions, renumbered 0, 1, …, and their old slots."""
        new_slots = np.cumsum(self.alive, dtype=np.int32) - np.int32(1)
        kept = []
        for part in self.parts:
            alive = self.alive[part.subscriptions]
            rest = part if alive.all() else take_clauses(part, np.flatnonzero(alive))
            kept.append(rest._replace(subscriptions=new_slots[rest.subscriptions]))
        return concat_clauses(kept), np.flatnonzero(self.alive).astype(np.int32)


class Tokens(NamedTuple):
    """What is saved of the tokens."""

    frequencies: Int64s  # (n_tokens,)


class RowsBySlot(NamedTuple):
    """Where the clauses of each slot are; empty where row i is the one clause of slot i."""

    order: Int64s  # rows sorted by slot
    starts: Int64s  # (n_slots + 1,) rows of slot i are order[starts[i]:starts[i + 1]]

    @classmethod
    def of(cls, subscriptions: Int32s, n_slots: int) -> Self:
        """Sort the rows of clauses by their slots."""
        if len(subscriptions) == n_slots and bool((np.diff(subscriptions) == 1).all()):
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        order = np.argsort(subscriptions, kind="stable")
        counts = np.bincount(subscriptions, minlength=n_slots)
        return cls(order, np.append(0, np.cumsum(counts)))

    def rows(self, slots: Int32s) -> npt.NDArray[Any]:
        """Return the rows of the slots' clauses."""
        if len(self.starts) == 0:
            return slots
        _, positions = gather_ranges(self.starts, slots)
        return self.order[positions]


class BuildInput(NamedTuple):
    """What a structure is built from."""

    clauses: ClauseArrays
    known: Any  # of the tokens: their frequencies or, for an index that ranks, ScoringArrays
    parameters: Any
    n_threads: int
    sample: MessageArrays | None = None  # messages like those to come, if some are known


@dataclass(frozen=True)
class Parameters:
    """Options of an index; each structure that has some subclasses this."""


class Index(ABC):
    """Base class of all boolean index structures, and of what the other semantics share."""

    semantics: ClassVar[str] = "boolean"
    """What decides about a delivery; a saved index is opened only as what it is."""
    name: ClassVar[str]
    """Name in the registry, on the command line and in reports."""
    parameters_type: ClassVar[type[Parameters]] = Parameters
    arrays_type: ClassVar[type[tuple[Any, ...]]]
    """NamedTuple type of :attr:`arrays`."""
    tokens_type: ClassVar[Any] = Tokens
    """NamedTuple type of what is saved of the tokens."""

    def __init__(
        self,
        parameters: Parameters,
        space: Space,
        clauses: ClauseArrays,
        arrays: Any,
        frequencies: Int64s,
        alive: npt.NDArray[np.uint8],
    ) -> None:
        self.parameters = parameters
        self.space = space
        self.clauses = clauses
        self.arrays = arrays
        self.frequencies = frequencies
        self.alive = alive
        self.n_base_slots = len(alive)
        self.has_repeats = bool(len(clauses.subscriptions) > self.n_base_slots)
        self.delta: Delta | None = None
        self._n_dead = len(alive) - int(np.count_nonzero(alive))
        self._scratches = Scratches()
        self._calls = SteadyCalls()
        self._rows_by_slot: RowsBySlot | None = None  # made when something is removed or moved

    # ---- life cycle -------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        clauses: ClauseArrays,
        *,
        space: Space = "lonlat",
        n_tokens: int | None = None,
        frequencies: npt.NDArray[np.int64] | None = None,
        parameters: Parameters | None = None,
        n_threads: int = 1,
        weights: Float64s | None = None,
        later_weight: float | None = None,
        sample: MessageArrays | None = None,
    ) -> Self:
        """Build an index over ``clauses``.

        Args:
            clauses: Subscriptions to index; slots run from 0 to the number of subscriptions - 1.
                The arrays are kept, not copied, and never written to.
            space: Metric of circles, and whether message boxes may cross the antimeridian.
            n_tokens: Size of the vocabulary; by default one more than the largest token.
            frequencies: How often each token occurs in messages, to tell rare tokens from frequent
                ones; by default counted in the clauses.
            parameters: Options of this structure.
            n_threads: Threads used while building.
            weights: For an index that ranks: weight of each token, from token 0 on, all finite and
                greater than 0; by default computed from the frequencies.
            later_weight: Weight of tokens beyond ``weights``; by default the largest of them, or 1
                if there are none.
            sample: Messages like those to come, for structures that are built by a cost model;
                without it they take the subscriptions for typical. Other structures ignore it.
        """
        n_tokens = max(n_tokens or 0, 0 if weights is None else len(weights))
        parameters, n_slots, counts = cls._prepare(
            clauses, space, n_tokens, frequencies, parameters
        )
        known = cls._know_tokens(clauses, counts, parameters, weights, later_weight)
        clauses = cls._arrange(clauses, known)
        arrays = cls._build_arrays(BuildInput(clauses, known, parameters, n_threads, sample))
        alive = np.ones(n_slots, np.uint8)
        return cls(parameters, space, clauses, arrays, cls._keep_frequencies(counts), alive)

    @classmethod
    def _prepare(
        cls,
        clauses: ClauseArrays,
        space: Space,
        n_tokens: int | None,
        frequencies: npt.NDArray[np.int64] | None,
        parameters: Parameters | None,
    ) -> tuple[Parameters, int, Int64s]:
        """Check what an index is built from; return options, number of slots, frequencies."""
        if space not in SPACES:
            raise InvalidParameter(f"space is {space!r}; expected one of {', '.join(SPACES)}")
        parameters = cls.parameters_type() if parameters is None else parameters
        if not isinstance(parameters, cls.parameters_type):
            raise InvalidParameter(
                f"parameters of index '{cls.name}' are a {cls.parameters_type.__name__}, "
                f"got a {type(parameters).__name__}"
            )
        cls._check_clauses(clauses)
        n_slots = _check_slots(clauses.subscriptions, 0)
        tokens = clauses.token_ids
        n_tokens = max(largest_token(clauses) + 1, n_tokens or 0)
        counts = np.zeros(n_tokens, np.int64)
        if frequencies is None:
            required = tokens[tokens >= 0]
            counts += np.bincount(required, minlength=n_tokens)
        else:
            counts[: len(frequencies)] = frequencies[:n_tokens]
        return parameters, n_slots, counts

    @classmethod
    def _know_tokens(
        cls,
        clauses: ClauseArrays,
        frequencies: Int64s,
        parameters: Any,
        weights: Float64s | None,
        later_weight: float | None,
    ) -> Any:
        """Return what the structure is to know of the tokens: how frequent they are."""
        if weights is not None or later_weight is not None:
            raise InvalidParameter(
                f"weights are for an index that ranks, not a {cls.semantics} one"
            )
        return frequencies

    @classmethod
    def _keep_frequencies(cls, frequencies: Int64s) -> Any:
        """Return the frequencies as they are kept, in the type of ``tokens_type``."""
        return frequencies

    @classmethod
    def _check_clauses(cls, clauses: ClauseArrays) -> None:
        """Reject clauses that cannot be built in or inserted."""
        _check_clauses(clauses)

    @classmethod
    def _arrange(cls, clauses: ClauseArrays, known: Any) -> ClauseArrays:
        """Return the clauses in the order in which the structure stores them."""
        return clauses

    @classmethod
    @abstractmethod
    def _build_arrays(cls, given: BuildInput) -> Any:
        """Return the structure's arrays over clauses."""

    def _match_rows(self, messages: MessageArrays, start: int, stop: int, scratch: Any) -> Matches:
        """Match messages ``start:stop`` against the arrays.

        Dead subscriptions must not be reported. A subscription with several clauses may be
        reported several times; the caller drops repeats (see ``reports_once``).
        """
        return match_rows(
            self._view(), messages, start, stop, scratch, self.has_scores, self._calls
        )

    def _view(self) -> View:
        """Return what the structure's kernel matches against."""
        return View(self.arrays, self.clauses, self.alive, self.space == "lonlat")

    has_scores: ClassVar[bool] = False
    """Whether answers have scores."""

    reports_once: ClassVar[bool] = False
    """Whether ``_match_rows`` itself reports a subscription with several clauses only once."""

    splits_crossing: ClassVar[bool] = True
    """Whether a message box across the antimeridian comes to ``_match_rows`` as two."""

    matches_delta: ClassVar[bool] = False
    """Whether ``_match_rows`` itself matches the delta, instead of the caller after it."""

    def _new_scratch(self) -> Any:
        """Return working memory for one thread; it is reused from call to call."""
        return Scratch(np.zeros(self.n_tokens, np.uint8), np.zeros(1, np.int64))

    def _fits(self, scratch: Any) -> bool:
        """Whether working memory from an earlier call is still large enough."""
        return True

    def match(self, messages: MessageArrays, *, n_threads: int = 1) -> Matches:
        """Return which subscriptions each message is delivered to."""
        check_threads(n_threads)
        if len(messages.boxes) == 1:
            min_x, min_y, max_x, max_y = messages.boxes[0].tolist()
            if min_x <= max_x and min_y <= max_y:
                return self._match_chunk(messages, 0, 1)
        crossing = _check_message_boxes(messages.boxes)
        if crossing.any():
            self._refuse_crossing_planar(messages, crossing)
            if self.splits_crossing:
                return self._match_crossing(messages, crossing, n_threads)
        n = len(messages.boxes)
        if n_threads == 1 or n < 2 * n_threads:
            return self._match_chunk(messages, 0, n)
        cuts = np.linspace(0, n, n_threads + 1).astype(int).tolist()
        return concat_matches(
            share(lambda rows: self._match_chunk(messages, *rows), pairwise(cuts))
        )

    def insert(self, clauses: ClauseArrays) -> None:
        """Add subscriptions; every slot must be new and follow the highest slot in use."""
        self._check_clauses(clauses)
        _check_slots(clauses.subscriptions, self.n_slots)
        if (np.diff(clauses.subscriptions) < 0).any():
            rows = np.argsort(clauses.subscriptions, kind="stable")
            clauses = take_clauses(clauses, rows)
        self._take_in(clauses)

    def _take_in(self, clauses: ClauseArrays) -> None:
        """Make new clauses, in the order of their slots, part of the index."""
        if self.delta is None:
            self.delta = self._new_delta()
        self.delta.insert(clauses)

    def _new_delta(self) -> Delta:
        return ChainedDelta(self.space, self.n_base_slots, self._quantizer(), self.frequencies)

    def _quantizer(self) -> Quantizer:
        """Return cells for the box keys of the delta."""
        return quantizer_of(self.clauses.boxes, self.space)

    def remove(self, slots: npt.ArrayLike) -> None:
        """Remove subscriptions by slot; each must be live."""
        slots = np.ascontiguousarray(slots, np.int32).reshape(-1)
        dead = ~self.is_alive(slots)
        if dead.any() or len(np.unique(slots)) < len(slots):
            wrong = slots[dead] if dead.any() else slots
            raise InvalidInput(f"slots to remove must be live and given once; got {wrong[:5]}")
        in_base = slots < self.n_base_slots
        base_slots = slots[in_base]
        if len(base_slots):
            self._bury(base_slots)
            self.alive[base_slots] = 0
            self._n_dead += len(base_slots)
        if self.delta is not None:
            self.delta.remove(slots[~in_base])

    def _bury(self, slots: Int32s) -> None:  # noqa: B027 - optional, as its docstring says
        """Do what the structure needs so that removed base slots are no longer reported.

        Structures that look at ``alive`` when they verify a candidate need nothing here.
        """

    def snapshot(self) -> Snapshot:
        """Return the subscriptions as they are now; later changes do not show in it."""
        parts = [self.clauses] if self.delta is None else [self.clauses, self.delta.clauses()]
        return Snapshot(parts, self.is_alive(np.arange(self.n_slots, dtype=np.int32)))

    def rebuilt(
        self, snapshot: Snapshot | None = None, *, n_threads: int = 1
    ) -> tuple[Self, Int32s]:
        """Return a new index of the live subscriptions, and each one's old slot.

        Live subscriptions are renumbered 0, 1, …; ``self`` is left as it is. With a snapshot this
        may run beside changes and matching in other threads.
        """
        clauses, old_slots = (snapshot or self.snapshot()).live_clauses()
        return self.rebuilt_of(clauses, n_threads=n_threads), old_slots

    def rebuilt_of(
        self, clauses: ClauseArrays, tokens: Int32s | None = None, *, n_threads: int = 1
    ) -> Self:
        """Return a new index of clauses that is built as this one was.

        Args:
            clauses: What it is to hold, with the tokens of this one.
            tokens: Those that are left, where some are forgotten: token i was ``tokens[i]``.
            n_threads: Threads used while building.
        """
        return type(self).build(
            clauses if tokens is None else with_tokens(clauses, tokens),
            space=self.space,
            n_tokens=self.n_tokens if tokens is None else len(tokens),
            parameters=self.parameters,
            n_threads=n_threads,
            **self._build_options(tokens),
        )

    def _build_options(self, tokens: Int32s | None) -> dict[str, Any]:
        """Return what a rebuild must keep besides the parameters."""
        return {}

    def used_tokens(self, clauses: ClauseArrays, n_tokens: int) -> npt.NDArray[np.bool_]:
        """Return which of so many tokens, at least, a rebuild of clauses must know."""
        is_used = np.zeros(max(n_tokens, self.n_tokens, 1), np.bool_)
        is_used[EVERYWHERE_TOKEN] = True
        is_used[np.maximum(clauses.token_ids, ~clauses.token_ids)] = True
        return is_used

    def clauses_of(self, slots: Int32s) -> ClauseArrays:
        """Return the clauses of the given slots, those in the delta last."""
        in_base = slots < self.n_base_slots
        parts = [take_clauses(self.clauses, self.base_rows(slots[in_base]))]
        if self.delta is not None:
            rows = self.delta.rows(slots[~in_base])
            parts.append(take_clauses(self.delta.clauses(), rows))
        return concat_clauses(parts)

    def base_rows(self, slots: Int32s) -> npt.NDArray[Any]:
        """Return the rows of the base clauses that belong to the slots."""
        if self._rows_by_slot is None:
            self._rows_by_slot = RowsBySlot.of(self.clauses.subscriptions, self.n_base_slots)
        return self._rows_by_slot.rows(slots)

    # ---- facts ------------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Size of the vocabulary that the structure was built for."""
        return len(self.frequencies)

    @property
    def n_slots(self) -> int:
        """Number of slots handed out so far, dead ones included."""
        return self.n_base_slots + (0 if self.delta is None else self.delta.n_slots)

    @property
    def n_subscriptions(self) -> int:
        """Number of live subscriptions."""
        in_delta = 0 if self.delta is None else self.delta.n_subscriptions
        return self.n_base_slots - self._n_dead + in_delta

    @property
    def n_changes(self) -> int:
        """Number of subscriptions that a rebuild would merge or drop."""
        return self._n_dead + (0 if self.delta is None else self.delta.n_slots)

    def is_alive(self, slots: Int32s) -> npt.NDArray[np.bool_]:
        """Return which of the slots hold a live subscription."""
        result = np.zeros(len(slots), np.bool_)
        in_base = (slots >= 0) & (slots < self.n_base_slots)
        result[in_base] = self.alive[slots[in_base]] != 0
        if self.delta is not None:
            in_delta = (slots >= self.n_base_slots) & (slots < self.n_slots)
            result[in_delta] = self.delta.is_alive(slots[in_delta])
        return result

    @property
    def nbytes(self) -> int:
        """Bytes of the structure over and above the stored clauses (see ``stored_nbytes``)."""
        extra = 0 if self.delta is None else self.delta.nbytes
        return nbytes((self.arrays, self.frequencies, self.alive, self._rows_by_slot or ())) + extra

    @property
    def stored_nbytes(self) -> int:
        """Bytes of the clauses themselves."""
        return nbytes(self.clauses)

    # ---- saving -----------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write the index to ``directory``, in the place of one that was saved there before."""
        storage.save(directory, self.contents())

    def contents(self) -> storage.Contents:
        """Return what is to be saved."""
        facts = {
            "semantics": self.semantics,
            "structure": self.name,
            "parameters": asdict(self.parameters),
            "space": self.space,
        }
        groups: dict[str, tuple[Any, ...]] = {
            "clauses": self.clauses,
            "arrays": self.arrays,
            "tokens": self.tokens_type(self.frequencies),
            "alive": _Alive(self.alive),
        }
        if self.delta is not None:
            groups["delta"] = self.delta.clauses()
            groups["delta_alive"] = _Alive(self.delta.alive())
        return storage.Contents(facts, groups)

    @classmethod
    def open(cls, directory: str | Path | storage.Saved) -> Self:
        """Open a saved index by memory-mapping its arrays; changes stay in this process."""
        saved = storage.Saved.open(directory)
        facts = saved.facts
        kind = facts.get("semantics"), facts.get("structure")
        if kind != (cls.semantics, cls.name):
            raise SavedIndexError(
                f"{saved.where} holds a {kind[0]} index of structure {kind[1]!r}; this one is "
                f"{cls.semantics}, of structure {cls.name!r}"
            )
        index = cls(
            cls.parameters_type(**facts["parameters"]),
            facts["space"],
            saved.group("clauses", ClauseArrays),
            saved.group("arrays", cls.arrays_type),
            saved.group("tokens", cls.tokens_type).frequencies,
            saved.group("alive", _Alive).alive,
        )
        if saved.has("delta"):
            index.insert(saved.group("delta", ClauseArrays))
            alive = saved.group("delta_alive", _Alive).alive
            index.remove(np.flatnonzero(alive == 0) + index.n_base_slots)
        return index

    # ---- matching, in one way for all ----------------------------------------------------------

    def _match_chunk(self, messages: MessageArrays, start: int, stop: int) -> Matches:
        scratch = self._scratches.take(self._fits, self._new_scratch)
        found = self._match_rows(messages, start, stop, scratch)
        self._scratches.give_back(scratch)
        if self.has_repeats and not self.reports_once:
            offsets, slots = drop_repeats(found.offsets, found.subscriptions, self.n_base_slots)
            counters = found.counters._replace(answers=len(slots))
            found = Matches(offsets, slots, counters)
        if self.delta is None or self.matches_delta:
            return found
        return merge_matches(found, self.delta.match_rows(messages, start, stop))

    def _refuse_crossing_planar(
        self, messages: MessageArrays, crossing: npt.NDArray[np.bool_]
    ) -> None:
        if self.space != "lonlat":
            row = int(np.flatnonzero(crossing)[0])
            raise InvalidInput(
                f"message {row}: min_x {messages.boxes[row, 0]} is greater than max_x "
                f"{messages.boxes[row, 2]}; planar boxes cannot cross the antimeridian"
            )

    def _match_crossing(
        self, messages: MessageArrays, crossing: npt.NDArray[np.bool_], n_threads: int
    ) -> Matches:
        """Match each message across the antimeridian as two boxes, and drop repeats."""
        rows = np.repeat(np.arange(len(crossing)), 1 + crossing)
        halves = take_messages(messages, rows)
        first = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
        west = first[crossing]
        halves.boxes[west, 2] = 180.0
        halves.boxes[west + 1, 0] = -180.0
        found = self.match(halves, n_threads=n_threads)
        bounds = np.append(found.offsets[first], found.offsets[-1])
        parts = np.split(found.subscriptions, bounds[1:-1])
        for row in np.flatnonzero(crossing).tolist():
            parts[row] = np.unique(parts[row])
        offsets = np.append(0, np.cumsum([len(part) for part in parts]))
        answers = np.concatenate(parts)
        return Matches(offsets, answers, found.counters._replace(answers=len(answers)))


class _Alive(NamedTuple):
    alive: npt.NDArray[np.uint8]


def _check_slots(slots: Int32s, first: int) -> int:
    """Reject slots that do not run from ``first`` without gaps; return how many there are."""
    lowest, n = int(slots.min(initial=first)), int(slots.max(initial=first - 1)) + 1 - first
    if lowest != first or n > len(slots) or not np.bincount(slots - first, minlength=n).all():
        raise InvalidInput(
            f"slots must be {first}, {first + 1}, … without gaps; "
            f"got {len(slots)} between {lowest} and {first + n - 1}"
        )
    return n


def _check_message_boxes(boxes: Float64s) -> npt.NDArray[np.bool_]:
    """Reject NaN and boxes upside down; return which boxes cross the antimeridian."""
    crossing: npt.NDArray[np.bool_] = ~(boxes[:, 0] <= boxes[:, 2])
    wrong = ~(boxes[:, 1] <= boxes[:, 3])
    if crossing.any():
        wrong |= np.isnan(boxes[:, 0]) | np.isnan(boxes[:, 2])
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InvalidInput(f"message {row}: box {boxes[row].tolist()} is upside down or NaN")
    return crossing


def _check_clauses(clauses: ClauseArrays) -> None:
    """Reject arrays that no caller of ours makes, before a kernel reads past an end."""
    n = len(clauses.subscriptions)
    boxes = clauses.boxes
    if boxes.shape != (n, 4) or len(clauses.token_offsets) != n + 1 or len(clauses.shape_rows) != n:
        raise InvalidInput(
            f"clause arrays disagree: {n} subscriptions, boxes {boxes.shape} (expected ({n}, 4)), "
            f"{len(clauses.token_offsets)} token offsets (expected {n + 1}), "
            f"{len(clauses.shape_rows)} shape rows (expected {n})"
        )
    offsets = clauses.token_offsets
    if offsets[0] != 0 or offsets[-1] != len(clauses.token_ids) or (np.diff(offsets) < 0).any():
        raise InvalidInput(
            f"token offsets must rise from 0 to {len(clauses.token_ids)}, the number of token ids; "
            f"they run from {offsets[0]} to {offsets[-1]}"
        )
    if clauses.shape_rows.max(initial=-1) >= len(clauses.shapes.circles):
        raise InvalidInput(
            f"shape row {clauses.shape_rows.max()} is beyond the {len(clauses.shapes.circles)} "
            f"shapes"
        )
    bad = ~((boxes[:, 0] <= boxes[:, 2]) & (boxes[:, 1] <= boxes[:, 3]))  # also true for NaN
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InvalidInput(f"clause {row}: box {boxes[row].tolist()} is inverted or NaN")
    if n == 0:
        return
    starts = clauses.token_offsets[:-1]
    empty = clauses.token_offsets[1:] <= starts
    first_tokens = clauses.token_ids[np.minimum(starts, max(len(clauses.token_ids) - 1, 0))]
    empty |= first_tokens < 0
    if empty.any():
        row = int(np.flatnonzero(empty)[0])
        raise InvalidInput(
            f"clause {row} has no required token; one that matches any text in its box "
            f"must carry the reserved token 0"
        )
