"""Folding: texts normalised, case folded, without ignorable code points."""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel
from earshot.text.kernels.code_points import ASCII_KINDS, CONTEXT, KEEP, REPLACE, SEPARATOR
from earshot.text.kernels.utf8 import (
    BYTE_HIGH_BITS,
    EACH_BYTE,
    U0,
    U2,
    decode,
    load_end,
    load_word,
    store_word,
)

# A group of texts ends with the text that reaches this size: some 300 tokens, enough for their
# slots to arrive, few enough to stay in the first-level cache.
GROUP_BYTES = 2048

_FROM_UPPER_A = np.uint64(0x80 - ord("A"))
_ABOVE_UPPER_Z = np.uint64(0x80 - ord("Z") - 1)


@kernel
def survey_folding(data, starts, stops, unicode, needs_context):
    """Mark the texts that need context to fold; return the longest folded text of the others.

    A text can be folded one code point at a time when every code point begins with a starter that
    never composes with what stands before it, or is a mark that never composes and whose combining
    class is not below its predecessor's. (The result then passes the quick check of UAX #15 at
    every boundary, and the normal form is unique.)
    """
    pages, entries, fold_offsets, _, _ = unicode
    longest = 0
    for row in range(len(starts)):
        i, stop = starts[row], stops[row]
        length = 0
        last_combining = 0
        while i < stop:
            word = load_word(data, i) if i + 8 <= stop else load_end(data, i, stop)
            if word & BYTE_HIGH_BITS == U0:
                i += 8
                length += 8
                last_combining = 0
                continue
            code, width = decode(word)
            i += width
            if code < 0x80:  # also -1, which folds to a space
                length += 1
                last_combining = 0
                continue
            entry = np.int64(entries[np.int64(pages[code >> 8]) << 8 | code & 255])
            how = entry >> 4 & 3
            combining = entry >> 6 & 255
            if how == CONTEXT or (how == KEEP and 0 < combining < last_combining):
                needs_context[row] = True
                length = 0
                break
            last_combining = combining
            if how == KEEP:
                length += width
            elif how == REPLACE:
                k = entry >> 14
                length += fold_offsets[k + 1] - fold_offsets[k]
        longest = max(longest, length)
    return longest


@kernel
def lower_case(word):
    """Return eight ASCII characters in lower case."""
    upper = (word + EACH_BYTE * _FROM_UPPER_A) ^ (word + EACH_BYTE * _ABOVE_UPPER_Z)
    return word | (upper & BYTE_HIGH_BITS) >> U2


@kernel
def fold_texts(data, starts, stops, row, is_folded, unicode, text, kinds, position, ends):
    """Write folded texts and the kinds of their code points from ``position`` on.

    Texts end with a zero byte. Stops when the group is full; with ``is_folded``, after one text,
    which is copied as it is. Returns the next row and the end.
    """
    pages, entries, fold_offsets, fold_bytes, fold_kinds = unicode
    first_row = row
    while row < len(starts) and position < GROUP_BYTES:
        i, stop = starts[row], stops[row]
        while i < stop:
            n_left = stop - i
            word = load_word(data, i) if n_left >= 8 else load_end(data, i, stop)
            if word & BYTE_HIGH_BITS == U0:
                word = lower_case(word)
                store_word(text, position, word)
                for k in range(8):
                    kinds[position + k] = ASCII_KINDS[np.int64(word >> np.uint64(k << 3)) & 0x7F]
                i += 8
                position += min(n_left, 8)
                continue
            code, width = decode(word)
            if code < 0x80:
                if code < 0:
                    code = 32  # bytes that are no text separate words
                elif 65 <= code <= 90:
                    code += 32
                text[position] = code
                kinds[position] = ASCII_KINDS[code]
                position += 1
                i += 1
                continue
            entry = np.int64(entries[np.int64(pages[code >> 8]) << 8 | code & 255])
            how = entry >> 4 & 3
            if how == KEEP or is_folded:
                store_word(text, position, word)
                kinds[position] = entry & 15 | width << 4
                position += width
            elif how == REPLACE:
                replacement = entry >> 14
                for k in range(fold_offsets[replacement], fold_offsets[replacement + 1]):
                    text[position] = fold_bytes[k]
                    kinds[position] = fold_kinds[k]
                    position += 1
            i += width
        text[position] = 0
        kinds[position] = SEPARATOR | 1 << 4
        position += 1
        ends[row - first_row] = position
        row += 1
        if is_folded:
            break
    return row, position
