"""Cover and non-cover sets of a pivotal-token quadtree.

[CIKM15] §4.1. The *pivotal tokens* P(n) of a node n are the tokens of its own lists and of its
children's. The paper keeps them in two sets: the cover set C(n) has the tokens that all four
children have, and those are removed from the children; the non-cover set N(n) has the others.

Here a token *covers* a node if every leaf under the node has it. The table of an inner node holds 8
bits for each token: whether each child has it (bits 0 to 3), and whether it covers the child
(bits 4 to 7). A token that covers a node is not in the node's own table. The parent has told its
bit, as the paper's cover set does. Only the root, which has no parent, holds all of its tokens.

This differs from the print in one point. The paper removes a token from a child also where only
some grandchildren have it, and then visits all leaves of that child. Here such a token stays in the
child's table, and leaves without it are not visited.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.kernels.token_tables import find, find_or_add, forget
from earshot.indexes.quadtree.kernels.nodes import places_to_add
from earshot.kernels.jit import lean_kernel

ALL = 255
_COVERED = 0xF0
_HAVE = 0x0F


@lean_kernel
def covers(tree, sets, node, token):
    """Whether a token covers a node."""
    while tree.parents[node] >= 0:
        parent = np.int64(tree.parents[node])
        place = find(sets, parent, token)
        if place >= 0:
            return sets.values[place] >> (4 + node - tree.children[parent]) & 1 != 0
        node = parent  # either the token covers it as well, or nothing below has it
    return False


@lean_kernel
def has_in_own_lists(tree, node, token):
    """Whether a node has a list of a token."""
    return tree.counts[node] > 0 and find(tree.lists, node, token) >= 0


@lean_kernel
def is_known(tree, sets, node, token):
    """Whether a child of an inner node has a token."""
    return find(sets, node, token) >= 0 or covers(tree, sets, node, token)


@lean_kernel
def announce(tree, sets, node, token, is_covered):
    """Let the nodes above know that a node now has a token, or is now covered by it."""
    while tree.parents[node] >= 0:
        parent = np.int64(tree.parents[node])
        i = node - np.int64(tree.children[parent])
        place = find_or_add(sets, parent, token)
        before = np.int64(sets.values[place])
        after = before | 1 << i | (16 << i if is_covered else 0)
        if after & _COVERED == _COVERED and tree.parents[parent] >= 0:
            forget(sets, parent, place)
            node, is_covered = parent, True
            continue
        sets.values[place] = after
        if before & _HAVE != 0 or has_in_own_lists(tree, parent, token):
            return
        node, is_covered = parent, False


@lean_kernel
def retract(tree, sets, node, token):
    """Let the nodes above know that a node no longer has a token."""
    is_left = False
    while tree.parents[node] >= 0:
        parent = np.int64(tree.parents[node])
        i = node - np.int64(tree.children[parent])
        place = find(sets, parent, token)
        was_covered = place < 0
        if was_covered:
            place = find_or_add(sets, parent, token)
            sets.values[place] = ALL
        left = np.int64(sets.values[place]) & ~(16 << i)
        if not is_left:
            left &= ~(1 << i)
        sets.values[place] = left
        if left == 0:
            forget(sets, parent, place)
            if has_in_own_lists(tree, parent, token):
                return
        elif not was_covered:
            return
        node, is_left = parent, left != 0


@lean_kernel
def places_above(tree, sets, node, n):
    """Return how many places ``n`` tokens of a node may take in the tables above it."""
    total = np.int64(0)
    node = np.int64(tree.parents[node])
    while node >= 0:
        total += places_to_add(sets, node, n)
        node = np.int64(tree.parents[node])
    return total
