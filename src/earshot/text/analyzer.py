"""The analyzer: what the tokens of a text are. These rules hold on every path.

**Folding.** A text is normalised, case folded and normalised again:
``NFKC(casefold(NFKC(text)))``, so ``Straße``, ``STRASSE`` and the same in fullwidth letters are one
word. Accents stay. Then the typographic apostrophe (U+2019) becomes ``'``, and what cannot be seen
is removed: soft hyphens, zero-width joiners and non-joiners, word joiners (U+2060), byte order
marks (U+FEFF), directional marks, variation selectors, tags, and the skin tones of emoji. What
stood on both sides of it is one word then. The zero-width space (U+200B) is a space, and separates.

**Words** are runs of letters, marks, digits and ``_``; a mark begins no word: one that sits on no
word character separates. Inside a word stay

- an apostrophe between two letters: ``don't``, ``o'neill``;
- a point or comma between two digits: ``3.5``, ``5,000``.

Everything else separates, hyphens and the points of a URL too.

**Scripts without spaces** (Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar). Each letter with
its marks is a token, and so is each pair of neighbours: ``東京都`` gives ``東``, ``京``, ``東京``,
``都``, ``京都``. A keyword of several letters thus asks for them side by side. Hangul is written
with spaces and makes ordinary words.

**Hashtags and mentions.** ``#`` or ``@`` between something that is no word character and a word
character begins a tag, which takes all word characters that follow, but no apostrophe, point or
comma, and nothing joins across its end. ``#fire`` gives ``#fire`` and the words of its body,
``fire``; ``@bob`` gives ``@bob`` alone; ``#1,2`` gives ``#1``, ``1`` and ``2``. ``a@b.com`` is no
mention: it gives ``a``, ``b`` and ``com``. A mark on a letter belongs to the word, so ``#`` after
it begins no tag; after a mark on nothing it does.

**Symbols** (category So: emoji, dingbats, ``©``, ``°``) are tokens one by one; two regional
indicators are one flag. Marks on symbols are dropped.

**Stop words and stems.** With ``stop_words``, words on the language's list are dropped; with
``stem``, the other words are replaced by their Snowball stems. Tags are left as they are, and words
in scripts the stemmer does not know are their own stems.

A token may have any length: it is kept whole, up to the limit on the text. Code points that this
Python's Unicode version does not know separate words, except where pictographs and Han are to come.
Bytes that are not UTF-8 separate words; :func:`invalid_utf8` finds the texts that hold some.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.errors import InvalidInput, InvalidParameter, InvalidRow, MissingExtra, described
from earshot.kernels.growing import resized
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import Int32s, Int64s, concat_offsets
from earshot.text.kernels import analysis, folding, utf8
from earshot.text.unicode_tables import fold, no_unicode_arrays, unicode_arrays
from earshot.text.vocabulary import TokenCounts, TokenLists, Vocabulary

__all__ = ["Analyzer", "TokenCounts", "TokenLists", "invalid_utf8", "merge_counts"]

Texts: TypeAlias = "pa.Array | pa.ChunkedArray | Sequence[str | None]"

MAX_TEXT_BYTES = 1 << 28
"""Folding can make a text 11 times as long, and positions in folded texts have 32 bits."""

MAX_COUNT = 65_535
"""Occurrences of a token in one text that can be told."""

SURFACE_FORMS_KEPT = 1 << 18
"""Distinct words whose stems are remembered; a larger memory is thrown away after the batch."""

_STEMMED = (
    "ar", "ca", "cs", "da", "de", "el", "en", "eo", "es", "et", "eu", "fa", "fi", "fr", "ga", "hi",
    "hu", "hy", "id", "it", "lt", "ne", "nl", "no", "pl", "pt", "ro", "ru", "sr", "st", "sv", "ta",
    "tr", "yi",
)  # fmt: skip
"""Languages that Snowball has stemmers for, some of them in its later versions only."""


@dataclass(frozen=True)
class Analyzer:
    """Turns texts into token ids; equal analyzers give equal answers.

    Attributes:
        language: ISO 639-1 code such as ``"en"``; needed for stop words and stems, else unused.
        stop_words: Drop the language's stop words.
        stem: Replace words by their stems.
        max_text_bytes: Longer texts (in UTF-8) are refused.
    """

    language: str | None = None
    stop_words: bool = False
    stem: bool = False
    max_text_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        for name, kind, expected in (
            ("language", str | None, "an ISO code such as 'en', or None"),
            ("stop_words", bool, "True or False"),
            ("stem", bool, "True or False"),
            ("max_text_bytes", int, f"1 to {MAX_TEXT_BYTES}"),
        ):
            value = getattr(self, name)
            is_right = isinstance(value, kind) and (kind is not int or type(value) is not bool)
            if not is_right or (kind is int and not 1 <= value <= MAX_TEXT_BYTES):
                raise InvalidParameter(f"{name} is {described(value)}; expected {expected}")
        if self.stop_words:
            _stop_words(self._required_language("stop_words"))
        if self.stem:
            _new_stemmer(self._required_language("stem"))

    def tokens(self, text: str) -> list[str]:
        """Return the distinct tokens of one text, in order of first occurrence."""
        vocabulary = Vocabulary()
        return vocabulary.tokens(self.analyze([text], vocabulary, grow=True).ids)

    def analyze(self, texts: Texts, vocabulary: Vocabulary, *, grow: bool) -> TokenLists:
        """Return the distinct token ids of each text, in order of first occurrence.

        Args:
            texts: Strings, as a list or any Arrow array of strings; a null has no tokens.
            vocabulary: Where tokens get their ids.
            grow: Whether unknown tokens are added to the vocabulary; otherwise they are dropped.

        Raises:
            InvalidRow: A text is longer than ``max_text_bytes``.
        """
        found = self._analyze(texts, vocabulary, grow, False)
        return TokenLists(found.offsets, found.ids)

    def analyze_utf8(
        self, texts: Sequence[bytes], vocabulary: Vocabulary, *, grow: bool
    ) -> TokenLists:
        """Return what :meth:`analyze` does, for a few texts in UTF-8."""
        ends = np.array([0, *accumulate(map(len, texts))], np.int64)
        data = np.frombuffer(b"".join(texts), np.uint8)
        given = _TextArrays(data, ends[:-1], ends[1:])
        if self.stop_words or self.stem or len(data) > self.max_text_bytes:
            found = self._analyze_part(given, 0, vocabulary, grow, False)
        else:
            found = _analyze_surface(given, vocabulary, grow, False)
        return TokenLists(found.offsets, found.ids)

    def count(self, texts: Texts, vocabulary: Vocabulary, *, grow: bool) -> TokenCounts:
        """Return what :meth:`analyze` does, and how often each token occurs in its text.

        Words with the same stem count together.
        """
        return _token_counts(*self._analyze(texts, vocabulary, grow, True))

    def too_long(self, texts: Texts) -> npt.NDArray[np.bool_]:
        """Return which texts are longer than ``max_text_bytes``."""
        return np.concatenate(
            [part.stops - part.starts > self.max_text_bytes for part in _text_arrays(texts)]
        )

    def _analyze(
        self, texts: Texts, vocabulary: Vocabulary, grow: bool, is_counting: bool
    ) -> _Occurrences:
        parts = []
        n_rows = 0
        for part in _text_arrays(texts):
            parts.append(self._analyze_part(part, n_rows, vocabulary, grow, is_counting))
            n_rows += len(part.starts)
        if len(parts) == 1:
            return parts[0]
        offsets, ids, occurrences = zip(*parts, strict=True)
        return _Occurrences(
            concat_offsets(offsets), np.concatenate(ids), np.concatenate(occurrences)
        )

    def _analyze_part(
        self,
        texts: _TextArrays,
        first_row: int,
        vocabulary: Vocabulary,
        grow: bool,
        is_counting: bool,
    ) -> _Occurrences:
        lengths = texts.stops - texts.starts
        if lengths.max(initial=0) > self.max_text_bytes:
            row = int(np.argmax(lengths > self.max_text_bytes))
            raise InvalidRow(
                "",
                first_row + row,
                "text",
                f"{lengths[row]:,} bytes long; expected at most {self.max_text_bytes:,} "
                f"(max_text_bytes of the analyzer)",
            )
        if not (self.stop_words or self.stem):
            return _analyze_surface(texts, vocabulary, grow, is_counting)
        # Each thread takes a memory of its own out of the pool.
        pool = vocabulary.caches.setdefault(self, [])
        try:
            memory: _SurfaceForms = pool.pop()
        except IndexError:
            memory = _SurfaceForms(self)
        found = memory.analyze(texts, vocabulary, grow, is_counting)
        if len(memory.surfaces) <= SURFACE_FORMS_KEPT:
            pool.append(memory)
        return found

    def _required_language(self, option: str) -> str:
        if self.language is None:
            raise InvalidParameter(
                f"{option} needs a language; give an ISO code such as language='en'"
            )
        return self.language


def invalid_utf8(texts: Texts) -> npt.NDArray[np.bool_]:
    """Return which texts are not valid UTF-8."""
    masks = []
    for part in _text_arrays(texts):
        invalid = np.zeros(len(part.starts), np.bool_)
        utf8.find_invalid_utf8(part.data, part.starts, part.stops, invalid)
        masks.append(invalid)
    return np.concatenate(masks)


def merge_counts(row_ends: Int64s, texts: TokenCounts) -> TokenCounts:
    """Return the tokens of rows that consist of texts; their counts are added up.

    Args:
        row_ends: Texts of row i are [i]:[i+1], without gaps.
        texts: Tokens of each text; one that is overfull makes its row so.
    """
    amounts = texts.counts.astype(np.int32)
    amounts[_overfull_positions(texts)] = analysis.TOO_MANY
    return _token_counts(*_added_up(texts.ids, amounts, texts.offsets[row_ends]))


def _overfull_positions(counts: TokenCounts) -> npt.NDArray[np.bool_]:
    """Return which counts may be short: the largest ones, of overfull texts."""
    is_overfull = np.zeros(len(counts.offsets) - 1, np.bool_)
    is_overfull[counts.overfull] = True
    is_largest: npt.NDArray[np.bool_] = counts.counts == MAX_COUNT
    return is_largest & np.repeat(is_overfull, np.diff(counts.offsets))


# ---- texts as arrays ------------------------------------------------------------------------


class _TextArrays(NamedTuple):
    data: npt.NDArray[np.uint8]  # read only: Arrow's own buffer
    starts: Int64s
    stops: Int64s  # equal to the start for a null


_OFFSET_TYPES: dict[pa.DataType, type[np.int32] | type[np.int64]] = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}


def _text_arrays(texts: Texts) -> Iterator[_TextArrays]:
    if isinstance(texts, pa.ChunkedArray):
        for chunk in texts.chunks or [pa.array([], pa.string())]:
            yield _arrow_text(chunk)
    elif isinstance(texts, pa.Array):
        yield _arrow_text(texts)
    elif isinstance(texts, str | bytes):
        raise InvalidInput("texts is a single string; expected a list or an Arrow array of texts")
    else:
        try:
            array = pa.array(texts, pa.large_string())
        except (pa.ArrowException, TypeError, ValueError) as error:
            row = next((i for i, text in enumerate(texts) if not _is_text(text)), 0)
            reason = f"{error}; expected a string that UTF-8 can hold"
            raise InvalidRow("", row, "text", reason) from error
        yield _arrow_text(array)


def _is_text(text: object) -> bool:
    if not isinstance(text, str):
        return text is None
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _arrow_text(array: pa.Array) -> _TextArrays:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if array.type in (pa.string_view(), pa.null()):
        array = array.cast(pa.large_string())
    elif array.type == pa.binary_view():
        array = array.cast(pa.large_binary())
    offset_type = _OFFSET_TYPES.get(array.type)
    if offset_type is None:
        raise InvalidInput(f"texts are an Arrow array of type {array.type}; expected strings")
    if len(array) == 0:
        nothing = np.zeros(0, np.int64)
        return _TextArrays(_read_only(None), nothing, nothing)
    _, offset_buffer, data_buffer = array.buffers()
    first = array.offset * np.dtype(offset_type).itemsize
    offsets = np.frombuffer(offset_buffer, offset_type, len(array) + 1, first)
    starts = offsets[:-1].astype(np.int64)
    stops = offsets[1:].astype(np.int64)
    if array.null_count:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        stops[nulls] = starts[nulls]
    return _TextArrays(_read_only(data_buffer), starts, stops)


def _read_only(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    # Always read only, even where Arrow would let us write: kernels are compiled once.
    data = np.frombuffer(buffer if buffer is not None else b"", np.uint8)
    data.flags.writeable = False
    return data


# ---- analysis -------------------------------------------------------------------------------


class _Occurrences(NamedTuple):
    offsets: Int64s
    ids: Int32s
    occurrences: Int32s  # of the ids, at most analysis.TOO_MANY; empty unless they were counted


def _token_counts(offsets: Int64s, ids: Int32s, occurrences: Int32s) -> TokenCounts:
    positions = np.flatnonzero(occurrences > MAX_COUNT)
    overfull = np.unique(np.searchsorted(offsets, positions, side="right") - 1)
    counts = np.minimum(occurrences, MAX_COUNT).astype(np.uint16)
    return TokenCounts(offsets, ids, counts, overfull)


def _added_up(tokens: Int32s, amounts: Int32s, row_ends: Int64s) -> _Occurrences:
    """Return the distinct tokens above 0 of each row, with the sums of their amounts."""
    ids, occurrences = np.empty_like(tokens), np.empty_like(amounts)
    offsets = np.zeros_like(row_ends)
    longest = int(np.diff(row_ends).max(initial=0))
    analysis.count_distinct(
        tokens,
        amounts,
        row_ends[1:],
        0,
        len(offsets) - 1,
        *_new_set(longest),
        ids,
        offsets,
        occurrences,
    )
    n = offsets[-1]
    return _Occurrences(offsets, ids[:n].copy(), occurrences[:n].copy())


class _FoldedTexts(NamedTuple):
    rows: Int64s
    starts: Int64s
    stops: Int64s
    data: npt.NDArray[np.uint8]


_NOTHING_FOLDED = _FoldedTexts(
    np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), _read_only(None)
)


class _Scratch(NamedTuple):
    """Working memory of one call, for one group of texts."""

    text: npt.NDArray[np.uint8]  # folded texts
    kinds: npt.NDArray[np.uint8]  # of their code points, at the first byte
    ends: Int64s  # of the texts
    spans: npt.NDArray[np.uint64]  # of the tokens: start << 32 | length
    keys: npt.NDArray[np.uint64]  # (n, 3) first word, tag and hash of the tokens
    found: Int32s  # ids of the tokens
    seen_ids: Int32s  # set of the ids of one text
    seen_stamps: Int64s


def _new_scratch(longest: int) -> _Scratch:
    # A group is full before its last text; each token has a byte of its own.
    n_bytes = folding.GROUP_BYTES + longest + 1
    return _Scratch(
        np.empty(n_bytes + utf8.PADDING_BYTES, np.uint8),
        np.empty(n_bytes + utf8.PADDING_BYTES, np.uint8),
        np.empty(folding.GROUP_BYTES, np.int64),
        np.empty(n_bytes, np.uint64),
        np.empty((n_bytes, 3), np.uint64),
        np.empty(n_bytes, np.int32),
        *_new_set(longest),
    )


def _new_set(n_tokens: int) -> tuple[Int32s, Int64s]:
    """Return an empty set for the distinct tokens of one text."""
    size = 1 << max(6, (2 * n_tokens - 1).bit_length())
    return np.empty(size, np.int32), np.zeros(size, np.int64)


def _analyze_surface(
    texts: _TextArrays, vocabulary: Vocabulary, grow: bool, is_counting: bool
) -> _Occurrences:
    """Return the tokens as they stand in the texts."""
    data, starts, stops = texts
    n_rows = len(starts)
    longest, has_more_than_ascii = utf8.survey(data, starts, stops)
    unicode, rows = no_unicode_arrays(), _NOTHING_FOLDED.rows
    if has_more_than_ascii:
        unicode = unicode_arrays()
        needs_context = np.zeros(n_rows, np.bool_)
        longest = folding.survey_folding(data, starts, stops, unicode, needs_context)
        rows = np.flatnonzero(needs_context)
    folded = _NOTHING_FOLDED
    if len(rows):
        folded = _fold_in_python(texts, rows)
        longest = max(longest, int((folded.stops - folded.starts).max()))
    scratch = _new_scratch(longest)

    offsets = np.zeros(n_rows + 1, np.int64)
    n_bytes = int(stops[-1] - starts[0]) if n_rows else 0
    ids = np.empty(len(scratch.found) + n_bytes // 6, np.int32)
    occurrences = np.empty_like(ids) if is_counting else np.empty(0, np.int32)
    counts = np.array([len(vocabulary), 0, 0], np.int64)
    row = 0

    def analyze() -> int:
        nonlocal row
        row, status = vocabulary.calls(
            analysis.analyze_texts, vocabulary._buffers, data, starts, stops, folded, unicode, grow,
            vocabulary._buffers, counts, scratch, row, ids, offsets, occurrences,
        )  # fmt: skip
        if grow:
            vocabulary._n_tokens = int(counts[0])
        return int(status)

    def make_room(status: int) -> None:
        nonlocal ids, occurrences
        if status == analysis.NEEDS_VOCABULARY:
            vocabulary._reserve(int(counts[1]), int(counts[2]))
        else:
            ids = resized(ids, 2 * len(ids), fill=None)
            occurrences = resized(occurrences, 2 * len(occurrences), fill=None)

    if n_rows:
        if grow:  # a vocabulary that is to grow is made its own first, even if there is room
            make_room(analysis.NEEDS_VOCABULARY)
        run_until_done(analyze, make_room)
    n = offsets[-1]
    return _Occurrences(offsets, ids[:n].copy(), occurrences[:n].copy())


def _fold_in_python(texts: _TextArrays, rows: Int64s) -> _FoldedTexts:
    """Fold the texts whose code points cannot be folded one by one."""
    view = memoryview(texts.data)  # type: ignore[arg-type]
    encoded = [
        fold(bytes(view[start:stop]).decode("utf-8", "replace")).encode()
        for start, stop in zip(texts.starts[rows].tolist(), texts.stops[rows].tolist(), strict=True)
    ]
    stops = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    starts = np.append(np.zeros(1, np.int64), stops[:-1])[: len(stops)]
    return _FoldedTexts(rows, starts, stops, np.frombuffer(b"".join(encoded), np.uint8))


# ---- stop words and stems -------------------------------------------------------------------


class _SurfaceForms:
    """Remembers, for the words seen so far, their stems and the stems' token ids.

    Words are analysed against ``surfaces``, a vocabulary of their own; only words seen for the
    first time come to Python.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        language = analyzer.language or ""
        self.stop_words = _stop_words(language) if analyzer.stop_words else frozenset()
        self.stemmer = _new_stemmer(language) if analyzer.stem else None
        self.surfaces = Vocabulary()
        self.stems = Vocabulary()
        self.stem_ids: Int32s = np.full(1, -1, np.int32)  # by surface; -1 is dropped
        self.token_ids: Int32s = np.full(1, -1, np.int32)  # by stem; -1 is not in the vocabulary
        self.n_vocabulary_tokens = 1  # tokens of the vocabulary that token_ids takes account of

    def analyze(
        self, texts: _TextArrays, vocabulary: Vocabulary, grow: bool, is_counting: bool
    ) -> _Occurrences:
        lists = _analyze_surface(texts, self.surfaces, True, is_counting)
        self._learn_tokens(vocabulary)
        self._learn_surfaces(vocabulary)
        if grow:
            self._add_missing(lists, vocabulary)
        # From words to tokens; 0 is dropped.
        stem_ids = self.stem_ids[lists.ids]
        tokens = np.where(stem_ids < 0, np.int32(0), self.token_ids[stem_ids])
        if is_counting:
            return _added_up(tokens, lists.occurrences, lists.offsets)
        ids, offsets = np.empty_like(lists.ids), np.zeros_like(lists.offsets)
        longest = int(np.diff(lists.offsets).max(initial=0))
        analysis.keep_distinct(
            tokens, lists.offsets[1:], 0, len(offsets) - 1, *_new_set(longest), ids, offsets
        )
        return _Occurrences(offsets, ids[: offsets[-1]].copy(), lists.occurrences)

    def _learn_tokens(self, vocabulary: Vocabulary) -> None:
        """Take account of tokens that the vocabulary gained since the last batch."""
        first, self.n_vocabulary_tokens = self.n_vocabulary_tokens, len(vocabulary)
        if first == len(vocabulary) or len(self.stems) == 1:
            return
        stem_ids = self.stems.ids_of(vocabulary.tokens(np.arange(first, len(vocabulary))))
        is_known = stem_ids >= 0
        self.token_ids[stem_ids[is_known]] = first + np.flatnonzero(is_known)

    def _learn_surfaces(self, vocabulary: Vocabulary) -> None:
        """Find the stems of words that are new."""
        words = self.surfaces.tokens(np.arange(len(self.stem_ids), len(self.surfaces)))
        if not words:
            return
        stems = words
        if self.stemmer is not None:
            stems = [
                word if word[0] in "#@" else stem or word
                for word, stem in zip(words, self.stemmer.stemWords(words), strict=True)
            ]
        is_kept = np.array([word not in self.stop_words for word in words])
        n_stems = len(self.stems)
        stem_ids = np.where(is_kept, self.stems.add(stems), np.int32(-1))
        new_stems = self.stems.tokens(np.arange(n_stems, len(self.stems)))
        self.stem_ids = np.concatenate([self.stem_ids, stem_ids])
        self.token_ids = np.concatenate([self.token_ids, vocabulary.ids_of(new_stems)])

    def _add_missing(self, lists: _Occurrences, vocabulary: Vocabulary) -> None:
        """Add the stems that the vocabulary lacks, in order of first occurrence."""
        stem_ids = self.stem_ids[lists.ids]
        stem_ids = stem_ids[stem_ids >= 0]
        missing = stem_ids[self.token_ids[stem_ids] < 0]
        distinct, first = np.unique(missing, return_index=True)
        distinct = distinct[np.argsort(first)]
        self.token_ids[distinct] = vocabulary.add(self.stems.tokens(distinct))
        self.n_vocabulary_tokens = len(vocabulary)


@functools.cache
def _stop_words(language: str) -> frozenset[str]:
    package = _optional("stopwordsiso", "stop words need the package stopwordsiso")
    known = sorted(package.langs())
    if language not in known:
        raise InvalidParameter(
            f"no stop words for language {language!r}; expected one of {', '.join(known)}"
        )
    return frozenset(map(fold, package.stopwords(language)))


def _new_stemmer(language: str) -> Any:
    package = _optional("Stemmer", "stems need the package PyStemmer")

    def stemmer_of(code: str) -> Any:
        try:
            return package.Stemmer(code, 0)  # without a cache, which would repeat ours
        except KeyError:
            return None

    stemmer = stemmer_of(language) if language in _STEMMED else None
    if stemmer is None:
        languages = ", ".join(code for code in _STEMMED if stemmer_of(code) is not None)
        raise InvalidParameter(f"no stemmer for language {language!r}; expected one of {languages}")
    return stemmer


def _optional(module: str, need: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{need}: pip install 'earshot[language]'") from error
