"""From canonical Arrow batches to the flat arrays that indexes work on.

Every way into the engine comes through here: files, tables and single objects alike, so the same
row is accepted or refused, and means the same, everywhere. Columns are encoded as a whole; only
rows with expressions or polygons are visited one by one. Refused rows are returned with what was
wrong and where; the others are encoded as if those had not been there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.errors import InvalidExpression, InvalidInput, InvalidRegion, InvalidRow
from earshot.kernels.encoding import merge_tokens, prepend_everywhere
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    ShapeArrays,
    Space,
    gather_ranges,
    no_shapes,
)
from earshot.model.expressions import Clause, Expression, Keyword, Not, clauses, parse
from earshot.model.regions import (
    Circle,
    Point,
    Polygon,
    Rectangle,
    boxes,
    circle_boxes,
    circle_problems,
    parse_geometries,
    point_problems,
    rectangle_problems,
    shape_arrays,
    split_rectangles,
    validate,
)
from earshot.model.schemas import (
    BOX_FIELDS,
    CIRCLE_FIELDS,
    COLUMN_TYPES,
    POINT_FIELDS,
    TIME,
    YEARS,
    id_kind,
    id_type,
    is_text,
    unknown_years,
)
from earshot.text import Analyzer, TokenLists, Vocabulary, invalid_utf8

NEVER_US = int(np.iinfo(np.int64).max)
"""Expiry of a subscription that has none."""
NO_TIME_US = int(np.iinfo(np.int64).min)
"""Time of a message that has none."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EVERYWHERE_BOX = (-np.inf, -np.inf, np.inf, np.inf)

_BOOLEAN = (
    "is for ranked matching; give Engine(ranking=...), on the command line --rank, or leave it out"
)

Bools = npt.NDArray[np.bool_]


class EncodedSubscriptions(NamedTuple):
    """The accepted subscriptions of a batch."""

    ids: pa.Array  # id of each accepted row; row i has slot first_slot + i
    clauses: ClauseArrays
    expires: Int64s  # microseconds since 1970, NEVER_US where there is no end
    rejects: list[InvalidRow]


class EncodedRegions(NamedTuple):
    """The regions of a batch of moves."""

    ids: pa.Array
    offsets: Int64s  # boxes of accepted row i are [i]:[i+1]
    boxes: Float64s  # (n_boxes, 4)
    shape_rows: Int32s  # (n_boxes,) row in shapes, -1 where the box is the region
    shapes: ShapeArrays
    rejects: list[InvalidRow]


class EncodedMessages(NamedTuple):
    """The accepted messages of a batch."""

    ids: pa.Array
    messages: MessageArrays
    times: Int64s  # microseconds since 1970, NO_TIME_US where there is none
    rejects: list[InvalidRow]


def encode_subscriptions(
    batch: pa.RecordBatch | pa.Table,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    space: Space,
    *,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
    first_slot: int = 0,
    is_taken: Callable[[pa.Array], Bools] | None = None,
    is_ranked: bool = False,
) -> EncodedSubscriptions:
    """Encode a batch of subscriptions; their tokens are added to the vocabulary.

    Args:
        batch: Columns of :data:`earshot.model.schemas.SUBSCRIPTIONS`; absent ones count as null.
        analyzer: Splits keywords into tokens.
        vocabulary: Gives tokens their ids; grows.
        space: What the coordinates are.
        source: File that the rows came from, for the rejects.
        first_row: Row number of the first row, for the rejects.
        rows: Row number of each row instead, where they do not follow one another.
        first_slot: Slot of the first accepted row.
        is_taken: Tells which ids are in use; rows with one are refused.
        is_ranked: Whether matching is ranked; else rows with a threshold are refused.
    """
    columns = _Columns(batch)
    problems = _Problems(columns.n)
    _check_ids(columns, problems)
    _check_taken(columns, is_taken, problems)
    _check_times(columns, "expires", problems)
    thresholds = _thresholds(columns, is_ranked, problems)
    conditions = _conditions(columns, analyzer, vocabulary, problems)
    regions = _regions(columns, space, problems)
    unbounded = conditions.is_empty & (regions.counts == 0)
    problems.mark(
        unbounded, "keywords", "neither keywords nor a region, so every message would match"
    )
    _check_repeats(columns, problems)
    accepted = problems.accepted()
    return EncodedSubscriptions(
        columns.accepted_ids(accepted),
        _clause_arrays(conditions, regions, thresholds, accepted, first_slot),
        columns.times("expires", NEVER_US, accepted),
        problems.errors(source, first_row, rows),
    )


