"""Which format a file has, by its name, and how its bytes are opened.

``-`` is standard input where something is read, and standard output where it is written. It and
named pipes are streams: what has arrived is read, and what is written goes out at once.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from earshot.errors import InvalidFile

Format = Literal["parquet", "ndjson", "json", "geojson", "csv"]
StreamFormat = Literal["ndjson", "csv", "geojson"]
"""What can be read as it comes; updates go out as CSV or NDJSON."""

STANDARD = "-"

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


def is_stream(path: str | Path) -> bool:
    """Whether it is standard input or output, or a named pipe: it can be read once, as it comes."""
    return str(path) == STANDARD or Path(path).is_fifo()


def format_of(path: str | Path, stream_format: StreamFormat | None = None) -> Format:
    """Return the format that a file's name claims; ``json`` may be lines, a list or GeoJSON.

    A stream has the format that is given. By default a named pipe has the one of its name, and
    others are NDJSON.
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if is_stream(path):
        return stream_format or _stream_format(path, suffixes)
    if len(suffixes) == 2 and suffixes[1] in _COMPRESSIONS:
        suffixes = suffixes[:1]
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in _BY_SUFFIX:
        raise InvalidFile(
            f"{path}: unknown file type '{suffix}'; expected one of {', '.join(_BY_SUFFIX)} "
            f"(text formats also with {', '.join(_COMPRESSIONS)} after it)"
        )
    return _BY_SUFFIX[suffix]


def _stream_format(path: Path, suffixes: Sequence[str]) -> StreamFormat:
    suffix = suffixes[-1] if suffixes else ""
    named = _BY_SUFFIX.get(suffix, "ndjson")
    if named == "parquet" or suffix in _COMPRESSIONS:
        raise InvalidFile(
            f"{path} is a pipe, and '{suffix}' cannot be read or written as it comes; give it the "
            f"name of a text format, such as .ndjson or .csv, or say its --format"
        )
    return "ndjson" if named == "json" else named


def compression_of(path: str | Path) -> str | None:
    """Return the compression that the last suffix of a file names, if any."""
    return _COMPRESSIONS.get(Path(path).suffix.lower())


def open_bytes(path: str | Path) -> Any:
    """Open a file's (decompressed) bytes for reading; a stream gives what has arrived."""
    try:
        if is_stream(path):
            file = io.FileIO(0 if str(path) == STANDARD else path, closefd=str(path) != STANDARD)
            os.set_blocking(file.fileno(), True)  # else nothing so far would look like the end
            return file
        return pa.input_stream(str(path), compression=compression_of(path))
    except OSError as error:
        raise InvalidFile(f"{path} cannot be opened: {error.strerror or error}") from error


class OutputStream(io.RawIOBase):
    """A stream to write to, without a buffer: a row is out when it is written."""

    def __init__(self, path: str | Path) -> None:
        if str(path) == STANDARD:
            if sys.stdout is not None:
                sys.stdout.flush()  # what was printed comes first
            self._file = io.FileIO(1, "w", closefd=False)
        else:
            self._file = io.FileIO(path, "w")
        os.set_blocking(self._file.fileno(), True)

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file.fileno(), rest) :]
        return len(data)

    def close(self) -> None:
        """Close it; standard output stays open."""
        self._file.close()
        super().close()


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
