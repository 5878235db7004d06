"""Structures for moving subscribers by the type of their arrays: which kernels are theirs.

A structure has a line in :data:`KERNELS`; the kernels of events call the functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from earshot.kernels.choosing import chooses
from earshot.kernels.compiled import depends
from earshot.semantics.moving.ap_plus.kernels import arrays as ap_plus
from earshot.semantics.moving.ap_plus.kernels import search as ap_search
from earshot.semantics.moving.kernels import cell_lists, cell_search, quad_lists, scan


def has_room(structure: Any, tables: Any, n: int) -> bool:
    """Whether one more message and a subscription of ``n`` alternatives have room; for kernels."""
    raise NotImplementedError


def find(structure: Any, tables: Any, scratch: Any, row: int) -> None:
    """Find the slots that hold a message whose tokens are marked, each once; for kernels."""
    raise NotImplementedError


def search(structure: Any, tables: Any, scratch: Any, slot: int) -> None:
    """Find the messages that one region of the query holds alone, each once; for kernels."""
    raise NotImplementedError


def put_message(structure: Any, tables: Any, row: int) -> None:
    """Take a message in; for kernels."""
    raise NotImplementedError


def drop_message(structure: Any, tables: Any, row: int) -> None:
    """Forget a message; for kernels."""
    raise NotImplementedError


def put_slot(structure: Any, tables: Any, slot: int) -> bool:
    """Take a subscription in; False where there is no room, and nothing has changed."""
    raise NotImplementedError


def drop_slot(structure: Any, tables: Any, slot: int) -> None:
    """Forget a subscription; for kernels."""
    raise NotImplementedError


def moved_slot(structure: Any, tables: Any, slot: int) -> bool:
    """Follow a subscription to where it is now; False where there is no room, as above."""
    raise NotImplementedError


def foresee_slot(structure: Any, tables: Any, slot: int, step: int) -> None:
    """Ask for memory of a subscription that moves soon, in steps from 0 to 2; for kernels.

    Each may read what the one before asked for.
    """
    raise NotImplementedError


def reach_of(
    structure: Any, tables: Any, scratch: Any, slot: int, x: float, y: float, most: float,
    least: float,
) -> float:  # fmt: skip
    """Return how far from a place nothing changes, up to ``most``; 0 if less than ``least``."""
    raise NotImplementedError


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    has_room, find, search, put_message, drop_message, put_slot, drop_slot, moved_slot,
    foresee_slot, reach_of,
)  # fmt: skip
KERNELS: dict[type, tuple[Any, ...]] = {
    quad_lists.QuadListsArrays: quad_lists.KERNELS,
    ap_plus.ApPlusArrays: ap_search.KERNELS,
    ap_plus.ApSafeArrays: ap_search.SAFE_KERNELS,
    ap_plus.ApSeparateArrays: ap_search.SEPARATE_KERNELS,
    cell_lists.CellListsArrays: cell_search.KERNELS,
    scan.ScanArrays: scan.KERNELS,
}
"""The kernels of each structure, in the order of the functions above."""
for _arrays_type, _kernels in KERNELS.items():
    depends(_arrays_type, *_kernels)


for _number, _function in enumerate(_FUNCTIONS):
    chooses(_function, {arrays_type: kernels[_number] for arrays_type, kernels in KERNELS.items()})
