"""Files: every format gives the same canonical rows, and bad input says where and why."""

from __future__ import annotations

import csv
import gzip
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import shapely

from earshot import Engine
from earshot.errors import InvalidFile, InvalidInput, InvalidParameter, InvalidRow
from earshot.files import (
    FileBatch,
    TableWriter,
    UpdateWriter,
    format_of,
    read_changes,
    read_messages,
    read_subscriptions,
    reject_table,
    rejects_of_batch,
    write_table,
)
from earshot.files import csv as csv_module
from earshot.files import geojson as geojson_module
from earshot.files import ndjson as ndjson_module
from earshot.files.layout import make_layout
from earshot.files.ndjson import batch_of_values
from earshot.model.schemas import (
    MESSAGES,
    REJECTS,
    SUBSCRIPTIONS,
    TIME,
    IdKind,
    id_kind,
    id_type,
    messages_schema,
    subscriptions_schema,
    update_fields,
    updates_schema,
)

BOX = shapely.box(0.0, 0.0, 2.0, 1.0)
TRIANGLE = shapely.Polygon([(0, 0), (4, 0), (0, 4)])
NOON = datetime(2026, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)

SUBSCRIPTION_ROWS: list[dict[str, Any]] = [
    {"id": 1, "keywords": ["fire", "new york"], "min_x": 0, "min_y": 1, "max_x": 2, "max_y": 3},
    {"id": 2, "expression": 'a and not "b c"', "x": 4.5, "y": -5.25, "radius": 100.0},
    {"id": -3, "keywords": ["東京"], "geometry": shapely.to_wkb(TRIANGLE)},
    {"id": 4, "keywords": ['say "hi"', "back\\slash"], "expires": NOON, "threshold": 0.75},
]
MESSAGE_ROWS: list[dict[str, Any]] = [
    {"id": 10, "text": 'A "fire", they said\nin Tōkyō', "x": 1.5, "y": -2.0, "time": NOON},
    {"id": 11, "keywords": ["a", "b"], "min_x": 170.0, "min_y": 0, "max_x": 175.0, "max_y": 5},
    {"id": 12, "text": "", "x": 0.1, "y": 0.2},
]


def subscription_table(ids: str = "integer") -> pa.Table:
    rows = [
        {**row, "id": row["id"] if ids == "integer" else f"s{row['id']}"}
        for row in SUBSCRIPTION_ROWS
    ]
    return pa.Table.from_pylist(rows, subscriptions_schema(id_type(ids)))  # type: ignore[arg-type]


def message_table() -> pa.Table:
    return pa.Table.from_pylist(MESSAGE_ROWS, MESSAGES)


def whole(batches: Any) -> pa.Table:
    return pa.Table.from_batches([each.batch for each in batches])


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def rejects(batches: Any) -> list[tuple[int, str, str]]:
    return [(r.row, r.field, r.reason) for each in batches for r in each.rejects]


def accepted(batches: list[FileBatch]) -> list[int]:
    return [int(row) for each in batches for row in each.rows]


# ---- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["integer", "string"])
@pytest.mark.parametrize(
    "name", ["s.parquet", "s.ndjson", "s.json", "s.csv", "s.csv.gz", "s.jsonl"]
)
def test_subscriptions_survive_every_format(tmp_path: Path, name: str, ids: str) -> None:
    table = subscription_table(ids)
    write_table(tmp_path / name, table)
    batches = list(read_subscriptions(tmp_path / name))
    assert whole(batches).to_pylist() == table.to_pylist() or name.startswith("s.csv")
    if name.startswith("s.csv"):  # WKT is not the same bytes, but the same geometry
        found, expected = whole(batches).to_pylist(), table.to_pylist()
        for row in (*found, *expected):
            row["geometry"] = row["geometry"] and shapely.to_wkt(shapely.from_wkb(row["geometry"]))
        assert found == expected
    assert whole(batches).schema == table.schema
    assert accepted(batches) == [0, 1, 2, 3]
    assert rejects(batches) == []


@pytest.mark.parametrize("name", ["m.parquet", "m.ndjson", "m.csv"])
def test_messages_survive_every_format(tmp_path: Path, name: str) -> None:
    table = message_table()
    write_table(tmp_path / name, table)
    expected = table.to_pylist()
    if name == "m.csv":  # CSV cannot tell an empty text from none
        expected[2]["text"] = None
    assert whole(read_messages(tmp_path / name)).to_pylist() == expected


@pytest.mark.parametrize("name", ["s.geojson", "s.geoparquet", "s.json"])
def test_regions_become_geometries(tmp_path: Path, name: str) -> None:
    path = tmp_path / name.replace(".json", ".geojson")
    write_table(path, subscription_table())
    if name == "s.json":  # the same content under the other name
        path = path.rename(tmp_path / name)
    rows = whole(read_subscriptions(path)).to_pylist()
    assert [row["id"] for row in rows] == [1, 2, -3, 4]
    assert shapely.from_wkb(rows[0]["geometry"]).equals(shapely.box(0, 1, 2, 3))
    assert (rows[1]["x"], rows[1]["y"], rows[1]["radius"]) == (4.5, -5.25, 100.0)
    assert rows[1]["geometry"] is None
    assert shapely.from_wkb(rows[2]["geometry"]).equals(TRIANGLE)
    assert rows[3]["keywords"] == ['say "hi"', "back\\slash"]
    assert rows[3]["expires"] == NOON
    assert [row["threshold"] for row in rows] == [None, None, None, 0.75]


def test_a_crossing_box_is_written_as_two_parts(tmp_path: Path) -> None:
    row = {"id": 1, "min_x": 170.0, "min_y": 0.0, "max_x": -170.0, "max_y": 5.0}
    write_table(tmp_path / "s.geojson", pa.Table.from_pylist([row], SUBSCRIPTIONS))
    feature = json.loads((tmp_path / "s.geojson").read_text())["features"][0]
    shape = shapely.from_geojson(json.dumps(feature["geometry"]))
    expected = shapely.MultiPolygon([shapely.box(170, 0, 180, 5), shapely.box(-180, 0, -170, 5)])
    assert shape.equals(expected)


