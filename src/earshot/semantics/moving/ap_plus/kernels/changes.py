"""Subscriptions that come, go and move in the AP+-Tree.

[VLDBJ15] section 4.2.5. A move goes down from the root to the nodes where an alternative was, is
now, or both. In the first it is taken out, in the second it is put in; where it stays, only its
box changes. Nodes that should be split, collapsed or built anew are noted, and built by
:mod:`earshot.semantics.moving.ap_plus.structure` before the next change, a few at a time.

A change stops where there is no room, and goes on when it is called again.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.ap_tree.kernels.changes import is_due, take_out
from earshot.indexes.ap_tree.kernels.nodes import (
    CHILD_END,
    CHILD_GARBAGE,
    CUT_END,
    CUT_GARBAGE,
    FANOUT,
    KEYWORDS,
    LIST,
    MOST_REPEATS,
    MOST_SPACE_LEVELS,
    N_CLAUSES,
    N_NODES,
    NO_RANK,
    cells_of,
    contains_region,
    find_cut,
    follow_weight,
    grid_of,
    has_places,
    n_children,
    new_list,
    rank_at,
    take_places,
    write_entry,
)
from earshot.kernels.box_keys import box_key
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.model.arrays import EVERYWHERE_TOKEN
from earshot.semantics.moving.ap_plus.kernels.arrays import (
    CLAUSE,
    GONE,
    INSIDE,
    IS_SEPARATE,
    LIST_BLOCK,
    MOST_CHILDREN,
    MOST_KEYWORDS,
    MOST_NODES,
    N_CUTS,
    N_DUE,
    N_HERE,
    N_MOVES,
    N_PUT,
    N_WAYS,
    OUTSIDE,
    WANTED_BLOCKS,
    WANTED_PLACES,
    WANTED_ROWS,
    TreeClauses,
)
from earshot.semantics.moving.ap_plus.kernels.messages import (
    add_message,
    collect_messages,
    has_blocks,
)
from earshot.semantics.moving.kernels.arrays import N_ROWS
from earshot.semantics.moving.kernels.quadtree import lower, upper

WAS, IS, STAYS, LOCATED = 1, 2, 3, 4
"""Modes: the alternative is to leave a node, to come to it, or to stay; or it has not moved, and
its l-nodes are to be found."""


@inlined_kernel
def n_stack(facts):
    """Return how many nodes a message or a search leaves behind at most."""
    n_levels = facts[MOST_KEYWORDS] + MOST_REPEATS + MOST_SPACE_LEVELS + 2
    return n_levels * (facts[MOST_CHILDREN] + 2)


@inlined_kernel
def region_box(boxes, at):
    """Return the box of a region; one at the antimeridian has all longitudes."""
    min_x, max_x = boxes[at, 0], boxes[at, 2]
    if boxes[at, 4] <= boxes[at, 6]:
        min_x, max_x = -np.inf, np.inf
    return min_x, boxes[at, 1], max_x, boxes[at, 3]


@lean_kernel
def token_of(tree, clauses, clause, rank):
    """Return the required token of an alternative that has a rank."""
    for i in range(clauses.token_offsets[clause], clauses.token_offsets[clause + 1]):
        token = np.int64(clauses.token_ids[i])
        if token >= 0 and tree.ranks[token] == rank:
            return token
    return np.int64(EVERYWHERE_TOKEN)


# ---- l-nodes that are remembered -----------------------------------------------------------------


@inlined_kernel
def is_at_home(places, clause, box):
    """Whether the l-nodes of an alternative are known, and are those of a box."""
    bounds = places.bounds
    return (
        places.nodes[clause, 0] >= 0
        and bounds[clause, 0] <= box[0] < bounds[clause, 4]
        and bounds[clause, 1] <= box[1] < bounds[clause, 5]
        and bounds[clause, 2] <= box[2] < bounds[clause, 6]
        and bounds[clause, 3] <= box[3] < bounds[clause, 7]
    )


@inlined_kernel
def _forget_nodes(facts, places, clause):
    facts[N_HERE] = 0
    for k in range(MOST_NODES):
        places.nodes[clause, k] = -1
    for k in range(4):
        places.bounds[clause, k], places.bounds[clause, 4 + k] = -np.inf, np.inf


@inlined_kernel
def _remember_node(facts, places, clause, node):
    if facts[N_HERE] < MOST_NODES:
        places.nodes[clause, facts[N_HERE]] = node
    facts[N_HERE] += 1


@inlined_kernel
def _keep_from(places, clause, side, value):
    places.bounds[clause, side] = max(places.bounds[clause, side], upper(value))


@inlined_kernel
def _keep_below(places, clause, side, value):
    places.bounds[clause, 4 + side] = min(places.bounds[clause, 4 + side], lower(value))


@inlined_kernel
def _keep_around(tree, places, node, clause):
    """Narrow the bounds of an alternative: it is to stay in its cells of an s-node."""
    edges, box = tree.edges, places.boxes[clause]
    n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
    starts, counts = (x_start, y_start), (n_columns, n_rows)
    if contains_region(edges, x_start, n_columns, y_start, n_rows, box):
        for axis in range(2):
            _keep_below(places, clause, axis, edges[starts[axis]])
            _keep_from(places, clause, 2 + axis, edges[starts[axis] + counts[axis]])
        return
    left, right, bottom, top = cells_of(edges, x_start, n_columns, y_start, n_rows, box)
    cells = (left, bottom, right, top)
    is_apart = False  # one side that falls short of the region is enough
    for side in range(4):
        start, n, cell = starts[side % 2], counts[side % 2], cells[side]
        if cell > 0:
            _keep_from(places, clause, side, edges[start + cell])
        if cell < n - 1:
            _keep_below(places, clause, side, edges[start + cell + 1])
        if is_apart:
            continue
        if side < 2 and box[side] > edges[start]:
            _keep_from(places, clause, side, edges[start])
            is_apart = True
        elif side >= 2 and box[side] < edges[start + n]:
            _keep_below(places, clause, side, edges[start + n])
            is_apart = True


@inlined_kernel
def _stay(core, boxes, slot, clause):
    """Let an alternative be elsewhere in the same l-nodes, if it is; return whether.

    [VLDBJ15] Algorithm 6 goes through ``nodelist(s)`` in the same way; it has no bounds.
    """
    tree, places, box = core.tree, core.places, region_box(boxes, slot)
    if not is_at_home(places, clause, box) or places.states[clause] != INSIDE:
        return False
    key = box_key(tree.quantizer, box[0], box[1], box[2], box[3])
    for k in range(MOST_NODES):
        node = np.int64(places.nodes[clause, k])
        if node < 0:
            break
        place = tree.starts[node]
        while tree.rows[place] != clause:
            place += 1
        if tree.keys[place] == key:
            break
        tree.keys[place] = key
    _note_way(places, clause, box)
    core.facts[N_MOVES] += 1
    return True


@inlined_kernel
def _note_way(places, clause, box):
    """Note where an alternative is now, and how far it went."""
    for k in range(2):
        way = (box[k] - places.boxes[clause, k]) * 0.5
        way += (box[k + 2] - places.boxes[clause, k + 2]) * 0.5
        places.velocities[clause, k] = way if np.isfinite(way) else 0.0
    for k in range(4):
        places.boxes[clause, k] = box[k]


# ---- new children --------------------------------------------------------------------------------


@inlined_kernel
def _has_room_at(facts, tree, n_ways, n_stacked, node):
    """Whether a change at a node has room, whatever it is."""
    if tree.kinds[node] == LIST:
        n = np.int64(tree.n_below[node])
        n_places = n + max(np.int64(4), n // 4)
        # A list with room to spare needs none, or a long one would be packed at each insertion.
        if n < tree.sizes[node] or has_places(tree, n_places):
            return True
        facts[WANTED_PLACES] = n_places
        return False
    n = n_children(tree.kinds[node], tree.sizes[node]) + 2
    return (
        facts[N_WAYS] + n <= n_ways
        and tree.facts[N_NODES] + n <= len(tree.kinds)
        and tree.facts[CHILD_END] + n <= len(tree.children)
        and tree.facts[CUT_END] + n <= len(tree.firsts)
        and n_stacked >= n_stack(facts)
    )


@lean_kernel
def _collect(core, messages, node, token):
    """Find the messages of a child that a node is to get; -1 where there is no room for them."""
    facts, rows = core.facts, core.places.found_rows
    if core.rules[IS_SEPARATE] != 0:
        return np.int64(0)
    if len(rows) < messages.facts[N_ROWS]:
        facts[WANTED_ROWS] = messages.facts[N_ROWS]
        return np.int64(-1)
    n = collect_messages(facts, core.tree, core.words, messages, node, token, rows)
    if not has_blocks(core.lists, n // LIST_BLOCK + 1):
        facts[WANTED_BLOCKS] = n // LIST_BLOCK + 1
        return np.int64(-1)
    return n


@lean_kernel
def _new_child(tree, lists, messages, rows, node, position):
    """Give a node a child that keeps messages."""
    child = new_list(tree, node, position)
    tree.children[tree.starts[node] + position] = child
    for i in range(len(rows)):
        add_message(lists, messages, np.int64(rows[i]), child)


@lean_kernel
def _add_cut(facts, tree, node, cut, rank):
    """Give a k-node one more cut before one of those it has, of a single rank and no child yet."""
    n, first, start = np.int64(tree.sizes[node]), tree.extras[node], tree.starts[node]
    new_first, new_start = tree.facts[CUT_END], tree.facts[CHILD_END]
    for k in range(n):
        to = new_first + k + (k >= cut)
        tree.firsts[to], tree.lasts[to] = tree.firsts[first + k], tree.lasts[first + k]
    tree.firsts[new_first + cut] = tree.lasts[new_first + cut] = rank
    for k in range(n + 1):
        to = k + (k > cut)
        child = np.int64(tree.children[start + k])
        tree.children[new_start + to] = child
        tree.shares[new_start + to] = tree.shares[start + k]
        if child >= 0:
            tree.positions[child] = to
    tree.children[new_start + 1 + cut] = -1
    tree.shares[new_start + 1 + cut] = 0.0
    tree.facts[CUT_END] += n + 1
    tree.facts[CUT_GARBAGE] += n
    tree.facts[CHILD_END] += n + 2
    tree.facts[CHILD_GARBAGE] += n + 1
    tree.sizes[node] = n + 1
    tree.extras[node], tree.starts[node] = new_first, new_start
    facts[MOST_CHILDREN] = max(facts[MOST_CHILDREN], n + 2)
    facts[N_CUTS] += 1


# ---- one alternative -----------------------------------------------------------------------------


@inlined_kernel
def _add_way(facts, tree, ways, child, mode):
    """Note a node that is to be visited, and ask for what that reads."""
    n = facts[N_WAYS]
    ways[n, 0], ways[n, 1] = child, mode
    facts[N_WAYS] = n + 1
    prefetch(tree.kinds, child)
    prefetch(tree.sizes, child)
    prefetch(tree.starts, child)
    prefetch(tree.extras, child)
    prefetch(tree.n_below, child)
    prefetch(tree.n_changes, child)
    prefetch(tree.positions, child)


@inlined_kernel
def _change_list(tree, clauses, node, mode, clause):
    start, n = tree.starts[node], np.int64(tree.n_below[node])
    if mode == IS:
        if n == tree.sizes[node]:
            take_places(tree, node, n + max(np.int64(4), n // 4))
        write_entry(tree, clauses, tree.starts[node] + n, clause)
        tree.n_below[node] += 1
    elif mode == WAS:
        take_out(tree, node, clause)
        tree.n_below[node] -= 1
    else:
        while tree.rows[start] != clause:
            start += 1
        box = clauses.boxes[clause]
        tree.keys[start] = box_key(tree.quantizer, box[0], box[1], box[2], box[3])


@lean_kernel
def _add_child(core, messages, clauses, node, position, clause, rank):
    """Give a k-node the child that an alternative needs; return whether there was room."""
    tree, token = core.tree, np.int64(-1)
    cut = tree.extras[node] + position - 1
    is_new = position > 0 and not tree.firsts[cut] <= rank <= tree.lasts[cut]
    if is_new:
        position += rank > tree.lasts[cut]
        token = token_of(tree, clauses, clause, rank)
    n = _collect(core, messages, node, token)
    if n < 0:
        return False
    if is_new:
        _add_cut(core.facts, tree, node, position - 1, rank)
    _new_child(tree, core.lists, messages, core.places.found_rows[:n], node, position)
    return True


@inlined_kernel
def _go_by_keyword(core, messages, clauses, node, mode, clause):
    """Go to the child of a k-node that an alternative belongs to; return whether there was room."""
    facts, tree = core.facts, core.tree
    first, stop = clauses.token_offsets[clause], clauses.token_offsets[clause + 1]
    rank = rank_at(tree.ranks, clauses.token_ids, first, stop, tree.offsets[node])
    for _ in range(2):
        position, is_in = np.int64(0), True
        if rank != NO_RANK:
            cut = find_cut(tree.firsts, tree.extras[node], tree.sizes[node], rank)
            at, position = tree.extras[node] + cut, cut + 1
            is_in = tree.firsts[at] <= rank <= tree.lasts[at]
        child = tree.children[tree.starts[node] + position]
        if is_in and child >= 0:
            facts[N_WAYS] -= 1
            _add_way(facts, tree, core.places.ways, child, mode)
            return True
        if not _add_child(core, messages, clauses, node, position, clause, rank):
            return False
    return False


@inlined_kernel
def _go_by_place(core, messages, node, mode, clause):
    """Go to the cells where an alternative was or is; return whether there was room."""
    facts, tree, places, start = core.facts, core.tree, core.places, core.tree.starts[node]
    old, new = places.old_box, places.boxes[clause]
    n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
    edges, children = tree.edges, tree.children
    was = mode & WAS != 0 and contains_region(edges, x_start, n_columns, y_start, n_rows, old)
    now = mode & IS != 0 and contains_region(edges, x_start, n_columns, y_start, n_rows, new)
    if now and children[start] < 0:
        n = _collect(core, messages, node, np.int64(-1))
        if n < 0:
            return False
        _new_child(tree, core.lists, messages, places.found_rows[:n], node, np.int64(0))
    facts[N_WAYS] -= 1
    if was or now:
        _add_way(facts, tree, places.ways, children[start], WAS * was + IS * now)
    was, now = mode & WAS != 0 and not was, mode & IS != 0 and not now
    left, right, bottom, top = cells_of(edges, x_start, n_columns, y_start, n_rows, old)
    is_left, is_right, is_bottom, is_top = cells_of(edges, x_start, n_columns, y_start, n_rows, new)
    if was:
        for y in range(bottom, top + 1):
            for x in range(left, right + 1):
                stays = now and is_left <= x <= is_right and is_bottom <= y <= is_top
                child = children[start + 1 + y * n_columns + x]
                _add_way(facts, tree, places.ways, child, WAS + IS * stays)
    if now:
        for y in range(is_bottom, is_top + 1):
            for x in range(is_left, is_right + 1):
                if was and left <= x <= right and bottom <= y <= top:
                    continue
                position = 1 + y * n_columns + x
                if children[start + position] < 0:
                    children[start + position] = new_list(tree, node, position)
                _add_way(facts, tree, places.ways, children[start + position], IS)
    return True


@inlined_kernel
def _note_due(facts, tree, is_noted, due, node):
    """Note a node that should be built anew."""
    if is_noted[node] != 0 or facts[N_DUE] == len(due):
        return
    has_many = tree.kinds[node] == KEYWORDS and tree.sizes[node] > 2 * tree.rules[FANOUT]
    if has_many or is_due(tree, node):
        due[facts[N_DUE]] = node
        facts[N_DUE] += 1
        is_noted[node] = 1


@inlined_kernel
def _change_clause(core, messages, clauses, clause):
    """Visit all nodes that are still to visit; return whether there was room."""
    facts, tree, places = core.facts, core.tree, core.places
    n_ways, n_stacked = len(places.ways), len(core.walk.stack)
    while facts[N_WAYS] > 0:
        node = np.int64(places.ways[facts[N_WAYS] - 1, 0])
        mode = np.int64(places.ways[facts[N_WAYS] - 1, 1])
        kind, n = tree.kinds[node], np.int64(tree.n_below[node])
        if mode & IS != 0 and not _has_room_at(facts, tree, n_ways, n_stacked, node):
            return False
        if kind != KEYWORDS and places.homes[clause] < 0:
            places.homes[clause] = node
        if kind == LIST:
            facts[N_WAYS] -= 1
            _change_list(tree, clauses, node, mode, clause)
            if mode & IS != 0:
                _remember_node(facts, places, clause, node)
        elif kind == KEYWORDS:
            if not _go_by_keyword(core, messages, clauses, node, mode, clause):
                return False
        else:
            if not _go_by_place(core, messages, node, mode, clause):
                return False
            if mode & IS != 0:
                _keep_around(tree, places, node, clause)
        if mode == STAYS:
            continue
        parent = np.int64(tree.parents[node])
        if kind == LIST:
            _note_due(facts, tree, places.is_noted, places.due, node)
        else:
            tree.n_below[node] += np.int64(mode == IS) - np.int64(mode == WAS)
        if parent >= 0:
            place = tree.starts[parent] + tree.positions[node]
            follow_weight(tree, parent, place, np.float64(n), np.float64(tree.n_below[node]))
            tree.n_changes[parent] += 1
            _note_due(facts, tree, places.is_noted, places.due, parent)
    if facts[N_HERE] > MOST_NODES:
        places.nodes[clause, 0] = -1
    return True


@inlined_kernel
def _begin_clause(core, boxes, slot, clause, mode):
    """Make ready to change an alternative; return whether there is something to do."""
    facts, places = core.facts, core.places
    old, state = places.old_box, places.states[clause]
    if (mode == IS and state == INSIDE) or (mode == WAS and state != GONE):
        return False  # all was built anew since
    if mode == LOCATED and state != INSIDE:
        return False
    for k in range(4):
        old[k] = places.boxes[clause, k]
    if mode & IS != 0:
        is_elsewhere = mode == IS
        box = region_box(boxes, slot)
        for k in range(4):
            is_elsewhere |= box[k] != old[k]
        if not is_elsewhere:
            return False
        _note_way(places, clause, box)
        if mode == IS:
            places.velocities[clause, 0] = places.velocities[clause, 1] = 0.0
    _forget_nodes(facts, places, clause)
    if mode == LOCATED:
        _add_way(facts, core.tree, places.ways, 0, STAYS)
        return True
    core.tree.facts[N_CLAUSES] += np.int64(mode == IS) - np.int64(mode == WAS)
    places.states[clause] = INSIDE if mode & IS != 0 else OUTSIDE
    facts[N_PUT] += mode == IS
    facts[N_MOVES] += mode == STAYS
    if mode == STAYS:
        _add_way(facts, core.tree, places.ways, max(0, places.homes[clause]), mode)
        return True
    places.homes[clause] = -1
    _add_way(facts, core.tree, places.ways, 0, mode)
    return True


@inlined_kernel
def stay_slot(core, tables, slot):
    """Let a subscription be elsewhere in the same l-nodes; return whether all of it is."""
    facts, subscribers = core.facts, tables.subscribers
    if facts[CLAUSE] < 0 and 2 * facts[N_DUE] > len(core.places.due):
        return False
    clause = max(facts[CLAUSE], subscribers.clause_offsets[slot])
    stop = subscribers.clause_offsets[slot + 1]
    while (
        clause < stop
        and facts[N_WAYS] == 0
        and _stay(core, subscribers.regions.boxes, slot, clause)
    ):
        clause += 1
    facts[CLAUSE] = clause if clause < stop else -1
    return clause == stop


@lean_kernel
def change_slot(core, tables, slot, mode):
    """Let a subscription come, go or move; False where there is no room, to be called again.

    As few nodes may be noted any more, it stops between two subscriptions.
    """
    facts, subscribers = core.facts, tables.subscribers
    clauses = TreeClauses(
        core.places.boxes, subscribers.token_offsets, subscribers.token_ids,
        subscribers.clause_slots,
    )  # fmt: skip
    first, stop = subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]
    if facts[CLAUSE] < 0:
        if 2 * facts[N_DUE] > len(core.places.due):
            return False
        facts[CLAUSE] = first
    while facts[CLAUSE] < stop:
        if mode == STAYS and stay_slot(core, tables, slot):
            return True
        clause, boxes = facts[CLAUSE], subscribers.regions.boxes
        is_begun = facts[N_WAYS] > 0 or _begin_clause(core, boxes, slot, clause, mode)
        if is_begun and not _change_clause(core, tables.messages, clauses, clause):
            return False
        facts[CLAUSE] += 1
    facts[CLAUSE] = -1
    return True


@lean_kernel
def change_slots(core, tables, slots, mode, first):
    """Let subscriptions come or go; return the first for which there is no room."""
    for i in range(first, len(slots)):
        if not change_slot(core, tables, np.int64(slots[i]), mode):
            return i
    return len(slots)
