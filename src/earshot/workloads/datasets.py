"""Readers of real messages, and subscriptions drawn from them as the papers do it.

One small sample comes with the package (:func:`bundled_messages`). The larger sets are Parquet
files in a directory that the caller names, or that the environment variable ``EARSHOT_DATA`` does.
All places are longitude/latitude.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from earshot.errors import InvalidFile, InvalidInput, InvalidParameter
from earshot.model.arrays import Float64s, Int64s, offsets_of
from earshot.workloads.blocks import log_uniform, named, sides_of, some_of_each

DATA_VARIABLE = "EARSHOT_DATA"

DRAW_BLOCK_ROWS = 1 << 16
"""Subscriptions drawn at a time: with 40 words per message, 2.6 million words in memory."""


class Dataset(NamedTuple):
    """A file of real messages, and how they are read from its columns."""

    file: str
    as_messages: Callable[[pa.Table], dict[str, pa.ChunkedArray]]


def _reports(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {name: table[name] for name in ("id", "time", "kind", "text")}


def _places(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Named points; the names in other languages and scripts are the text."""
    names = pc.replace_substring(pc.fill_null(table["alternate_names"], ""), ",", " ")
    return {
        "id": table["geonameid"].cast(pa.string()),
        "kind": table["country"],
        "text": pc.binary_join_element_wise(table["name"], names, " "),
    }


DATASETS: dict[str, Dataset] = {
    # Transport for NSW (Live Traffic), CC BY 4.0
    "nsw": Dataset("nsw_live_traffic.parquet", _reports),
    "boston": Dataset("boston_311.parquet", _reports),  # City of Boston, PDDL
    "pleiades": Dataset("pleiades_places.parquet", _reports),  # Pleiades, CC BY 3.0
    "geonames": Dataset("geonames_cities500.parquet", _places),  # GeoNames, CC BY 4.0
}


def data_directory(directory: str | Path | None = None) -> Path:
    """Return the directory of the datasets: the given one, or that of ``EARSHOT_DATA``."""
    chosen = directory if directory is not None else os.environ.get(DATA_VARIABLE)
    if not chosen:
        raise InvalidParameter(
            f"no data directory: pass one, or set {DATA_VARIABLE} to the directory that holds "
            f"{', '.join(dataset.file for dataset in DATASETS.values())}"
        )
    if not Path(chosen).is_dir():
        raise InvalidParameter(f"data directory {chosen} does not exist or is not a directory")
    return Path(chosen)


def available_datasets(directory: str | Path | None = None) -> list[str]:
    """Return the names of the datasets whose files are in the directory."""
    folder = data_directory(directory)
    return [name for name, dataset in DATASETS.items() if (folder / dataset.file).is_file()]


def read_messages(name: str, directory: str | Path | None = None) -> pa.Table:
    """Read the messages of a dataset, in the order of the file.

    Args:
        name: One of :data:`DATASETS`.
        directory: Where the file is; by default the directory of ``EARSHOT_DATA``.

    Returns:
        Columns ``id``, ``kind``, ``text``, ``x, y``, and ``time`` where the file has one.
    """
    file, as_messages = named("dataset", name, DATASETS)
    path = data_directory(directory) / file
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidFile(f"dataset '{name}' cannot be read from {path}: {error}") from error
    try:
        return pa.table({**as_messages(table), "x": table["lon"], "y": table["lat"]})
    except KeyError as error:
        raise InvalidFile(f"{path} has not the columns of '{name}': {error.args[0]}") from error


def bundled_messages() -> pa.Table:
    """Return the sample that comes with the package: 6,000 reports from New South Wales.

    Transport for NSW (Live Traffic), CC BY 4.0. Columns ``id, time, kind, text, x, y``.
    """
    data = resources.files("earshot.workloads") / "data" / "nsw_live_traffic_sample.parquet"
    return pq.read_table(pa.BufferReader(data.read_bytes()))