def test_message_geometries_become_points_and_boxes(tmp_path: Path) -> None:
    write_table(tmp_path / "m.geojson", message_table())
    rows = whole(read_messages(tmp_path / "m.geojson")).to_pylist()
    assert [(row["x"], row["y"]) for row in rows] == [(1.5, -2.0), (None, None), (0.1, 0.2)]
    assert [rows[1][name] for name in ("min_x", "min_y", "max_x", "max_y")] == [170, 0, 175, 5]
    assert rows[0]["text"] == MESSAGE_ROWS[0]["text"]
    assert rows[0]["time"] == NOON


def test_batches_number_rows_through(tmp_path: Path) -> None:
    table = pa.table({"id": np.arange(10), "keywords": [["a"]] * 10})
    pq.write_table(table, tmp_path / "s.parquet")
    batches = list(read_subscriptions(tmp_path / "s.parquet", batch_rows=4))
    assert [each.rows.tolist() for each in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_small_blocks_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 500
    table = pa.table(
        {
            "id": np.arange(n),
            "text": [f"line {i}\nof, “text”" * (i % 7) for i in range(n)],
            "x": np.linspace(-180, 180, n),
            "y": np.zeros(n),
        }
    )
    for module, name in ((csv_module, "csv"), (ndjson_module, "ndjson"), (geojson_module, "json")):
        monkeypatch.setattr(module, "BLOCK_BYTES", 997)
        path = tmp_path / f"m.{'geojson' if name == 'json' else name}"
        write_table(path, table)
        batches = list(read_messages(path, batch_rows=100))
        found = whole(batches)
        assert len(batches) > 3
        assert accepted(batches) == list(range(n))
        assert found.column("id").to_pylist() == list(range(n))
        assert found.column("x").to_pylist() == table.column("x").to_pylist()
        texts = table.column("text").to_pylist()
        expected = [text or None for text in texts] if name == "csv" else texts
        assert found.column("text").to_pylist() == expected


# ---- columns ------------------------------------------------------------------------------------


def test_aliases_and_renamed_columns(tmp_path: Path) -> None:
    path = put(tmp_path / "m.csv", "key,body,longitude,lat,noise\n7,hello,1.5,2.5,zzz\n")
    table = whole(read_messages(path, columns={"id": "key", "text": "body"}))
    assert table.to_pylist()[0] | {} == {
        **dict.fromkeys(MESSAGES.names),
        "id": 7,
        "text": "hello",
        "x": 1.5,
        "y": 2.5,
    }
    path = put(tmp_path / "m.ndjson", lines({"key": 7, "body": "hello", "lon": 1.5, "lat": 2}))
    table = whole(read_messages(path, columns={"id": "key", "text": "body"}))
    assert table.column("x").to_pylist() == [1.5]


def test_two_aliases_are_ambiguous(tmp_path: Path) -> None:
    path = put(tmp_path / "m.csv", "id,text,lon,lng,y\n1,a,2,3,4\n")
    with pytest.raises(InvalidFile, match=r"'lon', 'lng' could each be 'x'"):
        list(read_messages(path))


def test_unknown_field_in_the_mapping(tmp_path: Path) -> None:
    path = put(tmp_path / "m.csv", "id,text,x,y\n")
    with pytest.raises(InvalidParameter, match="unknown field 'colour'"):
        read_messages(path, columns={"colour": "c"})


@pytest.mark.parametrize("name", ["m.csv", "m.parquet"])
def test_a_column_that_is_named_has_to_be_there(tmp_path: Path, name: str) -> None:
    rows = {"id": ["a"], "text": ["hello"], "x": [1.0], "y": [2.0], "time": ["mine"]}
    write_table(tmp_path / name, pa.table(rows))
    with pytest.raises(InvalidFile, match="no column 'ends', which is named for 'end'; its colu"):
        whole(read_messages(tmp_path / name, columns={"end": "ends"}))
    table = whole(read_messages(tmp_path / name, columns={"time": ""}))  # no column is the time
    assert table.column("time").to_pylist() == [None]


@pytest.mark.parametrize(
    ("header", "content", "missing"),
    [
        ("key,keywords", "subscriptions", "column 'id'"),
        ("id,note", "subscriptions", "'keywords' or 'expression'"),
        ("id,min_x,min_y,max_x", "subscriptions", "column 'max_y' beside 'min_x'"),
        ("id,radius,y", "subscriptions", "column 'x' beside 'y'"),
        ("id,x,y", "messages", "'text' or 'keywords'"),
        ("id,text", "messages", "no place"),
        ("id,text,x", "messages", "column 'y' beside 'x'"),
    ],
)
def test_missing_columns_are_named(tmp_path: Path, header: str, content: str, missing: str) -> None:
    read: Any = read_subscriptions if content == "subscriptions" else read_messages
    names = header.split(",")
    csv_path = put(tmp_path / "f.csv", header + "\n" + ",".join("1" for _ in names) + "\n")
    ndjson_path = put(tmp_path / "f.ndjson", lines(dict.fromkeys(names, 1)))
    pq.write_table(pa.table({name: [1] for name in names}), tmp_path / "f.parquet")
    for path in (csv_path, ndjson_path, tmp_path / "f.parquet"):
        with pytest.raises(InvalidFile) as caught:
            list(read(path))
        assert missing in str(caught.value)
        assert str(path) in str(caught.value)
        assert f"'{names[0]}'" in str(caught.value)  # the columns that are there


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("x", ["1"], "'x' is of type string; expected numbers"),
        ("id", [1.5], "'id' is of type double; expected integers or strings"),
        ("keywords", [[1]], "expected lists of strings"),
        ("time", [datetime(2026, 1, 1)], "timestamps with a time zone"),
        ("time", [5], "'time' is of type int64"),
    ],
)
def test_wrong_column_types_are_named(
    tmp_path: Path, column: str, values: Any, expected: str
) -> None:
    columns = {"id": [1], "keywords": [["a"]], "x": [1.0], "y": [1.0], column: values}
    pq.write_table(pa.table(columns), tmp_path / "m.parquet")
    with pytest.raises(InvalidFile, match=expected):
        list(read_messages(tmp_path / "m.parquet"))