def encode_regions(
    batch: pa.RecordBatch | pa.Table,
    space: Space,
    *,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
) -> EncodedRegions:
    """Encode the ids and regions of a batch of subscriptions, for moves; other columns are ignored.

    A row without a region listens everywhere. The arguments are as for subscriptions.
    """
    columns = _Columns(batch)
    problems = _Problems(columns.n)
    _check_ids(columns, problems)
    regions = _regions(columns, space, problems)
    _check_repeats(columns, problems)
    accepted = problems.accepted()
    chosen = np.arange(columns.n) if accepted is None else np.flatnonzero(accepted)
    counts = np.maximum(regions.counts, 1)
    offsets = np.append(0, np.cumsum(counts))
    boxes = np.tile(np.array(_EVERYWHERE_BOX), (int(offsets[-1]), 1))
    shape_rows = np.full(len(boxes), -1, np.int32)
    bounded = np.repeat(regions.counts > 0, counts)
    boxes[bounded], shape_rows[bounded] = regions.boxes, regions.shape_rows
    new_offsets, positions = gather_ranges(offsets, chosen)
    return EncodedRegions(
        columns.accepted_ids(accepted),
        new_offsets,
        boxes[positions],
        shape_rows[positions],
        regions.shapes,
        problems.errors(source, first_row, rows),
    )


def encode_messages(
    batch: pa.RecordBatch | pa.Table,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    space: Space,
    *,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
) -> EncodedMessages:
    """Encode a batch of messages; tokens that are not in the vocabulary are left out.

    The arguments are as for subscriptions, the columns those of
    :data:`earshot.model.schemas.MESSAGES`.
    """
    columns = _Columns(batch)
    problems = _Problems(columns.n)
    _check_ids(columns, problems)
    _check_times(columns, "time", problems)
    token_offsets, token_ids = _message_tokens(columns, analyzer, vocabulary, problems)
    places = _places(columns, space, problems)
    accepted = problems.accepted()
    if accepted is not None:
        chosen = np.flatnonzero(accepted)
        token_offsets, positions = gather_ranges(token_offsets, chosen)
        token_ids, places = token_ids[positions], places[chosen]
    return EncodedMessages(
        columns.accepted_ids(accepted),
        MessageArrays(token_offsets, token_ids, places),
        columns.times("time", NO_TIME_US, accepted),
        problems.errors(source, first_row, rows),
    )


# ---- columns and problems -----------------------------------------------------------------------


class _Columns:
    """The columns of a batch by name; one that is absent or all null is None."""

    def __init__(self, batch: pa.RecordBatch | pa.Table) -> None:
        self.n: int = batch.num_rows
        self._arrays: dict[str, pa.Array] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name in COLUMN_TYPES or name == "id":
                array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
                self._arrays[name] = _canonical(name, array)
        if "id" not in self._arrays:
            raise InvalidInput(
                f"no column 'id' among {', '.join(batch.schema.names) or 'no columns'}"
            )
        self.ids = self._arrays["id"]

    def get(self, name: str) -> pa.Array | None:
        array = self._arrays.get(name)
        return None if array is None or array.null_count == len(array) else array

    def floats(self, name: str) -> tuple[Float64s, Bools] | None:
        """Return the values of a column and where they are not null."""
        array = self.get(name)
        if array is None:
            return None
        return array.to_numpy(zero_copy_only=False), _given(array)

    def times(self, name: str, default: int, accepted: Bools | None) -> Int64s:
        array = self.get(name)
        if array is None:
            n = self.n if accepted is None else int(accepted.sum())
            return np.full(n, default, np.int64)
        numbers = array.view(pa.int64()).fill_null(default)
        values: Int64s = np.array(numbers.to_numpy(zero_copy_only=False), np.int64)
        return values if accepted is None else values[accepted]

    def accepted_ids(self, accepted: Bools | None) -> pa.Array:
        return self.ids if accepted is None else self.ids.filter(pa.array(accepted))


