"""Kernels of :mod:`earshot.engine.ids`: a hash table from ids to slots.

An id is a string of bytes: ``data[offsets[i]:offsets[i + 1]]``, or eight bytes at ``8 * i`` where
``offsets`` is empty (integers). The table is open addressing with linear probing:

    table  int32 (2**k,)  row of an id, FREE, or GONE where an id was removed
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.processor import prefetch

FREE = -1
GONE = -2
_INTEGER_BYTES = 8
_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_AHEAD = 32


@kernel
def _span(offsets, i):
    if len(offsets) == 0:
        return i * _INTEGER_BYTES, (i + 1) * _INTEGER_BYTES
    return offsets[i], offsets[i + 1]


@kernel
def _hash(data, start, stop):
    value = _OFFSET_BASIS
    for i in range(start, stop):
        value = (value ^ np.uint64(data[i])) * _PRIME
    value *= _MIX  # the low bits of the plain hash are too regular for a power-of-two table
    return np.int64((value ^ (value >> _HALF)) & np.uint64(0x7FFFFFFFFFFFFFFF))


@kernel
def _same(data_a, start_a, stop_a, data_b, start_b, stop_b):
    if stop_a - start_a != stop_b - start_b:
        return False
    for k in range(stop_a - start_a):
        if data_a[start_a + k] != data_b[start_b + k]:
            return False
    return True


@kernel
def enter_ids(table, data, offsets, rows):
    """Enter the stored ids of rows; return how many went in before one that was there."""
    mask = len(table) - 1
    for i in range(len(rows)):
        row = rows[i]
        start, stop = _span(offsets, row)
        place = _hash(data, start, stop) & mask
        target = np.int64(-1)
        while table[place] != FREE:
            held = table[place]
            if held == GONE:
                target = place if target < 0 else target
            else:
                held_start, held_stop = _span(offsets, held)
                if _same(data, start, stop, data, held_start, held_stop):
                    return i
            place = (place + 1) & mask
        table[place if target < 0 else target] = row
    return len(rows)


@kernel
def find_ids(table, data, offsets, wanted, wanted_offsets, places, rows):
    """Fill where in the table each wanted id stands, and its row; -1 where it does not."""
    mask = len(table) - 1
    for i in range(len(places)):
        start, stop = _span(wanted_offsets, i)
        place = _hash(wanted, start, stop) & mask
        places[i] = rows[i] = -1
        while table[place] != FREE:
            held = table[place]
            if held != GONE:
                held_start, held_stop = _span(offsets, held)
                if _same(wanted, start, stop, data, held_start, held_stop):
                    places[i], rows[i] = place, held
                    break
            place = (place + 1) & mask


@lean_kernel
def gather_ids(first, n, values, others, slots, out):
    """Fill ``out`` with the integers of slots: the first ``n`` ascend, ``others`` come after them.

    Where there are no ``values``, those that ascend are in sequence from ``first`` on. The slots
    lie scattered, so that what is stored is asked for ahead.
    """
    n_slots = len(slots)
    for i in range(n_slots):
        if i + _AHEAD < n_slots:
            ahead = slots[i + _AHEAD]
            if ahead >= n:
                prefetch(others, ahead - n)
            elif len(values) > 0:
                prefetch(values, ahead)
        slot = slots[i]
        if slot >= n:
            out[i] = others[slot - n]
        else:
            out[i] = values[slot] if len(values) > 0 else first + slot
