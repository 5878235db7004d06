"""Kernels of :mod:`earshot.encoding`: token lists of keywords become those of rows.

========== ============ ====== ============================================================
array      shape        dtype  meaning
========== ============ ====== ============================================================
row_ends   n_rows + 1   int64  texts of row i are [i]:[i+1]
offsets    n_texts + 1  int64  tokens of text j are [j]:[j+1]
ids        n_tokens     int32  token ids, distinct within each text
========== ============ ====== ============================================================
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel
from earshot.model.arrays import EVERYWHERE_TOKEN

# Up to this many tokens a row is searched for repeats by looking at all before; beyond it, by
# stamping the tokens seen, which needs an array as long as the vocabulary.
_FEW = 24


@kernel
def merge_tokens(row_ends, offsets, ids, n_vocabulary, is_always):
    """Return the distinct tokens of each row, in order of first occurrence.

    The token of all messages is put before the others of every row if ``is_always``, else into
    rows without any.
    """
    n_rows = len(row_ends) - 1
    row_offsets = np.empty(n_rows + 1, np.int64)
    merged = np.empty(offsets[row_ends[n_rows]] - offsets[row_ends[0]] + n_rows, np.int32)
    stamps = np.empty(0, np.int32)
    n = 0
    row_offsets[0] = 0
    for row in range(n_rows):
        start, stop = offsets[row_ends[row]], offsets[row_ends[row + 1]]
        if is_always or start == stop:
            merged[n] = EVERYWHERE_TOKEN
            n += 1
        first = n
        if stop - start <= _FEW:
            for i in range(start, stop):
                candidate = ids[i]
                is_new = True
                for j in range(first, n):
                    if merged[j] == candidate:
                        is_new = False
                        break
                if is_new:
                    merged[n] = candidate
                    n += 1
        else:
            if len(stamps) == 0:
                stamps = np.full(n_vocabulary, -1, np.int32)
            for i in range(start, stop):
                candidate = ids[i]
                if stamps[candidate] != row:
                    stamps[candidate] = row
                    merged[n] = candidate
                    n += 1
        row_offsets[row + 1] = n
    return row_offsets, merged[:n].copy()


@kernel
def prepend_everywhere(offsets, ids):
    """Put the token of all messages before the tokens of every text."""
    n_texts = len(offsets) - 1
    new_offsets = np.empty(n_texts + 1, np.int64)
    new_ids = np.empty(offsets[n_texts] - offsets[0] + n_texts, np.int32)
    n = 0
    new_offsets[0] = 0
    for text in range(n_texts):
        new_ids[n] = EVERYWHERE_TOKEN
        n += 1
        for i in range(offsets[text], offsets[text + 1]):
            new_ids[n] = ids[i]
            n += 1
        new_offsets[text + 1] = n
    return new_offsets, new_ids