def _canonical(name: str, array: pa.Array) -> pa.Array:
    """Return the column in its canonical type; wider and narrower ones of its kind are cast."""
    found = array.type
    expected = COLUMN_TYPES.get(name)
    if expected is None:  # ids have one of two types
        kind = "integer" if pa.types.is_null(found) else id_kind(found)
        if kind is None:
            raise InvalidInput(f"column 'id' is of type {found}; expected int64 or string")
        expected = id_type(kind)
    if found == expected:
        return array
    # Arrow would read numbers out of strings, and times without a zone as UTC.
    is_same_kind = is_text(found) == is_text(expected) or pa.types.is_dictionary(found)
    if name == "keywords" and not pa.types.is_null(found):
        is_same_kind = _is_list(found) and is_text(found.value_type)
    if expected == TIME and not pa.types.is_null(found):
        is_same_kind = pa.types.is_timestamp(found) and found.tz is not None
    try:
        if is_same_kind or pa.types.is_null(found):
            return array.cast(expected, safe=expected != TIME and expected != pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"column '{name}' cannot be read as {expected}: {error}") from None
    raise InvalidInput(f"column '{name}' is of type {found}; expected {expected}")


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _given(array: pa.Array) -> Bools:
    if array.null_count == 0:
        return np.ones(len(array), bool)
    given: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return given


class _Problems:
    """The first thing wrong with each row."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.found: dict[int, tuple[str, str]] = {}

    def add(self, row: int, field: str, reason: str) -> None:
        self.found.setdefault(int(row), (field, reason))

    def mark(self, wrong: Bools, field: str, reason: str) -> None:
        if wrong.any():
            for row in np.flatnonzero(wrong).tolist():
                self.add(row, field, reason)

    def accepted(self) -> Bools | None:
        """Return which rows are good, None when all are."""
        if not self.found:
            return None
        accepted = np.ones(self.n, bool)
        accepted[list(self.found)] = False
        return accepted

    def errors(self, source: str, first_row: int, rows: Int64s | None) -> list[InvalidRow]:
        return [
            InvalidRow(source, int(first_row + row if rows is None else rows[row]), field, reason)
            for row, (field, reason) in sorted(self.found.items())
        ]


def _text_of(array: pa.Array, row: int) -> str:
    value = array[row]
    if not value.is_valid:
        return ""
    text: str = value.as_buffer().to_pybytes()[:200].decode("utf-8", "replace")
    return text if len(text) <= 60 else f"{text[:60]}…"


# ---- ids ----------------------------------------------------------------------------------------


def _check_ids(columns: _Columns, problems: _Problems) -> None:
    ids = columns.ids
    if ids.null_count:
        problems.mark(~_given(ids), "id", "is missing; every row needs an id")
    if pa.types.is_string(ids.type):
        _check_utf8(ids, "id", problems)


def _check_times(columns: _Columns, name: str, problems: _Problems) -> None:
    times = columns.get(name)
    if times is not None:
        problems.mark(unknown_years(times), name, YEARS)


def _check_utf8(array: pa.Array, field: str, problems: _Problems) -> None:
    if not _is_utf8(array):
        problems.mark(invalid_utf8(array), field, "is not valid UTF-8")


def _is_utf8(array: pa.Array) -> bool:
    """Whether all texts are valid; Arrow's check costs next to nothing but names one row only."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _refused_texts(texts: pa.Array, analyzer: Analyzer) -> tuple[Bools, Bools] | None:
    """Return which texts are broken and which too long, None when all are good."""
    nothing = np.zeros(len(texts), bool)
    too_long = analyzer.too_long(texts) if texts.nbytes > analyzer.max_text_bytes else nothing
    broken = nothing if _is_utf8(texts) else invalid_utf8(texts)
    return (broken, too_long) if broken.any() or too_long.any() else None


def _check_taken(
    columns: _Columns, is_taken: Callable[[pa.Array], Bools] | None, problems: _Problems
) -> None:
    """Refuse ids that are in use, and ids of another kind than those."""
    if is_taken is None or not columns.n:
        return
    taken = is_taken(columns.ids)
    for row in np.flatnonzero(taken).tolist():
        value = columns.ids[row].as_py()
        problems.add(row, "id", f"id {value!r} is already subscribed; unsubscribe it first")


