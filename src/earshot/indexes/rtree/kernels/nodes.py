"""A dynamic R-tree over clauses with a table of tokens per node: R^t, R^t+, R^t++ and IR-tree.

[KDD13] §3-5, [TKDE15] §3-5. All four trees have one shape; they differ in what a node's table
holds, the *kind*:

* ``SETS`` (R^t): how many clauses below the node have the token, of all required tokens;
* ``SINGLE`` (R^t+): the same of one representative token per clause;
* ``PREFIXES`` (R^t+, ranked): the same of those tokens of a clause one of which an answer must
  share, as tokens that count where the message touches and as their complements where they count
  anywhere;
* ``LEVELS`` (R^t++): see below;
* ``INVERTED`` (IR-tree): a bit per entry of the node, set where the token occurs below the entry.

**LEVELS.** The root's children are at depth 1, the leaves at the depth H. A clause's tokens are in
a fixed order; its i-th one stands in the table of its node at depth i, pointing to the list of the
clauses that have it there, and what is left after H - 1 of them stands in the leaf, pointing to a
bit per entry. Three things differ from the papers:

* A list says of each clause under which entry of the node it is. So clauses under entries that do
  not touch the message are passed over without being looked up, and whether to go on is decided for
  each entry by its own clauses.
* Whether a clause has had all its tokens so far is not counted but looked up: low bits of its first
  two tokens (its *print*) are compared with the message's. That may be wrong about a clause that
  has others, which the leaf finds out, but never about one that matches. Once an entry is known to
  hold a clause to go on for, its others need no look.
* A clause with fewer tokens than levels goes on with its last token down to the leaf. So its region
  is looked at where space is cut finest, and not once for a whole subtree. All clauses under an
  entry that have the token alone share one place of a list.

**Shape.** Geometry is done on box keys (:mod:`earshot.kernels.box_keys`), so an area is counted in
cells that hold about equally many region edges, and infinite sides need no care.
:mod:`earshot.indexes.rtree.kernels.changes` inserts and removes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.token_tables import (
    EMPTY,
    FIRST_LIST,
    LIST_END,
    LIST_GARBAGE,
    ROW_BITS,
    ROW_MASK,
    TABLE_END,
    TABLE_GARBAGE,
    TokenTables,
    append_to_list,
    find,
    list_entry_at,
    list_length,
    list_room,
    list_start,
    new_list,
    new_table,
    probe,
    table_size,
)
from earshot.kernels.box_keys import DEAD_KEY, TOP, Quantizer, box_key, union_key
from earshot.kernels.copying import copy_part
from earshot.kernels.jit import kernel, lean_kernel
from earshot.model.arrays import Int32s, Int64s

SETS, SINGLE, PREFIXES, LEVELS, INVERTED = range(5)

# Places of ``facts``.
ROOT, N_NODES, FREE_NODE, KIND, MIN_ENTRIES, MAX_ENTRIES = range(6)
N_FACTS = 6

MOST_ENTRIES = 63
"""Entries of a node fit the bits of one integer."""


class RtreeArrays(NamedTuple):
    """Nodes, their entries and their tables; arrays may be longer than what is in use."""

    quantizer: Quantizer
    facts: Int64s  # (N_FACTS,)
    counts: Int32s  # (n_nodes,) entries of each node
    levels: Int32s  # (n_nodes,) 0 for a leaf, one more than its children's for the others
    parents: Int32s  # (n_nodes,) -1 for the root; the next free one for a node not in use
    n_below: Int32s  # (n_nodes,) clauses in the leaves below
    keys: npt.NDArray[np.uint64]  # (n_nodes * MAX_ENTRIES + BLOCK,) box key of each entry
    entries: Int32s  # (n_nodes * MAX_ENTRIES,) clauses in a leaf, else nodes
    leaves: Int32s  # (n_clauses,) leaf of each clause, -1 for one that was removed
    # SINGLE: (n_clauses,) representative tokens. LEVELS: each clause's required tokens in order, at
    # the clause's own offset; PREFIXES: what it posts, there, EMPTY after the last. Else empty.
    ordered: Int32s
    prints: npt.NDArray[np.uint32]  # (n_clauses,) LEVELS: low halves of the first two tokens
    is_changed: npt.NDArray[np.uint8]  # (n_nodes,) 1 for nodes that got entries, till they are seen
    tables: TokenTables


# ---- keys as geometry ---------------------------------------------------------------------------


@lean_kernel
def key_area(key):
    """Return the number of cells that a key covers."""
    width = (
        TOP - np.int64(key >> np.uint64(32) & np.uint64(0x7FFF)) - np.int64(key & np.uint64(0x7FFF))
    )
    height = (
        TOP
        - np.int64(key >> np.uint64(48) & np.uint64(0x7FFF))
        - np.int64(key >> np.uint64(16) & np.uint64(0x7FFF))
    )
    return (width + 1) * (height + 1)


@lean_kernel
def key_centre(key, axis):
    """Return twice the centre of a key on an axis."""
    shift = np.uint64(16 * axis)
    low = np.int64(key >> shift & np.uint64(0x7FFF))
    return low + TOP - np.int64(key >> (shift + np.uint64(32)) & np.uint64(0x7FFF))


@lean_kernel
def union_of(keys, start, n):
    """Return the key of the smallest box around a stretch of keys."""
    union = DEAD_KEY
    for i in range(start, start + n):
        union = union_key(union, keys[i])
    return union


# ---- what a clause posts ------------------------------------------------------------------------


@lean_kernel
def tree_height(tree):
    """Return the depth of the leaves; a tree that is one leaf has them at depth 1."""
    return max(1, np.int64(tree.levels[tree.facts[ROOT]]))


@lean_kernel
def node_depth(tree, node):
    """Return the depth of a node: 1 for the root's children, and for a root that is a leaf."""
    return max(1, np.int64(tree.levels[tree.facts[ROOT]]) - np.int64(tree.levels[node]))


