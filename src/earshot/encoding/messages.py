"""From batches of messages to tokens and places."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.encoding.columns import (
    NO_TIME_US,
    Bools,
    Columns,
    Problems,
    accepted_rows,
    check_ids,
    check_times,
    chosen_rows,
    column_group,
    is_given,
    refused_texts,
)
from earshot.encoding.conditions import Keywords, row_keywords
from earshot.encoding.forms import REGIONS, Form
from earshot.encoding.kernels import merge_tokens, prepend_everywhere
from earshot.encoding.points import message_points
from earshot.errors import InvalidRow
from earshot.model.arrays import (
    CountedMessages,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    Space,
    gather_ranges,
    take_messages,
)
from earshot.model.regions import cartesian, point_problems, rectangle_problems
from earshot.model.schemas import BOX_FIELDS, POINT_FIELDS
from earshot.text import Analyzer, TokenCounts, Vocabulary, merge_counts

_TOO_MANY = "holds a word more than 65,535 times; leave some out"

UInt16s = npt.NDArray[np.uint16]


class EncodedMessages(NamedTuple):
    """The accepted messages of a batch."""

    ids: pa.Array
    messages: Any  # MessageArrays, or CountedMessages for semantics at points
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

    Where subscriptions have regions, words that are not in the vocabulary are left out. Where they
    are at points, the words of good rows are added, so that a subscription that comes later finds
    the messages that hold its words.

    The arguments are as for subscriptions, the columns those of
    :data:`earshot.model.schemas.MESSAGES`.
    """
    columns = Columns(batch)
    problems = Problems(columns.n)
    check_ids(columns, problems)
    check_times(columns, "time", problems)
    encode = _counted_messages if form.is_point else _message_arrays
    messages, accepted = encode(columns, analyzer, vocabulary, space, problems)
    return EncodedMessages(
        columns.accepted_ids(accepted),
        messages,
        columns.times("time", NO_TIME_US, accepted),
        accepted_rows(columns.n, accepted, first_row, rows),
        problems.errors(source, first_row, rows),
    )


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
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, space: Space, problems: Problems
) -> tuple[MessageArrays, Bools | None]:
    token_offsets, token_ids = _message_tokens(columns, analyzer, vocabulary, problems)
    places = _places(columns, space, problems)
    accepted = problems.accepted()
    if accepted is not None:
        chosen = np.flatnonzero(accepted)
        token_offsets, positions = gather_ranges(token_offsets, chosen)
        token_ids, places = token_ids[positions], places[chosen]
    return MessageArrays(token_offsets, token_ids, places), accepted


def _counted_messages(
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, space: Space, problems: Problems
) -> tuple[CountedMessages, Bools | None]:
    words = row_words(columns, analyzer, problems)
    points = message_points(columns, space, problems)
    words = _words_of_good_rows(words, problems)
    token_offsets, tokens, counts = _word_counts(words, analyzer, vocabulary, problems)
    accepted = problems.accepted()
    if accepted is not None:
        token_offsets, positions = gather_ranges(token_offsets, np.flatnonzero(accepted))
        tokens, counts, points = tokens[positions], counts[positions], points[accepted]
    times = columns.times("time", NO_TIME_US, accepted)
    return (
        CountedMessages(token_offsets, tokens, counts, cartesian(points, space), times),
        accepted,
    )


class Words(NamedTuple):
    """What the rows of a batch say: each has a text or keywords."""

    texts: pa.Array | None  # null where a row has none or it was refused; None when no row has one
    keywords: Keywords | None  # None when no row has any
    has_keywords: Bools  # (n_rows,)


