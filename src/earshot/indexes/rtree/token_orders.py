"""Which token of a clause comes first: the orders of [KDD13] §4.2 and [TKDE15] §4.2."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidParameter
from earshot.indexes.rtree.kernels.token_orders import (
    DF,
    IDF,
    LOCAL,
    N_PAIRS,
    ORDER,
    RANDOM,
    X_CELLS,
    Y_CELLS,
    TokenOrderArrays,
    add_pairs,
    add_tokens,
    count_pairs,
    greedy_ranks,
    grown_pairs,
)
from earshot.kernels.box_keys import Quantizer
from earshot.kernels.growing import with_room
from earshot.model.arrays import ClauseArrays, Int64s

TokenOrder = Literal["random", "df", "idf", "local"]
"""``random``: any order, another one for each clause. ``df``: the greedy hitting set, which shares
as many tokens as it can. ``idf``: rare tokens first. ``local``: tokens first that are rare where
the clause is, by counts in the cells of a grid."""

TOKEN_ORDERS: tuple[TokenOrder, ...] = get_args(TokenOrder)
_KINDS: dict[str, int] = {"random": RANDOM, "df": DF, "idf": IDF, "local": LOCAL}

MAX_CELLS = 1_000_000
_FULL = 0.7  # share of the places of the table of pairs that may be taken


def check_order(order: str, n_cells: int) -> None:
    """Refuse an order that there is not, or a grid that cannot be."""
    if order not in TOKEN_ORDERS:
        raise InvalidParameter(
            f"token_order is {order!r}; expected one of {', '.join(TOKEN_ORDERS)}"
        )
    if isinstance(n_cells, bool) or not isinstance(n_cells, int) or not 1 <= n_cells <= MAX_CELLS:
        raise InvalidParameter(f"n_cells is {n_cells!r}; expected 1 to {MAX_CELLS:,}")


def build_order(
    order: TokenOrder,
    n_cells: int,
    seed: int,
    clauses: ClauseArrays,
    quantizer: Quantizer,
    keys: npt.NDArray[np.uint64],
    frequencies: Int64s,
) -> TokenOrderArrays:
    """Count what an order needs to know about the clauses, whose box keys are given."""
    arrays = TokenOrderArrays(
        ranks=np.empty(0, np.float64),
        shares=np.empty(0, np.float32),
        cell_totals=np.empty(0, np.int32),
        pairs=np.empty(0, np.int64),
        pair_counts=np.empty(0, np.int32),
        facts=np.array([_KINDS[order], max(1, round(n_cells**0.5)), seed, 0, 1, 1], np.int64),
    )
    follow_quantizer(arrays, quantizer)
    if order == "df":
        return arrays._replace(ranks=greedy_ranks(clauses, len(frequencies)))
    if order == "idf":
        return arrays._replace(ranks=frequencies.astype(np.float64))
    if order == "local":
        n_places = int(len(clauses.token_ids) * 1.6) + 16
        pairs, counts, totals, n_pairs = count_pairs(clauses, keys, arrays.facts, n_places)
        arrays.facts[N_PAIRS] = n_pairs
        # Token 0 is in every message but in few clauses, and is always alone in its clause.
        total = max(float(frequencies[1:].sum(dtype=np.float64)), 1.0)
        return arrays._replace(
            shares=(frequencies / total).astype(np.float32),
            cell_totals=totals,
            pairs=pairs,
            pair_counts=counts,
        )
    return arrays


def follow_quantizer(arrays: TokenOrderArrays, quantizer: Quantizer) -> None:
    """Let an order know how many cells box keys tell apart."""
    arrays.facts[X_CELLS] = len(quantizer.x_bounds) + 2
    arrays.facts[Y_CELLS] = len(quantizer.y_bounds) + 2


def count_clauses(
    arrays: TokenOrderArrays,
    clauses: ClauseArrays,
    keys: npt.NDArray[np.uint64],
    first: int,
    stop: int,
    n_tokens: int,
) -> TokenOrderArrays:
    """Let an order know of clauses ``first`` to ``stop``, for those that come after them.

    Their own order is settled before and stays as it is.
    """
    kind = arrays.facts[ORDER]
    if kind == IDF:
        arrays = arrays._replace(ranks=with_room(arrays.ranks, n_tokens))
        add_tokens(arrays, clauses, first, stop)
    if kind != LOCAL:
        return arrays
    n_new = int(clauses.token_offsets[stop] - clauses.token_offsets[first])
    while arrays.facts[N_PAIRS] + n_new > _FULL * len(arrays.pairs):
        pairs, counts = grown_pairs(arrays.pairs, arrays.pair_counts)
        arrays = arrays._replace(pairs=pairs, pair_counts=counts)
    add_pairs(arrays, clauses, keys, first, stop)
    return arrays