@lean_kernel
def has_table(tree, node):
    """Whether a node has a table: all but an inner root, which has one in an IR-tree only."""
    return node != tree.facts[ROOT] or tree.levels[node] == 0 or tree.facts[KIND] == INVERTED


@lean_kernel
def required_stop(clauses, c):
    """Return where the required tokens of a clause end."""
    stop = clauses.token_offsets[c + 1]
    while clauses.token_ids[stop - 1] < 0:
        stop -= 1
    return stop


@lean_kernel
def posted_range(tree, clauses, c, depth, height):
    """Return from where to where the tokens stand that a clause posts at a depth.

    The range is one of ``ordered``, for SETS and INVERTED of the clauses' own tokens.
    """
    kind = tree.facts[KIND]
    if kind == SINGLE:
        return np.int64(c), np.int64(c) + 1
    start, stop = clauses.token_offsets[c], required_stop(clauses, c)
    if kind == PREFIXES:
        end = start
        while end < stop and tree.ordered[end] != EMPTY:
            end += 1
        return start, end
    if kind != LEVELS:
        return start, stop
    if depth < height:
        at = min(start + depth, stop) - 1
        return at, at + 1
    return min(start + height, stop) - 1, stop


@lean_kernel
def is_lone(tree, clauses, c):
    """Whether a clause of a tree with lists has a single token."""
    return tree.facts[KIND] == LEVELS and required_stop(clauses, c) == clauses.token_offsets[c] + 1


@lean_kernel
def posted(tree, clauses, i):
    """Return the token at a position of a posted range."""
    if tree.facts[KIND] in (SETS, INVERTED):
        return clauses.token_ids[i]
    return tree.ordered[i]


@lean_kernel
def list_entry(position, c):
    """Return the entry of a list: a clause, and under which entry of the node it is.

    ``c`` is -1 for all clauses there that have the token alone.
    """
    return np.int32((np.int64(position) << ROW_BITS) | (np.int64(c) + 1))


@lean_kernel
def entry_clause(entry):
    """Return the clause of a list's entry, -1 for those that have the token alone."""
    return (np.int64(entry) & ROW_MASK) - 1


@lean_kernel
def entry_bit(entry):
    """Return the bit of the node's entry that a list's entry is under."""
    return np.int64(1) << (np.int64(entry) >> ROW_BITS & 63)