def _check_repeats(columns: _Columns, problems: _Problems) -> None:
    """Refuse an id that an accepted row before has; runs last, so that such a row counts."""
    ids = columns.ids
    if problems.n < 2:
        return
    if pa.types.is_int64(ids.type) and not ids.null_count:
        values = ids.to_numpy()
        if (values[1:] > values[:-1]).all():
            return
        values = np.sort(values)
        if (values[1:] > values[:-1]).all():
            return
    elif pc.count_distinct(ids, mode="only_valid").as_py() + ids.null_count == len(ids):
        return
    accepted = problems.accepted()
    rows = np.arange(problems.n) if accepted is None else np.flatnonzero(accepted)
    codes = ids.take(pa.array(rows)).dictionary_encode().indices.to_numpy()
    _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
    for position in np.flatnonzero(firsts[inverse] != np.arange(len(rows))).tolist():
        row, first = rows[position], rows[firsts[inverse[position]]]
        value = ids[int(row)].as_py()
        distance = int(row - first)
        reason = f"id {value!r} was already used, {distance} row{'s' * (distance > 1)} before"
        problems.add(int(row), "id", reason)


# ---- what subscriptions ask for -----------------------------------------------------------------


class _Conditions(NamedTuple):
    """Token clauses of the rows of a batch, in row order."""

    counts: Int64s | None  # (n_rows,) clauses of each row, None when each has one
    offsets: Int64s  # (n_clauses + 1,)
    ids: Int32s  # forbidden tokens as ~t, after the required ones
    is_empty: Bools  # (n_rows,) rows without keywords and expression


def _conditions(
    columns: _Columns, analyzer: Analyzer, vocabulary: Vocabulary, problems: _Problems
) -> _Conditions:
    n = columns.n
    row_ends, lists = _keyword_tokens(columns, analyzer, vocabulary, problems, is_growing=True)
    offsets, ids = merge_tokens(row_ends, lists.offsets, lists.ids, len(vocabulary), False)
    is_empty = row_ends[1:] == row_ends[:-1]
    expressions = columns.get("expression")
    if expressions is None:
        return _Conditions(None, offsets, ids, is_empty)
    _check_utf8(expressions, "expression", problems)
    given = _given(expressions)
    problems.mark(given & ~is_empty, "expression", "given beside keywords; expected one of the two")
    found = _expression_clauses(expressions, given, analyzer, vocabulary, problems)
    counts = np.ones(n, np.int64)
    pieces: list[Int32s] = []
    lengths: list[int] = []
    at = 0
    for row, row_clauses in found.items():
        # The keyword clauses between two rows with expressions are copied as they are.
        pieces.append(ids[offsets[at] : offsets[row]])
        lengths.extend(np.diff(offsets[at : row + 1]).tolist())
        pieces.extend(row_clauses)
        lengths.extend(len(clause) for clause in row_clauses)
        counts[row] = len(row_clauses)
        at = row + 1
    pieces.append(ids[offsets[at] :])
    lengths.extend(np.diff(offsets[at:]).tolist())
    new_offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=new_offsets[1:])
    return _Conditions(counts, new_offsets, np.concatenate(pieces), is_empty & ~given)


