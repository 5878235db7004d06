"""Inserting into the AP-Tree and removing from it; splits, collapses and rebuilds of subtrees.

[VLDBJ15] section 3.3.5. A clause goes down to the lists that it belongs to, and each node on its
way counts it. What then has to change is *due*: an l-node that has grown too long is split, an
inner node that has become small collapses into a list, and an inner node whose weights have drifted
is rebuilt. All three are one thing: the clauses below the node are collected, and the node is built
anew from them. With the root, the order of keywords becomes that of the frequencies by then, as no
node is left that depends on the old one.

The work of one change. A change visits the nodes on its ways and writes to the lists at their ends;
to remove a clause, those lists are searched for it. What is built anew is paid for by the visits
that the node has had since it was made: a list is split when it is longer than theta_p and has
grown by half of that at the least, or to twice the length at which a split gained nothing; a node
collapses at half of theta_p; a node is rebuilt only after half as many changes as it has clauses.
So nodes are built anew from at most three clauses for each node that changes visit (``N_MOVED`` <=
3 ``N_VISITED``). That is an average: a single change rebuilds the whole tree at worst.

Without that rule, which the paper lacks, the divergence of a node of less than about 100,000
clauses and 200 children passes theta_KL = 0.001 by chance alone, so that it would be rebuilt at
every change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.indexes.ap_tree.kernels.build import (
    N_TASKS,
    ROWS_ARE_FULL,
    TREE_IS_FULL,
    WANTED,
    build_nodes,
    push_task,
)
from earshot.indexes.ap_tree.kernels.nodes import (
    FANOUT,
    FREE,
    KEYWORDS,
    LEAST_DIVERGENCE,
    LEAST_SHARE,
    LIST,
    MAY_SPACE,
    MOST_IN_LIST,
    N_CLAUSES,
    N_COLLAPSES,
    N_MOVED,
    N_NODES,
    N_REBUILDS,
    N_SPLITS,
    N_VISITED,
    NO_RANK,
    cell_of,
    cells_of,
    contains_region,
    divergence,
    fill_region,
    find_cut,
    follow_weight,
    free_node,
    give_up_pieces,
    grid_of,
    has_places,
    n_children,
    new_list,
    rank_at,
    take_places,
    where_is,
    write_entry,
)
from earshot.indexes.ap_tree.kernels.partition import sort_integers
from earshot.kernels.box_keys import box_key
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.resuming import DONE
from earshot.model.arrays import Float64s, Int32s, Int64s

WAYS_ARE_FULL, ORDER_IS_OLD = 5, 6
"""What a kernel is short of, besides what a build is; the order when the root is built anew."""

LEAST_SAMPLED = 1024
"""Clauses of a node for which the sample's messages are looked through when it is rebuilt."""

# Places in ``progress``.
NEXT, DEPTH, N_DUE, IS_ORDERED = 0, 1, 2, 3


class ChangeScratch(NamedTuple):
    """How far a change has come; it may go on from where it stopped."""

    progress: Int64s  # (4,) clauses begun, nodes still to visit, nodes due, whether order is new
    ways: Int32s  # nodes still to visit for the clause in hand
    is_covered: Int32s  # whether a node above each of them is due already
    due: Int32s
    region: Float64s  # (4,)


@inlined_kernel
def _is_drifted(tree, node):
    """Whether an inner node is to be rebuilt."""
    n, rules = tree.n_below[node], tree.rules
    return (
        2 * np.int64(tree.n_changes[node]) >= n > rules[MOST_IN_LIST]
        and n >= rules[LEAST_SHARE] * tree.facts[N_CLAUSES]
        and divergence(tree, node) > rules[LEAST_DIVERGENCE]
    )


@inlined_kernel
def is_due(tree, node):
    """Whether a node is to be built anew: split, collapsed, or as its weights have drifted."""
    n, most = np.int64(tree.n_below[node]), np.int64(tree.rules[MOST_IN_LIST])
    if tree.kinds[node] == LIST:
        return n > most and n >= tree.n_changes[node]
    return n <= most // 2 or _is_drifted(tree, node)


@lean_kernel
def _look_for_due(tree, node, covered, change):
    """Note a node that is to be built anew, if none above it is; return whether it is covered."""
    if covered:
        return 1
    if not is_due(tree, node):
        return 0
    change.due[change.progress[N_DUE]] = node
    change.progress[N_DUE] += 1
    return 1