@lean_kernel
def has_lone(tree, clauses, node, place):
    """Whether some clause below a node has the token of a place of its table alone."""
    value = np.int64(tree.tables.values[place])
    if tree.levels[node] > 0:
        for i in range(list_length(value)):
            if entry_clause(list_entry_at(tree.tables, value, i)) < 0:
                return True
        return False
    start = np.int64(node) * tree.facts[MAX_ENTRIES]
    for i in range(tree.counts[node]):
        if value >> i & 1 != 0 and is_lone(tree, clauses, tree.entries[start + i]):
            return True
    return False


@lean_kernel
def fill_prints(tree, clauses, first, stop):
    """Fill the prints of clauses ``first`` to ``stop``, whose tokens are in order (LEVELS)."""
    for c in range(first, stop):
        at = clauses.token_offsets[c]
        one = np.uint32(tree.ordered[at] & 0xFFFF)
        other = one if is_lone(tree, clauses, c) else np.uint32(tree.ordered[at + 1] & 0xFFFF)
        tree.prints[c] = one | other << np.uint32(16)


# ---- tables from scratch ------------------------------------------------------------------------


@lean_kernel
def entry_position(tree, node, entry):
    """Return at which position of a node an entry stands."""
    start = np.int64(node) * tree.facts[MAX_ENTRIES]
    for i in range(tree.counts[node]):
        if tree.entries[start + i] == entry:
            return np.int64(i)
    return np.int64(-1)


@lean_kernel
def most_tokens(tree, clauses, node):
    """Return an upper bound of the distinct tokens of a node's table."""
    kind, stride = tree.facts[KIND], tree.facts[MAX_ENTRIES]
    start = np.int64(node) * stride
    n = np.int64(0)
    for i in range(start, start + tree.counts[node]):
        entry = tree.entries[i]
        if tree.levels[node] == 0:
            n += clauses.token_offsets[entry + 1] - clauses.token_offsets[entry]
        elif kind == LEVELS:
            n += tree.n_below[entry]
        else:
            n += tree.tables.used[entry]
    return n


@lean_kernel
def drop_lists(tree, node):
    """Leave the lists of a node's table to the garbage."""
    tables = tree.tables
    if tree.facts[KIND] != LEVELS or tree.levels[node] == 0:
        return
    start = tables.starts[node]
    for place in range(start, start + tables.sizes[node]):
        if tables.tokens[place] != EMPTY:
            tables.ends[LIST_GARBAGE] += list_room(list_length(tables.values[place]))


@lean_kernel
def _count(tokens, values, size, token, amount, bits):
    """Add to a token's value in a table on its own; return 1 if the token is new."""
    place = probe(tokens, 0, size, token)
    if place >= 0:
        values[place] = values[place] | bits if bits != 0 else values[place] + amount
        return 0
    tokens[~place] = token
    values[~place] = bits if bits != 0 else amount
    return 1


