"""Rows of all forms become canonical rows or rejects, in the workers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from earshot.errors import InvalidFile, InvalidInput, InvalidParameter
from earshot.model.schemas import changes_schema, messages_schema
from earshot.spark import rows as row_module
from earshot.spark.notes import plain_failure
from earshot.spark.rows import Part, RowReading, make_reading, needed_columns

MESSAGE = {"id": "a", "text": "x", "x": 1.0, "y": 2.0}
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def ids_of(parts: list[Part]) -> list[Any]:
    return [each for part in parts for each in part.rows.batch.column("id").to_pylist()]


def rejects_of(parts: list[Part]) -> list[tuple[str, int, str]]:
    return [
        (reject.source, reject.row, reject.field) for part in parts for reject in part.rows.rejects
    ]


def read_files(paths: list[Any], **columns: Any) -> list[Part]:
    batch = pa.record_batch({"path": pa.array(paths, pa.string()), **columns})
    return list(RowReading("messages", "files", "string", source="messages").parts([batch]))


def read_values(values: list[Any], ids: Any = "string", **columns: Any) -> list[Part]:
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), **columns})
    return list(RowReading("messages", "values", ids, source="messages").parts([batch]))


def read_columns(*tables: dict[str, Any], content: Any = "messages") -> list[Part]:
    batches = [pa.record_batch(table) for table in tables]
    return list(make_reading(content, batches[0].schema).parts(batches))


def write_ndjson(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def some_parquet(path: Path, n: int) -> Path:
    ids = [f"m{i}" for i in range(n)]
    rows = pa.table({"id": ids, "text": ["x" * 50] * n, "x": np.zeros(n), "y": np.zeros(n)})
    pq.write_table(rows, path, row_group_size=70_000, compression="none", use_dictionary=False)
    return path


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a.ndjson", "b c.ndjson", "d#e.ndjson", "f%41.ndjson", "ü?.ndjson"]
)
def test_files_are_found_by_any_name(tmp_path: Path, name: str) -> None:
    path = write_ndjson(tmp_path / name, MESSAGE)
    # A path, a URI as Spark's file source spells it, and one as its metadata column does.
    spellings = [str(path), f"file:{path}", path.as_uri()]
    parts = read_files(spellings)
    assert ids_of(parts) == ["a"] * 3
    assert [part.rows.source for part in parts] == spellings


def test_broken_files_are_rejects(tmp_path: Path) -> None:
    good = write_ndjson(tmp_path / "good.ndjson", MESSAGE, {"id": "b"}, [1])
    empty = tmp_path / "empty.ndjson"
    empty.touch()
    no_rows = some_parquet(tmp_path / "none.parquet", 0)
    corrupt = tmp_path / "corrupt.parquet"
    corrupt.write_bytes(b"PAR1 not really")
    unknown = tmp_path / "what.docx"
    unknown.touch()
    folder = tmp_path / "folder.ndjson"
    folder.mkdir()
    gone = tmp_path / "gone.ndjson"
    paths = [good, empty, no_rows, corrupt, unknown, folder, gone, good]
    parts = read_files([*map(str, paths), None])
    assert ids_of(parts) == ["a", "b"] * 2
    bad = [(str(path), 0, "") for path in (empty, corrupt, unknown, folder, gone)]
    lists = [(str(good), 2, "")]
    assert rejects_of(parts) == [*lists, *bad, *lists, ("messages", 8, "path")]


def test_rows_before_the_damage_stay(tmp_path: Path) -> None:
    path = some_parquet(tmp_path / "half.parquet", 140_000)
    data = bytearray(path.read_bytes())
    end = pq.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    data[end - 30 : end + 2_000] = b"\xff" * 2_030
    path.write_bytes(data)
    parts = read_files([str(path)])
    n = len(ids_of(parts))
    assert 0 < n < 140_000
    assert rejects_of(parts) == [(str(path), n, "")]
    assert f"damaged after row {n - 1}" in parts[-1].rows.rejects[0].reason


def test_an_unreadable_file_is_a_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_ndjson(tmp_path / "a.ndjson", MESSAGE)
    monkeypatch.setattr(row_module, "read_rows", _denied)
    parts = read_files([str(path)])
    assert rejects_of(parts) == [(str(path), 0, "")]
    assert "denied" in parts[0].rows.rejects[0].reason


def _denied(*_: Any, **__: Any) -> Any:
    raise PermissionError("denied")


def test_content_comes_where_paths_do_not_lead() -> None:
    content = json.dumps(MESSAGE).encode()
    paths = ["s3a://bucket/a b#1.ndjson", "s3a://bucket/none.ndjson"]
    parts = read_files(
        paths,
        content=pa.array([content, None], pa.binary()),
        modificationTime=pa.array([NOON, NOON], pa.timestamp("us", "UTC")),
    )
    assert ids_of(parts) == ["a"]
    assert rejects_of(parts) == [(paths[1], 0, "")]
    assert parts[0].arrived_us == int(NOON.timestamp() * 1e6)
    assert "earshot-" not in parts[1].rows.rejects[0].reason, (
        "the copy's name tells nobody anything"
    )


def test_times_beyond_the_calendar_are_rejects(tmp_path: Path) -> None:
    times = pa.array([0, 10**18, None, -(10**18)], pa.timestamp("us", "UTC"))
    ones = [1.0] * 4
    rows = pa.table({"id": list("abcd"), "text": ["x"] * 4, "x": ones, "y": ones})
    pq.write_table(rows.append_column("time", times), tmp_path / "far.parquet")
    parts = read_files([str(tmp_path / "far.parquet")])
    assert ids_of(parts) == ["a", "c"]
    assert [each[1:] for each in rejects_of(parts)] == [(1, "time"), (3, "time")]
    assert '"id": "b"' in parts[0].rows.rejects[0].raw
    far = pa.array([10**18], pa.timestamp("us", "UTC"))
    change = {"op": ["subscribe"], "id": ["a"], "keywords": [["x"]], "time": far, "expires": far}
    assert rejects_of(read_columns(change, content="changes")) == [("changes", 0, "expires")]


# ---- values -------------------------------------------------------------------------------------


def test_odd_values_are_rejects_one_by_one() -> None:
    feature = {
        "type": "Feature", "id": "f", "properties": {"text": "x"},
        "geometry": {"type": "Point", "coordinates": [1, 2]},
    }  # fmt: skip
    values = [
        json.dumps(MESSAGE).encode(),
        None,
        b"",
        b"{",
        b'{"id": "u", "text": "\xff", "x": 1, "y": 2}',
        b'[{"id": "l"}]',
        b'"text"',
        json.dumps({**MESSAGE, "id": 7}).encode(),
        json.dumps({**MESSAGE, "id": {"deep": ["er"]}}).encode(),
        json.dumps({**MESSAGE, "x": [1]}).encode(),
        json.dumps({**MESSAGE, "text": {"a": 1}}).encode(),
        json.dumps(feature).encode(),
        json.dumps({**MESSAGE, "id": "pretty"}, indent=2).encode(),
        b"null",
    ]
    parts = read_values(values)
    assert ids_of(parts) == ["a", "f", "pretty"]
    rejects = {row: field for _, row, field in rejects_of(parts)}
    assert rejects == {
        1: "", 2: "", 3: "", 4: "text", 5: "", 6: "", 7: "id", 8: "id", 9: "x", 10: "text", 13: "",
    }  # fmt: skip


def test_values_are_numbered_through_all_batches() -> None:
    """Changes without times are applied in the order of these numbers."""
    batches = [
        pa.record_batch({"value": [json.dumps({**MESSAGE, "id": f"{b}{i}"}) for i in range(3)]})
        for b in "xy"
    ]
    parts = list(RowReading("messages", "values", "string", source="m").parts(batches))
    assert [part.rows.rows.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5]]


def test_records_of_kafka_are_told_by_their_offsets() -> None:
    values = [json.dumps({**MESSAGE, "id": i}).encode() for i in range(4)]
    parts = read_values(
        [*values[:3], b"?"],
        "integer",
        topic=pa.array(["t"] * 4),
        partition=pa.array([1, 0, 1, 0], pa.int32()),
        offset=pa.array([10, 5, 11, 6]),
        timestamp=pa.array([NOON] * 4, pa.timestamp("us", "UTC")),
    )
    assert [part.rows.source for part in parts] == ["t/0", "t/1"]
    assert [part.rows.rows.tolist() for part in parts] == [[5], [10, 11]]
    assert rejects_of(parts) == [("t/0", 6, "")]
    assert all(part.arrived_us == int(NOON.timestamp() * 1e6) for part in parts)


def test_columns_beside_a_value_may_be_anything() -> None:
    parts = read_values(
        [json.dumps(MESSAGE)], offset=pa.array([1]), timestamp=pa.array(["yesterday"])
    )
    assert ids_of(parts) == ["a"]
    assert parts[0].arrived_us is None


# ---- columns ------------------------------------------------------------------------------------


def test_columns_of_many_types_are_read() -> None:
    parts = read_columns(
        {
            "id": pa.array([1, 2], pa.int16()),
            "text": ["a", "b"],
            "lon": pa.array([Decimal("1.5"), None], pa.decimal128(10, 3)),
            "lat": pa.array([1, None], pa.int32()),
            "geometry": pa.array([None, shapely.to_wkb(shapely.box(0, 0, 2, 1))], pa.binary()),
            "keywords": pa.array([["k"], None]),
            "time": pa.array([NOON, None], pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    (part,) = parts
    assert part.rows.batch.schema == messages_schema(pa.int64())
    first, second = part.rows.batch.to_pylist()
    assert (first["x"], first["y"], first["keywords"], first["time"]) == (1.5, 1.0, ["k"], NOON)
    assert (second["x"], second["min_x"], second["max_x"]) == (None, 0.0, 2.0)


BOX = {"min_x": 5.0, "min_y": 6.0, "max_x": 7.0, "max_y": 8.0}


@pytest.mark.parametrize("form", ["columns", "values", "files"])
@pytest.mark.parametrize("place", ["point", "box"])
def test_the_place_that_was_chosen_counts(tmp_path: Path, form: Any, place: Any) -> None:
    records = [MESSAGE | BOX, MESSAGE]
    table = {
        "columns": pa.Table.from_pylist(records),
        "values": pa.table({"value": [json.dumps(each) for each in records]}),
        "files": pa.table({"path": [str(write_ndjson(tmp_path / "m.ndjson", *records))]}),
    }[form]
    reading = make_reading("messages", table.schema, form=form, ids="string", place=place)
    (part,) = reading.parts(table.to_batches())
    both, one = part.rows.batch.to_pylist()
    nothing = dict.fromkeys(MESSAGE.keys() | BOX.keys())
    kept = {"x": 1.0, "y": 2.0} if place == "point" else BOX
    assert nothing | both == nothing | both | dict.fromkeys(["x", "y", *BOX]) | kept
    assert (one["x"], one["min_x"]) == (1.0, None), "a row with one place keeps it"


@pytest.mark.parametrize("form", ["columns", "values", "files"])
def test_the_box_around_a_polygon_is_that_of_its_space(tmp_path: Path, form: Any) -> None:
    corners = [[170, 0], [180, 5], [170, 9]]
    beyond = [[-170, 0], [-180, 5], [-170, 9]]
    parts = [[[*each, each[0]]] for each in (corners, beyond)]
    record = {"id": "a", "text": "x"}
    record |= {"geometry": json.dumps({"type": "MultiPolygon", "coordinates": parts})}
    table = {
        "columns": pa.Table.from_pylist([record]),
        "values": pa.table({"value": [json.dumps(record)]}),
        "files": pa.table({"path": [str(write_ndjson(tmp_path / "m.ndjson", record))]}),
    }[form]
    for space, sides in {"lonlat": (170.0, -170.0), "planar": (-180.0, 180.0)}.items():
        given: dict[str, Any] = {"form": form, "ids": "string", "space": space}
        reading = make_reading("messages", table.schema, **given, place="box")
        (part,) = reading.parts(table.to_batches())
        (row,) = part.rows.batch.to_pylist()
        assert (row["min_x"], row["max_x"]) == sides, space
        (part,) = make_reading("messages", table.schema, **given).parts(table.to_batches())
        (reject,) = part.rows.rejects
        assert "--place box" in reject.reason


def test_a_place_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="place is 'middle'; expected 'point' or 'box'"):
        make_reading("messages", pa.schema([TEXT, ID]), place="middle")  # type: ignore[arg-type]


def test_rows_of_a_table_are_numbered_and_keep_their_origin() -> None:
    one = {"id": pa.array(["a", None, "c"]), "text": ["x"] * 3, "x": [1.0] * 3, "y": [1.0] * 3}
    first, second = read_columns(one, one)
    assert first.rows.rows.tolist() == [0, 2]
    assert second.rows.rows.tolist() == [3, 5]
    assert rejects_of([first, second]) == [("messages", 1, "id"), ("messages", 4, "id")]
    assert second.origin is not None
    assert second.origin.take(second.rows.rows - second.first_row)["id"].to_pylist() == ["a", "c"]


def test_an_empty_table_gives_no_rows() -> None:
    empty = {name: pa.array([], kind) for name, kind in (("op", pa.string()), ("id", pa.int64()))}
    (part,) = read_columns(empty, content="changes")
    assert part.rows.batch.schema == changes_schema(pa.int64())
    assert part.rows.batch.num_rows == 0
    assert list(RowReading("changes", "columns", "integer").parts([])) == []


TEXT, PLACE = ("text", pa.string()), [("x", pa.float64()), ("y", pa.float64())]
ID = ("id", pa.string())
VALUES, FILES = {"form": "values", "ids": "string"}, {"form": "files", "ids": "string"}


@pytest.mark.parametrize(
    ("fields", "options", "error", "match"),
    [
        ([ID], {}, InvalidFile, "text"),
        ([TEXT], {}, InvalidFile, "'id'"),
        ([("id", pa.float64()), TEXT, *PLACE], {}, InvalidFile, "integers or strings"),
        ([ID, TEXT, *PLACE, ("time", pa.timestamp("us"))], {}, InvalidFile, "time zone"),
        ([ID, TEXT, PLACE[0], ("y", pa.bool_())], {}, InvalidFile, "numbers"),
        ([("value", pa.int64())], VALUES, InvalidFile, "strings or bytes"),
        ([("path", pa.binary())], FILES, InvalidFile, "strings"),
        ([("other", pa.string())], FILES, InvalidFile, "'path'"),
        ([("value", pa.string())], {"form": "values"}, InvalidParameter, "ids="),
        ([("value", pa.string())], {"form": "rows"}, InvalidParameter, "columns, values, files"),
    ],
)
def test_what_cannot_be_read_is_said_beforehand(
    fields: list[tuple[str, pa.DataType]],
    options: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    with pytest.raises(error, match=match):
        make_reading("messages", pa.schema(fields), **options)


def test_only_what_is_needed_is_sent() -> None:
    schema = pa.schema([(name, pa.string()) for name in ("other", "kind", "id", "text")])
    schema = pa.schema([*schema, ("x", pa.float64()), ("y", pa.float64())])
    chosen = make_reading("messages", schema)
    assert needed_columns(chosen, schema, ["kind"]) == ["kind", "id", "text", "x", "y"]


@pytest.mark.parametrize("name", ["InvalidRow", "LateRow", "UnknownRow", "InvalidInput", "Any"])
def test_a_failure_of_a_task_is_told_plainly(name: str) -> None:
    raised = RuntimeError(f"Traceback\nearshot.errors.{name}: what was wrong\n")
    failure = plain_failure(raised)
    assert isinstance(failure, InvalidInput)
    assert str(failure) == "what was wrong"
    assert plain_failure(RuntimeError("something else")) is None
