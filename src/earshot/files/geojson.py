"""A GeoJSON FeatureCollection, or a JSON list of objects, piece by piece.

A file that is not valid JSON cannot be picked up again behind the mistake, so such a file is
refused as a whole; wrong values inside a feature cost only that feature.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from earshot.errors import InvalidFile
from earshot.files.batches import FileBatch
from earshot.files.formats import open_bytes
from earshot.files.geometries import with_geometry
from earshot.files.layout import Layout, check_columns, present_fields
from earshot.files.ndjson import (
    flatten_feature,
    json_fields,
    json_objects,
    kind_of_ids,
    kind_of_json,
)
from earshot.files.records import batch_of_records
from earshot.files.rejects import Reject, row_json
from earshot.model.arrays import Space
from earshot.model.schemas import IdKind

BLOCK_BYTES = 1 << 20
MAX_BATCH_ROWS = 1 << 12
"""More features at a time only make the garbage collector's work longer (19,000/s -> 28,000/s)."""
MAX_FEATURE_CHARACTERS = 1 << 26
"""A feature or other member that is longer is refused, with the file."""

_LONLAT_NAMES = ("CRS84", "4326")


def read_geojson(
    path: str, layout: Layout, ids: IdKind | None, batch_rows: int
) -> Iterator[FileBatch]:
    """Yield the features of a file; see :func:`earshot.files.reading.read_rows`."""
    kind = ids
    first_row = 0
    all_features = _features(_Source(path, layout.source), layout.space)
    while features := list(islice(all_features, min(batch_rows, MAX_BATCH_ROWS))):
        records, rows, rejects = [], [], []
        for row, feature in enumerate(features, first_row):
            if isinstance(feature, dict):
                records.append(flatten_feature(feature))
                rows.append(row)
            else:
                reason = f"is {kind_of_json(feature)}; expected a feature object"
                rejects.append(Reject(layout.source, row, "", reason, row_json({"value": feature})))
        first_row += len(features)
        if kind is None:
            if records:
                present = {key for record in records for key in record}
                check_columns(layout, present_fields(layout, present), present)
            kind = kind_of_ids(records, layout) or "integer"
        result = batch_of_records(layout, records, kind, np.array(rows, np.int64))
        yield result.with_rejects(rejects, layout.on_error)


def _features(source: _Source, space: Space) -> Iterator[Any]:
    """Yield the members of the top-level list, or of ``features`` of the top-level object."""
    if source.peek() == "[":
        yield from source.items()
    else:
        source.expect("{")
        has_features = False
        while source.peek() != "}":
            name = source.value()
            source.expect(":")
            if name == "features":
                has_features = True
                yield from source.items()
            else:
                value = source.value()
                if name == "type" and value != "FeatureCollection":
                    raise source.error(f"its type is {value!r}; expected 'FeatureCollection'")
                if name == "crs":
                    _check_crs(source, value, space)
            if source.peek() != "}":
                source.expect(",")
        source.expect("}")
        if not has_features:
            raise source.error("no member 'features'; expected a GeoJSON FeatureCollection")
    if source.peek():
        raise source.error("more text follows the end of the JSON value")


def _check_crs(source: _Source, crs: Any, space: Space) -> None:
    if space == "lonlat" and crs is not None:
        text = json.dumps(crs)
        if not any(name in text for name in _LONLAT_NAMES):
            raise source.error(
                f"its coordinate system is {text[:200]}; expected longitude/latitude; convert it, "
                f"or read it as planar"
            )


class _Source:
    """JSON text of which only a window is held in memory."""

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        self._stream = open_bytes(path)
        self._decoder = json.JSONDecoder()
        # Broken bytes become half surrogates, which the feature that holds them is refused for.
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._at = 0
        self._n_gone = 0
        self._at_end = False

    def error(self, reason: str) -> InvalidFile:
        """Return the exception that names file and position."""
        return InvalidFile(f"{self.name}, near character {self._n_gone + self._at}: {reason}")

    def peek(self) -> str:
        """Return the next character that is not blank, "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in " \t\r\n":
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def expect(self, character: str) -> None:
        """Step over the character."""
        found = self.peek()
        if found != character:
            what = repr(found) if found else "the end of the file; it may be cut short"
            raise self.error(f"expected {character!r}, found {what}")
        self._at += 1

    def value(self) -> Any:
        """Step over one JSON value and return it."""
        if not self.peek():
            raise self.error("expected a JSON value, found the end of the file")
        wanted = BLOCK_BYTES
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._at > MAX_FEATURE_CHARACTERS:
                    raise self.error(
                        f"no JSON value within {MAX_FEATURE_CHARACTERS} characters"
                    ) from None
                # Cut off by the window, unless there is no more; doubling keeps this linear.
                if isinstance(error, RecursionError) or not self._more(wanted):
                    raise self.error(
                        f"not valid JSON: {error}; the file may be cut short"
                    ) from None
                wanted = min(2 * wanted, MAX_FEATURE_CHARACTERS)
                continue
            # A number at the window's end may go on.
            if end == len(self._text) and not isinstance(value, dict | list | str) and self._more():
                continue
            self._at = end
            return value

    def items(self) -> Iterator[Any]:
        """Step over a list and yield its members."""
        self.expect("[")
        if self.peek() != "]":
            yield self.value()
            while self.peek() != "]":
                self.expect(",")
                yield self.value()
        self.expect("]")

    def _more(self, n_bytes: int = BLOCK_BYTES) -> bool:
        """Read on; False at the end of the file."""
        if self._at_end:
            return False
        try:
            data: bytes = self._stream.read(n_bytes)
        except (OSError, pa.ArrowException) as error:
            raise InvalidFile(f"{self.name} cannot be read: {error}") from error
        self._at_end = not data
        text = self._utf8.decode(data, final=self._at_end)
        self._n_gone += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        return bool(text) or not self._at_end


class GeoJsonSink:
    """Writes tables to a file."""

    def __init__(self, target: Any, schema: pa.Schema, compression: str | None) -> None:
        if "id" not in schema.names:
            raise InvalidFile(
                f"only subscriptions and messages can be written as GeoJSON, not a table of "
                f"{', '.join(schema.names)}"
            )
        self._stream = pa.output_stream(target, compression=compression)
        self._stream.write(b'{"type":"FeatureCollection","features":[')
        self._is_first = True

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for batch in with_geometry(table).combine_chunks().to_batches(max_chunksize=1 << 16):
            fields = json_fields(batch)
            feature_id, geometry = fields.pop("id"), fields.pop("geometry").fill_null("null")
            features = json_objects(
                {
                    "type": pa.repeat('"Feature"', len(batch)),
                    "id": feature_id,
                    "geometry": geometry,
                    "properties": json_objects(fields) if fields else pa.repeat("{}", len(batch)),
                }
            )
            self._stream.write(b"\n" if self._is_first else b",\n")
            lists = pa.ListArray.from_arrays(pa.array([0, len(features)], pa.int32()), features)
            self._stream.write(pc.binary_join(lists, ",\n")[0].as_buffer())
            self._is_first = False

    def close(self) -> None:
        """Complete the file."""
        self._stream.write(b"\n]}\n")
        self._stream.close()