def _keyword_tokens(
    columns: _Columns,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    problems: _Problems,
    *,
    is_growing: bool,
) -> tuple[Int64s, TokenLists]:
    """Analyse all keywords of the batch; returns the keywords of each row and their tokens."""
    row_ends = np.zeros(columns.n + 1, np.int64)
    lists = columns.get("keywords")
    if lists is None:
        return row_ends, TokenLists(np.zeros(1, np.int64), np.empty(0, np.int32))
    if lists.null_count:
        np.cumsum(lists.value_lengths().fill_null(0).to_numpy(), out=row_ends[1:])
        keywords = lists.flatten()
    else:
        row_ends[:] = lists.offsets.to_numpy()
        keywords = lists.values.slice(row_ends[0], row_ends[-1] - row_ends[0])
        row_ends -= row_ends[0]

    def refuse(wrong: Bools, reason: str) -> None:
        for position in np.flatnonzero(wrong).tolist():
            row = int(np.searchsorted(row_ends, position, side="right")) - 1
            problems.add(row, "keywords", reason.format(_text_of(keywords, position)))

    if keywords.null_count:
        refuse(~_given(keywords), "a keyword is null; expected a string")
    refused = _refused_texts(keywords, analyzer)
    if refused is not None:
        broken, too_long = refused
        refuse(broken, "keyword '{}' is not valid UTF-8")
        refuse(too_long, f"a keyword is longer than {analyzer.max_text_bytes} bytes")
        keywords = pc.if_else(pa.array(broken | too_long), pa.scalar(None, keywords.type), keywords)
    tokens = analyzer.analyze(keywords, vocabulary, grow=is_growing)
    if is_growing:
        wordless = tokens.offsets[1:] == tokens.offsets[:-1]
        if wordless.any():
            refuse(wordless, f"keyword '{{}}' {_wordless_reason(analyzer)}")
    else:
        n_bytes = pc.binary_length(keywords).fill_null(1).to_numpy(zero_copy_only=False)
        refuse(n_bytes == 0, "a keyword is empty; give a word")
    return row_ends, tokens


def _wordless_reason(analyzer: Analyzer) -> str:
    if analyzer.stop_words:
        return "has no letters or digits, or only stop words; give a word"
    return "has no letters or digits; give a word"


def _expression_clauses(
    expressions: pa.Array,
    given: Bools,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    problems: _Problems,
) -> dict[int, list[Int32s]]:
    """Return the clauses of each row with a good expression, in row order; parsed once per text."""
    encoded = expressions.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = [row for row in np.flatnonzero(given).tolist() if row not in problems.found]
    distinct = encoded.dictionary
    parsed: dict[int, Expression | InvalidExpression] = {}
    for code in sorted({int(codes[row]) for row in rows}):
        try:
            parsed[code] = parse(distinct[code].as_py())
        except InvalidExpression as error:
            parsed[code] = error
    good = [each for each in parsed.values() if not isinstance(each, InvalidExpression)]
    words = list(dict.fromkeys(word for each in good for word in _words(each)))
    lists = analyzer.analyze(pa.array(words, pa.string()), vocabulary, grow=True)
    tokens_by_word: dict[str, list[str]] = {}
    id_by_token: dict[str, int] = {}
    for i, word in enumerate(words):
        ids = lists.ids[lists.offsets[i] : lists.offsets[i + 1]]
        tokens_by_word[word] = vocabulary.tokens(ids)
        id_by_token.update(zip(tokens_by_word[word], ids.tolist(), strict=True))
    encoded_by_code: dict[int, list[Int32s] | InvalidExpression] = {}
    for code, expression in parsed.items():
        if isinstance(expression, InvalidExpression):
            encoded_by_code[code] = expression
            continue
        try:
            found = clauses(expression, tokens_by_word.__getitem__)
            encoded_by_code[code] = [_clause_ids(clause, id_by_token) for clause in found]
        except InvalidExpression as error:
            encoded_by_code[code] = error
    result = {}
    for row in rows:
        found_ids = encoded_by_code[int(codes[row])]
        if isinstance(found_ids, InvalidExpression):
            problems.add(row, "expression", str(found_ids))
        else:
            result[row] = found_ids
    return result


def _words(expression: Expression) -> Iterable[str]:
    """Return the keywords of an expression."""
    if isinstance(expression, Keyword):
        return [expression.text]
    if isinstance(expression, Not):
        return _words(expression.operand)
    return [word for each in expression.operands for word in _words(each)]


def _clause_ids(clause: Clause, id_by_token: dict[str, int]) -> Int32s:
    required = [id_by_token[token] for token in clause.required]
    forbidden = [~id_by_token[token] for token in clause.forbidden]
    return np.array(required + forbidden, np.int32)


def _thresholds(columns: _Columns, is_ranked: bool, problems: _Problems) -> Float64s:
    """Return the threshold of each row, NaN where it names none; empty where no row does."""
    found = columns.floats("threshold")
    if found is None:
        return np.empty(0, np.float64)
    values, given = found
    if not is_ranked:
        problems.mark(given, "threshold", _BOOLEAN)
        return np.empty(0, np.float64)
    for row in np.flatnonzero(given & ~((values > 0) & (values <= 1))).tolist():  # NaN too
        problems.add(
            row, "threshold", f"is {values[row]}; expected a number greater than 0 and at most 1"
        )
    return np.where(given, values, np.nan)


