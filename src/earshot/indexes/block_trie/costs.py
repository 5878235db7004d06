"""Filling the tables that tell what a message costs; ``CostTables`` describes them."""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.arrays import BlockTrieArrays, CostTables
from earshot.indexes.block_trie.kernels.choosing import (
    MOST_CELL_BITS,
    N_STEPS,
    fill_block_sums,
    fill_list_blocks,
    sample_places,
)
from earshot.kernels.box_keys import BLOCK, fill_steps
from earshot.model.arrays import Float64s, Int32s

N_SAMPLED_TOKENS, N_SAMPLED_PLACES = 4096, 512
MILLION = 1_000_000


def empty_tables(n_clauses: int) -> CostTables:
    """Return tables for an index of that many clauses, to be filled."""
    n_blocks = (n_clauses + BLOCK - 1) // BLOCK
    cell_bits = min(max((n_blocks.bit_length() + 1) // 2, 1), MOST_CELL_BITS)
    return CostTables(
        x_steps=np.empty(N_STEPS + 1, np.int32),
        y_steps=np.empty(N_STEPS + 1, np.int32),
        scales=np.zeros(4),
        cell_bits=np.array([cell_bits], np.int64),
        block_sums=np.empty(4 << (2 * cell_bits), np.int32),
        block_share=np.ones(1),
        typical_blocks=np.zeros(1),
        list_blocks=np.zeros(32),
        list_length=np.zeros(1),
        first_blocks=np.zeros(32),
        deeper_entries=np.zeros(32),
    )


def fill_tables(arrays: BlockTrieArrays, boxes: Float64s, frequencies: Int32s) -> None:
    """Fill the tables of an index whose other arrays are whole."""
    costs, n_clauses = arrays.costs, len(boxes)
    n_blocks = (n_clauses + BLOCK - 1) // BLOCK
    fill_steps(arrays.quantizer.x_bounds, costs.x_steps, costs.scales, 0)
    fill_steps(arrays.quantizer.y_bounds, costs.y_steps, costs.scales, 1)
    cell_bits = int(costs.cell_bits[0])
    if n_clauses > BLOCK:
        first = int(arrays.root_summary[0])
        fill_block_sums(arrays.summary_keys, first, n_blocks, cell_bits, costs.block_sums)
    else:  # too few for summaries: each clause stands for a block
        fill_block_sums(arrays.keys, n_clauses, n_clauses, cell_bits, costs.block_sums)
    rows = np.arange(0, n_clauses, max(n_clauses // N_SAMPLED_PLACES, 1))
    frontier = np.empty(2 * (n_blocks + 2 * BLOCK), np.int32)
    costs.block_share[0], costs.typical_blocks[0] = sample_places(
        arrays, n_clauses, boxes, rows, frontier
    )
    totals = np.cumsum(frequencies)
    if n_clauses > 0 and totals[-1] > 0:
        places = (np.arange(N_SAMPLED_TOKENS) + 0.5) * (totals[-1] / N_SAMPLED_TOKENS)
        tokens = np.searchsorted(totals, places, side="right")
        length = fill_list_blocks(
            arrays, tokens, frequencies, n_blocks,
            costs.list_blocks, costs.first_blocks, costs.deeper_entries,
        )  # fmt: skip
        costs.list_length[0] = length * (MILLION / n_clauses)