def test_parquet_types_are_widened(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array(["a", "b"]).dictionary_encode(),
            "keywords": pa.array([["k"], None], pa.large_list(pa.large_string())),
            "expression": pa.array([None, "x or y"], pa.large_string()),
            "x": pa.array([1, 2], pa.int8()),
            "y": pa.array([1.5, 2.5], pa.float32()),
            "radius": pa.array([5, 6], pa.uint64()),
            "expires": pa.array([0, None], pa.timestamp("ms", "Europe/Paris")),
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    found = whole(read_subscriptions(tmp_path / "s.parquet"))
    assert found.schema == subscriptions_schema(pa.string())
    assert found.column("keywords").to_pylist() == [["k"], None]
    assert found.column("radius").to_pylist() == [5.0, 6.0]
    assert found.column("expires").to_pylist() == [datetime(1970, 1, 1, tzinfo=UTC), None]


def test_keywords_as_text_with_commas(tmp_path: Path) -> None:
    path = put(tmp_path / "s.csv", 'id,keywords\n1,"fire, water"\n2,\n3,one\n4,"a,,b"\n')
    found = whole(read_subscriptions(path)).column("keywords").to_pylist()
    assert found == [["fire", "water"], None, ["one"], ["a", "", "b"]]
    path = put(tmp_path / "s.ndjson", lines(*({"id": 1, "keywords": k} for k in ("a, b", ["c"]))))
    assert whole(read_subscriptions(path)).column("keywords").to_pylist() == [["a", "b"], ["c"]]


def test_keys_that_appear_late_are_not_lost(tmp_path: Path) -> None:
    rows = [{"id": i, "keywords": ["a"]} for i in range(300)]
    rows += [
        {"id": 300, "keywords": ["a"], "geometry": shapely.to_wkt(BOX)},
        {"id": 301, "lon": 1, "lat": 2, "radius_m": 3},
    ]
    path = put(tmp_path / "s.ndjson", lines(*rows))
    found = whole(read_subscriptions(path)).to_pylist()
    assert shapely.from_wkb(found[300]["geometry"]).equals(BOX)
    assert [found[301][name] for name in ("x", "y", "radius")] == [1, 2, 3]


@pytest.mark.parametrize(
    "value", [shapely.to_wkt(BOX), json.loads(shapely.to_geojson(BOX)), shapely.to_geojson(BOX)]
)
def test_geometry_as_wkt_or_geojson(tmp_path: Path, value: Any) -> None:
    path = put(tmp_path / "s.ndjson", lines({"id": 1, "geometry": value}))
    assert shapely.from_wkb(whole(read_subscriptions(path))["geometry"][0].as_py()).equals(BOX)


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        ({"type": "Point", "coordinates": [True, 1]}, "boolean"),
        ({"type": "Point", "coordinates": ["1", 1]}, "string"),
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [1, 0]]]}, "closed"),
        ({"type": "Polygon", "coordinates": 5}, "cannot be read as GeoJSON"),
        ({"type": "Circle"}, "cannot be read as GeoJSON"),
    ],
)
def test_wrong_geojson_geometries(tmp_path: Path, geometry: Any, reason: str) -> None:
    path = put(tmp_path / "s.ndjson", lines({"id": 1, "geometry": geometry}))
    ((row, field, found),) = rejects(read_subscriptions(path, on_error="reject"))
    assert (row, field) == (0, "geometry")
    assert reason in found


@pytest.mark.parametrize(
    "shape",
    [
        shapely.Point(1, 2),
        shapely.Point(1, 2, 3),
        shapely.Polygon([(0, 0), (9, 0), (9, 9)], [[(5, 1), (6, 1), (6, 2)]]),
        shapely.MultiPolygon([BOX, shapely.box(5, 5, 6, 6)]),
    ],
)
def test_geojson_geometries_are_kept(tmp_path: Path, shape: Any) -> None:
    rows = [
        {"id": 1, "geometry": json.loads(shapely.to_geojson(shape))},
        {"id": 2, "geometry": shapely.to_wkt(BOX)},
        {"id": 3, "keywords": ["a"]},
    ]
    found = whole(read_subscriptions(put(tmp_path / "s.ndjson", lines(*rows))))["geometry"]
    assert shapely.from_wkb(found[0].as_py()).equals(shape)
    assert shapely.from_wkb(found[1].as_py()).equals(BOX)
    assert found[2].as_py() is None


def test_features_on_lines(tmp_path: Path) -> None:
    feature = {
        "type": "Feature",
        "properties": {"id": 5, "text": "hi"},
        "geometry": {"type": "Point", "coordinates": [1, 2]},
    }
    found = whole(read_messages(put(tmp_path / "m.geojsonl", lines(feature)))).to_pylist()[0]
    assert (found["id"], found["text"], found["x"], found["y"]) == (5, "hi", 1.0, 2.0)


def test_json_list_of_objects(tmp_path: Path) -> None:
    path = put(tmp_path / "m.json", json.dumps(MESSAGE_ROWS[2:] * 1, indent=1))
    assert whole(read_messages(path)).column("id").to_pylist() == [12]


# ---- ids ----------------------------------------------------------------------------------------


