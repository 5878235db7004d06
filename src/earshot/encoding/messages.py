"""From batches of messages to tokens and places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from earshot.encoding.columns import (
    NO_TIME_US,
    NOT_UTF8,
    Bools,
    Columns,
    broken_texts,
    check_ids,
    check_times,
    chosen_rows,
    column_group,
    is_given,
    long_texts,
    row_numbers,
    without_texts,
)
from earshot.encoding.conditions import Keywords, row_keywords
from earshot.encoding.forms import REGIONS, Form, refuse_message_columns
from earshot.encoding.kernels import merge_tokens, prepend_everywhere
from earshot.encoding.points import message_points
from earshot.errors import InvalidRow
from earshot.model.arrays import (
    CountedMessages,
    Float64s,
    Int32s,
    Int64s,
    LivingMessages,
    MessageArrays,
    Space,
    concat_offsets,
    gather_ranges,
    take_messages,
)
from earshot.model.regions import cartesian, point_problems, rectangle_problems
from earshot.model.schemas import BOX_FIELDS, POINT_FIELDS, WHICH_PLACE
from earshot.text import Analyzer, TokenCounts, Vocabulary, merge_counts

_TOO_MANY = "holds a word more than 65,535 times; leave some out"


class EncodedMessages(NamedTuple):
    """The accepted messages of a batch."""

    ids: Any  # Arrow array, or a tuple of the id of a single message
    messages: Any  # MessageArrays; CountedMessages at points; LivingMessages that end
    times: Int64s  # microseconds since 1970, NO_TIME_US where there is none
    rows: Int64s  # number of each at its source
    rejects: list[InvalidRow]


def encode_messages(
    batch: pa.RecordBatch | pa.Table,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    space: Space,
    *,
    form: Form = REGIONS,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
) -> EncodedMessages:
    """Encode a batch of messages.

    Words that are not in the vocabulary are left out. Where the semantics keeps messages, the words
    of good rows are added, so that a subscription that comes later finds the messages that hold its
    words.

    The arguments are as for subscriptions, the columns those of
    :data:`earshot.model.schemas.MESSAGES`.
    """
    columns = Columns(batch)
    check_ids(columns)
    check_times(columns, "time")
    refuse_message_columns(columns, form)
    encode: Callable[..., Any] = _message_arrays
    if form.is_point:
        encode = _counted_messages
    elif form.moves_by_position:
        encode = _living_messages
    messages = encode(columns, analyzer, vocabulary, space)
    numbers = row_numbers(columns.n, first_row, rows)
    times, rejects = columns.times("time", NO_TIME_US), columns.problems.errors(source, numbers)
    encoded = EncodedMessages(columns.ids, messages, times, numbers, rejects)
    accepted = columns.problems.accepted()
    return encoded if accepted is None else take_encoded(encoded, np.flatnonzero(accepted))


def take_encoded(encoded: EncodedMessages, rows: Int64s) -> EncodedMessages:
    """Return some of the messages, with all rejects."""
    return EncodedMessages(
        encoded.ids.take(pa.array(rows)),
        take_messages(encoded.messages, rows),
        encoded.times[rows],
        encoded.rows[rows],
        encoded.rejects,
    )


def _message_arrays(
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, space: Space
) -> MessageArrays:
    said = row_words(columns, analyzer)
    offsets, ids = _token_lists(said, analyzer, vocabulary, grow=False)
    return MessageArrays(offsets, ids, _places(columns, space))


def _token_lists(
    said: Words, analyzer: Analyzer, vocabulary: Vocabulary, *, grow: bool
) -> tuple[Any, ...]:
    """Return the distinct tokens of each row, the token of all messages among them."""
    texts, keywords, has_keywords = said
    found: list[tuple[Int64s, Int32s]] = []
    if texts is not None:
        found.append(prepend_everywhere(*analyzer.analyze(texts, vocabulary, grow=grow)))
    if keywords is not None:
        lists = analyzer.analyze(keywords.texts, vocabulary, grow=grow)
        found.append(merge_tokens(keywords.row_ends, *lists, len(vocabulary), True))
    return _either(found, has_keywords)


def _counted_messages(
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, space: Space
) -> CountedMessages:
    said = row_words(columns, analyzer)
    points = message_points(columns, space)
    texts, keywords, has_keywords = _accepted_words(said, columns)
    found = []
    if texts is not None:
        found.append(analyzer.count(texts, vocabulary, grow=True))
        _refuse_overfull(columns, found[-1], "text")
    if keywords is not None:
        counted = analyzer.count(keywords.texts, vocabulary, grow=True)
        found.append(merge_counts(keywords.row_ends, counted))
        _refuse_overfull(columns, found[-1], "keywords")
    offsets, ids, counts = _either([each[:3] for each in found], has_keywords)
    times = columns.times("time", NO_TIME_US)
    return CountedMessages(offsets, ids, counts, cartesian(points, space), times)


def _living_messages(
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, space: Space
) -> LivingMessages:
    said = row_words(columns, analyzer)
    places = _places(columns, space)
    check_times(columns, "end")
    times, ends = columns.times("time", NO_TIME_US), columns.times("end", NO_TIME_US)
    is_over = (ends != NO_TIME_US) & (times != NO_TIME_US) & (ends <= times)
    columns.problems.mark(is_over, "end", "is not after its time; a message ends after it begins")
    said = _accepted_words(said, columns)
    offsets, tokens = _token_lists(said, analyzer, vocabulary, grow=True)
    return LivingMessages(offsets, tokens, places, times, ends)


def _accepted_words(said: Words, columns: Columns) -> Words:
    """Return what good rows say: nobody will look for the words of refused ones."""
    texts, keywords, has_keywords = said
    accepted = columns.problems.accepted()
    if accepted is not None and texts is not None:
        texts = without_texts(texts, ~accepted)
    if accepted is not None and keywords is not None:
        keywords = keywords.of_rows(accepted)
    return Words(texts, keywords, has_keywords)


def _refuse_overfull(columns: Columns, counts: TokenCounts, field: str) -> None:
    for row in counts.overfull.tolist():
        columns.problems.add(row, field, _TOO_MANY)


def _either(found: Sequence[tuple[Any, ...]], has_keywords: Bools) -> tuple[Any, ...]:
    """Return offsets and values of the rows, each from its text or from its keywords."""
    if len(found) == 1:
        return found[0]
    offsets, *values = zip(*found, strict=True)
    n = len(has_keywords)
    chosen = np.arange(n) + np.where(has_keywords, n, 0)
    new_offsets, positions = gather_ranges(concat_offsets(offsets), chosen)
    return new_offsets, *(np.concatenate(parts)[positions] for parts in values)


class Words(NamedTuple):
    """What the rows of a batch say: each has a text or keywords."""

    texts: pa.Array | None  # null where a row has none or it was refused; None when no row has one
    keywords: Keywords | None  # None when no row has any but some have a text
    has_keywords: Bools  # (n_rows,)


def row_words(columns: Columns, analyzer: Analyzer) -> Words:
    """Return the texts and keywords of messages that can be analysed."""
    problems = columns.problems
    texts, lists = columns.get("text"), columns.get("keywords")
    has_text = np.zeros(columns.n, bool) if texts is None else is_given(texts)
    has_keywords = np.zeros(columns.n, bool) if lists is None else is_given(lists)
    problems.mark(has_text & has_keywords, "keywords", "given beside a text; expected one")
    problems.mark(
        ~(has_text | has_keywords), "text", "neither text nor keywords; expected one of the two"
    )
    if texts is not None:
        broken, too_long = broken_texts(texts), long_texts(texts, analyzer)
        problems.mark(broken, "text", NOT_UTF8)
        for row in np.flatnonzero(too_long).tolist():
            n_bytes = texts[row].as_buffer().size
            reason = f"has {n_bytes} bytes; at most {analyzer.max_text_bytes} are allowed"
            problems.add(row, "text", reason)
        texts = without_texts(texts, broken | too_long)
    if lists is None and texts is not None:
        return Words(texts, None, has_keywords)
    keywords = row_keywords(columns, analyzer)
    keywords.refuse_empty(problems)
    return Words(texts, keywords, has_keywords)


def _places(columns: Columns, space: Space) -> Float64s:
    problems = columns.problems
    has_point, points = column_group(columns, POINT_FIELDS, "a point")
    has_box, sides = column_group(columns, BOX_FIELDS, "a box")
    problems.mark(
        has_point & has_box,
        "x",
        f"a point is given beside a box; leave one of the two empty, or {WHICH_PLACE}",
    )
    problems.mark(
        ~(has_point | has_box),
        "x",
        f"no place; expected {', '.join(POINT_FIELDS)} or {', '.join(BOX_FIELDS)}",
    )
    places = np.zeros((columns.n, 4), np.float64)
    if has_point.any():
        rows, given = chosen_rows(has_point, points)
        problems.add_found(rows, point_problems(given, space))
        target: Any = slice(None) if len(rows) == columns.n else rows
        places[target, :2] = given
        places[target, 2:] = given
    if has_box.any():
        rows, given = chosen_rows(has_box, sides)
        problems.add_found(rows, rectangle_problems(given, space))
        places[rows] = given
    return places
