"""Whether messages of a batch cost less in groups than one by one.

A sample of the whole batch tells. Of some groups of neighbours, the blocks of records are counted
that they touch together; some of their messages are matched one by one, which tells what that
costs. The choice is one for short messages and one for long ones, and the same for all threads, so
that they change no counter.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_lists.kernels.groups import (
    LONG,
    can_be_grouped,
    enter_places,
    is_walked,
)
from earshot.indexes.block_lists.kernels.match import BARE, BY_PLACE, OTHER, report_message
from earshot.indexes.block_trie.kernels.root_groups import (
    enter_limits,
    touching_blocks_of_group,
)
from earshot.indexes.block_trie.kernels.vectors import GROUP
from earshot.indexes.kernels.blocks import sign_tokens, unsign_tokens
from earshot.indexes.kernels.matching import ScoredAnswers
from earshot.kernels.box_keys import BLOCK
from earshot.kernels.jit import lean_kernel
from earshot.kernels.verify import mark_tokens

SMALL_BATCH, SPARSE_BATCH, BLOCKS_PER_MESSAGE = 256, 768, 80
"""Short messages of a batch below which they are matched one by one, and where there are so many
blocks of records for each; unless there are bare records. Knowing what they cost would take a tenth
of that."""
MOST_SAMPLED, SAMPLED_SHARE = 1024, 4
"""Messages that are put in order, at most, and one in so many."""
MOST_PROBES, GROUPS_PER_PROBE = 8, 4
"""Groups that are looked at, at most, and one in so many."""
MOST_COUNTED, MESSAGES_PER_COUNTED = 4, 32
"""Messages of such a group that are matched, at most, and one in so many of the batch."""

# Costs in nanoseconds on an AMD EPYC; only their ratios matter. Fits to workloads of 1 M
# subscriptions.
SINGLE_COST, SINGLE_TOKEN_COST = 500.0, 50.0
SINGLE_BLOCK_COST = 50.0
"""Of a block of keys, of records or of near lists."""
SINGLE_RECORD_COST, RECORD_IN_ORDER_COST = 130.0, 60.0
"""Of a record that is verified: found by near lists, it is out of the cache."""
GROUP_COST = 600.0
"""Of a message in a group, whatever it is."""
GROUP_TOKEN_COST = 12.0
GROUP_BLOCK_COST = 80.0
"""Of a block of records for a group, for each near list that a record stands in."""
GROUP_BARE_COST = 400.0
"""Of a block of bare records for a group: each is scored."""
GROUP_RECORD_COST = 20.0
"""Of a record that is verified by a message by itself, in a group."""
FEWER_EXPONENT = 0.25
"""How the blocks that neighbours touch together grow with their number, on the same ground."""


@lean_kernel
def is_small(arrays, n):
    """Whether ``n`` short messages cost less one by one, as far as one can know."""
    n_other = arrays.group_starts[OTHER + 1] - arrays.group_starts[OTHER]
    is_sparse = n * BLOCKS_PER_MESSAGE < n_other // BLOCK
    is_few = n < SMALL_BATCH or (n < SPARSE_BATCH and is_sparse)
    return is_few and not is_walked(arrays, BARE)


@lean_kernel
def _count_together(arrays, rows, phase, union, scratch):
    """Return how many blocks of records a group touches."""
    if not is_walked(arrays, phase):
        return 0.0
    n = arrays.group_starts[phase + 1] - arrays.group_starts[phase]
    _, n_together = touching_blocks_of_group(
        n, arrays.summary_keys, arrays.record_summaries[phase], len(rows), union, scratch,
        scratch.cursors,
    )  # fmt: skip
    return float(n_together)


@lean_kernel
def _cost_together(arrays, rows, size, scratch):
    """Return the cost of blocks for each of a group of ``size``, some of which are the rows."""
    union = enter_limits(rows, scratch)
    n_other = max(arrays.group_starts[OTHER + 1] - arrays.group_starts[OTHER], 1)
    n_lists = len(arrays.near_records) / n_other
    cost = GROUP_BARE_COST * _count_together(arrays, rows, BARE, union, scratch)
    cost += GROUP_BLOCK_COST * n_lists * _count_together(arrays, rows, OTHER, union, scratch)
    return cost * (size / len(rows)) ** FEWER_EXPONENT / size


@lean_kernel
def _probe_message(view, tokens, box, single, found, work):
    """Find what a message by itself finds by its place."""
    mark_tokens(tokens, 0, len(tokens), single.marks, 1)
    sign_tokens(tokens, single.signature)
    single.serial[0] += 1
    report_message(
        view.arrays, view.clauses, view.is_lonlat, tokens, box, BY_PLACE, single, found,
        np.int64(0), work,
    )  # fmt: skip
    mark_tokens(tokens, 0, len(tokens), single.marks, 0)
    unsign_tokens(tokens, single.signature)


@lean_kernel
def _is_cheaper(
    view, messages, step, n_rows, n_class, n_together, record_cost, scratch, single, work
):
    """Whether messages of the sample cost less in groups; their rows are in order."""
    found = ScoredAnswers(scratch.found_slots, scratch.found_scores)
    offsets = messages.token_offsets
    n_of_group = n_class / ((n_class + GROUP - 1) // GROUP)
    size = min(max(GROUP * n_rows // min(n_class, n_together), 1), GROUP, n_rows)
    n_probes = min(max(n_class // GROUP // GROUPS_PER_PROBE, 1), MOST_PROBES)
    n_counted = min(max(n_class // MESSAGES_PER_COUNTED, 1), MOST_COUNTED)
    singly, together = 0.0, 0.0
    for probe in range(n_probes):
        start = (2 * probe + 1) * (n_rows - size) // (2 * n_probes)
        rows = scratch.group_rows[start : start + size]
        blocks = _cost_together(view.arrays, rows, n_of_group, scratch)
        for k in range(n_counted):
            m = np.int64(scratch.group_rows[start + (2 * k + 1) * size // (2 * n_counted)]) * step
            tokens = messages.token_ids[offsets[m] : offsets[m + 1]]
            work[0], single.n_verified[0] = 0, 0
            _probe_message(view, tokens, messages.boxes[m], single, found, work)
            n_verified = single.n_verified[0]
            singly += (
                SINGLE_COST
                + SINGLE_TOKEN_COST * len(tokens)
                + SINGLE_BLOCK_COST * work[0]
                + record_cost * n_verified
            )
            together += (
                GROUP_COST
                + GROUP_TOKEN_COST * len(tokens)
                + GROUP_RECORD_COST * n_verified
                + blocks
            )
    return together < singly


@lean_kernel
def plan_batch(view, messages, most_together, scratch, single, work, are_grouped):
    """Set whether short messages go in groups, and long ones.

    Args:
        view: All that they are matched against.
        messages: The whole batch.
        most_together: Messages that are matched together, at most.
        scratch: Working memory of groups.
        single: Working memory of messages one by one.
        work: Room for counters, which count for nothing.
        are_grouped: What is set.
    """
    n, offsets, starts = len(messages.boxes), messages.token_offsets, view.arrays.group_starts
    if not is_walked(view.arrays, BARE) and not is_walked(view.arrays, OTHER):
        return
    is_mostly_bare = starts[OTHER] - starts[BARE] > starts[OTHER + 1] - starts[OTHER]
    n_sampled = min(max(n // SAMPLED_SHARE, min(n, GROUP)), MOST_SAMPLED, len(scratch.limits))
    step = n // n_sampled
    enter_places(view.arrays, messages.boxes, 0, step, n_sampled, scratch)
    for is_long in range(2):
        n_rows = 0
        for k in range(n_sampled):
            i = np.int64(scratch.codes[k] & np.uint64(0xFFFF_FFFF))
            m = i * step
            is_of_class = (offsets[m + 1] - offsets[m] > LONG) == (is_long == 1)
            if is_of_class and can_be_grouped(messages.boxes[m]):
                scratch.group_rows[n_rows] = i
                n_rows += 1
        n_class = n_rows * n // n_sampled
        if n_rows == 0 or (is_long == 0 and is_small(view.arrays, n_class)):
            continue
        is_in_order = is_long == 1 or is_mostly_bare
        is_cheaper = _is_cheaper(
            view, messages, step, n_rows, n_class, most_together,
            RECORD_IN_ORDER_COST if is_in_order else SINGLE_RECORD_COST, scratch, single, work,
        )  # fmt: skip
        are_grouped[is_long] = 1 if is_cheaper else 0