def test_ids_of_csv_keep_their_spelling(tmp_path: Path) -> None:
    path = put(tmp_path / "s.csv", "id,keywords\n007,a\n8,b\n")
    assert whole(read_subscriptions(path)).column("id").to_pylist() == ["007", "8"]
    path = put(tmp_path / "s.csv", "id,keywords\n7,a\n8,b\n")
    assert whole(read_subscriptions(path)).column("id").to_pylist() == [7, 8]
    found = whole(read_subscriptions(path, ids="string"))
    assert found.column("id").to_pylist() == ["7", "8"]


@pytest.mark.parametrize("value", ["x", "007", "0x10", "1.5", "-0", "99999999999999999999"])
def test_odd_ids_among_integers_of_csv(tmp_path: Path, value: str) -> None:
    path = put(tmp_path / "s.csv", f"id,keywords\n7,a\n{value},b\n9,c\n")
    batches = list(read_subscriptions(path, ids="integer", on_error="reject"))
    assert whole(batches).column("id").to_pylist() == [7, 9]
    ((row, field, reason),) = rejects(batches)
    assert (row, field) == (1, "id")
    assert value in reason


@pytest.mark.parametrize(
    ("first", "odd", "reason"),
    [
        (1, "x", "all integers or all strings"),
        ("x", 1, "all integers or all strings"),
        (1, 1.0, "expected an integer or a string"),
        (1, True, "expected an integer or a string"),
        (1, 2**63, "outside the range of 64-bit integers"),
        (1, None, "every row needs an id"),
    ],
)
def test_odd_ids_in_ndjson(tmp_path: Path, first: Any, odd: Any, reason: str) -> None:
    rows = [{"id": value, "keywords": ["a"]} for value in (first, odd)]
    path = put(tmp_path / "s.ndjson", lines(*rows))
    ((row, field, found),) = rejects(read_subscriptions(path, on_error="reject"))
    assert (row, field) == (1, "id")
    assert reason in found


def test_unsigned_ids_beyond_64_bits_of_parquet(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1, 2**63], pa.uint64()), "keywords": [["a"]] * 2})
    pq.write_table(table, tmp_path / "s.parquet")
    with pytest.raises(InvalidRow, match=r"row 1, field 'id': id 9223372036854775808 is outside"):
        list(read_subscriptions(tmp_path / "s.parquet"))


def test_kinds_of_ids() -> None:
    assert id_kind(pa.int8()) == "integer"
    assert id_kind(pa.dictionary(pa.int32(), pa.large_string())) == "string"
    assert id_kind(pa.float64()) is None
    with pytest.raises(InvalidParameter, match="expected 'integer' or 'string'"):
        id_type("uuid")  # type: ignore[arg-type]


# ---- bad rows -----------------------------------------------------------------------------------

GOOD = {"id": 1, "text": "a", "x": 1.0, "y": 2.0}


@pytest.mark.parametrize(
    ("bad", "field", "reason"),
    [
        ({"x": "east"}, "x", '"east"; expected a number'),
        ({"x": True}, "x", "expected a number"),
        ({"text": 5}, "text", "is 5; expected a string"),
        ({"keywords": [1]}, "keywords", "expected a string"),
        ({"keywords": 5}, "keywords", "expected a list of strings"),
        ({"time": "2026-05-01T12:00:00"}, "time", "no time zone"),
        ({"time": "soon"}, "time", "expected ISO 8601"),
        ({"time": 5}, "time", "expected ISO 8601"),
        ({"geometry": "POINT (1"}, "geometry", "cannot be read as WKT"),
        ({"geometry": {"type": "Point"}}, "geometry", "cannot be read as GeoJSON"),
        ({"geometry": {"type": "Point", "coordinates": [0, 0]}}, "geometry", "another place"),
        ("{broken", "", "not valid JSON"),
        ("[1, 2]", "", "is an array; expected an object"),
        ('"word"', "", "is a string; expected an object"),
        ("true", "", "is a boolean; expected an object"),
        ("1.5", "", "is a number; expected an object"),
        ('{"id": 2, "text": "\\ud800", "x": 1, "y": 1}', "text", "not valid UTF-8"),
    ],
)
def test_one_bad_line_costs_only_itself(tmp_path: Path, bad: Any, field: str, reason: str) -> None:
    line = bad if isinstance(bad, str) else {**GOOD, "id": 2, **bad}
    path = put(tmp_path / "m.ndjson", lines(GOOD, line, {**GOOD, "id": 3}))
    batches = list(read_messages(path, on_error="reject"))
    assert whole(batches).column("id").to_pylist() == [1, 3]
    assert accepted(batches) == [0, 2]
    ((row, found_field, found),) = rejects(batches)
    assert (row, found_field) == (1, field)
    assert reason in found
    (reject,) = batches[0].rejects
    assert reject.raw == line if isinstance(bad, str) and field == "" else json.loads(reject.raw)
    with pytest.raises(InvalidRow) as caught:
        list(read_messages(path))
    assert str(path) in str(caught.value)
    assert (caught.value.row, caught.value.field) == (1, field)


@pytest.mark.parametrize(
    ("bad", "field", "reason"),
    [
        ("2,a,east,1,", "x", "'east'; expected a number"),
        ("2,a,1_0,1,", "x", "expected a number"),
        ("2,a,1,1,2026-05-01", "time", "no time zone"),
        ("2,a,1,1,soon", "time", "expected ISO 8601"),
        (",a,1,1,", "id", "every row needs an id"),
        ("2,a,1,1", "", "has 4 values; the header has 5 columns"),
        ("2,a,1,1,,,", "", "has 7 values"),
        (b"2,caf\xe9,1,1", "", "has 4 values"),
    ],
)
def test_one_bad_csv_row_costs_only_itself(
    tmp_path: Path, bad: str | bytes, field: str, reason: str
) -> None:
    line = bad if isinstance(bad, bytes) else bad.encode()
    head = b'id,text,x,y,time\n1,"a\n\nb",1, 2 ,\n\n'
    path = put(tmp_path / "m.csv", head + line + b"\n3,c,1,1,\n")
    batches = list(read_messages(path, on_error="reject"))
    assert whole(batches).column("id").to_pylist() == [1, 3]
    assert whole(batches).column("text").to_pylist() == ["a\n\nb", "c"]
    assert whole(batches).column("y").to_pylist() == [2.0, 1.0]
    assert accepted(batches) == [0, 2]
    ((row, found_field, found),) = rejects(batches)
    assert (row, found_field) == (1, field)
    assert reason in found
    with pytest.raises(InvalidRow, match=r"m.csv, row 1(, field|: has)"):
        list(read_messages(path))


