"""Building of :mod:`earshot.indexes.block_lists.index`, which describes the structure."""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_lists.kernels.match import (
    BARE,
    CLAUSE,
    CODE_COLUMNS,
    COMPOUND,
    FLAG_BITS,
    HEAD_COLUMNS,
    MORE,
    N_FLAGS,
    OTHER,
    SLOT,
    START,
    UNMEASURED,
)
from earshot.indexes.block_trie.kernels.arrays import NO_CODE, code_of
from earshot.indexes.block_trie.kernels.build import sort_codes
from earshot.indexes.kernels.blocks import fill_summaries, n_summary_keys
from earshot.kernels.box_keys import BLOCK
from earshot.kernels.jit import kernel
from earshot.kernels.scoring import BOUND_SLACK

_LARGEST = np.float64(np.finfo(np.float32).max)
_SMALLER = 1.0 - 1e-6  # more than what rounding to a 32-bit float can add


@kernel
def fill_records(clauses, scoring, order, heads, record_boxes, record_data):
    """Fill the records of clauses in the given order."""
    n_tokens = np.int64(0)
    for r in range(len(order)):
        c = order[r]
        record_boxes[r] = clauses.boxes[c]
        flags = COMPOUND if scoring.is_compound[c] != 0 else 0
        if clauses.shape_rows[c] >= 0:
            flags |= MORE
        if scoring.areas[c] == 0.0:
            flags |= UNMEASURED
        start = n_tokens
        for i in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
            token = clauses.token_ids[i]
            if token < 0:
                flags |= MORE
                break
            weight = scoring.weights[token]
            j = n_tokens
            while j > start and (
                record_data[2 * j - 1] < weight
                or (record_data[2 * j - 1] == weight and record_data[2 * j - 2] > token)
            ):
                record_data[2 * j] = record_data[2 * j - 2]
                record_data[2 * j + 1] = record_data[2 * j - 1]
                j -= 1
            record_data[2 * j] = token
            record_data[2 * j + 1] = weight
            n_tokens += 1
        heads[r, START] = start
        heads[r, N_FLAGS] = (n_tokens - start) << FLAG_BITS | flags
        heads[r, SLOT] = clauses.subscriptions[c]
        heads[r, CLAUSE] = c


@kernel
def _fill_left(data, start, n, left):
    """Fill what share of the text is left from each token of a record on; return its weight."""
    total = 0.0
    for i in range(n - 1, -1, -1):
        total += data[2 * (start + i) + 1]
        left[i] = total
    for i in range(n):
        left[i] /= total
    return total


@kernel
def _is_sure(i, n, other, flags, textual, cut):
    """Whether the list's token, and the other one if there is one, are all that a clause asks for.

    Then the text qualifies it alone, and nothing but its place is left to be found out.
    """
    has_all = i == 0 and (n == 1 or (n == 2 and other >= 0))
    return has_all and flags & (COMPOUND | MORE) == 0 and textual >= cut


@kernel
def needed_area(missing, alpha, area):
    """Return the area that must be covered of a region to add ``missing`` to a score."""
    return np.float32(min(max(missing, 0.0) / alpha * area * _SMALLER, _LARGEST))


@kernel
def fill_group_needed(group_starts, cuts, areas, alpha, group_needed):
    """Fill the least area that a message must have to cover enough of any record of a group."""
    group_needed[:] = np.inf
    for group in range(3):
        for r in range(group_starts[group], group_starts[group + 1]):
            needed = 0.0
            if alpha > 0.0:
                needed = needed_area(cuts[r] - BOUND_SLACK - (1.0 - alpha), alpha, areas[r])
            group_needed[group] = min(group_needed[group], needed)


@kernel
def _fill_code(codes, k, column, token):
    """Fill the code of one more near list that the k-th record of the group OTHER stands in."""
    at = k // BLOCK * CODE_COLUMNS * BLOCK + k % BLOCK
    if column == 0:
        for further in range(1, CODE_COLUMNS):
            codes[at + further * BLOCK] = code_of(token)
    if column < CODE_COLUMNS:
        codes[at + column * BLOCK] = code_of(token)
    else:
        codes[at] = NO_CODE