# ---- where subscriptions listen -----------------------------------------------------------------


class _Regions(NamedTuple):
    """Boxes of the rows of a batch, in row order; a row without any listens everywhere."""

    counts: Int64s  # (n_rows,) boxes of each row
    boxes: Float64s  # (n_boxes, 4)
    shape_rows: Int32s  # (n_boxes,) row in shapes, -1 where the box is the region
    shapes: ShapeArrays


def _regions(columns: _Columns, space: Space, problems: _Problems) -> _Regions:
    n = columns.n
    has_box, sides = _group(columns, BOX_FIELDS, "a box", problems)
    has_circle, circles = _group(columns, CIRCLE_FIELDS, "a circle", problems)
    geometries = columns.get("geometry")
    if not len(sides) and not len(circles) and geometries is None:
        nothing = np.empty((0, 4), np.float64)
        return _Regions(np.zeros(n, np.int64), nothing, np.empty(0, np.int32), no_shapes())
    has_geometry = np.zeros(n, bool) if geometries is None else _given(geometries)
    twice = has_box.astype(np.int8) + has_circle + has_geometry > 1
    problems.mark(twice, "geometry", "the region is given in more than one way; give one")

    all_rows: list[Int64s] = []
    all_boxes: list[Float64s] = []
    all_shapes: list[Int32s] = []
    shape_table = no_shapes()

    if has_box.any():
        rows, given = _good(has_box & ~twice, sides)
        for row, field, reason in rectangle_problems(given, space):
            problems.add(int(rows[row]), field, reason)
        rows, given = _without_problems(rows, given, problems)
        parts, part_boxes = split_rectangles(given, space)
        all_rows.append(rows[parts])
        all_boxes.append(part_boxes)
        all_shapes.append(np.full(len(parts), -1, np.int32))
    shapes: list[Circle | Polygon] = []
    n_circles = 0
    if has_circle.any():
        rows, given = _good(has_circle & ~twice, circles)
        for row, field, reason in circle_problems(given[:, 0], given[:, 1], given[:, 2], space):
            problems.add(int(rows[row]), field, reason)
        rows, given = _without_problems(rows, given, problems)
        parts, part_boxes = circle_boxes(given[:, 0], given[:, 1], given[:, 2], space)
        all_rows.append(rows[parts])
        all_boxes.append(part_boxes)
        all_shapes.append(parts.astype(np.int32))
        n_circles = len(given)
        shape_table = ShapeArrays(
            np.ascontiguousarray(given),
            np.zeros(n_circles + 1, np.int64),
            *no_shapes()[2:],
        )
    if geometries is not None:
        found = _geometry_regions(geometries, has_geometry & ~twice, space, problems)
        for row, region in found.items():
            region_boxes = np.array(boxes(region, space), np.float64)
            all_rows.append(np.full(len(region_boxes), row, np.int64))
            all_boxes.append(region_boxes)
            shape_row = -1
            if isinstance(region, Polygon):
                shape_row = n_circles + len(shapes)
                shapes.append(region)
            all_shapes.append(np.full(len(region_boxes), shape_row, np.int32))
        if shapes:
            shape_table = _with_polygons(shape_table, shape_arrays(shapes))
    if not all_rows:
        nothing = np.empty((0, 4), np.float64)
        return _Regions(np.zeros(n, np.int64), nothing, np.empty(0, np.int32), shape_table)
    box_rows = np.concatenate(all_rows)
    region_boxes = np.concatenate(all_boxes)
    shape_rows = np.concatenate(all_shapes)
    if len(all_rows) > 1:
        order = np.argsort(box_rows, kind="stable")
        box_rows, region_boxes, shape_rows = box_rows[order], region_boxes[order], shape_rows[order]
    counts = np.bincount(box_rows, minlength=n).astype(np.int64)
    return _Regions(counts, region_boxes, shape_rows, shape_table)


