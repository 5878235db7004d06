"""Arrays of :mod:`earshot.indexes.block_trie.index`, which describes the structure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.kernels.box_keys import Quantizer
from earshot.kernels.jit import inlined_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s

# Columns of ``nodes``; the eighth is spare, so that a node never straddles a cache line.
START, N_COMPLETE, N_OPEN, FIRST_CHILD, N_CHILDREN, COMPLETE_SUMMARY, OPEN_SUMMARY = range(7)
NODE_COLUMNS = 8

# Columns of ``roots``. Most tokens lead to a list or two of few entries, for which a node would be
# too large: the second column says how long they are, and up to two tokens that one must have.
WHERE, KIND = range(2)
ROOT_COLUMNS = 2
NO_ROOT, IS_NODE = -1, -1
COUNT_BITS = 5  # of either list's length in the second column
HAS_TOKENS = 1 << (2 * COUNT_BITS)
TOKEN_BITS = 9  # of a token in the second column: those that the signature of a message goes by
FIRST_TOKEN_BIT, SECOND_TOKEN_BIT = 2 * COUNT_BITS + 1, 2 * COUNT_BITS + 1 + TOKEN_BITS
COUNT_MASK, TOKEN_MASK = (1 << COUNT_BITS) - 1, (1 << TOKEN_BITS) - 1

# What a clause is, while an index is built: see ``find_kinds``.
SIMPLE, SEVERAL = 1, 2

CODE_COLUMNS = 4
"""Tokens, rarest first, that the root list knows of an entry. With 2 of them long messages took a
quarter longer in groups, with 1 twice as long."""
N_CODES = SIGNATURE_WORDS * 64
N_EXACT_CODES = N_CODES // 2
NO_CODE = N_CODES - 1


class CostTables(NamedTuple):
    """What tells a message's cell, and what it costs, before anything is walked."""

    x_steps: (
        Int32s  # (N_STEPS + 1,) bounds below each of equal steps between the first and the last
    )
    y_steps: Int32s  # the same of the other axis
    scales: Float64s  # (4,) first x, steps per unit of x; the same of y; 0 steps: do not use them
    cell_bits: Int64s  # (1,) of either axis of the histogram
    block_sums: Int32s  # (4 << 2 * cell_bits,) see ``count_blocks``
    block_share: Float64s  # (1,) of a cell's blocks, those that touch a place within it
    typical_blocks: Float64s  # (1,) of the root list, that touch a place
    list_blocks: Float64s  # (32,) see ``fill_list_blocks``
    list_length: Float64s  # (1,) mean length of the complete list that a token opens, of a million
    first_blocks: Float64s  # (32,) see ``fill_list_blocks``
    deeper_entries: Float64s  # (32,) see ``fill_list_blocks``


class BlockTrieArrays(NamedTuple):
    """The trie, its lists and the summaries over the lists."""

    quantizer: Quantizer
    costs: CostTables
    # (n_tokens * ROOT_COLUMNS,) by first token: NO_ROOT; or a node and IS_NODE; or, where lists are
    # short, where they start and what they are (see ``kind_of``).
    roots: Int32s
    node_tokens: Int32s  # (n_nodes + BLOCK,) last token of the node's path; siblings ascending
    nodes: Int32s  # (n_nodes * NODE_COLUMNS,)
    keys: npt.NDArray[np.uint64]  # (2 * n_clauses + BLOCK,) lists of the nodes, root list, padding
    # Slot in a complete list, clause in the others; complemented where the slot has several.
    entry_rows: Int32s  # (2 * n_clauses + BLOCK,)
    # In an open list, what is left to verify: t >= 0 only the next token t; t < -1 the next token
    # -t - 2 and more; -1 something else than tokens. The root list has none.
    entry_tokens: Int32s  # (n_clauses + BLOCK,)
    # In the root list, codes of the first tokens to verify: of the first token of 16 entries, then
    # of the second, and so on; NO_CODE where there is none.
    root_codes: npt.NDArray[np.uint16]  # (n_blocks * BLOCK * CODE_COLUMNS,)
    root_checks: npt.NDArray[np.uint16]  # (n_blocks,) a bit per entry that codes do not decide
    summary_keys: npt.NDArray[np.uint64]  # (n_summaries + BLOCK,) lowest level first, list by list
    slot_clauses: Int32s  # (n_slots,) a clause of each slot; empty where clause i is slot i
    longest_list: Int64s  # (1,)
    root_summary: Int64s  # (1,) where the summary keys of the root list begin


class BlockTrieScratch(NamedTuple):
    """Working memory of one thread that matches message by message."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,)
    signature: npt.NDArray[np.uint32]  # (N_CODES / 32,) a bit per code
    low_signature: npt.NDArray[np.uint32]  # (16,) a bit for the low nine bits of each token
    high_signature: npt.NDArray[np.uint32]  # (16,) a bit for the next nine
    pending: Int32s  # (PENDING,) entries that are still to be verified
    frontier: Int32s  # two halves, each for the blocks of one level of the longest list
    stack: Int32s  # (n_nodes + n_tokens + 1,) nodes and short lists that a message reaches
    # Blocks to be read, or in which keys touch: their first entries, and how many entries are left,
    # or which keys touch. Twice as long as half of the frontier, and HITS more.
    blocks: Int32s
    open_blocks: Int32s
    hits: Int32s
    seen: npt.NDArray[np.uint64]  # a bit per slot, 0 between messages; empty without repeats
    delta_last_seen: Int64s  # (>= slots of the delta,) the same for those
    serial: Int64s  # (1,) number of messages matched with this scratch so far


@inlined_kernel
def plain_row(row):
    """Return the slot or clause that a row of an entry names."""
    return np.int64(row if row >= 0 else ~row)


@inlined_kernel
def code_of(token):
    """Return the code of a token: its own for small ids, which are mostly the frequent words."""
    shared = N_EXACT_CODES | min(token & (N_EXACT_CODES - 1), N_EXACT_CODES - 2)
    return token if token < N_EXACT_CODES else shared