@lean_kernel
def _add_way(child, covered, change):
    depth = change.progress[DEPTH]
    change.ways[depth] = child
    change.is_covered[depth] = covered
    change.progress[DEPTH] += 1


# ---- building a node anew ------------------------------------------------------------------------


@lean_kernel
def _n_entries(tree, node, ways):
    """Return the entries of all lists below a node, copies included."""
    total, depth = np.int64(0), 1
    ways[0] = node
    while depth > 0:
        depth -= 1
        at = np.int64(ways[depth])
        if tree.kinds[at] == LIST:
            total += tree.n_below[at]
            continue
        if depth + n_children(tree.kinds[at], tree.sizes[at]) > len(ways):
            return np.int64(-1)
        start = tree.starts[at]
        for k in range(n_children(tree.kinds[at], tree.sizes[at])):
            child = tree.children[start + k]
            if child >= 0:
                ways[depth] = child
                depth += 1
    return total


@lean_kernel
def _collect(tree, node, ways, rows):
    """Write the clauses below a node to ``rows``, copies included, and free the nodes below it."""
    n, depth = np.int64(0), 1
    ways[0] = node
    while depth > 0:
        depth -= 1
        at = np.int64(ways[depth])
        start = tree.starts[at]
        if tree.kinds[at] == LIST:
            for k in range(tree.n_below[at]):
                rows[n] = tree.rows[start + k]
                n += 1
        else:
            for k in range(n_children(tree.kinds[at], tree.sizes[at])):
                child = tree.children[start + k]
                if child >= 0:
                    ways[depth] = child
                    depth += 1
        if at == node:
            give_up_pieces(tree, at)
        else:
            free_node(tree, at)
    return n


@lean_kernel
def _begin_anew(tree, clauses, node, change, scratch):
    """Collect a node's clauses and leave the task to build it; return what is full, or DONE."""
    if tree.parents[node] < 0 and change.progress[IS_ORDERED] == 0:
        return ORDER_IS_OLD
    n_entries = _n_entries(tree, node, change.ways)
    if n_entries < 0:
        return WAYS_ARE_FULL
    if n_entries > len(scratch.rows) or n_entries > len(scratch.partition.ranks):
        scratch.state[WANTED] = n_entries
        return ROWS_ARE_FULL
    facts = tree.facts
    if tree.kinds[node] == LIST:
        facts[N_SPLITS] += 1
    elif tree.n_below[node] <= tree.rules[MOST_IN_LIST]:
        facts[N_COLLAPSES] += 1
    else:
        facts[N_REBUILDS] += 1
    change.progress[IS_ORDERED] = 0
    facts[N_MOVED] += tree.n_below[node]
    n = _collect(tree, node, change.ways, scratch.rows)
    if n > tree.n_below[node]:
        sort_integers(scratch.rows, n, scratch.partition.spare, scratch.partition.counts)
        n_distinct = np.int64(0)
        for i in range(n):
            if i == 0 or scratch.rows[i] != scratch.rows[i - 1]:
                scratch.rows[n_distinct] = scratch.rows[i]
                n_distinct += 1
        n = n_distinct
    parent = np.int64(tree.parents[node])
    if n == 0 and parent >= 0:
        tree.children[tree.starts[parent] + tree.positions[node]] = -1
        free_node(tree, node)
        return DONE
    if parent < 0:
        fill_extent(clauses, scratch.rows[:n], tree.extent)
    offset, flags, n_keyword_levels, n_space = where_is(tree, node)
    fill_region(tree, node, change.region, False)
    if change.region[0] > change.region[2] or change.region[1] > change.region[3]:
        flags &= ~MAY_SPACE  # beyond what the root was built around
    n_sampled = np.int64(0)
    if n >= LEAST_SAMPLED:
        n_sampled = sample_reaching(tree, node, change.ways, scratch)
    push_task(
        scratch, node, 0, n, 0, n_sampled, offset, flags, n_keyword_levels, n_space, change.region
    )
    return DONE


@lean_kernel
def fill_extent(clauses, rows, extent):
    """Write the box around the finite coordinates of clauses; it is inverted if there are none."""
    extent[0] = extent[1] = np.inf
    extent[2] = extent[3] = -np.inf
    for i in range(len(rows)):
        box = clauses.boxes[rows[i]]
        for k in range(4):
            if np.isfinite(box[k]):
                extent[k & 1] = min(extent[k & 1], box[k])
                extent[2 + (k & 1)] = max(extent[2 + (k & 1)], box[k])


