"""Matching a batch at a time; :mod:`earshot.indexes.block_trie.batches` describes it."""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.choosing import choose_paths, fill_limits
from earshot.indexes.block_trie.kernels.lists import keep_once
from earshot.indexes.block_trie.kernels.node_major import (
    make_pairs,
    sort_by_node,
    sort_extras,
    verify_pending,
    walk_nodes,
)
from earshot.indexes.block_trie.kernels.root_groups import walk_roots
from earshot.indexes.block_trie.kernels.vectors import GROUP, copy_block, first_member
from earshot.kernels.box_keys import BLOCK
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch

RUNS_AHEAD = 3
"""How many messages ahead the runs of a message are fetched."""


@lean_kernel
def find_answers(view, messages, first, n, paths, scratch, offsets, work):
    """Find the answers of up to ``n`` messages from ``first`` on, but leave them where they are.

    Sets ``offsets`` beyond the first, which must be set. Returns how many messages got theirs, or
    what there was no room for; then nothing is left behind, and the call may be made again. Returns
    as well how many of the messages are in groups.
    """
    arrays, clauses, is_lonlat = view.arrays, view.clauses, view.is_lonlat
    n_nodes, n_candidates = work[0], work[1]
    fill_limits(arrays, messages.boxes, first, n, scratch.limits)
    n_root = choose_paths(arrays.costs, messages, first, n, paths, scratch)
    n_done, n_pairs = make_pairs(arrays, messages, first, n, scratch)
    if n_done < n and n_root > 0:  # leave those for later whose pairs found no room
        n_root = choose_paths(arrays.costs, messages, first, n_done, paths, scratch)
    for i in range(n_done):
        scratch.group_counts[i] = 0
    n_pending = walk_roots(view, messages, first, n_root, scratch, work)
    if n_pending >= 0 and n_pairs > 0:
        sort_by_node(n_pairs, arrays, scratch)
        n_pending = walk_nodes(arrays, clauses, messages, first, n_pairs, scratch, work)
    if n_pending < 0:
        work[0], work[1] = n_nodes, n_candidates
        return n_pending, n_root
    verify_pending(arrays, clauses, is_lonlat, messages, first, n_pending, scratch)
    sort_extras(n_pending, n_done, scratch)
    for i in range(n_done):
        n_found = scratch.group_counts[i] + scratch.extra_offsets[i + 1] - scratch.extra_offsets[i]
        for k in range(scratch.pair_offsets[i], scratch.pair_offsets[i + 1]):
            n_found += scratch.run_ends[k] - scratch.run_starts[k]
        offsets[i + 1] = offsets[i] + n_found
    return n_done, n_root


@lean_kernel
def place_answers(n, n_grouped, scratch, offsets, answers):
    """Copy the answers of ``n`` messages to where the offsets say; with room for 16 beyond them.

    Where slots have several clauses, repeats are dropped and the offsets set anew.

    Runs are copied 16 slots at a time, beyond their ends. What is written there too early is
    overwritten by its own message, which comes later: those of groups last.
    """
    found, pair_offsets = scratch.found, scratch.pair_offsets
    starts, ends, extras = scratch.run_starts, scratch.run_ends, scratch.extras
    for i in range(n):
        if i + RUNS_AHEAD < n:
            for k in range(pair_offsets[i + RUNS_AHEAD], pair_offsets[i + RUNS_AHEAD + 1]):
                prefetch(found, starts[k])
        at = offsets[i]
        for k in range(pair_offsets[i], pair_offsets[i + 1]):
            at = _copy_run(found, starts[k], ends[k], answers, at)
        for k in range(scratch.extra_offsets[i], scratch.extra_offsets[i + 1]):
            answers[at] = extras[k]
            at += 1
    _place_sent(n_grouped, scratch, offsets, answers)
    if len(scratch.seen) > 0:
        n_kept, start = offsets[0], offsets[0]
        for i in range(n):
            stop = offsets[i + 1]
            n_kept = keep_once(answers, start, stop, n_kept, scratch.seen)
            start, offsets[i + 1] = stop, n_kept


@inlined_kernel
def _copy_run(found, start, stop, answers, at):
    start, stop = np.int64(start), np.int64(stop)
    while start < stop:
        copy_block(found, start, answers, at)
        at += min(np.int64(BLOCK), stop - start)
        start += BLOCK
    return at


@lean_kernel
def _place_sent(n_grouped, scratch, offsets, answers):
    """Copy the slots that were sent to some of a group to each of them."""
    cursors, one = scratch.cursors, np.uint64(1)
    start = np.int64(0)
    for row in range(0, n_grouped, GROUP):
        size = min(GROUP, n_grouped - row)
        for k in range(size):
            cursors[k] = offsets[scratch.group_rows[row + k]]
        stop = scratch.group_ends[row // GROUP]
        for k in range(start, stop):
            slot, left = scratch.sent[k], scratch.sent_to[k]
            while left != 0:
                member = first_member(left)
                left &= left - one
                answers[cursors[member]] = slot
                cursors[member] += 1
        start = stop
