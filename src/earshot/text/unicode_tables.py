"""What the text kernels know about each code point, taken from :mod:`unicodedata`.

The arrays are made once per process, at the first text that is not ASCII (about 0.12 s).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import Int32s
from earshot.text.kernels import code_points

_N_CODE_POINTS = 0x110000

# Letters of scripts written without spaces (Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar).
# Digits and marks in these ranges keep their own classes.
_NO_SPACE_RANGES = (
    (0x0E00, 0x0E7F),  # Thai
    (0x0E80, 0x0EFF),  # Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # ideographic iteration mark, closing mark and zero
    (0x3021, 0x3029),  # Hangzhou numerals
    (0x3031, 0x3035),  # kana repeat marks
    (0x3038, 0x303C),  # Hangzhou numerals, iteration mark, masu
    (0x3040, 0x30FF),  # Hiragana, Katakana, prolonged sound mark
    (0x31F0, 0x31FF),  # Katakana phonetic extensions
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),  # Myanmar extended
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0x116D0, 0x116FF),  # Myanmar extended
    (0x16FE3, 0x16FE3),  # Old Chinese iteration mark
    (0x1AFF0, 0x1B16F),  # kana supplements
    (0x20000, 0x3FFFD),  # Han, two planes of which are reserved for it
)

# Whole ranges of one class that fold to themselves; skipping them saves most of the time.
_HAN_RANGES = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x2F7FF), (0x2FA1E, 0x3FFFD))
_HANGUL_RANGE = (0xAC00, 0xD7A3)

# Pictographs that later versions of Unicode may assign; a few that are not in category So.
_PICTOGRAPH_RANGES = ((0x1F000, 0x1F1E5), (0x1F200, 0x1F3FA), (0x1F400, 0x1FAFF))
_MORE_PICTOGRAPHS = (0x2194, 0x25FB, 0x25FC, 0x25FD, 0x25FE)
_REGIONAL_RANGE = (0x1F1E6, 0x1F1FF)

# Code points that are removed. All of them are starters that never compose, so that removing them
# after normalising is the same as leaving them out while folding.
_IGNORED_RANGES = (
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x061C, 0x061C),  # Arabic letter mark
    (0x180B, 0x180F),  # Mongolian variation selectors
    (0x200C, 0x200F),  # joiners, directional marks
    (0x202A, 0x202E),  # directional embedding
    (0x2060, 0x206F),  # word joiner, invisible operators, directional isolates
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # zero width no-break space
    (0x1F3FB, 0x1F3FF),  # skin tones: a thumb of any colour is a thumb
    (0xE0001, 0xE01EF),  # tags, more variation selectors
)

_IGNORED = re.compile("[" + "".join(f"{chr(a)}-{chr(b)}" for a, b in _IGNORED_RANGES) + "]")
_APOSTROPHE = "\u2019"  # typographic; written as ' in tokens


class UnicodeArrays(NamedTuple):
    """Entries of all code points; :mod:`earshot.text.kernels.code_points` describes their bits."""

    pages: Int32s  # (0x1100,) page of the entries of 256 code points
    entries: npt.NDArray[np.uint32]  # (n_pages * 256,)
    fold_offsets: Int32s  # (n_replacements + 1,)
    fold_bytes: npt.NDArray[np.uint8]  # UTF-8 of the replacements
    fold_kinds: npt.NDArray[np.uint8]  # class + 16 * width of their code points, at the first byte


@functools.cache
def no_unicode_arrays() -> UnicodeArrays:
    """Return arrays of the right types for texts that are all ASCII."""
    number, byte = np.zeros(1, np.int32), np.zeros(1, np.uint8)
    return UnicodeArrays(number, np.zeros(1, np.uint32), number, byte, byte)


def fold(text: str) -> str:
    """Return ``text`` as it is segmented: normalised, case folded, ignored code points removed."""
    normal = unicodedata.normalize("NFKC", text).casefold()
    return _clean(unicodedata.normalize("NFKC", normal))


def _clean(text: str) -> str:
    return _IGNORED.sub("", text).replace(_APOSTROPHE, "'")


@functools.cache
def unicode_arrays() -> UnicodeArrays:
    """Return the arrays, made at the first call."""
    entries = np.full(_N_CODE_POINTS, code_points.SEPARATOR, np.uint32)
    for first, last in _HAN_RANGES:
        entries[first : last + 1] = code_points.NO_SPACE
    entries[_HANGUL_RANGE[0] : _HANGUL_RANGE[1] + 1] = code_points.LETTER
    regular = np.zeros(_N_CODE_POINTS, np.bool_)
    for first, last in (*_HAN_RANGES, _HANGUL_RANGE, (0xD800, 0xF8FF), (0xE0000, 0x10FFFF)):
        regular[first : last + 1] = True
    codes = np.flatnonzero(~regular[:0x2FA1E]).tolist()

    _set_classes(entries, codes)
    replacements = _set_folding(entries, codes)
    for first, last in _IGNORED_RANGES:
        entries[first : last + 1] = code_points.SEPARATOR | code_points.DROP << 4

    # Pages that are equal are stored once. (np.unique over rows takes 0.4 s.)
    rows = entries.reshape(-1, 256)
    numbers: dict[bytes, int] = {}
    pages = [numbers.setdefault(row.tobytes(), len(numbers)) for row in rows]
    encoded = [replacement.encode() for replacement in replacements]
    fold_offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(each) for each in encoded], out=fold_offsets[1:])
    fold_kinds = bytearray()
    for character in "".join(replacements):
        width = len(character.encode())
        fold_kinds += bytes([int(entries[ord(character)] & 15) | width << 4]).ljust(width, b"\0")
    return UnicodeArrays(
        np.array(pages, np.int32),
        np.frombuffer(b"".join(numbers), np.uint32).copy(),
        fold_offsets,
        np.frombuffer(b"".join(encoded), np.uint8).copy(),
        np.frombuffer(fold_kinds, np.uint8).copy(),
    )


def _set_classes(entries: npt.NDArray[np.uint32], codes: list[int]) -> None:
    by_category = {
        **dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), code_points.LETTER),
        **dict.fromkeys(("Nd", "No"), code_points.DIGIT),
        **dict.fromkeys(("Mn", "Mc", "Me"), code_points.MARK),
        "So": code_points.SYMBOL,
    }
    categories = map(unicodedata.category, map(chr, codes))
    entries[codes] = [by_category.get(category, code_points.SEPARATOR) for category in categories]
    for first, last in _NO_SPACE_RANGES:
        block = entries[first : last + 1]
        block[block == code_points.LETTER] = code_points.NO_SPACE
    for first, last in _PICTOGRAPH_RANGES:
        block = entries[first : last + 1]
        block[block == code_points.SEPARATOR] = code_points.SYMBOL
    entries[list(_MORE_PICTOGRAPHS)] = code_points.SYMBOL
    entries[[0xFFFC, 0xFFFD]] = code_points.SEPARATOR  # stand for what is not there
    entries[_REGIONAL_RANGE[0] : _REGIONAL_RANGE[1] + 1] = code_points.REGIONAL
    entries[:128] = code_points.ASCII_CLASSES[:128]


def _set_folding(entries: npt.NDArray[np.uint32], codes: list[int]) -> list[str]:
    """Add to the entries how each code point folds; return the replacements."""
    combining = unicodedata.combining
    composing = _composing(codes)

    def begins_anew(text: str) -> bool:
        # Nothing before this text can change it, and it changes nothing before it.
        first = unicodedata.normalize("NFKD", text)[0]
        return combining(first) == 0 and first not in composing and text[0] not in composing

    # Between line feeds, nothing composes or moves: one call normalises every code point alone.
    alone = list(map(chr, codes))
    normal = unicodedata.normalize("NFKC", "\n".join(alone))
    folded = unicodedata.normalize("NFKC", normal.casefold())
    pairs = zip(_split(normal, codes), _split(folded, codes), strict=True)
    replacements: list[str] = []
    numbers: dict[str, int] = {}
    for code, character, (once, twice) in zip(codes, alone, pairs, strict=True):
        if once == character == twice:
            combining_class = combining(character)
            if character in composing:
                entries[code] |= code_points.CONTEXT << 4
            elif combining_class:
                entries[code] |= combining_class << 6
            continue
        if not (begins_anew(once) and begins_anew(twice)):
            entries[code] |= code_points.CONTEXT << 4
            continue
        replacement = _clean(twice)
        if replacement not in numbers:
            numbers[replacement] = len(replacements)
            replacements.append(replacement)
        last = max(combining(once[-1]), combining(twice[-1]))
        entries[code] |= code_points.REPLACE << 4 | last << 6 | numbers[replacement] << 14
    entries[ord(_APOSTROPHE)] = (
        code_points.APOSTROPHE | code_points.REPLACE << 4 | numbers["'"] << 14  # as U+FF07 folds
    )
    return replacements


def _split(joined: str, codes: list[int]) -> list[str]:
    parts = joined.split("\n")
    # The line feed itself is one of the code points: it left two empty parts.
    at = codes.index(ord("\n"))
    parts[at : at + 2] = ["\n"]
    return parts


def _composing(codes: list[int]) -> set[str]:
    """Return the code points that may compose with one before them."""
    found = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    for parts in map(unicodedata.decomposition, map(chr, codes)):
        if " " in parts and parts[0] != "<":
            found.add(chr(int(parts.split()[1], 16)))
    return found