@lean_kernel
def fill_table(tree, clauses, node, tokens, values):
    """Build a node's table anew from what is below it.

    ``tokens`` and ``values`` are working memory for a table of :func:`most_tokens` tokens;
    ``tokens`` is EMPTY before and after. The arrays must have room for what comes.
    """
    kind, stride, tables = tree.facts[KIND], tree.facts[MAX_ENTRIES], tree.tables
    drop_lists(tree, node)
    size = table_size(most_tokens(tree, clauses, node))
    is_leaf = tree.levels[node] == 0
    first_entry = np.int64(node) * stride
    depth, height = node_depth(tree, node), tree_height(tree)
    n = 0
    if is_leaf:
        for i in range(tree.counts[node]):
            c = tree.entries[first_entry + i]
            first, last = posted_range(tree, clauses, c, depth, height)
            bit = np.int64(1) << i if kind >= LEVELS else np.int64(0)
            for k in range(first, last):
                n += _count(tokens, values, size, posted(tree, clauses, k), 1, bit)
    else:
        for i in range(tree.counts[node]):
            child = tree.entries[first_entry + i]
            bit = np.int64(1) << i if kind == INVERTED else np.int64(0)
            start = tables.starts[child]
            for place in range(start, start + tables.sizes[child]):
                token = tables.tokens[place]
                if token == EMPTY:
                    continue
                if kind != LEVELS:
                    n += _count(tokens, values, size, token, tables.values[place], bit)
                elif has_lone(tree, clauses, child, place):
                    n += _count(tokens, values, size, token, 1, np.int64(0))
            if kind == LEVELS:
                n += _count_clauses(tree, clauses, child, tokens, values, size, depth, height)
    new_table(tables, node, n)
    start, final_size = tables.starts[node], np.int64(tables.sizes[node])
    has_lists = kind == LEVELS and not is_leaf
    for k in range(size):
        token = tokens[k]
        if token == EMPTY:
            continue
        tokens[k] = EMPTY
        place = ~probe(tables.tokens, start, final_size, token)
        tables.tokens[place] = token
        tables.values[place] = values[k]
        if has_lists:
            tables.values[place] = new_list(tables, values[k])
    tables.used[node] = n
    if has_lists:
        for i in range(tree.counts[node]):
            _fill_lists(tree, clauses, node, i, depth, height)


@lean_kernel
def _count_clauses(tree, clauses, child, tokens, values, size, depth, height):
    """Count the tokens that the clauses below an entry post at a depth above the leaves."""
    n = 0
    leaf = _first_leaf(tree, child)
    stride = tree.facts[MAX_ENTRIES]
    while leaf >= 0:
        for i in range(tree.counts[leaf]):
            c = tree.entries[leaf * stride + i]
            if not is_lone(tree, clauses, c):
                at, _ = posted_range(tree, clauses, c, depth, height)
                n += _count(tokens, values, size, tree.ordered[at], 1, np.int64(0))
        leaf = _next_leaf(tree, child, leaf)
    return n


@lean_kernel
def _fill_lists(tree, clauses, node, position, depth, height):
    """Put the clauses below an entry of a node into the node's lists, which have room for them."""
    tables, stride = tree.tables, tree.facts[MAX_ENTRIES]
    child = np.int64(tree.entries[np.int64(node) * stride + position])
    start = tables.starts[child]
    for place in range(start, start + tables.sizes[child]):
        token = tables.tokens[place]
        if token != EMPTY and has_lone(tree, clauses, child, place):
            append_to_list(tables, find(tables, node, token), list_entry(position, -1))
    leaf = _first_leaf(tree, child)
    while leaf >= 0:
        for i in range(tree.counts[leaf]):
            c = tree.entries[leaf * stride + i]
            if not is_lone(tree, clauses, c):
                at, _ = posted_range(tree, clauses, c, depth, height)
                place = find(tables, node, tree.ordered[at])
                append_to_list(tables, place, list_entry(position, c))
        leaf = _next_leaf(tree, child, leaf)


@lean_kernel
def _first_leaf(tree, node):
    leaf = np.int64(node)
    while tree.levels[leaf] > 0:
        leaf = np.int64(tree.entries[leaf * tree.facts[MAX_ENTRIES]])
    return leaf


@lean_kernel
def _next_leaf(tree, node, leaf):
    """Return the leaf after ``leaf`` below ``node``, -1 after the last."""
    at = leaf
    while at != node:
        parent = np.int64(tree.parents[at])
        i = entry_position(tree, parent, at) + 1
        if i < tree.counts[parent]:
            return _first_leaf(tree, np.int64(tree.entries[parent * tree.facts[MAX_ENTRIES] + i]))
        at = parent
    return np.int64(-1)


@kernel
def fill_tables(tree, clauses, nodes, first):
    """Fill the tables of ``nodes[first:]``, children before parents.

    Returns the position of the first node for which there was no room, or the number of nodes.
    """
    tokens = np.full(1024, EMPTY, np.int32)
    values = np.empty(1024, np.int64)
    for k in range(first, len(nodes)):
        node = np.int64(nodes[k])
        if not has_table(tree, node):
            continue
        n = most_tokens(tree, clauses, node)
        if not has_room(tree, n, np.int64(tree.n_below[node])):
            return k
        if table_size(n) > len(tokens):
            tokens = np.full(2 * table_size(n), EMPTY, np.int32)
            values = np.empty(len(tokens), np.int64)
        fill_table(tree, clauses, node, tokens, values)
    return len(nodes)


