"""Segments of the index over the window: how they are built, and how an entry is found in one.

:class:`~earshot.semantics.topk.kernels.arrays.SegmentArrays` says what they are made of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.kernels.jit import inlined_kernel, kernel
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import (
    Float32s,
    SegmentArrays,
    UInt32s,
    UInt64s,
    WindowArrays,
)
from earshot.semantics.topk.kernels.curves import curve_keys, stable_order
from earshot.semantics.topk.kernels.scoring import distance
from earshot.semantics.topk.kernels.window import signature_bit

BLOCK = 16
"""Postings under one sphere."""

GROUP = 16
"""Blocks under one sphere."""

LEAST_BLOCKED = 32
"""Lists shorter than this have no blocks."""


@inlined_kernel
def _mixed(token: int) -> int:
    """Return a token id with its bits mixed: evenly spread, so entries are sorted by it."""
    return int(np.uint64(token) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32))


@inlined_kernel
def find_entry(segments: SegmentArrays, segment: int, token: int) -> int:
    """Return the entry of a token in a segment, or -1."""
    first = segments.bucket_offsets[segment]
    n_buckets = segments.bucket_offsets[segment + 1] - first - 1
    bucket = first + (_mixed(token) * n_buckets >> 32)
    base = segments.entry_offsets[segment]
    for entry in range(base + segments.buckets[bucket], base + segments.buckets[bucket + 1]):
        if segments.tokens[entry] == token:
            return entry
    return -1


@kernel
def fit_sphere(places: Float64s, rows: Int64s, start: int, stop: int, sphere: Float32s) -> None:
    """Set a sphere, in single precision, that has the places of ``rows[start:stop]`` inside."""
    centre = np.zeros(3)
    for axis in range(3):
        low, high = np.inf, -np.inf
        for i in range(start, stop):
            low = min(low, places[rows[i], axis])
            high = max(high, places[rows[i], axis])
        sphere[axis] = np.float32(0.5 * (low + high))
        centre[axis] = np.float64(sphere[axis])
    radius = 0.0
    for i in range(start, stop):
        apart = distance(
            places[rows[i], 0], places[rows[i], 1], places[rows[i], 2],
            centre[0], centre[1], centre[2],
        )  # fmt: skip
        radius = max(radius, apart)
    # Rounded to single precision, it must not shrink.
    sphere[3] = np.float32(radius * 1.000001)


@kernel
def frame_of(places: Float64s) -> Float64s:
    """Return the frame of cells that places are in: corner, sides of a cell, its half diagonal.

    The corner is the middle of the first cell.
    """
    frame = np.zeros(7)
    square = 0.0
    for axis in range(3):
        low, high = places[:, axis].min(), places[:, axis].max()
        side = (high - low) / (1023.0 if axis == 2 else 2047.0)
        frame[axis] = low
        frame[3 + axis] = side
        square += (0.5 * side) ** 2
        # What rounding may add.
        frame[6] += 1e-12 * max(abs(low), abs(high))
    frame[6] += 1.000001 * np.sqrt(square)
    return frame


@inlined_kernel
def _cell_of(frame: Float64s, places: Float64s, row: int) -> int:
    cell = 0
    for axis in range(3):
        if frame[3 + axis] > 0.0:
            number = int((places[row, axis] - frame[axis]) / frame[3 + axis] + 0.5)
            cell |= min(number, 1023 if axis == 2 else 2047) << 11 * axis
    return cell


class Segment(NamedTuple):
    """The lists of one segment, to be appended to :class:`SegmentArrays`; offsets from 0."""

    tokens: Int32s
    posting_offsets: Int64s
    block_offsets: Int64s
    group_offsets: Int64s
    largest: Float32s
    messages: Int32s
    weights: Float32s
    signatures: UInt64s
    cells: UInt32s
    block_spheres: Float32s
    block_largest: Float32s
    group_spheres: Float32s
    group_largest: Float32s
    buckets: Int32s
    frame: Float64s


@kernel
def _fit_spheres(
    places: Float64s, rows: Int64s, weights: Float32s, start: int, stop: int, step: int,
    first: int, spheres: Float32s, largest: Float32s,
) -> int:  # fmt: skip
    """Set a sphere and the largest weight for every ``step`` postings; return the next number."""
    for low in range(start, stop, step):
        high = min(low + step, stop)
        fit_sphere(places, rows, low, high, spheres[first])
        largest[first] = weights[low:high].max()
        first += 1
    return first


@kernel
def build_segment(window: WindowArrays, first: int, stop: int) -> Segment:
    """Return the lists of the messages in rows ``first:stop``."""
    order = np.argsort(curve_keys(window.places[first:stop]))
    n_postings = window.token_offsets[stop] - window.token_offsets[first]
    tokens = np.empty(n_postings, np.int32)
    owners = np.empty(n_postings, np.int32)
    sources = np.empty(n_postings, np.int64)
    signature_of = np.zeros(stop - first, np.uint64)
    n = 0
    for i in range(len(order)):
        row = first + order[i]
        for at in range(window.token_offsets[row], window.token_offsets[row + 1]):
            tokens[n], owners[n], sources[n] = window.tokens[at], order[i], at
            signature_of[order[i]] |= signature_bit(window.tokens[at])
            n += 1
    keys = np.empty(n_postings, np.int64)
    for i in range(n):
        keys[i] = _mixed(tokens[i])
    by_token = stable_order(keys)
    n_entries, n_blocks, n_groups, length = 0, 0, 0, 0
    for i in range(n):
        length += 1
        if i + 1 == n or tokens[by_token[i + 1]] != tokens[by_token[i]]:
            n_entries += 1
            if length >= LEAST_BLOCKED:
                n_blocks += (length + BLOCK - 1) // BLOCK
                n_groups += (length + GROUP * BLOCK - 1) // (GROUP * BLOCK)
            length = 0
    new = Segment(
        np.empty(n_entries, np.int32),
        np.zeros(n_entries + 1, np.int64),
        np.zeros(n_entries + 1, np.int64),
        np.zeros(n_entries + 1, np.int64),
        np.zeros(n_entries, np.float32),
        np.empty(n, np.int32),
        np.empty(n, np.float32),
        np.empty(n, np.uint64),
        np.empty(n, np.uint32),
        np.empty((n_blocks, 4), np.float32),
        np.zeros(n_blocks, np.float32),
        np.empty((n_groups, 4), np.float32),
        np.zeros(n_groups, np.float32),
        np.zeros(n_entries // 2 + 2, np.int32),
        frame_of(window.places[first:stop]),
    )
    cell_of = np.empty(stop - first, np.uint32)
    for row in range(first, stop):
        cell_of[row - first] = _cell_of(new.frame, window.places, row)
    rows = np.empty(n, np.int64)
    entry, block, group = 0, 0, 0
    for i in range(n):
        source = by_token[i]
        new.messages[i] = owners[source]
        rows[i] = first + owners[source]
        new.weights[i] = window.weights[sources[source]]
        new.signatures[i] = signature_of[owners[source]]
        new.cells[i] = cell_of[owners[source]]
        new.largest[entry] = max(new.largest[entry], new.weights[i])
        if i + 1 < n and tokens[by_token[i + 1]] == tokens[source]:
            continue
        new.tokens[entry] = tokens[source]
        new.posting_offsets[entry + 1] = i + 1
        start = new.posting_offsets[entry]
        if i + 1 - start >= LEAST_BLOCKED:
            block = _fit_spheres(
                window.places, rows, new.weights, start, i + 1, BLOCK, block, new.block_spheres,
                new.block_largest,
            )  # fmt: skip
            group = _fit_spheres(
                window.places, rows, new.weights, start, i + 1, GROUP * BLOCK, group,
                new.group_spheres, new.group_largest,
            )  # fmt: skip
        new.block_offsets[entry + 1] = block
        new.group_offsets[entry + 1] = group
        entry += 1
    n_buckets = len(new.buckets) - 1
    for entry in range(n_entries):
        new.buckets[(_mixed(new.tokens[entry]) * n_buckets >> 32) + 1] += 1
    for bucket in range(n_buckets):
        new.buckets[bucket + 1] += new.buckets[bucket]
    return new
