"""Building a subtree over some clauses: the whole tree, or what a node becomes anew.

[VLDBJ15] section 3.3.4, Algorithm 4, with tasks on a stack in the place of recursion. A task is a
node, the clauses ``S`` that it gets, the keyword that is next (``l``), and what may tell them apart
(``kP``, ``sP``). The clauses of a task stand in a piece of ``rows``, and so do the messages of the
sample that would come to the node; pieces of children are put behind their parent's, and what is
behind the piece of the task in hand is free.

What differs: the printed algorithm goes on for ever where no partition gains anything, as with the
same keywords in the same region. Here a node whose best partition is not cheaper than its list is
an l-node. Partitions make fewer parts where there are few clauses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.indexes.ap_tree.kernels.nodes import (
    BY_COST,
    CHILD_END,
    CUT_END,
    EDGE_END,
    FANOUT,
    HEURISTIC,
    KEYWORDS,
    KEYWORDS_FIRST,
    LIST,
    MAY_KEYWORDS,
    MAY_SPACE,
    MOST_IN_LIST,
    MOST_SPACE_LEVELS,
    N_NODES,
    NO_RANK,
    PARTITION,
    PRIORITY,
    SPACE,
    SPACE_FIRST,
    cell_of,
    cells_of,
    contains_region,
    find_cut,
    grid_of,
    has_places,
    new_list,
    offset_below,
    start_divergence,
    take_places,
    write_entry,
)
from earshot.indexes.ap_tree.kernels.partition import (
    PartitionScratch,
    count_ranks,
    fill_chances,
    n_parts_of,
    partition_keywords,
    partition_space,
)
from earshot.kernels.jit import lean_kernel
from earshot.kernels.resuming import DONE
from earshot.model.arrays import Float64s, Int32s, Int64s

# What a kernel is short of, besides DONE.
TREE_IS_FULL, ROWS_ARE_FULL, TASKS_ARE_FULL, CHOICES_ARE_FULL = 1, 2, 3, 4

# Places in ``state``.
N_TASKS, WANTED = 0, 1

# Columns of ``tasks``.
(
    _NODE, _FIRST, _STOP, _SAMPLE_FIRST, _SAMPLE_STOP, _OFFSET, _FLAGS, _N_KEYWORD_LEVELS, _N_SPACE,
) = range(9)  # fmt: skip
TASK_COLUMNS = 9


class BuildScratch(NamedTuple):
    """Working memory of a build; it may go on from where it stopped."""

    state: Int64s  # N_TASKS, and for WANTED how much of what is full would do
    tasks: Int64s  # (n, TASK_COLUMNS)
    regions: Float64s  # (n, 4) of the tasks
    rows: Int32s  # clauses of the tasks
    messages: Int32s  # messages of the sample that come to the tasks' nodes
    etas: Int32s  # first rank of each of them that may still hit a cut
    ends: Int64s  # (fanout + 2,) of the children's pieces
    sample_ends: Int64s  # (fanout + 2,)
    partition: PartitionScratch


@lean_kernel
def push_task(
    scratch, node, first, stop, sample_first, sample_stop, offset, flags, n_keyword_levels,
    n_space, region,
):  # fmt: skip
    """Add a task; there must be room."""
    t = scratch.state[N_TASKS]
    task = scratch.tasks[t]
    task[_NODE], task[_FIRST], task[_STOP] = node, first, stop
    task[_SAMPLE_FIRST], task[_SAMPLE_STOP] = sample_first, sample_stop
    task[_OFFSET], task[_FLAGS] = offset, flags
    task[_N_KEYWORD_LEVELS], task[_N_SPACE] = n_keyword_levels, n_space
    for k in range(4):
        scratch.regions[t, k] = region[k]
    scratch.state[N_TASKS] += 1


@lean_kernel
def _has_room(tree, n):
    """Whether the tree has room for any node of ``n`` clauses, and its children."""
    facts, fanout = tree.facts, np.int64(tree.rules[FANOUT])
    return (
        facts[N_NODES] + fanout + 1 <= len(tree.kinds)
        and facts[CHILD_END] + fanout + 1 <= len(tree.children)
        and facts[CUT_END] + fanout <= len(tree.firsts)
        and facts[EDGE_END] + 2 * fanout + 2 <= len(tree.edges)
        and has_places(tree, n)
    )


@lean_kernel
def build_nodes(tree, clauses, scratch):
    """Work off all tasks; return what is full, or DONE. Goes on when it is called again."""
    while scratch.state[N_TASKS] > 0:
        t = scratch.state[N_TASKS] - 1
        task, region = scratch.tasks[t], scratch.regions[t]
        rows = scratch.rows[task[_FIRST] : task[_STOP]]
        messages = scratch.messages[task[_SAMPLE_FIRST] : task[_SAMPLE_STOP]]
        node, n = task[_NODE], len(rows)
        if not _has_room(tree, n):
            scratch.state[WANTED] = n
            return TREE_IS_FULL
        if t + np.int64(tree.rules[FANOUT]) + 1 > len(scratch.tasks):
            return TASKS_ARE_FULL
        kind, n_parts, n_more = LIST, np.int64(0), np.int64(0)
        if n > tree.rules[MOST_IN_LIST] and task[_FLAGS] != 0:
            etas = scratch.etas[task[_SAMPLE_FIRST] : task[_SAMPLE_STOP]]
            kind, n_parts, n_more = _choose(
                tree, clauses, rows, messages, etas, task[_OFFSET], task[_FLAGS], task[_N_SPACE],
                task[_N_KEYWORD_LEVELS], region, scratch.partition,
            )  # fmt: skip
        if kind == CHOICES_ARE_FULL:
            scratch.state[WANTED] = n_parts
            return CHOICES_ARE_FULL
        if kind == LIST:
            _fill_list(tree, clauses, node, rows)
            scratch.state[N_TASKS] -= 1
            continue
        if kind == KEYWORDS:
            _become_keywords(tree, node, task[_OFFSET], n_parts, scratch.partition)
            n_rows = n
            _count_cuts(tree, node, n, scratch)
        else:
            _become_space(tree, node, n_parts, n_more, scratch.partition)
            n_rows = _count_cells(tree, clauses, node, rows, scratch)
        if task[_STOP] + n_rows > len(scratch.rows):
            _undo(tree, node)
            scratch.state[WANTED] = task[_STOP] + n_rows
            return ROWS_ARE_FULL
        scratch.state[N_TASKS] -= 1
        _hand_down(tree, clauses, t, rows, scratch)
        tree.n_below[node] = n
        start_divergence(tree, node)
    return DONE


@lean_kernel
def _choose(
    tree, clauses, rows, messages, etas, offset, flags, n_space, n_keyword_levels, region, scratch
):  # fmt: skip
    """Return the kind that a node should be, and its cuts, or columns and rows.

    [VLDBJ15] Algorithm 4, lines 4 to 9. ``priority`` makes it KPriority or SPriority of section
    5.1.2: keywords, or space, wherever that gains anything.
    """
    n, none = np.float64(len(rows)), np.int64(0)
    keyword_cost = space_cost = np.inf
    n_cuts, n_columns, n_rows = none, none, none
    priority = np.int64(tree.rules[PRIORITY])
    if flags & MAY_SPACE != 0 and n_space < MOST_SPACE_LEVELS:
        space_cost, n_columns, n_rows = partition_space(
            tree, clauses, rows, messages, region, n_space + n_keyword_levels + 1, scratch
        )
    if flags & MAY_KEYWORDS != 0 and not (priority == SPACE_FIRST and space_cost < n):
        n_distinct, n_without = count_ranks(tree, clauses, rows, offset, scratch)
        if n_distinct > 0:
            n_choices = n_parts_of(tree, np.int64(len(rows))) * (n_distinct + 1)
            if tree.rules[PARTITION] != HEURISTIC and n_choices > len(scratch.choices):
                return CHOICES_ARE_FULL, n_choices, n_distinct
            fill_chances(tree, messages, etas, n_distinct, scratch)
            keyword_cost, n_cuts = partition_keywords(
                tree, messages, etas, n_distinct, n_without, np.int64(len(rows)), scratch
            )
    if min(keyword_cost, space_cost) >= n:
        return LIST, none, none
    if priority == BY_COST:
        is_by_keyword = keyword_cost < space_cost
    elif priority == KEYWORDS_FIRST:
        is_by_keyword = keyword_cost < n
    else:
        is_by_keyword = space_cost >= n
    if is_by_keyword:
        return KEYWORDS, n_cuts, none
    return SPACE, n_columns, n_rows


@lean_kernel
def _fill_list(tree, clauses, node, rows):
    n = len(rows)
    tree.kinds[node] = LIST
    tree.n_below[node] = 0
    take_places(tree, node, n)
    start = tree.starts[node]
    for i in range(n):
        write_entry(tree, clauses, start + i, rows[i])
    tree.n_below[node] = n
    # A list that could not be split is not tried again before it has twice as many.
    most = np.int64(tree.rules[MOST_IN_LIST])
    tree.n_changes[node] = 2 * n if n > most else n + most // 2


@lean_kernel
def _take_children(tree, node, n):
    start = tree.facts[CHILD_END]
    tree.children[start : start + n] = -1
    tree.facts[CHILD_END] += n
    tree.starts[node] = start


@lean_kernel
def _become_keywords(tree, node, offset, n_cuts, scratch):
    start = tree.facts[CUT_END]
    for i in range(n_cuts):
        tree.firsts[start + i] = scratch.distinct[scratch.cuts[i]]
        tree.lasts[start + i] = scratch.distinct[scratch.cuts[i + 1] - 1]
    tree.facts[CUT_END] += n_cuts
    tree.kinds[node] = KEYWORDS
    tree.offsets[node] = offset
    tree.sizes[node] = n_cuts
    tree.extras[node] = start
    _take_children(tree, node, n_cuts + 1)


@lean_kernel
def _become_space(tree, node, n_columns, n_rows, scratch):
    start, n_edges = tree.facts[EDGE_END], n_columns + n_rows + 2
    for i in range(n_edges):
        tree.edges[start + i] = scratch.edges[i]
    tree.facts[EDGE_END] += n_edges
    tree.kinds[node] = SPACE
    tree.sizes[node] = n_columns | n_rows << 16
    tree.extras[node] = start
    _take_children(tree, node, n_columns * n_rows + 1)


@lean_kernel
def _undo(tree, node):
    """Take back what a node has just become."""
    size = np.int64(tree.sizes[node])
    if tree.kinds[node] == KEYWORDS:
        tree.facts[CUT_END] -= size
        tree.facts[CHILD_END] -= size + 1
    else:
        tree.facts[EDGE_END] -= (size & 0xFFFF) + (size >> 16) + 2
        tree.facts[CHILD_END] -= (size & 0xFFFF) * (size >> 16) + 1
    tree.kinds[node] = LIST
    tree.sizes[node] = 0


@lean_kernel
def _count_cuts(tree, node, n, scratch):
    """Count the clauses of each cut, and replace their ranks by the child they go to."""
    ends, ranks = scratch.ends, scratch.partition.ranks
    start, n_cuts = tree.extras[node], tree.sizes[node]
    ends[:] = 0
    for i in range(n):
        child = np.int64(0)
        if ranks[i] != NO_RANK:
            child = 1 + find_cut(tree.firsts, start, n_cuts, ranks[i])
        ranks[i] = child
        ends[child] += 1


@lean_kernel
def _count_cells(tree, clauses, node, rows, scratch):
    """Count the clauses of each cell; return the sum."""
    ends, edges = scratch.ends, tree.edges
    ends[:] = 0
    n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
    total = np.int64(0)
    for i in range(len(rows)):
        box = clauses.boxes[rows[i]]
        if contains_region(edges, x_start, n_columns, y_start, n_rows, box):
            ends[0] += 1
            total += 1
            continue
        left, right, bottom, top = cells_of(edges, x_start, n_columns, y_start, n_rows, box)
        for y in range(bottom, top + 1):
            for x in range(left, right + 1):
                ends[1 + y * n_columns + x] += 1
            total += right - left + 1
    return total


@lean_kernel
def _hand_down(tree, clauses, t, rows, scratch):
    """Give the clauses of a task to the children of its node, which become tasks."""
    task, ends = scratch.tasks[t], scratch.ends
    node, offset, flags, n_space = task[_NODE], task[_OFFSET], task[_FLAGS], task[_N_SPACE]
    n_keyword_levels = task[_N_KEYWORD_LEVELS] + (tree.kinds[node] == KEYWORDS)
    region = scratch.regions[t]
    min_x, min_y, max_x, max_y = region[0], region[1], region[2], region[3]
    sample_first, sample_stop = task[_SAMPLE_FIRST], task[_SAMPLE_STOP]
    is_space = tree.kinds[node] == SPACE
    n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
    n_parts = n_columns * n_rows if is_space else np.int64(tree.sizes[node])
    # ends becomes where each child's piece begins, and after filling where it ends.
    end = task[_STOP]
    for k in range(n_parts + 1):
        end, ends[k] = end + ends[k], end
    for i in range(len(rows)):
        if not is_space:
            child = scratch.partition.ranks[i]
            scratch.rows[ends[child]] = rows[i]
            ends[child] += 1
            continue
        box = clauses.boxes[rows[i]]
        if contains_region(tree.edges, x_start, n_columns, y_start, n_rows, box):
            scratch.rows[ends[0]] = rows[i]
            ends[0] += 1
            continue
        left, right, bottom, top = cells_of(tree.edges, x_start, n_columns, y_start, n_rows, box)
        for y in range(bottom, top + 1):
            for x in range(left, right + 1):
                child = 1 + y * n_columns + x
                scratch.rows[ends[child]] = rows[i]
                ends[child] += 1
    _hand_down_sample(tree, node, sample_first, sample_stop, n_parts, scratch)
    begin, sample_begin, start = task[_STOP], sample_stop, tree.starts[node]
    for k in range(n_parts + 1):
        first, stop = begin, ends[k]
        sample_from, sample_to = sample_begin, scratch.sample_ends[k]
        begin, sample_begin = stop, sample_to
        if first == stop:
            continue
        child = new_list(tree, node, k)
        tree.children[start + k] = child
        tree.n_below[child] = stop - first
        own_flags = flags
        if k == 0:
            own_flags &= ~MAY_SPACE if is_space else ~MAY_KEYWORDS
        own_offset = offset
        if not is_space:
            own_offset = offset_below(tree, node, k, n_keyword_levels)
        push_task(
            scratch, child, first, stop, sample_from, sample_to, own_offset, own_flags,
            n_keyword_levels, n_space + is_space, region,
        )  # fmt: skip
        at = scratch.regions[scratch.state[N_TASKS] - 1]
        if is_space and k > 0:
            x, y = (k - 1) % n_columns, (k - 1) // n_columns
            at[0], at[2] = tree.edges[x_start + x], tree.edges[x_start + x + 1]
            at[1], at[3] = tree.edges[y_start + y], tree.edges[y_start + y + 1]
        else:
            at[0], at[1], at[2], at[3] = min_x, min_y, max_x, max_y


@lean_kernel
def _hand_down_sample(tree, node, first, stop, n_parts, scratch):
    """Give the messages of a task to the children that they would visit, if there is room."""
    ends = scratch.sample_ends
    ends[: n_parts + 1] = 0
    for i in range(first, stop):
        _pass_message(tree, node, i, False, scratch)
    end = stop
    for k in range(n_parts + 1):
        end, ends[k] = end + ends[k], end
    if end > len(scratch.messages):
        ends[: n_parts + 1] = stop  # the children have to do without
        return
    for i in range(first, stop):
        _pass_message(tree, node, i, True, scratch)


@lean_kernel
def _pass_message(tree, node, i, is_writing, scratch):
    """Count a message of the sample at the children that it visits, or write it there."""
    message, eta = np.int64(scratch.messages[i]), np.int64(scratch.etas[i])
    _pass_to(0, message, eta, is_writing, scratch)
    if tree.kinds[node] == SPACE:
        n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
        place = tree.sample_places[message]
        x = cell_of(tree.edges, x_start, n_columns, place[0])
        y = cell_of(tree.edges, y_start, n_rows, place[1])
        _pass_to(1 + y * n_columns + x, message, eta, is_writing, scratch)
        return
    start, last = tree.sample_offsets[message], np.int64(-1)
    for k in range(start + eta, tree.sample_offsets[message + 1]):
        rank = tree.sample_ranks[k]
        cut = find_cut(tree.firsts, tree.extras[node], tree.sizes[node], rank)
        at = tree.extras[node] + cut
        if cut != last and tree.firsts[at] <= rank <= tree.lasts[at]:
            last = cut
            is_single = tree.firsts[at] == tree.lasts[at]
            _pass_to(1 + cut, message, k + is_single - start, is_writing, scratch)


@lean_kernel
def _pass_to(child, message, eta, is_writing, scratch):
    ends = scratch.sample_ends
    if is_writing:
        scratch.messages[ends[child]] = message
        scratch.etas[ends[child]] = eta
    ends[child] += 1