def _group(
    columns: _Columns, fields: Sequence[str], noun: str, problems: _Problems
) -> tuple[Bools, Float64s]:
    """Return which rows have all of the columns, and the columns side by side."""
    n = columns.n
    found = {field: columns.floats(field) for field in fields}
    if all(column is None for column in found.values()):
        return np.zeros(n, bool), np.empty((0, len(fields)), np.float64)
    values = np.full((n, len(fields)), np.nan)
    has_all, has_any = np.ones(n, bool), np.zeros(n, bool)
    for i, field in enumerate(fields):
        column = found[field]
        if column is None:
            has_all[:] = False
        else:
            values[:, i] = column[0]
            has_all &= column[1]
            has_any |= column[1]
    partial = has_any & ~has_all
    if partial.any():
        for row in np.flatnonzero(partial).tolist():
            for field in fields:
                column = found[field]
                if column is None or not column[1][row]:
                    reason = f"is missing; {noun} needs {', '.join(fields)}"
                    problems.add(row, field, reason)
                    break
    return has_all, values


def _good(chosen: Bools, values: Float64s) -> tuple[Int64s, Float64s]:
    rows = np.flatnonzero(chosen)
    return rows, values if len(rows) == len(values) else values[rows]


def _without_problems(
    rows: Int64s, values: Float64s, problems: _Problems
) -> tuple[Int64s, Float64s]:
    if not problems.found:
        return rows, values
    good = ~np.isin(rows, list(problems.found))
    return rows[good], values[good]


def _geometry_regions(
    geometries: pa.Array, chosen: Bools, space: Space, problems: _Problems
) -> dict[int, Rectangle | Polygon]:
    rows = [row for row in np.flatnonzero(chosen).tolist() if row not in problems.found]
    values = geometries.take(pa.array(rows, pa.int64())).to_pylist()
    regions, wrong = parse_geometries(values, space)
    for position, reason in wrong:
        problems.add(rows[position], "geometry", reason)
    result: dict[int, Rectangle | Polygon] = {}
    for row, region in zip(rows, regions, strict=True):
        if isinstance(region, Point):
            reason = "is a point; expected a polygon, or a point with a radius beside it"
            problems.add(row, "geometry", reason)
        elif isinstance(region, Rectangle | Polygon):
            try:
                if space == "planar":  # sizes that polygons are not exact for
                    validate(region, space)
                result[row] = region
            except InvalidRegion as error:
                problems.add(row, "geometry", str(error))
    return result


def _with_polygons(circles: ShapeArrays, polygons: ShapeArrays) -> ShapeArrays:
    return ShapeArrays(
        np.concatenate([circles.circles, polygons.circles]),
        np.concatenate([circles.ring_offsets[:-1], polygons.ring_offsets]),
        polygons.vertex_offsets,
        polygons.vertices,
    )


# ---- clauses ------------------------------------------------------------------------------------


def _clause_arrays(
    conditions: _Conditions,
    regions: _Regions,
    thresholds: Float64s,
    accepted: Bools | None,
    first_slot: int,
) -> ClauseArrays:
    """Return one clause for each pair of a token clause and a box of an accepted row."""
    if accepted is not None and np.isnan(thresholds[accepted[: len(thresholds)]]).all():
        thresholds = thresholds[:0]  # those that name one were refused
    n_rows = len(regions.counts)
    n_accepted = n_rows if accepted is None else int(accepted.sum())
    slots = np.arange(first_slot, first_slot + n_accepted, dtype=np.int32)
    if accepted is None and conditions.counts is None and regions.counts.max(initial=0) <= 1:
        clause_boxes, shape_rows = regions.boxes, regions.shape_rows
        if len(clause_boxes) < n_rows:
            bounded = regions.counts == 1
            clause_boxes = np.full((n_rows, 4), _EVERYWHERE_BOX, np.float64)
            clause_boxes[bounded] = regions.boxes
            shape_rows = np.full(n_rows, -1, np.int32)
            shape_rows[bounded] = regions.shape_rows
        return ClauseArrays(
            slots,
            conditions.offsets,
            conditions.ids,
            clause_boxes,
            shape_rows,
            regions.shapes,
            thresholds,
        )
    n_token_clauses = np.ones(n_rows, np.int64) if conditions.counts is None else conditions.counts
    # One more box, at the end, is that of rows without any.
    all_boxes = np.concatenate([regions.boxes, np.array([_EVERYWHERE_BOX])])
    all_shape_rows = np.append(regions.shape_rows, np.int32(-1))
    n_boxes = np.maximum(regions.counts, 1)
    token_starts = np.cumsum(n_token_clauses) - n_token_clauses
    box_starts = np.where(
        regions.counts > 0, np.cumsum(regions.counts) - regions.counts, len(regions.boxes)
    )
    chosen = np.arange(n_rows) if accepted is None else np.flatnonzero(accepted)
    n_clauses = (n_token_clauses * n_boxes)[chosen]
    rows = np.repeat(chosen, n_clauses)
    firsts = np.cumsum(n_clauses) - n_clauses
    within = np.arange(len(rows), dtype=np.int64) - np.repeat(firsts, n_clauses)
    token_clauses = token_starts[rows] + within // n_boxes[rows]
    box_positions = box_starts[rows] + within % n_boxes[rows]
    offsets, positions = gather_ranges(conditions.offsets, token_clauses)
    return ClauseArrays(
        np.repeat(slots, n_clauses),
        offsets,
        conditions.ids[positions],
        all_boxes[box_positions],
        all_shape_rows[box_positions],
        regions.shapes,
        thresholds[rows] if len(thresholds) else thresholds,
    )


