"""Insertion into the MBRTrie of ``nodes.py`` and removal from it, [CIKM15] §3.1 "Updates"."""

from __future__ import annotations

import numpy as np

from earshot.indexes.mbr_trie.kernels.nodes import (
    FIRST_CHILD,
    LABEL,
    N_BUILT,
    N_CHILDREN,
    N_DEAD,
    N_ENTRIES,
    N_LEVELS,
    N_NODES,
    N_NUMBERED,
    N_TOKENS_BELOW,
    OWN_STOP,
    ROOT,
    START,
    TOP_NODE,
    TOP_ROOM,
    fill_path,
    find_child,
    has_more_than,
    key_below,
    range_end,
)
from earshot.kernels.box_keys import DEAD_KEY, union_key
from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.resuming import DONE

NO_ROOM = 1
"""What an insertion returns that needs more nodes."""


@kernel
def insert_clauses(trie, clauses, row_keys, first, stop, n_longest):
    """Insert clauses ``first`` to ``stop``; return the first that is not in, and why.

    ``row_keys`` are those of the clauses from ``first`` on. A clause that stops for want of nodes
    leaves a part of its path, on which it goes on the next time. Along its path, MBRs grow. Its
    number is above all others, so no range changes.
    """
    path = np.empty(n_longest, np.int32)
    for row in range(first, stop):
        n = fill_path(clauses, trie.tokens, row, path, 0)
        key = row_keys[row - first]
        node, end = np.int64(ROOT), trie.facts[N_NUMBERED]
        trie.keys[node] = union_key(trie.keys[node], key)
        for i in range(n):
            child = _child_for(trie, clauses, row, node, path[i], i + 1, end)
            if child < 0:
                return row, NO_ROOM
            end = range_end(trie, node, child, end)
            node = child
            trie.keys[node] = union_key(trie.keys[node], key)
        number = row
        trie.facts[N_ENTRIES] = row + 1
        trie.facts[N_TOKENS_BELOW] += n
        trie.entry_keys[number] = key
        trie.has_more[number] = has_more_than(clauses, row, n)
        trie.chains[number - trie.facts[N_NUMBERED]] = trie.heads[node]
        trie.heads[node] = number
    return stop, DONE


@lean_kernel
def _child_for(trie, clauses, row, node, label, level, end):
    """Return the child of a node with a label, a new one if there is none; -1 without room.

    ``end`` is where the node's range of numbers ends.
    """
    nodes, facts = trie.nodes, trie.facts
    if node == ROOT:
        token = _token_of(clauses, trie.tokens, row, label)
        child = np.int64(trie.tokens[token, TOP_NODE])
        if child >= 0:
            return child
        if nodes[ROOT, N_CHILDREN] == facts[TOP_ROOM] and not _move_top(trie):
            return np.int64(-1)
        child = np.int64(nodes[ROOT, FIRST_CHILD]) + nodes[ROOT, N_CHILDREN]
        number = end
        trie.tokens[token, TOP_NODE] = child
    else:
        n = np.int64(nodes[node, N_CHILDREN])
        child = find_child(trie, node, label)
        stop = np.int64(nodes[node, FIRST_CHILD]) + n
        if child < stop and trie.labels[child] == label:
            return child
        if _is_full(trie, node):
            at = child - nodes[node, FIRST_CHILD]
            if not _move_children(trie, node):
                return np.int64(-1)
            child = np.int64(nodes[node, FIRST_CHILD]) + at
            stop = np.int64(nodes[node, FIRST_CHILD]) + n
        # A new node has no number of its own yet: an empty range where its siblings' meet.
        number = np.int64(nodes[child, START]) if child < stop else end
        for k in range(stop, child, -1):
            _copy_node(trie, k - 1, k)
    nodes[node, N_CHILDREN] += 1
    trie.labels[child] = label
    trie.keys[child] = DEAD_KEY
    trie.heads[child] = -1
    nodes[child, FIRST_CHILD], nodes[child, N_CHILDREN] = 0, 0
    nodes[child, START], nodes[child, OWN_STOP] = number, number
    trie.level_nodes[min(level, N_LEVELS - 1)] += 1
    return child


@lean_kernel
def _token_of(clauses, tokens, row, label):
    for i in range(clauses.token_offsets[row], clauses.token_offsets[row + 1]):
        token = clauses.token_ids[i]
        if token >= 0 and tokens[token, LABEL] == label:
            return np.int64(token)
    return np.int64(-1)