def test_nan_text_is_not_a_missing_value(tmp_path: Path) -> None:
    path = put(tmp_path / "m.csv", "id,text,x,y\n1,NULL,nan,1\n")
    row = whole(read_messages(path)).to_pylist()[0]
    assert row["text"] == "NULL"
    assert np.isnan(row["x"])


def test_broken_utf8_reaches_the_encoder_untouched(tmp_path: Path) -> None:
    content = b"id,text,x,y\n1,caf\xe9,1,1\n"
    batch = next(iter(read_messages(put(tmp_path / "m.csv", content)))).batch
    assert batch.column("text")[0].as_buffer().to_pybytes() == b"caf\xe9"
    line = b'{"id":1,"text":"caf\xe9","x":1,"y":1}\n'
    batch = next(iter(read_messages(put(tmp_path / "m.ndjson", line)))).batch
    assert batch.column("text")[0].as_buffer().to_pybytes() == b"caf\xe9"


def test_broken_utf8_in_every_column_of_csv(tmp_path: Path) -> None:
    content = b"id,keywords,expression,x,y,radius,expires\n1,a,,1,1,1,\n"
    bad = [
        b"\xff,a,,1,1,1,\n",
        b'2,"a,\xff",,1,1,1,\n',
        b"3,,\xff,1,1,1,\n",
        b"4,a,,\xff,1,1,\n",
        b"5,a,,1,1,1,\xff\n",
    ]
    path = put(tmp_path / "s.csv", content + b"".join(bad))
    batches = list(read_subscriptions(path, ids="integer", on_error="reject"))
    found = [(row, field) for row, field, _ in rejects(batches)]
    assert found == [(1, "id"), (4, "x"), (5, "expires")]
    assert "\\xff" in batches[0].rejects[0].reason.replace("\\\\", "\\")
    keywords = batches[0].batch.column("keywords").values
    assert keywords[2].as_buffer().to_pybytes() == b"\xff"  # left to the encoder, like any text
    table = reject_table(batches[0].rejects)
    write_table(tmp_path / "rejects.ndjson", table)
    assert [row["row"] for row in read_back(tmp_path / "rejects.ndjson")] == [1, 4, 5]


def test_ten_megabytes_of_text_are_read(tmp_path: Path) -> None:
    text = "word " * 2_000_000
    path = put(tmp_path / "m.ndjson", lines(GOOD, {**GOOD, "text": text}, GOOD))
    lengths = pc.binary_length(whole(read_messages(path)).column("text")).to_pylist()
    assert lengths == [1, 10_000_000, 1]
    path = put(tmp_path / "m.csv", f"id,text,x,y\n1,a,1,1\n2,{text},1,1\n")
    lengths = pc.binary_length(whole(read_messages(path)).column("text")).to_pylist()
    assert lengths == [1, 10_000_000]


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndjson_module, "BLOCK_BYTES", 100)
    monkeypatch.setattr(ndjson_module, "MAX_LINE_BYTES", 1000)
    path = put(tmp_path / "m.ndjson", lines(GOOD, {**GOOD, "text": "x" * 5000}, {**GOOD, "id": 3}))
    batches = list(read_messages(path, on_error="reject"))
    assert accepted(batches) == [0, 2]
    assert rejects(batches) == [(1, "", "the line is longer than 1000 bytes")]


def test_rows_longer_than_a_block_of_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_module, "BLOCK_BYTES", 1000)
    rows = [f'{i},"{"x" * (5000 if i == 70 else 40)}",1,1' for i in range(200)]
    rows[120] = "120,short"
    rows[121] = "121,café,1,1"
    path = put(tmp_path / "m.csv", "id,text,x,y\n" + "\n".join(rows))
    batches = list(read_messages(path, on_error="reject"))
    assert len(batches) > 5
    expected = [i for i in range(200) if i != 120]
    assert accepted(batches) == expected
    assert whole(batches).column("id").to_pylist() == expected
    texts = whole(batches).column("text").to_pylist()
    assert (len(texts[70]), texts[120]) == (5000, "café")
    assert [row for row, _, _ in rejects(batches)] == [120]
    monkeypatch.setattr(csv_module, "MAX_VALUE_BYTES", 3000)
    limit = csv.field_size_limit(3000)
    with pytest.raises(InvalidFile, match="after row 69: field larger than field limit"):
        list(read_messages(path, on_error="reject"))
    csv.field_size_limit(limit)


# ---- bad files ----------------------------------------------------------------------------------


