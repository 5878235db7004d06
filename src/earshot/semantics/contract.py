"""What a semantics is: a matcher that takes slots and arrays, and answers with changes.

The engine owns ids, words, the clock, expiry, the lock and saving; a matcher knows none of these.
Subscriptions are *slots*, handed out in order. Messages are rows of a batch; a matcher that keeps
them knows them by their *sequence*, the number of messages before. A matcher declares by its class
attributes what it takes and what it can do, and the engine asks for nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from earshot.encoding import EncodedMessages, Form
from earshot.encoding.columns import Bools
from earshot.errors import InvalidInput
from earshot.model.arrays import Float64s, Int32s, Int64s, Order, Space
from earshot.model.explanations import Explanation
from earshot.model.messages import Message
from earshot.model.regions import RegionOrPoint
from earshot.model.subscriptions import Id
from earshot.storage import Contents, Saved
from earshot.text import Vocabulary

Int8s = npt.NDArray[np.int8]


class Changes(NamedTuple):
    """What a batch of events changed, event row by event row.

    What is None says the same of every change: it comes (``+``), because its own row's message
    matched, and it has no score. So a semantics pays only for what it has.
    """

    offsets: Int64s  # (n_rows + 1,) changes of row i are [i]:[i+1]
    slots: Int32s  # whose results
    counters: Any  # NamedTuple of ints: work done, independent of any clock
    scores: Float64s | None = None
    signs: Int8s | None = None  # +1 comes, -1 goes
    reasons: Int8s | None = None  # positions in the matcher's ``reasons``
    sequences: Int64s | None = None  # which message


class Results(NamedTuple):
    """The messages that some slots hold, best first."""

    offsets: Int64s  # (n_slots + 1,)
    sequences: Int64s
    scores: Float64s | None = None


class Question(NamedTuple):
    """What there is to explain: one message and one subscription."""

    message: Message
    subscription_id: Id
    slot: int
    encoded: EncodedMessages  # the message
    vocabulary: Vocabulary
    clock_us: int  # the clock that the message would find
    is_clock_moved: bool  # whether that is later than the clock is now
    hindrances: Sequence[str]  # why it could not be delivered whatever it says


class Kept(NamedTuple):
    """What is left where slots or tokens were numbered anew."""

    slots: Int32s  # slot that each of the new ones had
    tokens: Int32s | None = None  # the same of tokens; None where they keep their numbers


FORGET_LEAST = 1 << 14
"""Tokens from which on those are forgotten that nothing uses, when they are most of them."""


def kept_tokens(is_used: npt.NDArray[np.bool_]) -> Int32s | None:
    """Return the tokens that are used, if it pays to forget the others."""
    n_used = int(np.count_nonzero(is_used))
    if len(is_used) <= max(FORGET_LEAST, 2 * n_used):
        return None
    return np.flatnonzero(is_used).astype(np.int32)


class Rebuild(Protocol):
    """A new structure in the making, beside the one in use."""

    old_slots: Int32s  # slot that each of the new ones had; known once it is built

    def build(self) -> None:
        """Do the work; may run in another thread while the matcher changes."""


class Matcher(ABC):
    """A semantics at work over the subscriptions of one engine."""

    name: ClassVar[str]
    """Name in saved engines, on the command line and in reports."""
    settings_type: ClassVar[type]
    """What a user gives the engine to choose this semantics."""
    form: ClassVar[Form]
    """What it takes of subscriptions and messages."""
    has_scores: ClassVar[bool] = False
    weighs_words_by: ClassVar[Literal["subscriptions", "messages"] | None] = None
    """What the frequencies of words are counted in, where ``reweigh`` weighs words by them."""
    keeps_messages: ClassVar[bool] = False
    """Whether messages matter after they were published; then their sequences name them."""
    keeps_results: ClassVar[bool] = False
    """Whether subscriptions hold results, which updates add to and take from."""
    moves_to_new_slots: ClassVar[bool] = False
    """Whether a moved subscription gets the next slot, instead of keeping its own."""
    reasons: ClassVar[tuple[str, ...]] = ("match",)

    space: Space
    settings: Any
    """The settings that this matcher was made with."""

    # ---- life cycle ---------------------------------------------------------------------------

    @classmethod
    def example(cls) -> Any:
        """Return settings to try the semantics with."""
        return cls.settings_type()

    @classmethod
    @abstractmethod
    def create(
        cls, settings: Any, *, structure: str | None, parameters: Any, space: Space, n_threads: int
    ) -> Self:
        """Return a matcher without subscriptions.

        Args:
            settings: A ``settings_type``.
            structure: Name of the index structure, None for the default.
            parameters: Options of that structure, None for its defaults.
            space: Coordinates and metric.
            n_threads: Threads that work on a batch.
        """

    @abstractmethod
    def contents(self) -> Contents:
        """Return what is to be saved: everything."""

    @classmethod
    @abstractmethod
    def open(cls, saved: Saved, *, n_threads: int) -> Self:
        """Open what was saved by memory-mapping its arrays."""

    # ---- events -------------------------------------------------------------------------------

    @abstractmethod
    def subscribe(self, asked: Any) -> Changes:
        """Give the next slots what the encoder made of subscriptions."""

    @abstractmethod
    def unsubscribe(self, slots: Int32s) -> None:
        """End live subscriptions, each named once."""

    @abstractmethod
    def move(self, slots: Int32s, places: Any) -> Changes:
        """Let live subscriptions be at what the encoder made of places.

        Each is named once, unless they report positions: then places are ``Reports``, in order.
        """

    def refused_moves(self, slots: Int32s, places: Any) -> Iterable[tuple[int, str, str]]:
        """Yield position, field and reason of moves that cannot be."""
        return ()

    def late_reports(self, slots: Int32s, places: Any) -> Iterable[tuple[int, str]]:
        """Yield position and reason of ``Reports`` that come too late.

        For semantics that move by position.
        """
        return ()

    @abstractmethod
    def publish(self, messages: Any) -> Changes:
        """Take messages in their order, no subscription ending between them."""

    def take(self, slots: Int32s, places: Any, messages: Any, order: Order) -> Changes:
        """Let subscriptions report positions and messages arrive, in one order.

        For semantics that move by position.
        """
        raise NotImplementedError(f"{self.name} takes no positions")

    def refused_messages(
        self, encoded: EncodedMessages, clocks_us: Int64s
    ) -> Iterable[tuple[int, str]]:
        """Yield position and reason of messages whose times cannot be taken at these clocks."""
        return ()

    def timed(self, messages: Any, clocks_us: Int64s) -> Any:
        """Return messages in which those without a time have that of the clock they find."""
        return messages

    def advance(self, clock_us: int) -> Changes:
        """Let time pass; the clock is later than any before."""
        return self.no_changes(0)

    def reweigh(self, n_tokens: int, frequencies: Int64s | None) -> Changes:
        """Weigh words anew.

        Args:
            n_tokens: Size of the vocabulary.
            frequencies: How many messages had each token, where the engine counts them; or how many
                subscriptions ask for it, None for those that are here.
        """
        raise InvalidInput(
            f"reweigh is for semantics that weigh words, not for {self.form.noun}; make the engine "
            f"with Engine(Ranking(...)) or Engine(TopK(...))"
        )

    def frequencies(self, n_tokens: int, is_live: Callable[[Int32s], Bools]) -> Int64s:
        """Return how many live subscriptions ask for each token, where words are weighed by that.

        The token that every message has counts the subscriptions.
        """
        raise InvalidInput(f"{self.form.noun} does not weigh words by subscriptions")

    # ---- slots --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def n_subscriptions(self) -> int:
        """Live subscriptions."""

    def drop_ended(self) -> Kept | None:
        """Forget what ended before anybody used it, where that is much.

        Return what is left where slots or tokens were numbered anew, by an earlier call too.
        """
        return None

    def settle(self) -> Kept | None:
        """Do what was put off; slots and tokens are good until the next change.

        Return what is left where that numbered them anew.
        """
        return None

    def used_tokens(self, n_tokens: int) -> npt.NDArray[np.bool_]:
        """Return which of the tokens are used, where messages are kept; else rebuilds know."""
        return np.ones(n_tokens, np.bool_)

    def clear_up(self, tokens: Int32s | None) -> None:  # noqa: B027 - optional
        """Give back memory, where messages are kept.

        Args:
            tokens: Those that are left, in their order, where not all of them are: token i was
                ``tokens[i]``.
        """

    def rebuild(self, *, is_forced: bool = False) -> Rebuild | None:
        """Begin a rebuild that makes matching faster, if it is due; else return None.

        One that is forced is due if it changes anything, and may use all threads.
        """
        return None

    def take_over(self, rebuild: Rebuild) -> tuple[Int32s, Kept] | None:
        """Use what was rebuilt; return its slots that ended meanwhile, and all that are left.

        None where something else was rebuilt meanwhile.
        """
        return None

    # ---- questions ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def structure(self) -> str:
        """Name of the index structure."""

    @property
    def first_sequence(self) -> int:
        """Sequence before which no message is kept."""
        return 0

    def sequences(self) -> Int64s | None:
        """Return the sequences of the messages that are kept, ascending.

        None where they follow one another from the first on.
        """
        return None

    @property
    def n_messages(self) -> int:
        """Messages that are kept."""
        return 0

    @property
    def next_due_us(self) -> int | None:
        """When the next message ends or has dwelled, where that is known; None for never."""
        return None

    def results(self, slots: Int32s) -> Results:
        """Return what the slots hold now."""
        raise NotImplementedError(f"{self.name} keeps no results")

    def safe_regions(self, slots: Int32s) -> list[RegionOrPoint]:
        """Return where subscriptions, each named once, need not report their positions."""
        raise InvalidInput(f"{self.form.noun} has no safe regions; use Engine(Moving(...))")

    def given_areas(self, slots: Int32s) -> Float64s:
        """Return the safe regions that slots were given: (n, 3) place and reach, 0 for a point."""
        raise NotImplementedError(f"{self.name} has no safe regions")

    def give_again(self, slots: Int32s, areas: Float64s) -> None:
        """Let slots have the safe regions that they were given once."""
        raise NotImplementedError(f"{self.name} has no safe regions")

    def outdated_safe_regions(self) -> Int32s:
        """Return the slots whose safe regions no longer hold, once each."""
        return np.empty(0, np.int32)

    @abstractmethod
    def explain(self, question: Question) -> Explanation:
        """Say in words why a message would be delivered, or why not."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what there is to know of the structure."""

    @abstractmethod
    def memory(self) -> dict[str, int]:
        """Return the bytes of memory by part."""

    @property
    @abstractmethod
    def arrays(self) -> tuple[Any, ...]:
        """The arrays whose pages a first message would wait for."""

    @abstractmethod
    def rehearsal(self) -> Matcher | None:
        """Return a small matcher of the same make on which everything can be tried.

        None where publishing to this one changes nothing, so that it can be tried itself.
        """

    @abstractmethod
    def no_changes(self, n_rows: int) -> Changes:
        """Return that so many event rows changed nothing."""


