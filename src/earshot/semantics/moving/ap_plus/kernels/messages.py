"""Live messages in the AP+-Tree: which nodes keep them, and how lists that come late are filled.

[VLDBJ15] section 4.2.4. A message is kept in the m-lists of all l-nodes that it visits while it is
matched. Where that would be too many, an inner node keeps it, and all searches below look there,
too.

The paper proves that all messages of a subscription are in the m-lists of its l-nodes, from all
l-nodes being there when the message comes. They are not, and the promise is kept so:

- *A cell without subscriptions* becomes an l-node when a message comes to it.
- *A cut.* Words of a message that hit no cut are forgotten. A subscription that brings such a word
  gets a cut of its own, whose m-list is filled from the list of that word.
- *A dummy* that was missing is filled from the lists of the words of the nearest cut above it, or
  from all messages.
- *A node that is built anew* hands its messages down again. Where k-nodes below it had forgotten
  some, they are found as for a dummy.

So cuts never grow, as they do in the AP-Tree: a word between two cuts may have been forgotten.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.ap_tree.kernels.match import push_cells, push_cuts, rank_tokens
from earshot.indexes.ap_tree.kernels.nodes import (
    KEYWORDS,
    LIST,
    N_NODES,
    cells_of,
    grid_of,
    n_children,
    new_list,
)
from earshot.kernels.box_keys import TOP
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.semantics.moving.ap_plus.kernels.arrays import (
    IS_INCOMPLETE,
    LIST_BLOCK,
    MOST_COPIES,
    N_DEAD,
    N_INNER,
    N_KEPT,
    WANTED_WORDS,
)
from earshot.semantics.moving.kernels.arrays import N_LIVE, N_ROWS
from earshot.semantics.moving.kernels.hashed_lists import BLOCK as WORD_BLOCK
from earshot.semantics.moving.kernels.hashed_lists import (
    append_entry,
    entry_lives,
    entry_name,
    has_word_blocks,
    message_entry,
    sweep_list,
)
from earshot.semantics.moving.kernels.quadtree import (
    SPARE_BLOCKS,
    TREE_BLOCKS,
    TREE_N_FREE,
    free_block,
    new_entry,
)

_AGE = np.int64(0x7FFFFFFF)
_LOW = np.int64(0xFFFFFFFF)
_HIGH_BITS = np.uint64(0x8000_8000_8000_8000)
_LANE_ONES = np.uint64(0x0001_0001_0001_0001)
_FEW_DEAD = 1024


@inlined_kernel
def message_box(messages, row):
    """Return the box of a message; one across the antimeridian has all longitudes."""
    min_x, max_x = messages.boxes[row, 0], messages.boxes[row, 2]
    if min_x > max_x:
        min_x, max_x = -np.inf, np.inf
    return min_x, messages.boxes[row, 1], max_x, messages.boxes[row, 3]


@inlined_kernel
def _step_of(frame, axis, value):
    """Return the step of a coordinate, which never falls as that rises."""
    return np.uint64(min(max((value - frame[axis]) * frame[2 + axis], 0.0), np.float64(TOP)))


@inlined_kernel
def entry_key(frame, min_x, min_y, max_x, max_y):
    """Return the key of a box among the entries of m-lists."""
    return (
        _step_of(frame, 0, min_x)
        | _step_of(frame, 1, min_y) << np.uint64(16)
        | (np.uint64(TOP) - _step_of(frame, 0, max_x)) << np.uint64(32)
        | (np.uint64(TOP) - _step_of(frame, 1, max_y)) << np.uint64(48)
    )


@inlined_kernel
def entry_limit(frame, min_x, min_y, max_x, max_y):
    """Return the limit that only keys of boxes touch which may touch this one."""
    return (
        _step_of(frame, 0, max_x)
        | _step_of(frame, 1, max_y) << np.uint64(16)
        | (np.uint64(TOP) - _step_of(frame, 0, min_x)) << np.uint64(32)
        | (np.uint64(TOP) - _step_of(frame, 1, min_y)) << np.uint64(48)
        | _HIGH_BITS
    )


@inlined_kernel
def is_inside(key, outer):
    """Whether the box of a key lies within another one, both of them rounded; that is not empty."""
    return ((key | _HIGH_BITS) - outer - _LANE_ONES) & _HIGH_BITS == _HIGH_BITS


@inlined_kernel
def has_blocks(lists, n):
    """Whether the m-lists have room for so many more blocks, and some to spare."""
    facts = lists.tree_facts
    return facts[TREE_N_FREE] + len(lists.block_next) - facts[TREE_BLOCKS] >= n + SPARE_BLOCKS


# ---- where a message goes ------------------------------------------------------------------------


@inlined_kernel
def walk_down(facts, rules, tree, walk, messages, row, first):
    """Find the l-nodes that a message visits from a node on, and which nodes are to keep it.

    [VLDBJ15] Algorithm 1 with the limit of section 4.2.4. Returns how many l-nodes and how many
    nodes were visited.
    """
    stack, etas = walk.stack, walk.etas
    box = message_box(messages, row)
    most = np.int64(rules[MOST_COPIES])
    n_ranks, n_kept = np.int64(-1), np.int64(0)  # not ranked yet
    n_reached, n_visited, depth = np.int64(0), np.int64(0), np.int64(1)
    stack[0], etas[0] = first, 0
    while depth > 0:
        depth -= 1
        node, eta = np.int64(stack[depth]), np.int64(etas[depth] >> 1)
        is_kept = np.int64(etas[depth] & 1)
        n_visited += 1
        if tree.kinds[node] == LIST:
            walk.reached[n_reached] = node
            n_reached += 1
            if is_kept == 0:
                walk.kept[n_kept] = node
                n_kept += 1
            continue
        before, n_absent = depth, np.int64(0)
        if tree.kinds[node] == KEYWORDS:
            if n_ranks < 0:
                start = messages.token_starts[row]
                tokens = messages.tokens[start : start + messages.n_tokens[row]]
                n_ranks = rank_tokens(tree.ranks, tokens, walk.ranks, walk.counting)
            depth = push_cuts(tree, node, eta, walk.ranks, n_ranks, stack, etas, depth)
        else:
            depth = push_cells(tree, node, eta, box, stack, etas, depth)
            if is_kept == 0:
                n_absent = _note_absent(tree, walk, node, box, n_kept, most - depth)
        if is_kept == 0 and n_kept + depth + n_absent > most:
            walk.kept[n_kept] = node
            n_kept += 1
            is_kept = np.int64(1)
        else:
            n_kept += n_absent
        for k in range(before, depth):
            etas[k] = etas[k] << 1 | is_kept
    facts[N_KEPT] = n_kept
    return n_reached, n_visited


@lean_kernel
def _note_absent(tree, walk, node, box, n_kept, most):
    """Note the cells without an l-node that a message comes to, if they are few; return how many.

    A count beyond ``most`` says only that there are too many.
    """
    start = tree.starts[node]
    n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
    left, right, bottom, top = cells_of(tree.edges, x_start, n_columns, y_start, n_rows, box)
    n = np.int64(0)
    for y in range(bottom, top + 1):
        for x in range(left, right + 1):
            position = 1 + y * n_columns + x
            if tree.children[start + position] < 0:
                if n_kept + n >= most:
                    return n + 1
                walk.kept[n_kept + n] = position << 32 | node
                n += 1
    return n


@lean_kernel
def add_message(lists, messages, row, node):
    """Put a message into the m-list of a node; there must be room."""
    entry = new_entry(lists, node, LIST_BLOCK)
    min_x, min_y, max_x, max_y = message_box(messages, row)
    lists.entry_keys[entry] = entry_key(lists.frame, min_x, min_y, max_x, max_y)
    lists.entry_words[entry] = messages.words[row]
    lists.entry_rows[entry] = row
    lists.entry_ages[entry] = messages.sequences[row] & _AGE


@inlined_kernel
def lives(lists, messages, entry):
    """Whether the message of an entry has not ended."""
    sequence = messages.sequences[lists.entry_rows[entry]]
    return sequence >= 0 and sequence & _AGE == lists.entry_ages[entry]


@lean_kernel
def keep_message(facts, tree, lists, walk, messages, row):
    """Put a message into the m-lists of the nodes that are to keep it."""
    for i in range(facts[N_KEPT]):
        node, position = walk.kept[i] & _LOW, walk.kept[i] >> 32
        if position > 0:
            child = new_list(tree, node, position)
            tree.children[tree.starts[node] + position] = child
            node = child
        facts[N_INNER] += tree.kinds[node] != LIST
        add_message(lists, messages, row, node)


@lean_kernel
def note_words(facts, words, messages, row):
    """Put a message into the lists of its words."""
    start, n = messages.token_starts[row], np.int64(messages.n_tokens[row])
    if not has_word_blocks(words, n):
        facts[IS_INCOMPLETE] = 1
        return
    entry = message_entry(messages, row)
    for i in range(start, start + n):
        if messages.tokens[i] != 0:
            append_entry(words, messages.tokens[i], entry)


# ---- filling lists -------------------------------------------------------------------------------


@lean_kernel
def _lowest_rank(tree, messages, row, first, last):
    """Return the token of the lowest rank between two that a message has, -1 where it has none."""
    start = messages.token_starts[row]
    best, token = np.int64(last) + 1, np.int64(-1)
    for i in range(start, start + messages.n_tokens[row]):
        rank = np.int64(tree.ranks[messages.tokens[i]])
        if first <= rank < best:
            best, token = rank, np.int64(messages.tokens[i])
    return token


@lean_kernel
def _comes_to(tree, messages, row, node):
    """Whether a message comes to a node, from what the nodes above say; some more may."""
    box = message_box(messages, row)
    while tree.parents[node] >= 0:
        parent, position = np.int64(tree.parents[node]), np.int64(tree.positions[node])
        node = parent
        if position == 0:
            continue
        if tree.kinds[parent] == KEYWORDS:
            cut = tree.extras[parent] + position - 1
            if _lowest_rank(tree, messages, row, tree.firsts[cut], tree.lasts[cut]) < 0:
                return False
            continue
        n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[parent], tree.extras[parent])
        left, right, bottom, top = cells_of(tree.edges, x_start, n_columns, y_start, n_rows, box)
        x, y = (position - 1) % n_columns, (position - 1) // n_columns
        if not (left <= x <= right and bottom <= y <= top):
            return False
    return True


@lean_kernel
def _region_of(tree, node):
    """Return a box that all messages touch which come to a node: what its cells have in common."""
    min_x, min_y, max_x, max_y = -np.inf, -np.inf, np.inf, np.inf
    while tree.parents[node] >= 0:
        parent, position = np.int64(tree.parents[node]), np.int64(tree.positions[node])
        node = parent
        if position == 0 or tree.kinds[parent] == KEYWORDS:
            continue
        n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[parent], tree.extras[parent])
        x, y = (position - 1) % n_columns, (position - 1) // n_columns
        if x > 0:
            min_x = max(min_x, tree.edges[x_start + x])
        if x < n_columns - 1:
            max_x = min(max_x, tree.edges[x_start + x + 1])
        if y > 0:
            min_y = max(min_y, tree.edges[y_start + y])
        if y < n_rows - 1:
            max_y = min(max_y, tree.edges[y_start + y + 1])
    return min_x, min_y, max_x, max_y


@inlined_kernel
def _is_within_reach(messages, row, region):
    """Whether a message touches a region. Of those that have a word, most do not."""
    min_x, min_y, max_x, max_y = message_box(messages, row)
    return min_x <= region[2] and min_y <= region[3] and max_x >= region[0] and max_y >= region[1]


@lean_kernel
def _collect_word(tree, words, messages, node, token, first, last, rows, n):
    """Write messages of a word that come to a node, if no word before it brought them."""
    region = _region_of(tree, node)
    size, block = words.lists[token, 1], words.lists[token, 0]
    in_block = (size - 1) % WORD_BLOCK + 1
    at = np.int64(0)
    while at < size:
        for k in range(in_block):
            entry = block if size == 1 else words.block_entries[block * WORD_BLOCK + k]
            row = entry_name(entry)
            if (
                _is_within_reach(messages, row, region)
                and entry_lives(messages, entry)
                and (first == last or _lowest_rank(tree, messages, row, first, last) == token)
                and _comes_to(tree, messages, row, node)
            ):
                rows[n] = row
                n += 1
        at += in_block
        if at < size:
            block, in_block = np.int64(words.block_next[block]), WORD_BLOCK
    return n


@lean_kernel
def collect_messages(facts, tree, words, messages, node, token, rows):
    """Write the live messages that come to a node, with a token if one is given; return how many.

    Without one, the words of the nearest cut above lead to them.
    """
    first, last, at = np.int64(0), np.int64(-1), node
    if token >= 0:
        first = last = np.int64(tree.ranks[token])
    while last < first and tree.parents[at] >= 0:
        parent, position = np.int64(tree.parents[at]), np.int64(tree.positions[at])
        if tree.kinds[parent] == KEYWORDS and position > 0:
            cut = tree.extras[parent] + position - 1
            first, last = np.int64(tree.firsts[cut]), np.int64(tree.lasts[cut])
            break
        at = parent
    n = np.int64(0)
    has_all = first <= tree.ranks[0] <= last or first > last
    if not has_all and facts[IS_INCOMPLETE] == 0:
        if token > 0:
            return _collect_word(tree, words, messages, node, token, first, last, rows, n)
        for other in range(1, len(words.lists)):
            if first <= tree.ranks[other] <= last and words.lists[other, 1] > 0:
                n = _collect_word(tree, words, messages, node, other, first, last, rows, n)
        return n
    region = _region_of(tree, node)
    for row in range(messages.facts[N_ROWS]):
        if messages.sequences[row] < 0 or not _is_within_reach(messages, row, region):
            continue
        if token >= 0 and _lowest_rank(tree, messages, row, first, last) < 0:
            continue
        if _comes_to(tree, messages, row, node):
            rows[n] = row
            n += 1
    return n


# ---- lists below a node --------------------------------------------------------------------------


@lean_kernel
def lift_messages(tree, lists, places, stack, messages, node, rows):
    """Take all messages out of the m-lists of a node and of those below it; forget who is there.

    Writes those that live to ``rows``, some more than once, while there is room. Returns how many
    there were, and whether that is all that come to the node; takes none out if ``rows`` is empty.
    """
    n, depth, is_whole = np.int64(0), np.int64(1), True
    stack[0] = node
    while depth > 0:
        depth -= 1
        at = np.int64(stack[depth])
        if tree.kinds[at] != LIST:
            is_whole &= tree.kinds[at] != KEYWORDS
            for k in range(n_children(tree.kinds[at], tree.sizes[at])):
                child = tree.children[tree.starts[at] + k]
                if child >= 0:
                    stack[depth] = child
                    depth += 1
        if len(rows) == 0:
            n += lists.node_sizes[at]
            continue
        if tree.kinds[at] == LIST:
            for k in range(tree.starts[at], tree.starts[at] + tree.n_below[at]):
                places.homes[tree.rows[k]] = places.nodes[tree.rows[k], 0] = -1
        block, in_block = (
            np.int64(lists.node_blocks[at]),
            (lists.node_sizes[at] - 1) % LIST_BLOCK + 1,
        )
        while block >= 0:
            for entry in range(block * LIST_BLOCK, block * LIST_BLOCK + in_block):
                if lives(lists, messages, entry):
                    rows[n] = lists.entry_rows[entry]
                    n += 1
            following, in_block = np.int64(lists.block_next[block]), LIST_BLOCK
            free_block(lists, block)
            block = following
        lists.node_blocks[at], lists.node_sizes[at] = -1, 0
    return n, is_whole


@lean_kernel
def hand_down(core, messages, node, rows, first):
    """Let messages come to a node and be kept below; return the first that has no room."""
    facts, tree, lists, walk = core.facts, core.tree, core.lists, core.walk
    most = np.int64(core.rules[MOST_COPIES])
    for i in range(first, len(rows)):
        row = np.int64(rows[i])
        if not has_blocks(lists, most) or tree.facts[N_NODES] + most > len(tree.kinds):
            return i
        walk_down(facts, core.rules, tree, walk, messages, row, node)
        keep_message(facts, tree, lists, walk, messages, row)
    return len(rows)


@lean_kernel
def fill_words(facts, words, messages, first):
    """Put live messages from a row on into the lists of words; return the first without room."""
    for row in range(first, messages.facts[N_ROWS]):
        if messages.sequences[row] >= 0:
            if not has_word_blocks(words, messages.n_tokens[row]):
                facts[WANTED_WORDS] = messages.n_tokens[row]
                return row
            note_words(facts, words, messages, row)
    return messages.facts[N_ROWS]


# ---- messages that have ended --------------------------------------------------------------------


@lean_kernel
def _sweep_node(lists, messages, node):
    size, block = lists.node_sizes[node], np.int64(lists.node_blocks[node])
    in_block = (size - 1) % LIST_BLOCK + 1
    lists.node_blocks[node], lists.node_sizes[node] = -1, 0
    while block >= 0:
        for entry in range(block * LIST_BLOCK, block * LIST_BLOCK + in_block):
            if lives(lists, messages, entry):
                target = new_entry(lists, node, LIST_BLOCK)
                lists.entry_keys[target] = lists.entry_keys[entry]
                lists.entry_words[target] = lists.entry_words[entry]
                lists.entry_rows[target] = lists.entry_rows[entry]
                lists.entry_ages[target] = lists.entry_ages[entry]
        following, in_block = np.int64(lists.block_next[block]), LIST_BLOCK
        free_block(lists, block)
        block = following


@inlined_kernel
def has_many_dead(facts, messages):
    """Whether it is time to take messages that have ended out of all lists."""
    return facts[N_DEAD] > max(_FEW_DEAD, messages.facts[N_LIVE])


@lean_kernel
def sweep_messages(facts, tree, lists, words, messages):
    """Take all messages that have ended out of all lists.

    [VLDBJ15] section 4.2.3, LazyMessagesDeletion: here when as many are dead as alive.
    """
    for node in range(tree.facts[N_NODES]):
        if lists.node_sizes[node] > 0:
            _sweep_node(lists, messages, node)
    for token in range(len(words.lists)):
        if words.lists[token, 1] > 0:
            sweep_list(words, messages, token)
    facts[N_DEAD] = 0
