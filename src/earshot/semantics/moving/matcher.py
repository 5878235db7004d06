"""Moving subscribers as a semantics of the engine.

A message lives from its time until its end. At any time, a subscription holds the live messages
that match where it is now, and each event answers with what it changed. docs/semantics/moving.md
says what that is, and in which order changes come.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from earshot.encoding import NO_TIME_US, EncodedMessages, Form
from earshot.errors import InvalidParameter, described
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import (
    BOX,
    CIRCLE,
    EVERYWHERE,
    EVERYWHERE_TOKEN,
    AnchoredRegions,
    Float64s,
    Int32s,
    Int64s,
    LivingMessages,
    MovingArrays,
    Order,
    Reports,
    Space,
    no_living,
    numbers_of,
    take_messages,
    take_places,
)
from earshot.model.batches import instant
from earshot.model.explanations import Explanation
from earshot.model.moving import Moving
from earshot.model.regions import Circle, Everywhere, Point, Rectangle, RegionOrPoint
from earshot.semantics.contract import (
    Changes,
    Kept,
    Matcher,
    Question,
    Results,
    changes_by_row,
    joined_changes,
)
from earshot.semantics.index_matcher import UNBOUNDED
from earshot.semantics.moving import find_structure
from earshot.semantics.moving.contract import Structure
from earshot.semantics.moving.dwelling import Dwelling, DwellingArrays, Told
from earshot.semantics.moving.explanation import explain_holding
from earshot.semantics.moving.kernels import events, mixing
from earshot.semantics.moving.kernels.arrays import (
    CLOCK,
    IS_LONLAT,
    LIVE,
    N_CANDIDATES,
    N_ENDED,
    N_ENTERED,
    N_LIVE,
    N_NODES,
    N_RULES,
    NEEDS_OUTPUT,
    NEEDS_ROWS,
    NEXT_SEQUENCE,
    REASONS,
    STAMP,
    Messages,
    Mix,
    Tables,
)
from earshot.semantics.moving.mixing import Due, unmixed
from earshot.semantics.moving.safety import Areas, Safety, SafetyArrays
from earshot.semantics.moving.tables import (
    SubscriberArrays,
    SubscriberTable,
    bytes_of,
    larger_output,
    live_rows,
    new_output,
    new_scratch,
    no_messages,
    no_subscribers,
    with_rows,
    with_scratch,
    with_token_counts,
    without_rooms,
)
from earshot.storage import Contents, Saved

_LARGEST_STAMP = 1 << 30
_FIRST_LEAST = 1024
_MIX_LEAST = 64
"""Moves from which on a batch is taken by kind, where anything else happens in it."""
_AROUND = 360.0
_WORK = [N_NODES, N_CANDIDATES, N_ENDED]
_NONE = np.empty(0, np.int64)


class Counters(NamedTuple):
    """Work done, in numbers that depend on no clock."""

    nodes: int  # of trees, and blocks of lists
    candidates: int  # pairs of a subscription and a message that were compared
    ended: int  # messages that ended
    answers: int  # changes


class MovingMatcher(Matcher):
    """Tells every subscription which live messages match where it is now."""

    name = "moving"
    settings_type = Moving
    form: ClassVar[Form] = Form(
        "matching for moving subscribers",
        frozenset({"expression", "dwell", "cooldown", "leaving", "end"}),
        keeps_words=True,
        moves_by_position=True,
    )
    keeps_messages = True
    keeps_results = True
    reasons = REASONS

    def __init__(
        self,
        settings: Moving,
        space: Space,
        structure: Structure,
        table: SubscriberTable,
        messages: Messages,
        dwelling: Dwelling,
        arrays: Any = None,
        safety: SafetyArrays | None = None,
    ) -> None:
        self.settings = settings
        self.space = space
        self._structure = structure
        self._table = table
        self._messages = messages
        self._dwelling = dwelling
        self._rules = np.zeros(N_RULES, np.int64)
        self._rules[IS_LONLAT] = space == "lonlat"
        self._arrays = structure.build(self._tables, space) if arrays is None else arrays
        self._scratch = new_scratch(64, 64)
        self._output = new_output(256)
        self._safety = Safety(space, safety)
        self._first_sequence = 0
        self._n_ended = _FIRST_LEAST  # messages, since the first sequence was looked for
        self._has_ended = False  # whether a subscription has, since slots were last looked through

    # ---- life cycle ---------------------------------------------------------------------------

    @classmethod
    def example(cls) -> Moving:
        """Return settings to try the semantics with."""
        return Moving(timedelta(minutes=10))

    @classmethod
    def create(
        cls,
        settings: Moving,
        *,
        structure: str | None,
        parameters: Structure | None,
        space: Space,
        n_threads: int,
    ) -> Self:
        """Return a matcher without subscriptions and messages.

        ``parameters`` are a structure with its own, in place of its name.
        """
        if parameters is not None and not isinstance(parameters, Structure):
            raise InvalidParameter(
                f"parameters is {described(parameters)}; expected a structure for moving "
                f"subscribers, or None"
            )
        chosen = parameters or find_structure(structure)
        table = SubscriberTable(no_subscribers(), space == "lonlat")
        return cls(settings, space, chosen, table, no_messages(), Dwelling())

    def contents(self) -> Contents:
        """Return what is to be saved: settings, subscriptions, live messages, the structure."""
        facts = {
            "lifetime_us": self.settings.lifetime_us,
            "structure": self._structure.name,
            "parameters": asdict(self._structure),
            "space": self.space,
        }
        groups = {
            "subscribers": self._table.arrays,
            "messages": self._messages,
            "dwelling": self._dwelling.arrays,
            "structure": self._arrays,
            "safety": self._safety.arrays,
        }
        return Contents(facts, groups)

    @classmethod
    def open(cls, saved: Saved, *, n_threads: int) -> Self:
        """Open what was saved; it goes on where that one was."""
        facts = saved.facts
        structure = find_structure(facts["structure"], **facts["parameters"])
        subscribers = saved.group("subscribers", SubscriberArrays)
        return cls(
            Moving(timedelta(microseconds=facts["lifetime_us"])),
            facts["space"],
            structure,
            SubscriberTable(subscribers, facts["space"] == "lonlat"),
            saved.group("messages", Messages),
            Dwelling(saved.group("dwelling", DwellingArrays)),
            saved.group("structure", structure.arrays_type),
            saved.group("safety", SafetyArrays),
        )

    def rehearsal(self) -> MovingMatcher:
        """Return an empty matcher."""
        return MovingMatcher.create(
            self.settings, structure=None, parameters=self._structure, space=self.space, n_threads=1
        )

    def restructured(self, structure: Structure) -> MovingMatcher:
        """Return a copy of all subscriptions and messages, with another structure."""
        held = copy.deepcopy(self._table.arrays)
        return MovingMatcher(
            self.settings, self.space, structure,
            SubscriberTable(held, self.space == "lonlat"),
            copy.deepcopy(self._messages),
            Dwelling(self._dwelling.arrays),
        )  # fmt: skip

    # ---- events -------------------------------------------------------------------------------

    def subscribe(self, asked: MovingArrays) -> Changes:
        """Give the next slots these subscriptions, and what lives to them."""
        first, n = len(self._table), len(asked.dwells_us)
        self._table.append(asked)
        tokens = asked.token_ids
        self._expect_tokens(int(np.maximum(tokens, ~tokens).max(initial=0)) + 1)
        is_told = bool(self._messages.facts[N_LIVE])
        clocks_us = np.full(n, self._clock_us, np.int64)
        return self._run(events.begin_slots, (first, first + n, is_told), clocks_us)

    def unsubscribe(self, slots: Int32s) -> None:
        """End subscriptions; their results go without changes."""
        self._has_ended |= len(slots) > 0
        events.end_slots(self._arrays, self._tables, slots)
        self._table.end(slots)
        self._dwelling.end(slots)
        self._safety.forget(slots)

    def move(self, slots: Int32s, places: Reports) -> Changes:
        """Let subscriptions be where they report to be, in this order."""
        if self._pays_to_mix(len(slots), places.clocks):
            everything = np.arange(len(slots))
            return self._mix(slots, places, no_living(), Order(places.clocks, everything, _NONE))
        regions = places.regions
        kinds = self._reported(slots, regions)
        shape_rows = self._table.add_polygons(regions)
        events.note_reports(slots, places.times, self._table.lasts)
        order = np.empty(len(slots), np.int64)
        rows = (slots, places.clocks, kinds, regions.frames, shape_rows, order)
        changes = self._run(events.move_slots, rows, places.clocks)
        self._renew_safe(slots, kinds)
        return changes

    def refused_moves(
        self, slots: Int32s, places: AnchoredRegions
    ) -> Iterator[tuple[int, str, str]]:
        """Yield the moves after which every message would match."""
        held = self._table.view
        for at in np.flatnonzero(places.kinds == EVERYWHERE).tolist():
            first = held.clause_offsets[slots[at]]
            tokens = held.token_ids[held.token_offsets[first] : held.token_offsets[first + 1]]
            if tokens.tolist() == [EVERYWHERE_TOKEN]:
                yield at, "id", UNBOUNDED

    def late_reports(self, slots: Int32s, places: Reports) -> Iterator[tuple[int, str]]:
        """Yield the reports that are older than the last one of their subscription."""
        is_late = np.zeros(len(slots), np.bool_)
        events.late_reports(
            slots, places.times, self._table.lasts, np.empty(len(slots), np.int64), is_late
        )
        for at in np.flatnonzero(is_late).tolist():
            time = instant(int(places.times[at])).isoformat()
            reason = f"{time} is before the last position of this subscription; sort positions"
            yield at, f"{reason} by time"

    def publish(self, messages: LivingMessages) -> Changes:
        """Let messages arrive, each after what has ended by then."""
        given = _sorted_tokens(messages)
        self._expect_tokens(int(given.tokens.max(initial=0)) + 1)
        clocks_us = np.maximum.accumulate(np.maximum(given.times, self._clock_us))
        self._make_scratch()
        self._safety.arrive(self._tables, self._scratch, given)
        return self._run(events.publish_messages, (given, clocks_us), clocks_us)

    def take(
        self, slots: Int32s, places: Reports, messages: LivingMessages, order: Order
    ) -> Changes:
        """Let subscriptions move and messages arrive, in one order."""
        if len(slots) >= _MIX_LEAST:
            return self._mix(slots, places, messages, order)
        is_move = np.zeros(len(order.clocks), np.bool_)
        is_move[order.moves] = True
        runs = np.flatnonzero(np.diff(is_move, prepend=~is_move[:1])).tolist()
        parts, n_moved, n_said = [], 0, 0
        for start, stop in pairwise([*runs, len(is_move)]):
            n = stop - start
            if is_move[start]:
                rows = np.arange(n_moved, n_moved + n)
                parts.append(self.move(slots[rows], take_places(places, rows)))
                n_moved += n
            else:
                rows = np.arange(n_said, n_said + n)
                parts.append(self.publish(take_messages(messages, rows)))
                n_said += n
        return joined_changes(parts) if parts else self.no_changes(0)

    def _pays_to_mix(self, n_moves: int, clocks_us: Int64s) -> bool:
        """Whether there are many moves, and a message ends among them."""
        if n_moves < _MIX_LEAST or not self._messages.facts[N_LIVE]:
            return False
        return bool(self._messages.ends[self._messages.heap[0]] <= clocks_us[-1])

    def _mix(
        self, slots: Int32s, places: Reports, messages: LivingMessages, order: Order
    ) -> Changes:
        """Take moves, arrivals and the ends among them, each kind as a whole.

        :mod:`earshot.semantics.moving.kernels.mixing` says how.
        """
        given, regions = _sorted_tokens(messages), places.regions
        self._expect_tokens(int(given.tokens.max(initial=0)) + 1)
        self._make_scratch()
        self._safety.arrive(self._tables, self._scratch, given)
        kinds = self._reported(slots, regions)
        shape_rows = self._table.add_polygons(regions)
        events.note_reports(slots, places.times, self._table.lasts)
        before = self._begin()
        first, clock_us = int(self._messages.facts[NEXT_SEQUENCE]), int(order.clocks[-1])
        came = np.empty(len(given.times), np.int32)
        self._until_done(mixing.write_arrivals, given, came)
        self._until_done(mixing.find_arrivals, came, self._by_place(came))
        due = np.empty(int(self._messages.facts[N_LIVE]), np.int32)
        due = due[: mixing.take_due(self._messages, clock_us, due)].copy()
        due_order = self._by_place(due)
        sequences, ends = self._messages.sequences[due], self._messages.ends[due]
        self._until_done(mixing.find_due, due, due_order, first, len(came))
        found = self._output_so_far()
        by_sequence = np.argsort(sequences)
        mix = Mix(*order, first, sequences[by_sequence], ends[by_sequence])
        numbers = np.empty(len(slots), np.int64)
        mixing.order_slots(self._tables, slots, numbers, self._scratch.stack)
        self._output.length[0] = 0
        self._until_done(mixing.move_all, slots, kinds, regions.frames, shape_rows, numbers, mix)
        changed = self._output_so_far()
        self._until_done(mixing.drop_due, due, due_order, clock_us)
        self._renew_safe(slots, kinds)
        told = unmixed(found, changed, mix, Due(sequences, ends), self._table.view.flags)
        return self._changes_of(told, order.clocks, before)

    def _reported(self, slots: Int32s, regions: AnchoredRegions) -> npt.NDArray[np.int8]:
        """Note that subscriptions report; return kinds, which say of whom nothing changes."""
        self._make_scratch()
        keeps = self._structure.keeps_safe_regions
        return self._safety.reported(self._tables, self._scratch, slots, regions, keeps)

    def _renew_safe(self, slots: Int32s, kinds: npt.NDArray[np.int8]) -> None:
        if self._structure.keeps_safe_regions:
            self._arrays = self._structure.with_words(self._arrays, self._tables)
            self._safety.renew(self._arrays, self._tables, self._scratch, slots, kinds)

    def _by_place(self, rows: Int32s) -> Int64s:
        order = np.empty(len(rows), np.int64)
        mixing.order_rows(self._tables, rows, order, self._scratch.stack)
        return order

    def timed(self, messages: LivingMessages, clocks_us: Int64s) -> LivingMessages:
        """Return messages in which each has a time, that of the clock if need be, and an end."""
        times = np.where(messages.times == NO_TIME_US, clocks_us, messages.times)
        ends = self._ends(messages.ends, times)
        return messages._replace(times=times, ends=ends)

    def _ends(self, ends: Int64s, times: Int64s) -> Int64s:
        return np.where(ends == NO_TIME_US, times + self.settings.lifetime_us, ends)

    def refused_messages(
        self, encoded: EncodedMessages, clocks_us: Int64s
    ) -> Iterator[tuple[int, str]]:
        """Yield the messages that have ended before they arrive, or have no time."""
        has_clock = clocks_us != NO_TIME_US
        clocks = np.where(has_clock, clocks_us, 0)
        times = np.where(encoded.times == NO_TIME_US, clocks, encoded.times)
        ends = self._ends(encoded.messages.ends, times)
        for row in np.flatnonzero((ends <= clocks) | ~has_clock).tolist():
            if not has_clock[row]:
                yield row, "is missing, and no event before had one; a lifetime needs it"
                continue
            time, end, at = (
                instant(int(each)).isoformat() for each in (times[row], ends[row], clocks[row])
            )
            yield row, f"{time} is too late: the message ended at {end}, and the clock is at {at}"

    def advance(self, clock_us: int) -> Changes:
        """Let the messages end that are due, and others have dwelled."""
        return self._run(events.pass_time, (clock_us,), np.array([clock_us]))

    # ---- how kernels are run ------------------------------------------------------------------

    @property
    def _clock_us(self) -> int:
        return int(self._messages.facts[CLOCK])

    @property
    def _tables(self) -> Tables:
        return Tables(self._table.view, self._messages, self._rules)

    def _run(self, kernel: Callable[..., int], rows: tuple[Any, ...], clocks_us: Int64s) -> Changes:
        """Run a kernel over rows, and return what they change.

        Args:
            kernel: Takes structure, tables, working memory, output and rows.
            rows: What it takes beyond those.
            clocks_us: The clock that each row finds.
        """
        before = self._begin()
        self._until_done(kernel, *rows)
        found = self._output_so_far()
        if np.any(found.rows[1:] < found.rows[:-1]):
            order = np.argsort(found.rows, kind="stable")
            found = Told._make(each[order] for each in found)
        return self._changes_of(found, clocks_us, before)

    def _begin(self) -> Int64s:
        """Make ready for kernels; return the work that was done before."""
        self._make_scratch()
        self._output.length[0] = 0
        work: Int64s = self._scratch.counts[_WORK]
        return work

    def _until_done(self, kernel: Callable[..., int], *rows: Any) -> None:
        run_until_done(
            lambda: kernel(self._arrays, self._tables, self._scratch, self._output, *rows),
            lambda short_of: self._make_room(short_of, rows),
        )

    def _output_so_far(self) -> Told:
        n = int(self._output.length[0])
        return Told._make(each[:n].copy() for each in self._output[1:])

    def _changes_of(self, found: Told, clocks_us: Int64s, before: Int64s) -> Changes:
        """Return what events change, given what kernels found, event by event."""
        if self._table.n_timed:
            found = self._dwelling.told(found, clocks_us, self._table)
        nodes, candidates, ended = (self._scratch.counts[_WORK] - before).tolist()
        self._n_ended += ended
        return Changes(
            changes_by_row(found.rows, len(clocks_us)),
            found.slots,
            Counters(nodes, candidates, ended, len(found.slots)),
            None,
            found.signs,
            found.reasons,
            found.sequences,
        )

    def run_part(self, kernel: Callable[..., int], *rows: Any) -> None:
        """Run a kernel of :mod:`earshot.semantics.moving.kernels.parts` over rows."""
        self._make_scratch()
        run_until_done(
            lambda: kernel(self._arrays, self._tables, self._scratch, *rows),
            lambda short_of: self._make_room(short_of, rows),
        )

    def _make_room(self, short_of: int, rows: tuple[Any, ...]) -> None:
        if short_of == NEEDS_OUTPUT:
            self._output = larger_output(self._output)
        elif short_of == NEEDS_ROWS:
            longest = int(np.diff(rows[0].token_offsets).max(initial=0))
            self._messages = with_rows(self._messages, longest)
            self._make_scratch()
        else:
            self._arrays = self._structure.with_room(self._arrays, self._tables)

    def _make_scratch(self) -> None:
        n = max(len(self._table), len(self._messages.ends))
        self._scratch = with_scratch(self._scratch, n, len(self._messages.n_having))
        if self._scratch.counts[STAMP] > _LARGEST_STAMP:
            self._scratch.counts[STAMP] = 0
            self._scratch.stamps[:] = 0

    def _expect_tokens(self, n_tokens: int) -> None:
        self._messages = with_token_counts(self._messages, n_tokens)

    def no_changes(self, n_rows: int) -> Changes:
        """Return that so many event rows changed nothing."""
        nothing = np.empty(0, np.int8)
        return Changes(
            np.zeros(n_rows + 1, np.int64), np.empty(0, np.int32), Counters(0, 0, 0, 0), None,
            nothing, nothing, np.empty(0, np.int64),
        )  # fmt: skip

    # ---- slots --------------------------------------------------------------------------------

    @property
    def n_subscriptions(self) -> int:
        """Live subscriptions."""
        return self._table.n_live

    def settle(self) -> Kept | None:
        """Number the slots anew where many are dead; build the structure anew where that is due."""
        kept = None
        if self._has_ended:
            self._has_ended = False
            kept = self._table.kept()
            if kept is not None:
                self._table = self._table.only(kept)
                self._dwelling.renumber(kept)
                self._safety = self._safety.renewed(kept)
        if kept is not None or self._structure.is_due(self._arrays, self._tables):
            self._arrays = self._structure.build(self._tables, self.space, self._arrays)
        return None if kept is None else Kept(kept)

    def used_tokens(self, n_tokens: int) -> npt.NDArray[np.bool_]:
        """Return which tokens the subscriptions and the live messages have."""
        is_used = np.zeros(n_tokens, np.bool_)
        is_used[EVERYWHERE_TOKEN] = True
        counts = self._messages.n_having[:n_tokens]
        is_used[: len(counts)] |= counts > 0
        tokens = self._table.only(self._live_slots()).view.token_ids
        is_used[np.maximum(tokens, ~tokens)] = True
        return is_used

    def clear_up(self, tokens: Int32s | None) -> None:
        """Give memory back, and forget all tokens but these."""
        messages = without_rooms(self._messages)
        if tokens is not None:
            # Words of subscriptions that have ended may be gone.
            numbers = numbers_of(tokens, len(messages.n_having))
            messages = messages._replace(
                tokens=numbers[messages.tokens],
                n_having=messages.n_having[np.minimum(tokens, len(messages.n_having) - 1)]
                * (tokens < len(messages.n_having)),
            )
            self._table = self._table.with_tokens(tokens)
            events.weigh_messages(messages)
            self._safety = self._safety.renewed()
        self._messages = messages
        self._arrays = self._structure.build(self._tables, self.space)
        self._scratch, self._output = new_scratch(64, 64), new_output(256)

    def _live_slots(self) -> Int32s:
        return np.flatnonzero(self._table.view.flags & LIVE).astype(np.int32)

    # ---- questions ----------------------------------------------------------------------------

    @property
    def structure(self) -> str:
        """How messages and subscribers find each other, by name."""
        return self._structure.name

    @property
    def first_sequence(self) -> int:
        """Sequence before which no message lives; looked for now and then."""
        facts = self._messages.facts
        if facts[N_LIVE] == 0:
            return int(facts[NEXT_SEQUENCE])
        if self._n_ended >= max(_FIRST_LEAST, int(facts[N_LIVE]) // 4):
            self._n_ended = 0
            self._first_sequence = int(self._messages.sequences[live_rows(self._messages)].min())
        return self._first_sequence

    @property
    def n_messages(self) -> int:
        """Live messages."""
        return int(self._messages.facts[N_LIVE])

    def sequences(self) -> Int64s:
        """Return the sequences of the live messages, ascending."""
        return np.sort(self._messages.sequences[live_rows(self._messages)])

    @property
    def message_rows(self) -> Int64s:
        """Rows of the live messages."""
        return live_rows(self._messages)

    @property
    def next_due_us(self) -> int | None:
        """When the next message ends, or has dwelled."""
        messages = self._messages
        ends = [int(messages.ends[messages.heap[0]])] if messages.facts[N_LIVE] else []
        dues = [] if self._dwelling.next_us is None else [self._dwelling.next_us]
        return min([*ends, *dues], default=None)

    def results(self, slots: Int32s) -> Results:
        """Return the messages that the slots hold, in the order of arrival."""
        self._make_scratch()
        found: list[Any] = []
        for slot in slots.tolist():
            if self._table.dwells_us[slot] or self._table.cooldowns_us[slot]:
                found.append(np.array(self._dwelling.given_to(slot), np.int64))
                continue
            events.held_by(self._arrays, self._tables, self._scratch, slot)
            found.append(self._scratch.entered[: self._scratch.counts[N_ENTERED]].copy())
        ends = np.cumsum([0, *map(len, found)])
        return Results(ends, np.concatenate([np.empty(0, np.int64), *found]))

    def safe_regions(self, slots: Int32s) -> list[RegionOrPoint]:
        """Return where subscriptions, each named once, need not report their positions."""
        kinds, places, reaches = self.safe_areas(slots)
        held = self._table.view.regions
        is_around = (held.kinds[slots] == BOX) & (held.frames[slots, 0] >= _AROUND / 2)
        is_around &= self.space == "lonlat"
        columns = (kinds, places, reaches, is_around)
        rows = zip(*(each.tolist() for each in columns), strict=True)
        return [
            _strip(y, reach) if is_strip else _area(kind, x, y, reach, self.space)
            for kind, (x, y), reach, is_strip in rows
        ]

    def safe_areas(self, slots: Int32s) -> Areas:
        """Return the same as arrays."""
        self._make_scratch()
        self._arrays = self._structure.with_words(self._arrays, self._tables)
        return self._safety.give(self._arrays, self._tables, self._scratch, slots)

    def given_areas(self, slots: Int32s) -> Float64s:
        """Return the safe regions that slots were given: (n, 3) place and reach, 0 for a point."""
        return self._safety.given(slots)

    def give_again(self, slots: Int32s, areas: Float64s) -> None:
        """Let slots have the safe regions that they were given once."""
        self._make_scratch()
        self._safety.give_again(self._tables, self._scratch, slots, areas)

    def outdated_safe_regions(self) -> Int32s:
        """Return the slots whose safe regions no longer hold, once each."""
        return self._safety.take_outdated()

    def explain(self, question: Question) -> Explanation:
        """Say in words whether a message would be given now, and why."""
        return explain_holding(question, self._table, self.space)

    def facts(self) -> dict[str, Any]:
        """Return what there is to know of what lives."""
        return {"n_messages": self.n_messages}

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory by part."""
        return {
            "subscriptions": self._table.nbytes,
            "messages": bytes_of(self._messages),
            "structure": bytes_of(self._arrays),
            "dwelling": self._dwelling.nbytes,
            "safe_regions": self._safety.nbytes,
            "working_memory": bytes_of(self._scratch, self._output),
        }

    @property
    def arrays(self) -> tuple[Any, ...]:
        """None: events touch few of them."""
        return ()


def _area(kind: int, x: float, y: float, reach: float, space: Space) -> RegionOrPoint:
    """Return a safe region as an object."""
    if kind == EVERYWHERE:
        return Everywhere()
    if reach == 0.0:
        return Point(x, y)
    if kind == CIRCLE:
        return Circle(x, y, reach)
    west, east = x - reach, x + reach
    if space == "lonlat":
        west, east = west + 360 * (west < -180), east - 360 * (east > 180)
    return Rectangle(west, y - reach, east, y + reach)


def _strip(y: float, reach: float) -> Rectangle:
    """Return the safe region of a rectangle around the world, which is nowhere in particular."""
    return Rectangle(-180.0, y - reach, 180.0, y + reach)


def _sorted_tokens(messages: LivingMessages) -> LivingMessages:
    """Return messages with the tokens of each in ascending order."""
    lengths = np.diff(messages.token_offsets)
    keys = np.repeat(np.arange(len(lengths), dtype=np.int64) << 32, lengths) | messages.tokens
    keys.sort()
    return messages._replace(tokens=(keys & 0xFFFFFFFF).astype(np.int32))