# ---- messages -----------------------------------------------------------------------------------


def _message_tokens(
    columns: _Columns, analyzer: Analyzer, vocabulary: Vocabulary, problems: _Problems
) -> tuple[Int64s, Int32s]:
    texts, keywords = columns.get("text"), columns.get("keywords")
    has_text = np.zeros(columns.n, bool) if texts is None else _given(texts)
    has_keywords = np.zeros(columns.n, bool) if keywords is None else _given(keywords)
    problems.mark(has_text & has_keywords, "keywords", "given beside a text; expected one")
    problems.mark(
        ~(has_text | has_keywords), "text", "neither text nor keywords; expected one of the two"
    )
    offsets: Int64s
    ids: Int32s
    if texts is not None:
        refused = _refused_texts(texts, analyzer)
        if refused is not None:
            broken, too_long = refused
            problems.mark(broken, "text", "is not valid UTF-8")
            for row in np.flatnonzero(too_long).tolist():
                n_bytes = texts[row].as_buffer().size
                reason = f"has {n_bytes} bytes; at most {analyzer.max_text_bytes} are allowed"
                problems.add(row, "text", reason)
            texts = pc.if_else(pa.array(broken | too_long), pa.scalar(None, texts.type), texts)
        of_texts = analyzer.analyze(texts, vocabulary, grow=False)
        offsets, ids = prepend_everywhere(of_texts.offsets, of_texts.ids)
        if keywords is None:
            return offsets, ids
    row_ends, lists = _keyword_tokens(columns, analyzer, vocabulary, problems, is_growing=False)
    of_keywords = merge_tokens(row_ends, lists.offsets, lists.ids, len(vocabulary), True)
    if texts is None:
        return of_keywords[0], of_keywords[1]
    # Some rows have text and others keywords: take each from where it is.
    both_offsets = np.concatenate([offsets, of_keywords[0][1:] + offsets[-1]])
    chosen = np.arange(columns.n) + np.where(has_keywords, columns.n, 0)
    offsets, positions = gather_ranges(both_offsets, chosen)
    return offsets, np.concatenate([ids, of_keywords[1]])[positions]


def _places(columns: _Columns, space: Space, problems: _Problems) -> Float64s:
    has_point, points = _group(columns, POINT_FIELDS, "a point", problems)
    has_box, sides = _group(columns, BOX_FIELDS, "a box", problems)
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
        rows, given = _good(has_point, points)
        for row, field, reason in point_problems(given[:, 0], given[:, 1], space):
            problems.add(int(rows[row]), field, reason)
        target: Any = slice(None) if len(rows) == columns.n else rows
        places[target, :2] = given
        places[target, 2:] = given
    if has_box.any():
        rows, given = _good(has_box, sides)
        for row, field, reason in rectangle_problems(given, space):
            problems.add(int(rows[row]), field, reason)
        places[rows] = given
    return places