def cut(path: Path, fraction: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    return path


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("name", ["m.parquet", "m.geojson"])
def test_truncated_files_are_refused(tmp_path: Path, name: str, fraction: float) -> None:
    n = 1000
    table = pa.table({"id": np.arange(n), "text": ["a b c"] * n, "x": np.ones(n), "y": np.ones(n)})
    write_table(tmp_path / name, table)
    with pytest.raises(InvalidFile, match=name):
        list(read_messages(cut(tmp_path / name, fraction), on_error="reject"))


def test_truncated_lines(tmp_path: Path) -> None:
    path = cut(put(tmp_path / "m.ndjson", lines(*[GOOD] * 10)), 0.95)
    ((row, _, reason),) = rejects(read_messages(path, on_error="reject"))
    assert row == 9
    assert "not valid JSON" in reason
    for content in ('1,a,1,1\n2,"b', '1,"a,1,1\n2,b,1,1\n'):
        path = put(tmp_path / "m.csv", f"id,text,x,y\n{content}")
        with pytest.raises(InvalidFile, match="never closed"):
            list(read_messages(path, on_error="reject"))


def test_truncated_compressed_file(tmp_path: Path) -> None:
    data = gzip.compress(lines(*[{**GOOD, "id": i} for i in range(5000)]).encode())
    path = put(tmp_path / "m.ndjson.gz", data[: len(data) // 2])
    with pytest.raises(InvalidFile, match=r"m.ndjson.gz"):
        list(read_messages(path))


def test_damaged_parquet_page(tmp_path: Path) -> None:
    table = pa.table({"id": np.arange(100_000), "keywords": [["a"]] * 100_000})
    pq.write_table(table, tmp_path / "s.parquet", compression="zstd")
    data = bytearray((tmp_path / "s.parquet").read_bytes())
    data[4:2000] = b"\xff" * 1996
    put(tmp_path / "s.parquet", bytes(data))
    with pytest.raises(InvalidFile, match="damaged"):
        list(read_subscriptions(tmp_path / "s.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("f.csv", "", "is empty"),
        ("f.ndjson", "", "is empty"),
        ("f.geojson", '{"type": "Topology"}', "expected 'FeatureCollection'"),
        ("f.geojson", '{"type": "FeatureCollection"}', "no member 'features'"),
        ("f.geojson", '{"features": []} tail', "more text follows"),
        ("f.geojson", '{"crs": {"name": "EPSG:3857"}, "features": []}', "coordinate system"),
        ("f.xlsx", "x", "unknown file type '.xlsx'"),
        ("f.parquet", "x", "cannot be read as Parquet"),
        ("f.ndjson", "hello\nworld\n", "none of the first lines is a JSON object"),
        ("f.csv", "id,text,x,y,id\n1,a,1,1,2\n", "'id' occurs more than once"),
    ],
)
def test_files_that_are_not_what_they_claim(
    tmp_path: Path, name: str, content: str, reason: str
) -> None:
    with pytest.raises(InvalidFile, match=reason):
        list(read_messages(put(tmp_path / name, content), on_error="reject"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"no.csv does not exist"):
        read_messages(tmp_path / "no.csv")


def test_on_error_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="expected 'raise' or 'reject'"):
        read_messages(tmp_path / "m.csv", on_error="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"encoding": "point"}, "encoded as point; expected WKB"),
        ({"encoding": "WKB", "edges": "spherical"}, "spherical edges"),
        (
            {"encoding": "WKB", "crs": {"name": "Web Mercator"}},
            "'Web Mercator'; expected longitude",
        ),
    ],
)
def test_geoparquet_metadata_is_checked(tmp_path: Path, about: Any, reason: str) -> None:
    table = pa.table({"id": [1], "area": [shapely.to_wkb(BOX)]})
    geo = {"version": "1.1.0", "primary_column": "area", "columns": {"area": about}}
    table = table.replace_schema_metadata({"geo": json.dumps(geo)})
    pq.write_table(table, tmp_path / "s.parquet")
    with pytest.raises(InvalidFile, match=reason):
        list(read_subscriptions(tmp_path / "s.parquet"))


def test_geoparquet_names_its_geometry_column(tmp_path: Path) -> None:
    crs = {"name": "WGS 84", "id": {"authority": "EPSG", "code": 4326}}
    table = pa.table({"id": [1], "area": [shapely.to_wkb(BOX)]})
    geo = {"primary_column": "area", "columns": {"area": {"encoding": "WKB", "crs": crs}}}
    table = table.replace_schema_metadata({"geo": json.dumps(geo)})
    pq.write_table(table, tmp_path / "s.parquet")
    found = whole(read_subscriptions(tmp_path / "s.parquet")).column("geometry").to_pylist()
    assert found == [shapely.to_wkb(BOX)]


# ---- writers ------------------------------------------------------------------------------------


def read_back(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]
    if path.suffix == ".csv":
        names, *rows = path.read_text().splitlines()
        keys = [name.strip('"') for name in names.split(",")]
        values = [[value.strip('"') for value in row.split(",")] for row in rows]
        return [dict(zip(keys, row, strict=True)) for row in values]
    return [json.loads(line) for line in path.read_text().splitlines()]


class Found:
    """Updates as an engine returns them."""

    def __init__(
        self,
        event_ids: pa.Array,
        offsets: list[int],
        ids: pa.Array,
        scores: list[float] | None = None,
    ) -> None:
        self.event_ids = event_ids
        self.offsets = np.array(offsets)
        self.scores = None if scores is None else np.array(scores)
        self.ids = ids

    @property
    def subscription_ids(self) -> pa.Array:
        assert threading.current_thread() is not threading.main_thread(), "looked up too early"
        return self.ids

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def table(self, columns: Sequence[str]) -> pa.Table:
        n = len(self)
        rows = np.repeat(np.arange(len(self.event_ids)), np.diff(self.offsets))
        table = {
            "message_id": self.event_ids.take(pa.array(rows)),
            "subscription_id": self.ids,
            "sign": ["+", "-"] * (n // 2) + ["+"] * (n % 2),
            "score": pa.nulls(n, pa.float64()) if self.scores is None else self.scores,
            "reason": ["match"] * n,
            "time": pa.array([NOON] * n, TIME),
        }
        return pa.table({name: table[name] for name in columns})


MATCHED = update_fields(has_scores=False, keeps_results=False)
SCORED = update_fields(has_scores=True, keeps_results=False)
KEPT = update_fields(has_scores=True, keeps_results=True)


def test_a_semantics_leaves_out_what_it_has_not() -> None:
    assert MATCHED == ("message_id", "subscription_id")
    assert (*MATCHED, "score") == SCORED
    assert KEPT == ("message_id", "subscription_id", "sign", "score", "reason", "time")
    assert update_fields(False, True) == (*MATCHED, "sign", "reason", "time")
    types = [pa.int64(), pa.string(), pa.string(), pa.float64(), pa.string(), TIME]
    assert updates_schema(pa.int64(), pa.string()) == pa.schema(list(zip(KEPT, types, strict=True)))
    assert updates_schema(pa.int64(), pa.string(), ("time", "message_id")).names == [
        "time",
        "message_id",
    ]


@pytest.mark.parametrize("name", ["m.parquet", "m.csv", "m.ndjson"])
@pytest.mark.parametrize("kind", ["integer", "string"])
@pytest.mark.parametrize("fields", [MATCHED, KEPT])
@pytest.mark.parametrize("is_typed", [True, False])
def test_updates_are_written(
    tmp_path: Path, name: str, kind: IdKind, fields: tuple[str, ...], is_typed: bool
) -> None:
    data_type = id_type(kind)

    def make(*ids: int) -> pa.Array:
        return pa.array(ids if kind == "integer" else [f"id{i}" for i in ids], data_type)

    path = tmp_path / name
    with UpdateWriter(path, data_type if is_typed else None, data_type, fields) as writer:
        writer.write(Found(make(1, 2, 3), [0, 2, 2, 3], make(7, 8, 9)))
        writer.write(Found(make(4), [0, 0], make()))
        writer.write(Found(make(5), [0, 1], make(7)))
        assert writer.n_rows == 4
        assert not path.exists()
    rows = read_back(path)
    expected = [(1, 7), (1, 8), (3, 9), (5, 7)]
    found = [(row["message_id"], row["subscription_id"]) for row in rows]
    if kind == "string":
        assert found == [(f"id{m}", f"id{s}") for m, s in expected]
    else:
        assert [(int(m), int(s)) for m, s in found] == expected
    assert [each.name for each in tmp_path.iterdir()] == [name]
    if fields == KEPT:
        assert [row["sign"] for row in rows] == ["+", "-", "+", "+"]
        assert {row["reason"] for row in rows} == {"match"}
        times = {row["time"] for row in rows}
        assert times == ({NOON} if name == "m.parquet" else {"2026-05-01T12:00:00.250000Z"})


@pytest.mark.parametrize("name", ["m.parquet", "m.csv", "m.ndjson"])
@pytest.mark.parametrize("fields", [SCORED, KEPT])
@pytest.mark.parametrize(
    "ids", [pa.array([5, 6]), pa.array(["a", "b"]), pa.array(["a", "b"], pa.large_string())]
)
def test_updates_with_scores_are_written(
    tmp_path: Path, name: str, fields: tuple[str, ...], ids: pa.Array
) -> None:
    with UpdateWriter(tmp_path / name, ids.type, pa.int64(), fields) as writer:
        writer.write(Found(ids, [0, 2, 3], pa.array([7, 8, 9]), [0.25, 1.0, 1 / 3]))
        writer.write(Found(ids, [0, 0, 0], pa.array([], pa.int64()), []))
    rows = read_back(tmp_path / name)
    assert [list(row) for row in rows] == [list(fields)] * 3
    assert [float(row["score"]) for row in rows] == [0.25, 1.0, 1 / 3]
    first, last = (int(i) if str(i).isdigit() else i for i in ids.to_pylist())
    found = [row["message_id"] for row in rows]
    assert [int(i) if str(i).isdigit() else i for i in found] == [first, first, last]


@pytest.mark.parametrize("fields", [MATCHED, KEPT])
def test_small_writes_share_a_row_group(tmp_path: Path, fields: tuple[str, ...]) -> None:
    with UpdateWriter(tmp_path / "m.parquet", pa.string(), pa.string(), fields) as writer:
        for i in range(50):
            ids = pa.array([f"m{i}", f"m{i + 1}"])
            writer.write(Found(ids, [0, 1, 3], pa.array(["a", "b", "c"])))
    file = pq.ParquetFile(tmp_path / "m.parquet")
    assert file.num_row_groups == 1
    expected = [f"m{i + j}" for i in range(50) for j in (0, 1, 1)]
    assert file.read().column("message_id").to_pylist() == expected


@pytest.mark.parametrize("fields", [MATCHED, SCORED, KEPT])
def test_no_updates_leave_a_valid_file(tmp_path: Path, fields: tuple[str, ...]) -> None:
    with UpdateWriter(tmp_path / "m.parquet", pa.string(), pa.string(), fields):
        pass
    with UpdateWriter(tmp_path / "n.parquet", None, pa.string(), fields):
        pass
    for name, data_type in (("m.parquet", pa.string()), ("n.parquet", pa.int64())):
        table = pq.read_table(tmp_path / name)
        assert table.schema == updates_schema(data_type, pa.string(), fields)
        assert len(table) == 0


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(message_ids: pa.DataType | None) -> None:
        with UpdateWriter(tmp_path / "m.parquet", message_ids, pa.int64(), MATCHED) as writer:
            if message_ids is not None:
                writer.write(Found(pa.array([1]), [0, 1], pa.array([2])))
            raise RuntimeError("the power went out")

    for message_ids in (pa.int64(), None):
        with pytest.raises(RuntimeError, match="the power"):
            fail(message_ids)
        assert list(tmp_path.iterdir()) == []


def test_updates_that_disagree_are_refused(tmp_path: Path) -> None:
    def writer_of(name: str, fields: tuple[str, ...] = MATCHED) -> UpdateWriter:
        return UpdateWriter(tmp_path / name, pa.int64(), pa.int64(), fields)

    with writer_of("m.csv") as writer, pytest.raises(InvalidInput, match="do not belong together"):
        writer.write(Found(pa.array([1]), [0, 2, 2], pa.array([2])))
    writer = writer_of("n.csv")
    writer.write(Found(pa.array([1]), [0, 2], pa.array([2])))
    with pytest.raises(InvalidInput, match="1 subscription ids for 2 updates"):
        writer.close()
    with (
        writer_of("o.csv", SCORED) as writer,
        pytest.raises(InvalidInput, match="0 scores for 1 updates"),
    ):
        writer.write(Found(pa.array([1]), [0, 1], pa.array([2])))
    with writer_of("p.csv") as writer, pytest.raises(InvalidInput, match="1 scores for 1 updates"):
        writer.write(Found(pa.array([1]), [0, 1], pa.array([2]), [1.0]))
    assert {path.name for path in tmp_path.iterdir()} == {"m.csv", "o.csv", "p.csv"}


@pytest.mark.parametrize("fields", [MATCHED, KEPT])
def test_large_updates_keep_their_order(
    tmp_path: Path, fields: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 1_500_000
    if fields == KEPT:  # whose table is slow to make here
        n = 30_000
        monkeypatch.setattr("earshot.files.updates.ROW_GROUP_ROWS", 8_000)
    with UpdateWriter(tmp_path / "m.parquet", pa.int64(), pa.int64(), fields) as writer:
        for start in range(0, n, n // 3):
            ids = pa.array(np.arange(start, start + n // 3) * 7 % n)
            writer.write(Found(pa.array([start, start + 1]), [0, 1, n // 3], ids))
    table = pq.read_table(tmp_path / "m.parquet")
    assert (table.column("subscription_id").to_numpy() == np.arange(n) * 7 % n).all()
    second = n // 3
    found = table.column("message_id").to_pylist()[second - 1 : second + 2]
    assert found == [1, second, second + 1]


def test_unwritable_values_and_places(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'x' holds NaN or infinity"):
        write_table(tmp_path / "m.ndjson", pa.table({"id": [1], "x": [np.inf]}))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidFile, match="only subscriptions and messages"):
        TableWriter(tmp_path / "m.geojson", updates_schema(pa.int64(), pa.int64()))
    put(tmp_path / "file", "")
    with pytest.raises(InvalidFile, match="cannot be written"):
        TableWriter(tmp_path / "file" / "m.csv", REJECTS)


@pytest.mark.parametrize("name", ["s.parquet", "s.ndjson", "s.csv", "s.geojson"])
def test_slices_are_written_as_such(tmp_path: Path, name: str) -> None:
    rows = [
        {"id": i, "keywords": [f"k{i}"] * (i % 3) if i != 4 else None, "expression": f"e{i}"}
        for i in range(9)
    ]
    table = pa.Table.from_pylist(rows, SUBSCRIPTIONS).select(["id", "keywords", "expression"])
    with TableWriter(tmp_path / name, table.schema) as writer:
        writer.write(table.slice(2, 3))
        writer.write(table.slice(5).to_batches()[0])
    found = whole(read_subscriptions(tmp_path / name)).to_pylist()
    assert [(row["id"], row["expression"]) for row in found] == [(i, f"e{i}") for i in range(2, 9)]
    assert [row["keywords"] or [] for row in found] == [row["keywords"] or [] for row in rows[2:]]


def test_rejects_table(tmp_path: Path) -> None:
    path = put(tmp_path / "m.ndjson", lines(GOOD, {**GOOD, "x": "east", "text": "y" * 5000}))
    batches = list(read_messages(path, on_error="reject"))
    table = reject_table(batches[0].rejects)
    assert table.schema == REJECTS
    row = table.to_pylist()[0]
    assert (row["source"], row["row"], row["field"]) == (str(path), 1, "x")
    assert json.loads(row["raw"])["text"].endswith("… (5000 characters)")
    assert len(reject_table([])) == 0
    for name in ("r.parquet", "r.csv", "r.ndjson"):
        write_table(tmp_path / name, table)
    assert read_back(tmp_path / "r.ndjson") == [row]
    assert pq.read_table(tmp_path / "r.parquet").to_pylist() == [row]


def test_rejects_of_encoding_carry_the_row() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"id": i, "text": "a", "x": float(i), "y": 0.0} for i in range(3)],
        messages_schema(pa.int64()),
    )
    error = InvalidRow("f", 7, "x", "wrong")
    (reject,) = rejects_of_batch([error], batch, np.array([5, 7, 9]))
    assert json.loads(reject.raw) == {"id": 1, "text": "a", "x": 1.0, "y": 0.0}
    assert str(reject.error()) == str(error)


def test_format_by_name() -> None:
    assert format_of("a.b/c.CSV") == "csv"
    assert format_of("c.ndjson.gz") == "ndjson"
    with pytest.raises(InvalidFile, match="expected one of"):
        format_of("noext")


def test_values_that_are_not_one_object_each_are_told_apart() -> None:
    layout = make_layout("messages", None, "queue", "reject")
    one, two = (json.dumps({"id": name, "text": "fire", "x": 1, "y": 2}) for name in "ab")
    values = pa.array([f"{one}\n{two}", "", one, None])
    found = batch_of_values(values, layout, "string", np.arange(10, 14))
    assert found.batch["id"].to_pylist() == ["a"]
    assert found.rows.tolist() == [12]
    assert [reject.row for reject in found.rejects] == [10, 11, 13]


def test_times_beyond_the_calendar_are_refused(tmp_path: Path) -> None:
    times = pa.array([0, 2**60], pa.int64()).cast(TIME)
    rows = pa.table({"id": [1, 2], "op": ["unsubscribe"] * 2, "time": times})
    pq.write_table(rows, tmp_path / "changes.parquet")
    [part] = read_changes(tmp_path / "changes.parquet", on_error="reject")
    assert part.rows.tolist() == [0]
    assert [(reject.row, reject.field) for reject in part.rejects] == [(1, "time")]
    messages = rows.append_column("text", pa.array(["fire", "fire"]))
    for axis in ("x", "y"):
        messages = messages.append_column(axis, pa.array([1.0, 1.0]))
    deliveries = Engine().publish_batch(messages, on_error="reject")
    assert [(error.row, error.field) for error in deliveries.rejects] == [(1, "time")]