@kernel
def fill_postings(arrays, cuts, areas, near_ends, sure_ends, far_ends, is_counting):
    """Fill the lists of all tokens in the order of the records, or only count their entries.

    [TKDE15] section 6.2: near lists hold PRE(s), sure and far lists PRE'(s), here without a
    division by 1 - alpha, which may be 0, and with a strict bound, so that no equal score is lost.
    """
    alpha = arrays.scoring.alpha[0]
    heads, data = arrays.record_heads.reshape((-1, HEAD_COLUMNS)), arrays.record_data
    left = np.empty(1024, np.float64)
    other_start = arrays.group_starts[OTHER]
    for r in range(arrays.group_starts[BARE], arrays.group_starts[3]):
        start, flags = np.int64(heads[r, START]), np.int64(heads[r, N_FLAGS])
        n = flags >> FLAG_BITS
        if n > len(left):
            left = np.empty(2 * n, np.float64)
        total = _fill_left(data, start, n, left)
        least = cuts[r] - BOUND_SLACK
        is_other = alpha > 0.0 and r >= arrays.group_starts[OTHER]
        n_near = 0
        for i in range(n):
            token = np.int32(data[2 * (start + i)])
            textual = (1.0 - alpha) * min(left[i], 1.0)
            # The most that the text can give if the next token is missing too.
            following, without = np.int32(-1), textual
            if i + 1 < n:
                following = np.int32(data[2 * (start + i + 1)])
                without = textual - (1.0 - alpha) * data[2 * (start + i + 1) + 1] / total
            if is_other and alpha + textual >= least:
                entry = near_ends[token]
                near_ends[token] += 1
                if not is_counting:
                    _fill_code(arrays.record_codes, r - other_start, n_near, token)
                    n_near += 1
                    arrays.near_keys[entry] = arrays.record_keys[r]
                    arrays.near_records[entry] = r
                    arrays.near_tokens[entry] = (
                        following if alpha + without < least else np.int32(-1)
                    )
                    needed = needed_area(least - textual, alpha, areas[r])
                    arrays.near_needed[entry] = needed
                    arrays.near_least[token] = min(arrays.near_least[token], needed)
            if textual >= least:
                other = following if without < least else np.int32(-1)
                if _is_sure(i, n, other, flags, textual, cuts[r]):
                    entry = sure_ends[token]
                    sure_ends[token] += 1
                    if not is_counting:
                        arrays.sure_records[entry] = r
                        arrays.sure_tokens[entry] = other
                else:
                    entry = far_ends[token]
                    far_ends[token] += 1
                    if not is_counting:
                        arrays.far_records[entry] = r
                        arrays.far_tokens[entry] = other
            elif not is_other or alpha + textual < least:
                break  # what is left only falls


@kernel
def sort_by_other_token(offsets, records, tokens):
    """Bring each list into the order of the other token that its entries need."""
    longest = np.int64(0)
    for t in range(len(offsets) - 1):
        longest = max(longest, offsets[t + 1] - offsets[t])
    codes = np.empty(longest, np.int64)
    for t in range(len(offsets) - 1):
        start, n = offsets[t], offsets[t + 1] - offsets[t]
        if n < 2:
            continue
        for k in range(n):
            codes[k] = (np.int64(tokens[start + k]) + 1) << 32 | np.int64(records[start + k])
        sort_codes(codes, n)
        for k in range(n):
            tokens[start + k] = np.int32((codes[k] >> 32) - 1)
            records[start + k] = np.int32(codes[k] & 0xFFFFFFFF)


@kernel
def place_summaries(group_starts, near_offsets, record_summaries, near_summaries):
    """Give each group and list its place among the summary keys; return number and longest."""
    total, longest = np.int64(0), np.int64(0)
    for group in range(3):
        n = group_starts[group + 1] - group_starts[group]
        record_summaries[group] = total
        total += n_summary_keys(n)
        longest = max(longest, n)
    for t in range(len(near_summaries)):
        n = near_offsets[t + 1] - near_offsets[t]
        near_summaries[t] = total
        total += n_summary_keys(n)
        longest = max(longest, n)
    return total, longest


@kernel
def fill_all_summaries(arrays):
    """Fill the summary keys of all groups and near lists."""
    for group in range(3):
        start = arrays.group_starts[group]
        fill_summaries(
            arrays.record_keys, start, arrays.group_starts[group + 1] - start,
            arrays.summary_keys, arrays.record_summaries[group],
        )  # fmt: skip
    for t in range(len(arrays.near_summaries)):
        start = arrays.near_offsets[t]
        fill_summaries(
            arrays.near_keys, start, arrays.near_offsets[t + 1] - start,
            arrays.summary_keys, arrays.near_summaries[t],
        )  # fmt: skip