def draw_subscriptions(
    messages: pa.Table,
    n: int,
    *,
    seed: int = 1,
    keywords_min: int = 1,
    keywords_max: int = 5,
    region_area_min: float = 1e-4,
    region_area_max: float = 1e-2,
) -> pa.Table:
    """Draw subscriptions from messages: some words of one, and a region around its place.

    [VLDBJ15] section 5.1.1: 1-5 words, and a rectangle of 0.01 % to 1 % of the data space. The
    data space is the bounding box of all places; here areas are log-uniform, so that small regions
    are as common as large ones.

    Args:
        messages: Columns ``text`` and ``x, y``, as :func:`read_messages` gives them.
        n: Number of subscriptions.
        seed: Seed of all random draws.
        keywords_min: Fewest keywords of a subscription; a message with fewer words gives all it
            has, and one without words is never picked.
        keywords_max: Most keywords; every number in between is equally likely.
        region_area_min: Smallest area of a region, as a fraction of the data space.
        region_area_max: Largest one.

    Returns:
        Columns ``id, keywords, min_x, min_y, max_x, max_y``. Boxes are cut at the limits of
        longitude and latitude.
    """
    if not 1 <= keywords_min <= keywords_max:
        raise InvalidParameter(
            f"{keywords_min} to {keywords_max} keywords; expected 1 <= fewest <= most"
        )
    if not 0 < region_area_min <= region_area_max <= 1:
        raise InvalidParameter(
            f"areas {region_area_min} to {region_area_max}; expected 0 < smallest <= largest <= 1"
        )
    # A text without words splits into one empty word.
    words = _words(messages["text"])
    wordless = pc.equal(pc.list_element(words, 0), "")
    pickable = np.flatnonzero(~wordless.to_numpy(zero_copy_only=False))
    if n and not len(pickable):
        raise InvalidInput(f"none of the {len(words)} messages has a word to draw a keyword from")
    random = np.random.default_rng(seed)
    rows = random.choice(pickable, n) if n else np.empty(0, np.int64)
    n_keywords = random.integers(keywords_min, keywords_max + 1, n)
    keywords = [
        _draw_words(words, rows[start:stop], n_keywords[start:stop], random)
        for start, stop in pairwise([*range(0, n, DRAW_BLOCK_ROWS), n])
    ]
    places = np.stack([messages[axis].to_numpy() for axis in ("x", "y")], axis=1)
    areas = log_uniform(random, region_area_min, region_area_max, n)
    return pa.table(
        {
            "id": pc.binary_join_element_wise("s", pa.array(np.arange(n)).cast(pa.string()), ""),
            "keywords": pa.chunked_array(keywords, pa.list_(pa.string())),
            **sides_of(_regions(places, rows, areas)),
        }
    )


def _words(texts: pa.ChunkedArray) -> pa.ListArray:
    """Split texts into lower-case words: the strings that a person would subscribe with.

    They are still to be analysed like any other keyword.
    """
    # Letters with their combining marks, and digits; everything else separates.
    spaced = pc.replace_substring_regex(pc.utf8_lower(texts), r"[^\p{L}\p{M}\p{N}]+", " ")
    return pc.utf8_split_whitespace(pc.utf8_trim_whitespace(spaced)).combine_chunks()


def _draw_words(
    words: pa.ListArray, rows: Int64s, n_keywords: Int64s, random: np.random.Generator
) -> pa.ListArray:
    """Draw up to ``n_keywords[i]`` distinct words of each row, in no particular order."""
    picked = words.take(pa.array(rows))
    parents = pc.list_parent_indices(picked).to_numpy()
    encoded = pc.dictionary_encode(picked.flatten())
    codes = encoded.indices.to_numpy()
    distinct = np.unique((parents << 32) + codes)
    starts = np.searchsorted(distinct, np.arange(len(rows) + 1) << 32)
    chosen = some_of_each(random, starts, distinct & 0xFFFFFFFF, n_keywords)
    offsets = offsets_of(np.minimum(np.diff(starts), n_keywords))
    keywords = encoded.dictionary.take(pa.array(chosen))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), keywords)


def _regions(places: Float64s, rows: Int64s, areas: Float64s) -> Float64s:
    """Return boxes around places, shaped like the data space and with a share of its area."""
    low, high = places.min(axis=0, initial=180.0), places.max(axis=0, initial=-180.0)
    halves = 0.5 * np.sqrt(areas)[:, None] * (high - low)
    centres = places[rows]
    limits = np.array([180.0, 90.0])
    lower = np.maximum(centres - halves, -limits)
    upper = np.minimum(centres + halves, limits)
    return np.concatenate([lower, upper], axis=1)
