"""From batches of subscriptions, messages and moves to the arrays of top-k over a window.

Subscriptions and messages are at points, and a subscription asks for words: no expressions, no
regions with extent, and no threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.encoding.columns import (
    NEVER_US,
    NO_TIME_US,
    Bools,
    Columns,
    Problems,
    check_ids,
    check_repeats,
    check_taken,
    check_times,
    chosen_rows,
    column_group,
    is_given,
)
from earshot.encoding.conditions import lacks_keywords, wanted_tokens
from earshot.encoding.messages import Words, row_words
from earshot.errors import InvalidRow
from earshot.model.arrays import CountedMessages, Float64s, Int32s, Int64s, Space, gather_ranges
from earshot.model.batches import instant
from earshot.model.regions import Point, cartesian, parse_geometries, point_problems
from earshot.model.schemas import BOX_FIELDS, POINT_FIELDS
from earshot.model.topk import MAX_COORDINATE, MAX_K
from earshot.text import Analyzer, TokenCounts, Vocabulary, merge_counts

_POINTS = f"top-k over a window needs a point; give {' and '.join(POINT_FIELDS)}"
_COORDINATES = f"coordinates from -{MAX_COORDINATE:g} to {MAX_COORDINATE:g}"
_TOO_MANY = "holds a word more than 65,535 times; leave some out"

UInt16s = npt.NDArray[np.uint16]


class EncodedTopkSubscriptions(NamedTuple):
    """The accepted subscriptions of a batch."""

    ids: pa.Array
    token_offsets: Int64s  # (n + 1,) tokens of accepted row i are [i]:[i+1]
    tokens: Int32s  # distinct within a row, at least one, never EVERYWHERE_TOKEN
    points: Float64s  # (n, 2) as they were given
    places: Float64s  # (n, 3) Cartesian
    alphas: Float64s  # NaN where the row names none
    ks: Int32s  # 0 where the row names none
    expires: Int64s  # microseconds since 1970, NEVER_US where there is no end
    rejects: list[InvalidRow]


class EncodedTopkMessages(NamedTuple):
    """The accepted messages of a batch."""

    ids: pa.Array
    messages: CountedMessages  # times are NO_TIME_US where there is none
    rejects: list[InvalidRow]


class EncodedPoints(NamedTuple):
    """The points of a batch of moves."""

    ids: pa.Array
    points: Float64s  # (n, 2) as they were given
    places: Float64s  # (n, 3) Cartesian
    rejects: list[InvalidRow]


def encode_topk_subscriptions(
    batch: pa.RecordBatch | pa.Table,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    space: Space,
    *,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
    is_taken: Callable[[pa.Array], Bools] | None = None,
) -> EncodedTopkSubscriptions:
    """Encode a batch of subscriptions; their tokens are added to the vocabulary.

    The arguments are as for :func:`earshot.encoding.encode_subscriptions`.
    """
    columns = Columns(batch)
    problems = Problems(columns.n)
    check_ids(columns, problems)
    check_taken(columns, is_taken, problems)
    check_times(columns, "expires", problems)
    _refuse_conditions(columns, problems)
    ks, alphas = _ks(columns, problems), _alphas(columns, problems)
    lists = wanted_tokens(columns, analyzer, vocabulary, problems)
    problems.mark(lacks_keywords(columns), "keywords", "are missing; give at least one word")
    points = _listening_points(columns, space, problems)
    check_repeats(columns, problems)
    accepted = problems.accepted()
    token_offsets, tokens = lists
    if accepted is not None:
        token_offsets, positions = gather_ranges(token_offsets, np.flatnonzero(accepted))
        tokens = tokens[positions]
        points, ks, alphas = points[accepted], ks[accepted], alphas[accepted]
    return EncodedTopkSubscriptions(
        columns.accepted_ids(accepted),
        token_offsets,
        tokens,
        points,
        cartesian(points, space),
        alphas,
        ks,
        columns.times("expires", NEVER_US, accepted),
        problems.errors(source, first_row, rows),
    )


def encode_topk_messages(
    batch: pa.RecordBatch | pa.Table,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    space: Space,
    *,
    grow: bool = True,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
) -> EncodedTopkMessages:
    """Encode a batch of messages; the tokens of good rows are added to the vocabulary.

    So a subscription that comes later finds the messages that hold its words. With ``grow=False``
    tokens that are not in the vocabulary are left out. The other arguments are as for
    :func:`earshot.encoding.encode_messages`.
    """
    columns = Columns(batch)
    problems = Problems(columns.n)
    check_ids(columns, problems)
    check_times(columns, "time", problems)
    words = row_words(columns, analyzer, problems)
    points = _message_points(columns, space, problems)
    words = _words_of_good_rows(words, problems)
    token_offsets, tokens, counts = _word_counts(words, analyzer, vocabulary, grow, problems)
    accepted = problems.accepted()
    if accepted is not None:
        token_offsets, positions = gather_ranges(token_offsets, np.flatnonzero(accepted))
        tokens, counts, points = tokens[positions], counts[positions], points[accepted]
    times = columns.times("time", NO_TIME_US, accepted)
    return EncodedTopkMessages(
        columns.accepted_ids(accepted),
        CountedMessages(token_offsets, tokens, counts, cartesian(points, space), times),
        problems.errors(source, first_row, rows),
    )


def encode_points(
    batch: pa.RecordBatch | pa.Table,
    space: Space,
    *,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
) -> EncodedPoints:
    """Encode the ids and points of a batch of subscriptions, for moves; other columns are ignored.

    The arguments are as for subscriptions.
    """
    columns = Columns(batch)
    problems = Problems(columns.n)
    check_ids(columns, problems)
    points = _listening_points(columns, space, problems)
    check_repeats(columns, problems)
    accepted = problems.accepted()
    if accepted is not None:
        points = points[accepted]
    return EncodedPoints(
        columns.accepted_ids(accepted),
        points,
        cartesian(points, space),
        problems.errors(source, first_row, rows),
    )


def take_messages(messages: CountedMessages, rows: Int64s) -> CountedMessages:
    """Return the given messages, in that order."""
    if len(rows) == len(messages.times):
        return messages  # rows are distinct and ascending here
    offsets, positions = gather_ranges(messages.token_offsets, rows)
    return CountedMessages(
        offsets,
        messages.tokens[positions],
        messages.counts[positions],
        messages.places[rows],
        messages.times[rows],
    )


def accepted_rows(n: int, rejects: list[InvalidRow], first_row: int, rows: Int64s | None) -> Int64s:
    """Return the number, in the source, of each row that is not among the rejects."""
    numbers = np.arange(first_row, first_row + n) if rows is None else rows
    if not rejects:
        return numbers
    accepted: Int64s = numbers[~np.isin(numbers, [each.row for each in rejects])]
    return accepted


def late_rows(
    times: Int64s,
    clocks_us: Int64s,
    numbers: Int64s,
    source: str,
    *,
    duration_us: int,
    lateness_us: int,
) -> list[InvalidRow]:
    """Return what is wrong with the messages that a window of time cannot take.

    Args:
        times: When they happened, NO_TIME_US where that is not said.
        clocks_us: The clock that each of them finds, NO_TIME_US where there is none.
        numbers: Row of each, for errors.
        source: Where the rows came from.
        duration_us: Length of the window.
        lateness_us: How much older than the clock a message may be.
    """
    has_clock = clocks_us != NO_TIME_US
    clocks = np.where(has_clock, clocks_us, 0)
    happened = np.where(times == NO_TIME_US, clocks, times)
    is_late = happened < clocks - lateness_us
    is_over = happened <= clocks - duration_us
    errors = []
    for row in np.flatnonzero(is_late | is_over | ~has_clock).tolist():
        if not has_clock[row]:
            reason = "is missing, and no event before had one; a window of time needs it"
        else:
            clock = int(clocks[row])
            time, at = (instant(int(each)).isoformat() for each in (happened[row], clock))
            if is_late[row]:
                bound = instant(clock - lateness_us).isoformat()
                reason = (
                    f"{time} is before {bound}: the clock is at {at}, and a message may be late by "
                    f"{timedelta(microseconds=lateness_us)}; allow more lateness or sort the "
                    f"messages"
                )
            else:
                bound = instant(clock - duration_us).isoformat()
                reason = f"{time} is not after {bound}, where the window of {at} begins"
        errors.append(InvalidRow(source, int(numbers[row]), "time", reason))
    return errors


# ---- what subscriptions ask for -----------------------------------------------------------------


def _refuse_conditions(columns: Columns, problems: Problems) -> None:
    """Refuse what only the other semantics know."""
    expressions, thresholds = columns.get("expression"), columns.get("threshold")
    if expressions is not None:
        reason = "is not for top-k over a window; give the words as keywords, or use Engine"
        problems.mark(is_given(expressions), "expression", reason)
    if thresholds is not None:
        reason = "is for ranked matching; top-k over a window takes the k best, so leave it out"
        problems.mark(is_given(thresholds), "threshold", reason)


def _ks(columns: Columns, problems: Problems) -> Int32s:
    """Return how many messages each row wants, 0 where it does not say."""
    array = columns.get("k")
    if array is None:
        return np.zeros(columns.n, np.int32)
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    wrong = is_given(array) & ~((values >= 1) & (values <= MAX_K))
    for row in np.flatnonzero(wrong).tolist():
        problems.add(row, "k", f"is {values[row]}; expected an integer from 1 to {MAX_K:,}")
    ks: Int32s = np.where(wrong, 0, values).astype(np.int32)
    return ks


def _alphas(columns: Columns, problems: Problems) -> Float64s:
    """Return the share of the place of each row, NaN where it does not say."""
    found = columns.floats("alpha")
    if found is None:
        return np.full(columns.n, np.nan)
    values, given = found
    for row in np.flatnonzero(given & ~((values >= 0) & (values <= 1))).tolist():  # NaN too
        problems.add(row, "alpha", f"is {values[row]}; expected a number from 0 to 1")
    return np.where(given, values, np.nan)


# ---- what messages say --------------------------------------------------------------------------


def _words_of_good_rows(words: Words, problems: Problems) -> Words:
    """Return the words without those of refused rows, which nobody will look for."""
    accepted = problems.accepted()
    if accepted is None:
        return words
    texts, keywords, has_keywords = words
    if texts is not None:
        texts = pc.if_else(pa.array(accepted), texts, pa.scalar(None, texts.type))
    if keywords is not None:
        kept = np.repeat(accepted, np.diff(keywords.row_ends))
        nothing = pa.scalar(None, keywords.texts.type)
        keywords = keywords._replace(texts=pc.if_else(pa.array(kept), keywords.texts, nothing))
    return Words(texts, keywords, has_keywords)


def _word_counts(
    words: Words, analyzer: Analyzer, vocabulary: Vocabulary, grow: bool, problems: Problems
) -> tuple[Int64s, Int32s, UInt16s]:
    """Return the distinct tokens of each row, and how often they occur in its text or keywords."""
    texts, keywords, has_keywords = words
    of_texts = of_keywords = None
    if texts is not None:
        of_texts = analyzer.count(texts, vocabulary, grow=grow)
        _refuse_overfull(of_texts, "text", problems)
    if keywords is not None:
        counted = analyzer.count(keywords.texts, vocabulary, grow=grow)
        of_keywords = merge_counts(keywords.row_ends, counted)
        _refuse_overfull(of_keywords, "keywords", problems)
    if of_texts is None or of_keywords is None:
        only = of_texts or of_keywords
        assert only is not None
        return only.offsets, only.ids, only.counts
    # Some rows have text and others keywords: take each from where it is.
    both_offsets = np.concatenate(
        [of_texts.offsets, of_keywords.offsets[1:] + of_texts.offsets[-1]]
    )
    n = len(has_keywords)
    offsets, positions = gather_ranges(both_offsets, np.arange(n) + np.where(has_keywords, n, 0))
    return (
        offsets,
        np.concatenate([of_texts.ids, of_keywords.ids])[positions],
        np.concatenate([of_texts.counts, of_keywords.counts])[positions],
    )


def _refuse_overfull(counts: TokenCounts, field: str, problems: Problems) -> None:
    for row in counts.overfull.tolist():
        problems.add(row, field, _TOO_MANY)


# ---- points -------------------------------------------------------------------------------------


def _listening_points(columns: Columns, space: Space, problems: Problems) -> Float64s:
    """Return the point of each subscription: x and y, or a geometry; a radius of 0 is none."""
    has_point, points = _given_points(columns, problems)
    radii = columns.floats("radius")
    if radii is not None:
        values, given = radii
        for row in np.flatnonzero(given & (values != 0.0)).tolist():  # NaN too
            problems.add(row, "radius", f"is {values[row]}; {_POINTS} without a radius")
    geometries = columns.get("geometry")
    if geometries is not None:
        has_geometry = is_given(geometries)
        twice = has_geometry & has_point
        problems.mark(twice, "geometry", "the place is given in more than one way; give one")
        rows = np.flatnonzero(has_geometry & ~twice)
        found, wrong = parse_geometries(geometries.take(pa.array(rows)).to_pylist(), space)
        for position, reason in wrong:
            problems.add(int(rows[position]), "geometry", reason)
        for row, place in zip(rows.tolist(), found, strict=True):
            if isinstance(place, Point):
                points[row] = place.x, place.y
            elif place is not None:
                problems.add(row, "geometry", f"is a polygon; {_POINTS}, or a point")
        has_point = has_point | has_geometry
    return _checked_points(has_point, points, space, problems)


def _message_points(columns: Columns, space: Space, problems: Problems) -> Float64s:
    has_point, points = _given_points(columns, problems)
    return _checked_points(has_point, points, space, problems)


def _given_points(columns: Columns, problems: Problems) -> tuple[Bools, Float64s]:
    """Return which rows have x and y, and their points; refuse boxes."""
    for field in BOX_FIELDS:
        sides = columns.floats(field)
        if sides is not None:
            problems.mark(sides[1], field, f"a box is given; {_POINTS} instead")
    has_point, points = column_group(columns, POINT_FIELDS, "a point", problems)
    return has_point, points if len(points) else np.zeros((columns.n, 2))


def _checked_points(
    has_point: Bools, points: Float64s, space: Space, problems: Problems
) -> Float64s:
    problems.mark(~has_point, "x", f"no place; {_POINTS}")
    rows, given = chosen_rows(has_point, points)
    for row, field, reason in point_problems(given[:, 0], given[:, 1], space):
        problems.add(int(rows[row]), field, reason)
    if space == "planar":
        for at, field in enumerate(POINT_FIELDS):
            for row in np.flatnonzero(np.abs(given[:, at]) > MAX_COORDINATE).tolist():
                reason = f"is {given[row, at]}; top-k over a window takes {_COORDINATES}"
                problems.add(int(rows[row]), field, reason)
    return points
