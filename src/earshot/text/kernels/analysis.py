"""Analysis: fold, segment, look up and count, a batch of texts at a time.

Texts are UTF-8 bytes in one buffer. A group of texts at a time is *folded* (normalised, case
folded, ignorable code points removed) into a scratch buffer, *segmented* there into the spans of
tokens, and the tokens are *resolved* to ids. The hash slot of a token is prefetched when its key is
made, so that the memory has arrived by the time its group is resolved.

Each step is one loop over the group rather than one call per text or token: Numba counts references
to every array argument of every call, by atomic instructions, and these took half of the time.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel
from earshot.kernels.resuming import DONE
from earshot.text.kernels.folding import GROUP_BYTES, fold_texts
from earshot.text.kernels.hash_table import make_keys, resolve
from earshot.text.kernels.segmentation import segment
from earshot.text.kernels.utf8 import U32

# Up to here, repeats within a text are found by scanning its ids; beyond, by a hash set.
SCANNED_IDS = 24
# Occurrences of a token in one text are counted up to here, one more than 16 bits can tell.
TOO_MANY = 1 << 16


# What `analyze_texts` ran out of.
NEEDS_IDS, NEEDS_VOCABULARY = 1, 2


@kernel
def enter(token, stamp, seen_ids, seen_stamps):
    """Enter a token in the set; return whether it was there."""
    mask = len(seen_ids) - 1
    k = (np.int64(token) * 0x9E3779B1 >> 8) & mask
    while seen_stamps[k] == stamp:
        if seen_ids[k] == token:
            return True
        k = (k + 1) & mask
    seen_stamps[k] = stamp
    seen_ids[k] = token
    return False


@kernel
def keep_distinct(found, ends, first_row, n_rows, seen_ids, seen_stamps, ids, offsets):
    """Append the distinct ids above 0 of each text, in order of first occurrence.

    ``ends[i]`` is where text ``first_row + i`` ends in ``found``. The set is emptied by a new stamp
    per text: no stamp may be above ``first_row`` yet.
    """
    n = offsets[first_row]
    k = 0
    for row in range(first_row, first_row + n_rows):
        first = n
        end = ends[row - first_row]
        while k < end:
            token = found[k]
            k += 1
            if token <= 0:
                continue
            if n - first < SCANNED_IDS:
                is_repeat = False  # without leaving early the loop is vectorised
                for j in range(first, n):
                    is_repeat |= ids[j] == token
            else:
                if n - first == SCANNED_IDS:  # may happen again until a new token comes: harmless
                    for j in range(first, n):
                        enter(ids[j], row + 1, seen_ids, seen_stamps)
                is_repeat = enter(token, row + 1, seen_ids, seen_stamps)
            if not is_repeat:
                ids[n] = token
                n += 1
        offsets[row + 1] = n


@kernel
def locate(token, n, stamp, ids, seen_positions, seen_stamps):
    """Return where a token of the set stands in ``ids``; a new one is entered, to stand at ``n``.

    The set holds positions in ``ids`` rather than the tokens themselves.
    """
    mask = len(seen_positions) - 1
    k = (np.int64(token) * 0x9E3779B1 >> 8) & mask
    while seen_stamps[k] == stamp:
        if ids[seen_positions[k]] == token:
            return np.int64(seen_positions[k])
        k = (k + 1) & mask
    seen_stamps[k] = stamp
    seen_positions[k] = n
    return n


@kernel
def count_distinct(
    found, amounts, ends, first_row, n_rows, seen_positions, seen_stamps, ids, offsets, occurrences
):
    """Append the distinct ids above 0 of each text, and how often each occurs, up to TOO_MANY.

    ``amounts`` says how many occurrences each of ``found`` stands for; empty, it is one each. The
    rest is as for ``keep_distinct``, and so are the ids and their order.
    """
    is_weighted = len(amounts) > 0
    n = offsets[first_row]
    k = 0
    for row in range(first_row, first_row + n_rows):
        first = n
        text_ids = ids[first:]
        end = ends[row - first_row]
        while k < end:
            token = found[k]
            amount = np.int64(amounts[k]) if is_weighted else 1
            k += 1
            if token <= 0:
                continue
            at = n
            if n - first < SCANNED_IDS:
                for j in range(first, n):
                    if ids[j] == token:
                        at = j
            else:
                if n - first == SCANNED_IDS:  # may happen again until a new token comes: harmless
                    for j in range(first, n):
                        locate(ids[j], j - first, row + 1, text_ids, seen_positions, seen_stamps)
                at = first + locate(
                    token, n - first, row + 1, text_ids, seen_positions, seen_stamps
                )
            if at == n:
                ids[n] = token
                occurrences[n] = min(amount, TOO_MANY)
                n += 1
            else:
                occurrences[at] = min(occurrences[at] + amount, TOO_MANY)
        offsets[row + 1] = n


@kernel
def analyze_texts(
    data,
    starts,
    stops,
    folded,
    unicode,
    grow,
    vocabulary,
    counts,
    scratch,
    row,
    ids,
    offsets,
    occurrences,
):
    """Write the distinct token ids of each text from ``row`` on, in order of first occurrence.

    Args:
        data: Bytes of the texts, UTF-8.
        starts: First byte of each text.
        stops: End of each text.
        folded: Texts that were folded elsewhere: ``rows`` (ascending), ``starts``, ``stops``,
            ``data``; their rows above are not read.
        unicode: Entries of the code points; not read where all are ASCII.
        grow: Whether unknown tokens are added; otherwise they are dropped.
        vocabulary: Buffers of the vocabulary, with room.
        counts: [number of tokens, more tokens and more bytes that there should be room for].
        scratch: Working memory.
        row: Where to begin.
        ids: Output.
        offsets: Output; ``offsets[row]`` is set.
        occurrences: Output, as long as ``ids``; empty where they are not to be counted.

    Returns:
        The next row, and what is needed to go on with it.
    """
    text, kinds, ends, spans, keys, found, seen_ids, seen_stamps = scratch
    folded_rows, folded_starts, folded_stops, folded_data = folded
    next_folded = np.searchsorted(folded_rows, row)
    while row < len(starts):
        last, used = row, 0
        while last < len(starts) and used < GROUP_BYTES:
            if next_folded == len(folded_rows):
                last, used = fold_texts(
                    data, starts, stops, last, False, unicode, text, kinds, used, ends[last - row :]
                )
                continue
            stop = folded_rows[next_folded]
            if last < stop:
                last, used = fold_texts(
                    data,
                    starts[:stop],
                    stops[:stop],
                    last,
                    False,
                    unicode,
                    text,
                    kinds,
                    used,
                    ends[last - row :],
                )
                continue
            _, used = fold_texts(
                folded_data,
                folded_starts,
                folded_stops,
                next_folded,
                True,
                unicode,
                text,
                kinds,
                used,
                ends[last - row :],
            )
            next_folded += 1
            last += 1
        n = segment(text, kinds, used, spans)
        make_keys(text, spans, n, vocabulary.slots, keys)
        if offsets[row] + n > len(ids):
            return row, NEEDS_IDS
        if grow:
            n_tokens = counts[0] + n
            # A pair of characters repeats the bytes of both, a hashtag those of its words.
            n_bytes = vocabulary.token_offsets[counts[0]] + 4 * used
            if (
                2 * n_tokens > len(vocabulary.slots)
                or n_tokens >= len(vocabulary.token_offsets)
                or n_tokens > len(vocabulary.frequencies)
                or n_bytes > len(vocabulary.token_bytes)
            ):
                counts[1] = n
                counts[2] = 4 * used
                return row, NEEDS_VOCABULARY
        counts[0] = resolve(text, spans, keys, n, grow, vocabulary, counts[0], found)
        # From ends in the text to ends among its tokens.
        k = 0
        for i in range(last - row):
            while k < n and np.int64(spans[k] >> U32) < ends[i]:
                k += 1
            ends[i] = k
        if len(occurrences) == 0:
            keep_distinct(found, ends, row, last - row, seen_ids, seen_stamps, ids, offsets)
        else:
            count_distinct(
                found,
                found[:0],
                ends,
                row,
                last - row,
                seen_ids,
                seen_stamps,
                ids,
                offsets,
                occurrences,
            )
        row = last
    return row, DONE
