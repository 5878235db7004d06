"""What subscriptions ask for: keywords, expressions, thresholds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from earshot.encoding.columns import (
    Bools,
    Columns,
    Problems,
    broken_texts,
    check_utf8,
    is_given,
    long_texts,
    text_of,
    without_texts,
)
from earshot.encoding.kernels import merge_tokens
from earshot.errors import InvalidExpression
from earshot.model.arrays import Int32s, Int64s, offsets_of
from earshot.model.expressions import Clause, Expression, Keyword, Not, clauses, parse
from earshot.text import Analyzer, TokenLists, Vocabulary


class Conditions(NamedTuple):
    """Token clauses of the rows of a batch, in row order."""

    counts: Int64s | None  # (n_rows,) clauses of each row, None when each has one
    offsets: Int64s  # (n_clauses + 1,)
    ids: Int32s  # forbidden tokens as ~t, after the required ones
    is_empty: Bools  # (n_rows,) rows without keywords and expression


def row_conditions(columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary) -> Conditions:
    """Encode keywords and expressions; their tokens are added to the vocabulary."""
    offsets, ids = wanted_tokens(columns, analyzer, vocabulary)
    is_empty = lacks_keywords(columns)
    expressions = columns.get("expression")
    if expressions is None:
        return Conditions(None, offsets, ids, is_empty)
    check_utf8(columns, "expression")
    given = is_given(expressions)
    reason = "given beside keywords; expected one of the two"
    columns.problems.mark(given & ~is_empty, "expression", reason)
    found = _expression_clauses(expressions, given, analyzer, vocabulary, columns.problems)
    counts = np.ones(columns.n, np.int64)
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
    new_offsets = offsets_of(np.array(lengths, np.int64))
    return Conditions(counts, new_offsets, np.concatenate(pieces), is_empty & ~given)


class Keywords(NamedTuple):
    """The keywords of a batch of subscriptions or messages."""

    row_ends: Int64s  # keywords of row i are [i]:[i+1]
    texts: pa.Array  # null where the keyword was refused

    def refuse(self, wrong: Bools, reason: str, problems: Problems) -> None:
        """Note a problem for the rows of wrong keywords; ``{}`` stands for the keyword."""
        for position in np.flatnonzero(wrong).tolist():
            row = int(np.searchsorted(self.row_ends, position, side="right")) - 1
            problems.add(row, "keywords", reason.format(text_of(self.texts, position)))

    def of_rows(self, accepted: Bools) -> Keywords:
        """Return the same without the texts of other rows."""
        dropped = np.repeat(~accepted, np.diff(self.row_ends))
        return self._replace(texts=without_texts(self.texts, dropped))

    def refuse_empty(self, problems: Problems) -> None:
        """Refuse keywords without any character; those of messages need have no word."""
        n_bytes = pc.binary_length(self.texts).fill_null(1).to_numpy(zero_copy_only=False)
        self.refuse(n_bytes == 0, "a keyword is empty; give a word", problems)


def row_keywords(columns: Columns, analyzer: Analyzer) -> Keywords:
    """Return all keywords of the batch that can be analysed."""
    problems = columns.problems
    row_ends = np.zeros(columns.n + 1, np.int64)
    lists = columns.get("keywords")
    if lists is None:
        return Keywords(row_ends, pa.array([], pa.string()))
    if lists.null_count:
        np.cumsum(lists.value_lengths().fill_null(0).to_numpy(), out=row_ends[1:])
        texts = lists.flatten()
    else:
        row_ends[:] = lists.offsets.to_numpy()
        texts = lists.values.slice(row_ends[0], row_ends[-1] - row_ends[0])
        row_ends -= row_ends[0]
    keywords = Keywords(row_ends, texts)
    if texts.null_count:
        keywords.refuse(~is_given(texts), "a keyword is null; expected a string", problems)
    broken, too_long = broken_texts(texts), long_texts(texts, analyzer)
    keywords.refuse(broken, "keyword '{}' is not valid UTF-8", problems)
    reason = f"a keyword is longer than {analyzer.max_text_bytes} bytes"
    keywords.refuse(too_long, reason, problems)
    return keywords._replace(texts=without_texts(texts, broken | too_long))


def lacks_keywords(columns: Columns) -> Bools:
    """Return which rows have no keywords: no list, or an empty one."""
    lists = columns.get("keywords")
    if lists is None:
        return np.ones(columns.n, bool)
    lacking: Bools = pc.equal(lists.value_lengths().fill_null(0), 0).to_numpy(zero_copy_only=False)
    return lacking


def wanted_tokens(columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary) -> TokenLists:
    """Return the distinct tokens that each subscription's keywords ask for.

    They are added to the vocabulary. A row without keywords has the token of all messages.
    """
    keywords = row_keywords(columns, analyzer)
    lists = _analyzed(keywords, analyzer, vocabulary)
    _refuse_wordless(keywords, lists, analyzer, columns.problems)
    return _merged(keywords, lists, vocabulary)


def accepted_tokens(
    keywords: Keywords, columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary
) -> TokenLists:
    """Return the distinct tokens of each row, none where something is wrong with it.

    Those of other rows are added to the vocabulary, and no more: who refuses rows beforehand
    numbers words as those do who leave it to the engine.
    """
    tried = _analyzed(keywords, analyzer, Vocabulary())
    _refuse_wordless(keywords, tried, analyzer, columns.problems)
    accepted = columns.problems.accepted()
    if accepted is not None:
        keywords = keywords.of_rows(accepted)
    return _merged(keywords, _analyzed(keywords, analyzer, vocabulary), vocabulary)


def _analyzed(keywords: Keywords, analyzer: Analyzer, vocabulary: Vocabulary) -> TokenLists:
    if not len(keywords.texts):
        return TokenLists(np.zeros(1, np.int64), np.empty(0, np.int32))
    return analyzer.analyze(keywords.texts, vocabulary, grow=True)


def _refuse_wordless(
    keywords: Keywords, lists: TokenLists, analyzer: Analyzer, problems: Problems
) -> None:
    lack = ", or only stop words" if analyzer.stop_words else ""
    reason = f"keyword '{{}}' has no letters or digits{lack}; give a word"
    keywords.refuse(lists.offsets[1:] == lists.offsets[:-1], reason, problems)


def _merged(keywords: Keywords, lists: TokenLists, vocabulary: Vocabulary) -> TokenLists:
    return TokenLists(
        *merge_tokens(keywords.row_ends, lists.offsets, lists.ids, len(vocabulary), False)
    )


def _expression_clauses(
    expressions: pa.Array,
    given: Bools,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    problems: Problems,
) -> dict[int, list[Int32s]]:
    """Return the clauses of each row with a good expression, in row order; parsed once per text."""
    encoded = expressions.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = [row for row in np.flatnonzero(given).tolist() if row not in problems.found]
    parsed: dict[int, Expression] = {}
    reasons: dict[int, str] = {}
    for code in sorted({int(codes[row]) for row in rows}):
        try:
            parsed[code] = parse(encoded.dictionary[code].as_py())
        except InvalidExpression as error:
            reasons[code] = str(error)
    words = list(dict.fromkeys(word for each in parsed.values() for word in _words(each)))
    lists = analyzer.analyze(pa.array(words, pa.string()), vocabulary, grow=True)
    tokens_by_word: dict[str, list[str]] = {}
    id_by_token: dict[str, int] = {}
    for i, word in enumerate(words):
        ids = lists.ids[lists.offsets[i] : lists.offsets[i + 1]]
        tokens_by_word[word] = vocabulary.tokens(ids)
        id_by_token.update(zip(tokens_by_word[word], ids.tolist(), strict=True))
    clauses_by_code: dict[int, list[Int32s]] = {}
    for code, expression in parsed.items():
        try:
            found = clauses(expression, tokens_by_word.__getitem__)
            clauses_by_code[code] = [_clause_ids(clause, id_by_token) for clause in found]
        except InvalidExpression as error:
            reasons[code] = str(error)
    for row in rows:
        if int(codes[row]) in reasons:
            problems.add(row, "expression", reasons[int(codes[row])])
    return {row: clauses_by_code[int(codes[row])] for row in rows if row not in problems.found}


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