@lean_kernel
def _is_full(trie, node):
    """Whether a block of children has no room; those that have moved have a power of two."""
    n = np.int64(trie.nodes[node, N_CHILDREN])
    return n == 0 or trie.nodes[node, FIRST_CHILD] < trie.facts[N_BUILT] or n & (n - 1) == 0


@lean_kernel
def _copy_node(trie, source, target):
    trie.labels[target] = trie.labels[source]
    trie.keys[target] = trie.keys[source]
    trie.heads[target] = trie.heads[source]
    for column in range(4):
        trie.nodes[target, column] = trie.nodes[source, column]


@lean_kernel
def _move_block(trie, node, room):
    """Move the children of a node to where there is room for so many; False if there is not."""
    at = trie.facts[N_NODES]
    if at + room > len(trie.labels):
        return False
    first = np.int64(trie.nodes[node, FIRST_CHILD])
    for k in range(trie.nodes[node, N_CHILDREN]):
        _copy_node(trie, first + k, at + k)
    trie.nodes[node, FIRST_CHILD] = at
    trie.facts[N_NODES] = at + room
    return True


@lean_kernel
def _move_children(trie, node):
    room = np.int64(1)
    while room <= trie.nodes[node, N_CHILDREN]:
        room *= 2
    return _move_block(trie, node, room)


@lean_kernel
def _move_top(trie):
    before = np.int64(trie.nodes[ROOT, FIRST_CHILD])
    n = np.int64(trie.nodes[ROOT, N_CHILDREN])
    room = n + n // 4 + 16
    if not _move_block(trie, ROOT, room):
        return False
    trie.facts[TOP_ROOM] = room
    shift = np.int64(trie.nodes[ROOT, FIRST_CHILD]) - before
    for token in range(len(trie.tokens)):
        if trie.tokens[token, TOP_NODE] >= 0:
            trie.tokens[token, TOP_NODE] += shift
    return True


@kernel
def remove_clauses(trie, clauses, rows, n_longest):
    """Remove clauses; those that are not in the trie are passed over.

    A removed entry is marked, as in the paper; unlike there, the MBRs on its path shrink to what is
    left. Nodes without any clause stay, with an MBR that touches nothing.
    """
    path = np.empty(n_longest, np.int32)
    visited = np.empty(n_longest + 1, np.int64)
    for k in range(len(rows)):
        n = fill_path(clauses, trie.tokens, rows[k], path, 0)
        visited[0] = ROOT
        is_there = True
        for i in range(n):
            node = visited[i]
            if i == 0:
                token = _token_of(clauses, trie.tokens, rows[k], path[0])
                child = np.int64(trie.tokens[token, TOP_NODE])
                is_there = child >= 0
            else:
                child = find_child(trie, node, path[i])
                stop = trie.nodes[node, FIRST_CHILD] + trie.nodes[node, N_CHILDREN]
                is_there = child < stop and trie.labels[child] == path[i]
            if not is_there:
                break
            visited[i + 1] = child
        if not is_there:
            continue
        removed = trie.entry_keys[rows[k]]
        if removed == DEAD_KEY:
            continue
        trie.entry_keys[rows[k]] = DEAD_KEY
        if rows[k] >= trie.facts[N_NUMBERED]:
            _unchain(trie, visited[n], rows[k])
        trie.facts[N_DEAD] += 1
        trie.facts[N_TOKENS_BELOW] -= n
        for i in range(n, -1, -1):
            node = visited[i]
            if not has_equal_side(removed, trie.keys[node]):
                break
            key = key_below(trie, node, trie.keys[node])
            if key == trie.keys[node]:
                break  # nor does anything above change
            trie.keys[node] = key


@lean_kernel
def has_equal_side(key, union):
    """Whether a box reaches as far, on some side, as a box around it and others."""
    differ = key ^ union
    for shift in (0, 16, 32, 48):
        if differ >> np.uint64(shift) & np.uint64(0x7FFF) == np.uint64(0):
            return True
    return False


@lean_kernel
def _unchain(trie, node, row):
    """Take a later clause out of the chain of its node."""
    n_numbered = trie.facts[N_NUMBERED]
    before, number = np.int64(-1), np.int64(trie.heads[node])
    while number >= 0 and number != row:
        before, number = number, np.int64(trie.chains[number - n_numbered])
    if number < 0:
        return
    following = trie.chains[number - n_numbered]
    if before < 0:
        trie.heads[node] = following
    else:
        trie.chains[before - n_numbered] = following