@kernel
def pack_tables(tree, tokens, values, lists):
    """Copy tables and lists to new arrays, without garbage."""
    tables = tree.tables
    end, list_end = np.int64(0), np.int64(FIRST_LIST)
    for node in range(tree.facts[N_NODES]):
        size = np.int64(tables.sizes[node])
        start = tables.starts[node]
        tables.starts[node] = end
        has_lists = tree.facts[KIND] == LEVELS and tree.levels[node] > 0
        for place in range(start, start + size):
            token, value = tables.tokens[place], tables.values[place]
            if has_lists and token != EMPTY and list_length(value) > 1:
                length, at = list_length(value), list_start(value)
                copy_part(tables.lists, at, at + length, lists, list_end)
                value = (list_end << 32) | length
                list_end += list_room(length)
            tokens[end] = token
            values[end] = value
            end += 1
    tables.ends[TABLE_END], tables.ends[TABLE_GARBAGE] = end, 0
    tables.ends[LIST_END], tables.ends[LIST_GARBAGE] = list_end, 0


@lean_kernel
def has_room(tree, n_tokens, n_list):
    """Whether the arrays have room for a table of so many tokens and lists of so many entries."""
    tables = tree.tables
    if tables.ends[TABLE_END] + table_size(n_tokens) + 16 > len(tables.tokens):
        return False
    return tree.facts[KIND] != LEVELS or (
        tables.ends[LIST_END] + n_list + n_list // 4 + n_tokens + 16 <= len(tables.lists)
    )


# ---- building -----------------------------------------------------------------------------------


@kernel
def pack_leaves(tree, order, clause_keys, n_leaves):
    """Fill leaves 0 to ``n_leaves`` with the clauses in order, about equally many each."""
    stride, n = tree.facts[MAX_ENTRIES], len(order)
    for leaf in range(n_leaves):
        first, last = leaf * n // n_leaves, (leaf + 1) * n // n_leaves
        tree.counts[leaf] = last - first
        tree.levels[leaf] = 0
        tree.n_below[leaf] = last - first
        tree.is_changed[leaf] = 1
        for i in range(last - first):
            c = order[first + i]
            tree.entries[leaf * stride + i] = c
            tree.keys[leaf * stride + i] = clause_keys[c]
            tree.leaves[c] = leaf


@kernel
def pack_level(tree, first_child, first_node, n_nodes):
    """Fill a level of inner nodes over the nodes ``first_child`` to ``first_node``."""
    stride, n = tree.facts[MAX_ENTRIES], first_node - first_child
    for k in range(n_nodes):
        node = first_node + k
        first, last = k * n // n_nodes, (k + 1) * n // n_nodes
        tree.counts[node] = last - first
        tree.levels[node] = tree.levels[first_child] + 1
        tree.n_below[node] = 0
        tree.is_changed[node] = 1
        for i in range(last - first):
            child = first_child + first + i
            tree.entries[node * stride + i] = child
            tree.keys[node * stride + i] = union_of(tree.keys, child * stride, tree.counts[child])
            tree.parents[child] = node
            tree.n_below[node] += tree.n_below[child]


@kernel
def requantize(tree, boxes):
    """Compute all keys anew, after the quantizer has changed."""
    stride = tree.facts[MAX_ENTRIES]
    top = tree.levels[tree.facts[ROOT]]
    for level in range(top + 1):
        for node in range(tree.facts[N_NODES]):
            if tree.counts[node] == 0 or tree.levels[node] != level:
                continue
            start = node * stride
            for i in range(start, start + tree.counts[node]):
                entry = tree.entries[i]
                if level == 0:
                    box = boxes[entry]
                    tree.keys[i] = box_key(tree.quantizer, box[0], box[1], box[2], box[3])
                else:
                    tree.keys[i] = union_of(tree.keys, entry * stride, tree.counts[entry])