def row_words(columns: Columns, analyzer: Analyzer, problems: Problems) -> Words:
    """Return the texts and keywords of messages that can be analysed."""
    texts, lists = columns.get("text"), columns.get("keywords")
    has_text = np.zeros(columns.n, bool) if texts is None else is_given(texts)
    has_keywords = np.zeros(columns.n, bool) if lists is None else is_given(lists)
    problems.mark(has_text & has_keywords, "keywords", "given beside a text; expected one")
    problems.mark(
        ~(has_text | has_keywords), "text", "neither text nor keywords; expected one of the two"
    )
    if texts is not None:
        refused = refused_texts(texts, analyzer)
        if refused is not None:
            broken, too_long = refused
            problems.mark(broken, "text", "is not valid UTF-8")
            for row in np.flatnonzero(too_long).tolist():
                n_bytes = texts[row].as_buffer().size
                reason = f"has {n_bytes} bytes; at most {analyzer.max_text_bytes} are allowed"
                problems.add(row, "text", reason)
            texts = pc.if_else(pa.array(broken | too_long), pa.scalar(None, texts.type), texts)
    if lists is None and texts is not None:
        return Words(texts, None, has_keywords)
    keywords = row_keywords(columns, analyzer, problems)
    keywords.refuse_empty(problems)
    return Words(texts, keywords, has_keywords)


def _message_tokens(
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, problems: Problems
) -> tuple[Int64s, Int32s]:
    texts, keywords, has_keywords = row_words(columns, analyzer, problems)
    offsets: Int64s
    ids: Int32s
    if texts is not None:
        of_texts = analyzer.analyze(texts, vocabulary, grow=False)
        offsets, ids = prepend_everywhere(of_texts.offsets, of_texts.ids)
        if keywords is None:
            return offsets, ids
    assert keywords is not None
    lists = analyzer.analyze(keywords.texts, vocabulary, grow=False)
    of_keywords = merge_tokens(keywords.row_ends, lists.offsets, lists.ids, len(vocabulary), True)
    if texts is None:
        return of_keywords[0], of_keywords[1]
    # Some rows have text and others keywords: take each from where it is.
    both_offsets = np.concatenate([offsets, of_keywords[0][1:] + offsets[-1]])
    chosen = np.arange(columns.n) + np.where(has_keywords, columns.n, 0)
    offsets, positions = gather_ranges(both_offsets, chosen)
    return offsets, np.concatenate([ids, of_keywords[1]])[positions]


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
    words: Words, analyzer: Analyzer, vocabulary: Vocabulary, problems: Problems
) -> tuple[Int64s, Int32s, UInt16s]:
    """Return the distinct tokens of each row, and how often they occur in its text or keywords."""
    texts, keywords, has_keywords = words
    of_texts = of_keywords = None
    if texts is not None:
        of_texts = analyzer.count(texts, vocabulary, grow=True)
        _refuse_overfull(of_texts, "text", problems)
    if keywords is not None:
        counted = analyzer.count(keywords.texts, vocabulary, grow=True)
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


def _places(columns: Columns, space: Space, problems: Problems) -> Float64s:
    has_point, points = column_group(columns, POINT_FIELDS, "a point", problems)
    has_box, sides = column_group(columns, BOX_FIELDS, "a box", problems)
    problems.mark(
        has_point & has_box,
        "x",
        "a point is given beside a box; expected one place, so leave one of the two empty",
    )
    problems.mark(
        ~(has_point | has_box),
        "x",
        f"no place; expected {', '.join(POINT_FIELDS)} or {', '.join(BOX_FIELDS)}",
    )
    places = np.zeros((columns.n, 4), np.float64)
    if has_point.any():
        rows, given = chosen_rows(has_point, points)
        for row, field, reason in point_problems(given[:, 0], given[:, 1], space):
            problems.add(int(rows[row]), field, reason)
        target: Any = slice(None) if len(rows) == columns.n else rows
        places[target, :2] = given
        places[target, 2:] = given
    if has_box.any():
        rows, given = chosen_rows(has_box, sides)
        for row, field, reason in rectangle_problems(given, space):
            problems.add(int(rows[row]), field, reason)
        places[rows] = given
    return places
