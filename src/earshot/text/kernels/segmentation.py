"""Segmentation: the spans of tokens in folded texts."""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel
from earshot.text.kernels.code_points import (
    APOSTROPHE,
    DIGIT,
    LETTER,
    MARK,
    NO_SPACE,
    POINT,
    REGIONAL,
    SIGN,
    SYMBOL,
)
from earshot.text.kernels.utf8 import (
    BYTE_HIGH_BITS,
    EACH_BYTE,
    U0,
    U3,
    U32,
    load_word,
    trailing_zeros,
)

_FIRST_HIGH_BIT = np.uint64(0x80)
_FROM_A = np.uint64(0x80 - ord("a"))
_ABOVE_Z = np.uint64(0x80 - ord("z") - 1)
_FROM_0 = np.uint64(0x80 - ord("0"))
_ABOVE_9 = np.uint64(0x80 - ord("9") - 1)
_UNDERSCORE_BYTE = np.uint64(ord("_"))
_FROM_1 = np.uint64(0x7F)


@kernel
def other_bytes(word):
    """Return the high bit of each byte that is not one of ``a-z 0-9 _``."""
    low = word & ~BYTE_HIGH_BITS
    letters = (low + EACH_BYTE * _FROM_A) ^ (low + EACH_BYTE * _ABOVE_Z)
    digits = (low + EACH_BYTE * _FROM_0) ^ (low + EACH_BYTE * _ABOVE_9)
    not_underscore = (low ^ (EACH_BYTE * _UNDERSCORE_BYTE)) + EACH_BYTE * _FROM_1
    return (~(letters | digits | ~not_underscore) | word) & BYTE_HIGH_BITS


@kernel
def span(start, stop):
    """Return start and length of a token in one word."""
    return np.uint64(start) << U32 | np.uint64(stop - start)


@kernel
def segment(text, kinds, stop, spans):
    """Write the span of each token of the folded texts; return their number.

    The rules are those of :mod:`earshot.text.analyzer`. Texts end with a zero byte, so no token
    reaches from one into the next.
    """
    n = 0
    i = 0
    after_word = False
    tag_stop = -1  # where the body of the current hashtag ends: nothing joins across it
    while i < stop:
        held = kinds[i] & 15
        width = kinds[i] >> 4
        if held < MARK:
            begin = i
            before = held
            i += width
            while True:
                others = other_bytes(load_word(text, i))
                if others & _FIRST_HIGH_BIT == U0:
                    while others == U0:
                        i += 8
                        others = other_bytes(load_word(text, i))
                    i += np.int64(trailing_zeros(others) >> U3)
                    before = kinds[i - 1] & 15
                held = kinds[i] & 15
                width = kinds[i] >> 4
                if held <= MARK:
                    if held != MARK:  # a mark belongs to the character it sits on
                        before = held
                    i += width
                elif (
                    (held == APOSTROPHE and before == LETTER) or (held == POINT and before == DIGIT)
                ) and i != tag_stop:
                    if kinds[i + 1] & 15 != before:
                        break
                    i += 1 + (kinds[i + 1] >> 4)
                else:
                    break
            spans[n] = span(begin, i)
            n += 1
            after_word = True
        elif held == NO_SPACE:
            previous = -1
            while held == NO_SPACE:
                begin = i
                held = MARK
                while held == MARK:
                    i += kinds[i] >> 4
                    held = kinds[i] & 15
                spans[n] = span(begin, i)
                n += 1
                if previous >= 0:
                    spans[n] = span(previous, i)
                    n += 1
                previous = begin
            after_word = True
        elif held == SIGN and not after_word:
            body = i + 1
            end = body
            held = kinds[end] & 15
            if held <= NO_SPACE and held != MARK:
                while held <= NO_SPACE:
                    end += kinds[end] >> 4
                    held = kinds[end] & 15
                spans[n] = span(i, end)
                n += 1
                if text[i] == 64:  # @: a mention is one token
                    body = end
                    after_word = True
                else:
                    tag_stop = end
            i = body
        elif held in (SYMBOL, REGIONAL):
            begin = i
            i += width
            if held == REGIONAL and kinds[i] & 15 == REGIONAL:
                i += kinds[i] >> 4
            spans[n] = span(begin, i)
            n += 1
            after_word = False
        else:
            i += width
            after_word = False
    return n
