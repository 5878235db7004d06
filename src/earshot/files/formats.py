"""Which format a file has, by its name, and how its bytes are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from earshot.errors import InvalidFile

Format = Literal["parquet", "ndjson", "json", "geojson", "csv"]

_BY_SUFFIX: dict[str, Format] = {
    ".parquet": "parquet",
    ".geoparquet": "parquet",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".geojsonl": "ndjson",
    ".json": "json",
    ".geojson": "geojson",
    ".csv": "csv",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


def format_of(path: str | Path) -> Format:
    """Return the format that a file's name claims; ``json`` may be lines, a list or GeoJSON."""
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if len(suffixes) == 2 and suffixes[1] in _COMPRESSIONS:
        suffixes = suffixes[:1]
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in _BY_SUFFIX:
        raise InvalidFile(
            f"{path}: unknown file type '{suffix}'; expected one of {', '.join(_BY_SUFFIX)} "
            f"(text formats also with {', '.join(_COMPRESSIONS)} after it)"
        )
    return _BY_SUFFIX[suffix]


def compression_of(path: str | Path) -> str | None:
    """Return the compression that the last suffix of a file names, if any."""
    return _COMPRESSIONS.get(Path(path).suffix.lower())


def open_bytes(path: str | Path) -> Any:
    """Open a file's (decompressed) bytes for reading."""
    try:
        return pa.input_stream(str(path), compression=compression_of(path))
    except OSError as error:
        raise InvalidFile(f"{path} cannot be opened: {error}") from error


def iso_times(times: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return instants as texts, as text formats have them; ``strftime`` takes seven times longer.

    Updates come many to a message, so each instant is written once.
    """
    if isinstance(times, pa.ChunkedArray):
        times = times.combine_chunks()
    encoded = times.cast(pa.int64()).dictionary_encode()
    texts = encoded.dictionary.cast(pa.timestamp(times.type.unit)).cast(pa.string())
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return pc.binary_join_element_wise(texts, "Z", "").take(encoded.indices)