def changes_by_row(rows: npt.NDArray[Any], n_rows: int) -> Int64s:
    """Return the offsets of changes whose rows, ascending, are given one by one."""
    offsets = np.zeros(n_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=n_rows), out=offsets[1:])
    return offsets


def chosen_changes(changes: Changes, is_chosen: npt.NDArray[np.bool_]) -> Changes:
    """Return some of the changes."""
    n_rows = len(changes.offsets) - 1
    rows = np.repeat(np.arange(n_rows), np.diff(changes.offsets))[is_chosen]
    columns: list[Any] = [None if each is None else each[is_chosen] for each in changes[3:]]
    return Changes(
        changes_by_row(rows, n_rows), changes.slots[is_chosen], changes.counters, *columns
    )


def joined_changes(parts: Sequence[Changes]) -> Changes:
    """Return the changes of consecutive batches, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([0, *(len(part.slots) for part in parts)])
    offsets = [part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    counters = zip(*(part.counters for part in parts), strict=True)
    columns: list[Any] = [
        None if each[0] is None else np.concatenate(each)
        for each in zip(*(part[3:] for part in parts), strict=True)
    ]
    return Changes(
        np.concatenate([np.zeros(1, np.int64), *offsets]),
        np.concatenate([part.slots for part in parts]),
        type(parts[0].counters)(*map(sum, counters)),
        *columns,
    )
