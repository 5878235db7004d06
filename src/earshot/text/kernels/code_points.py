"""Classes of code points, and how they fold.

The entry of a code point in ``UnicodeArrays`` is
``entries[pages[code point >> 8] * 256 + (code point & 255)]``, a uint32 of

===========  ==========================================================================
bits 0-3     class of the code point, one of the constants below
bits 4-5     how it folds: KEEP, REPLACE, DROP or CONTEXT
bits 6-13    canonical combining class of its last folded code point
bits 14-31   which replacement, for REPLACE: ``fold_bytes[fold_offsets[k]:fold_offsets[k+1]]``
===========  ==========================================================================
"""

from __future__ import annotations

import numpy as np

# Classes of code points; the first five are the characters of words.
LETTER = 0
DIGIT = 1
UNDERSCORE = 2
MARK = 3
NO_SPACE = 4  # letters of scripts written without spaces
SEPARATOR = 5
SYMBOL = 6
REGIONAL = 7  # regional indicators: two of them are one flag
APOSTROPHE = 8
POINT = 9  # and the comma: they stay between digits
SIGN = 10  # hash and at sign

# How a code point folds.
KEEP = 0
REPLACE = 1
DROP = 2
CONTEXT = 3  # depends on its neighbours: the whole text is folded in Python


def _ascii_classes():
    classes = np.full(128, SEPARATOR, np.uint8)
    classes[ord("a") : ord("z") + 1] = LETTER
    classes[ord("A") : ord("Z") + 1] = LETTER
    classes[ord("0") : ord("9") + 1] = DIGIT
    classes[ord("_")] = UNDERSCORE
    classes[ord("'")] = APOSTROPHE
    classes[[ord("."), ord(",")]] = POINT
    classes[[ord("#"), ord("@")]] = SIGN
    return classes


ASCII_CLASSES = _ascii_classes()
# Class and width of a folded code point in one byte: class + 16 * width.
ASCII_KINDS = ASCII_CLASSES + np.uint8(16)