@lean_kernel
def sample_reaching(tree, node, ways, scratch):
    """Write the messages of the sample that would come to a node; return how many."""
    depth = np.int64(0)
    while node >= 0:
        ways[depth] = node
        depth += 1
        node = np.int64(tree.parents[node])
    n = np.int64(0)
    for message in range(len(tree.sample_offsets) - 1):
        start, stop = tree.sample_offsets[message], tree.sample_offsets[message + 1]
        eta, level = np.int64(0), depth - 1
        while level > 0:
            at, position = np.int64(ways[level]), np.int64(tree.positions[ways[level - 1]])
            if position > 0 and tree.kinds[at] == KEYWORDS:
                cut = tree.extras[at] + position - 1
                k = start + eta
                while k < stop and tree.sample_ranks[k] < tree.firsts[cut]:
                    k += 1
                if k == stop or tree.sample_ranks[k] > tree.lasts[cut]:
                    break
                eta = k + (tree.firsts[cut] == tree.lasts[cut]) - start
            elif position > 0:
                n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[at], tree.extras[at])
                x = cell_of(tree.edges, x_start, n_columns, tree.sample_places[message, 0])
                y = cell_of(tree.edges, y_start, n_rows, tree.sample_places[message, 1])
                if 1 + y * n_columns + x != position:
                    break
            level -= 1
        if level == 0 and n < len(scratch.messages):
            scratch.messages[n] = message
            scratch.etas[n] = eta
            n += 1
    return n


@lean_kernel
def _work_off(tree, clauses, change, scratch):
    """Build anew what is due; return what is full, or DONE."""
    while True:
        if scratch.state[N_TASKS] > 0:
            why = build_nodes(tree, clauses, scratch)
            if why != DONE:
                return why
        if change.progress[N_DUE] == 0:
            return DONE
        node = np.int64(change.due[change.progress[N_DUE] - 1])
        why = _begin_anew(tree, clauses, node, change, scratch)
        if why != DONE:
            return why
        change.progress[N_DUE] -= 1


# ---- insertion and removal -----------------------------------------------------------------------


@lean_kernel
def change_tree(tree, clauses, rows, step, change, scratch):
    """Build what tasks ask for, then insert clauses (``step`` 1) or remove them (-1).

    Returns what is full, or DONE; it goes on when it is called again. Building, inserting and
    removing are one kernel because they share most of what there is to compile.
    """
    progress = change.progress
    room = np.int64(tree.rules[FANOUT]) + 1
    while True:
        if progress[DEPTH] == 0:
            why = _work_off(tree, clauses, change, scratch)
            if why != DONE:
                return why
            if progress[NEXT] == len(rows):
                return DONE
            _add_way(0, 0, change)
            progress[NEXT] += 1
            tree.facts[N_CLAUSES] += step
        if progress[DEPTH] + room > len(change.ways) or progress[N_DUE] + room > len(change.due):
            return WAYS_ARE_FULL
        c = np.int64(rows[progress[NEXT] - 1])
        node = np.int64(change.ways[progress[DEPTH] - 1])
        kind, n = tree.kinds[node], np.int64(tree.n_below[node])
        n_places = n + max(np.int64(4), n // 4)
        # A list with room to spare needs none, or a long one would be packed at each insertion.
        is_full = kind == LIST and n == tree.sizes[node]
        if step > 0 and (
            tree.facts[N_NODES] + room > len(tree.kinds)
            or (is_full and not has_places(tree, n_places))
        ):
            scratch.state[WANTED] = n_places
            return TREE_IS_FULL
        progress[DEPTH] -= 1
        covered = change.is_covered[progress[DEPTH]]
        parent = np.int64(tree.parents[node])
        tree.facts[N_VISITED] += 1
        if kind == LIST:
            if step > 0:
                if n == tree.sizes[node]:
                    take_places(tree, node, n_places)
                write_entry(tree, clauses, tree.starts[node] + n, c)
            else:
                take_out(tree, node, c)
        else:
            tree.n_changes[node] += 1
        tree.n_below[node] += step
        if parent >= 0:
            place = tree.starts[parent] + tree.positions[node]
            follow_weight(tree, parent, place, np.float64(n), np.float64(n + step))
        if kind == LIST and step < 0:
            # One that is covered is freed with the node above it.
            if n == 1 and parent >= 0 and not covered:
                tree.children[place] = -1
                free_node(tree, node)
            continue
        covered = _look_for_due(tree, node, covered, change)
        if kind != LIST:
            _go_down(tree, clauses, c, node, covered, change)


@inlined_kernel
def take_out(tree, node, c):
    """Take a clause out of a list; the last one takes its place.

    Looked for from the end: of clauses removed together, the latest comes first.
    """
    first = tree.starts[node]
    last = at = first + tree.n_below[node] - 1
    while at > first and tree.rows[at] != c:
        at -= 1
    tree.keys[at] = tree.keys[last]
    tree.rows[at] = tree.rows[last]
    tree.prints[at] = tree.prints[last]


@lean_kernel
def _go_down(tree, clauses, c, node, covered, change):
    """Visit the children of an inner node that a clause belongs to."""
    start = tree.starts[node]
    if tree.kinds[node] == KEYWORDS:
        first, stop = clauses.token_offsets[c], clauses.token_offsets[c + 1]
        rank = rank_at(tree.ranks, clauses.token_ids, first, stop, tree.offsets[node])
        position = np.int64(0)
        if rank != NO_RANK:
            cut = find_cut(tree.firsts, tree.extras[node], tree.sizes[node], rank)
            at = tree.extras[node] + cut
            tree.firsts[at] = min(tree.firsts[at], rank)
            tree.lasts[at] = max(tree.lasts[at], rank)
            position = 1 + cut
        _add_way(_child_at(tree, node, start, position), covered, change)
        return
    box = clauses.boxes[c]
    n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
    if contains_region(tree.edges, x_start, n_columns, y_start, n_rows, box):
        _add_way(_child_at(tree, node, start, np.int64(0)), covered, change)
        return
    left, right, bottom, top = cells_of(tree.edges, x_start, n_columns, y_start, n_rows, box)
    for y in range(bottom, top + 1):
        for x in range(left, right + 1):
            position = 1 + y * n_columns + x
            _add_way(_child_at(tree, node, start, position), covered, change)


@lean_kernel
def _child_at(tree, node, start, position):
    """Return a child of a node, which is made if there is none."""
    child = np.int64(tree.children[start + position])
    if child < 0:
        child = new_list(tree, node, position)
        tree.children[start + position] = child
    return child


# ---- the whole tree ------------------------------------------------------------------------------


@lean_kernel
def make_keys_anew(tree, boxes):
    """Make the keys of all lists for another quantizer."""
    for node in range(tree.facts[N_NODES]):
        if tree.kinds[node] == LIST:
            start = tree.starts[node]
            for k in range(start, start + tree.n_below[node]):
                box = boxes[tree.rows[k]]
                tree.keys[k] = box_key(tree.quantizer, box[0], box[1], box[2], box[3])


@lean_kernel
def pack_pieces(tree, packed):
    """Copy the pieces of all nodes to the beginning of other arrays, without garbage.

    Returns how much of each array is used: children, cuts, edges, places.
    """
    n_child, n_cut, n_edge, n_place = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for node in range(tree.facts[N_NODES]):
        kind, start, extra = tree.kinds[node], tree.starts[node], tree.extras[node]
        if kind == FREE:
            continue
        if kind == LIST:
            n = min(
                np.int64(tree.n_below[node]), np.int64(tree.sizes[node])
            )  # one to be built has none
            for k in range(n):
                packed.keys[n_place + k] = tree.keys[start + k]
                packed.rows[n_place + k] = tree.rows[start + k]
                packed.prints[n_place + k] = tree.prints[start + k]
            tree.starts[node], tree.sizes[node] = n_place, n
            n_place += n
            continue
        n = n_children(tree.kinds[node], tree.sizes[node])
        for k in range(n):
            packed.children[n_child + k] = tree.children[start + k]
            packed.shares[n_child + k] = tree.shares[start + k]
        tree.starts[node] = n_child
        n_child += n
        size = np.int64(tree.sizes[node])
        if kind == KEYWORDS:
            for k in range(size):
                packed.firsts[n_cut + k] = tree.firsts[extra + k]
                packed.lasts[n_cut + k] = tree.lasts[extra + k]
            tree.extras[node] = n_cut
            n_cut += size
        else:
            n = (size & 0xFFFF) + (size >> 16) + 2
            for k in range(n):
                packed.edges[n_edge + k] = tree.edges[extra + k]
            tree.extras[node] = n_edge
            n_edge += n
    return n_child, n_cut, n_edge, n_place
