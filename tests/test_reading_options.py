"""Which place counts, CSV of other dialects, and wrong options by the names they were given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import command_line
from command_line import Folder
from earshot.errors import InvalidFile, InvalidParameter, InvalidRow
from earshot.files import read_messages, read_subscriptions

BOX_AND_POINT = "id,text,lon,lat,min_lon,min_lat,max_lon,max_lat\n1,fire,5,5,0,0,1,1\n"


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    made = command_line.Folder(tmp_path, capsys)
    (made / "s.csv").write_text(
        "id,keywords,x,y,radius\nin-the-box,fire,0.5,0.5,1000\nat-the-point,fire,5,5,1000\n"
    )
    return made


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [row for part in read_messages(path, **options) for row in part.batch.to_pylist()]


def places_of(path: Path, **options: Any) -> list[list[float | None]]:
    names = ("x", "y", "min_x", "min_y", "max_x", "max_y")
    return [[row[name] for name in names] for row in rows_of(path, **options)]


POINT = [5.0, 5.0, None, None, None, None]
BOX = [None, None, 0.0, 0.0, 1.0, 1.0]


# ---- places -------------------------------------------------------------------------------------


def test_an_option_says_which_place_counts(folder: Folder) -> None:
    (folder / "m.csv").write_text(BOX_AND_POINT)
    arguments = ["match", folder / "s.csv", folder / "m.csv", "--out", folder / "o.ndjson"]
    assert "say which counts, with --place point or --place box" in folder.refusal(*arguments)
    for place, reached in (("point", "at-the-point"), ("box", "in-the-box")):
        folder.facts(*arguments, "--place", place)
        found = command_line.rows_in(folder / "o.ndjson")
        assert found == [{"message_id": 1, "subscription_id": reached}]
    topk = [*arguments, "--top-k", 1, "--window", 5]
    (folder / "s.csv").write_text("id,keywords,x,y\na,fire,5,5\n")
    assert "needs a point alone; with --place point" in folder.refusal(*topk)
    assert folder.facts(*topk, "--place", "point")["n_updates"] == 1


def test_where_there_is_one_place_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(BOX_AND_POINT + "2,fire,5,5,,,,\n3,fire,,,0,0,1,1\n4,fire,5,5,0,,,\n")
    part = [5.0, 5.0, 0.0, None, None, None]  # half a box: only a whole one counts
    assert places_of(path, place="point") == [POINT, POINT, BOX, POINT]
    assert places_of(path, place="box") == [BOX, POINT, BOX, part]
    with pytest.raises(InvalidParameter, match="place is 'circle'; expected 'point' or 'box'"):
        read_messages(path, place="circle")  # type: ignore[arg-type]


def feature(geometry: dict[str, Any], **properties: Any) -> str:
    row = {"id": 1, "text": "fire", **properties}
    return json.dumps({"type": "Feature", "geometry": geometry, "properties": row}) + "\n"


TRIANGLE = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [0, 1], [0, 0]]]}
ACROSS = {
    "type": "MultiPolygon",
    "coordinates": [
        [[[179, 0], [180, 0], [180, 1], [179, 0]]],
        [[[-180, 0], [-179, 0], [-180, 1], [-180, 0]]],
    ],
}


def test_a_polygon_is_a_place_by_the_box_around_it(tmp_path: Path) -> None:
    path = tmp_path / "m.ndjson"
    path.write_text(feature(TRIANGLE))
    with pytest.raises(InvalidRow, match=r"is a polygon; .* --place box"):
        rows_of(path)
    with pytest.raises(InvalidRow, match="is a polygon"):
        rows_of(path, place="point")
    assert places_of(path, place="box") == [BOX]
    path.write_text(feature(ACROSS))
    assert places_of(path, place="box") == [[None, None, 179.0, 0.0, -179.0, 1.0]]
    assert places_of(path, place="box", space="planar") == [[None, None, -180.0, 0.0, 180.0, 1.0]]


def test_a_geometry_beside_another_place(tmp_path: Path) -> None:
    path = tmp_path / "m.ndjson"
    path.write_text(feature(TRIANGLE, lon=5, lat=5))
    with pytest.raises(InvalidRow, match="beside another place; give one, or say which counts"):
        rows_of(path)
    assert places_of(path, place="point") == [POINT]
    assert places_of(path, place="box") == [BOX]
    path.write_text(feature({"type": "Point", "coordinates": [5, 5]}, lon=5, lat=5))
    with pytest.raises(InvalidRow, match="beside another place of its kind"):
        rows_of(path, place="point")


# ---- CSV ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delimiter", "option"), [(";", ";"), ("\t", "tab"), ("\t", "\\t")])
def test_values_between_other_delimiters(delimiter: str, option: str, folder: Folder) -> None:
    text = (folder / "s.csv").read_text().replace(",", delimiter)
    (folder / "s.csv").write_text(text)
    (folder / "m.csv").write_text(
        delimiter.join(["id", "text", "x", "y\n7", '"a, fire"', "5", "5"])
    )
    arguments = ["match", folder / "s.csv", folder / "m.csv", "--out", folder / "o.ndjson"]
    assert "say so with --delimiter" in folder.refusal(*arguments)
    folder.facts(*arguments, "--delimiter", option)
    found = command_line.rows_in(folder / "o.ndjson")
    assert found == [{"message_id": 7, "subscription_id": "at-the-point"}]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8", "utf-8-sig"])
def test_other_encodings(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    ragged = "id,text,x,y,größe\n1,Café,0,0,1\n2,too,few\n3,Straße,0,0,2\n"
    path.write_bytes(ragged.encode(encoding))
    parts = list(read_messages(path, encoding=encoding, on_error="reject"))
    assert [row["text"] for part in parts for row in part.batch.to_pylist()] == ["Café", "Straße"]
    assert [reject.raw for part in parts for reject in part.rejects] == ["2,too,few"]


def test_what_cannot_be_decoded_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes("id,größe,text,x,y\n1,,é,0,0\n".encode("latin-1"))
    with pytest.raises(InvalidFile, match=r"header line is not valid UTF-8.*--encoding"):
        rows_of(path)
    path.write_bytes("id,text,x,y\n1,é,0,0\n".encode("utf-16") + b"\x00")
    with pytest.raises(InvalidFile, match=r"m\.csv cannot be read as utf-16"):
        rows_of(path, encoding="utf-16")
    for options, reason in (
        ({"encoding": "klingon"}, "encoding is 'klingon'; expected a name such as utf-8"),
        ({"delimiter": "ab"}, "delimiter is 'ab'; expected one ASCII character"),
        ({"delimiter": '"'}, "means something else in CSV"),
    ):
        with pytest.raises(InvalidParameter, match=reason):
            read_subscriptions(path, **options)  # type: ignore[arg-type]


# ---- wrong options ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--delimiter", "ab"], "--delimiter is 'ab'; expected one ASCII character"),
        (["--encoding", "klingon"], "--encoding is 'klingon'; expected a name"),
        (["--rank", "--alpha", "2"], "--alpha is 2.0; expected a number from 0 to 1"),
        (["--rank", "--threshold", "0"], "--threshold is 0.0; expected a number greater than 0"),
        (["--top-k", "0", "--window", "5"], "--top-k is 0; expected an integer from 1"),
        (["--top-k", "5", "--window", "0"], "--window is 0; expected a number of messages"),
        (["--top-k", "5", "--window", "soon"], "--window is 'soon'; expected a number of messages"),
        (["--top-k", "5", "--window", "9999999999h"], "--window is '9999999999h', longer than"),
        (["--top-k", "5", "--window", "5m", "--lateness", "5"], "--lateness is '5'; expected"),
        (["--top-k", "5", "--window", "5", "--max-distance", "x"], "--max-distance is 'x'"),
        (["--top-k", "5", "--window", "5", "--max-distance", "0"], "--max-distance is 0.0"),
        (["--top-k", "5", "--window", "5", "--space", "planar"], "--max-distance is not given"),
        (["--stem"], "--stem needs a language, such as --language en"),
        (["--stop-words"], "--stop-words needs a language"),
        (["--language", "xx", "--stem"], "no stemmer for language 'xx'"),
        (["--structure", "best"], "best"),
        (["--threads", "0"], "--threads is 0"),
    ],
)
def test_wrong_options_are_named_as_they_were_given(
    options: list[str], reason: str, folder: Folder
) -> None:
    (folder / "m.csv").write_text("id,text,x,y\n1,fire,5,5\n")
    arguments = ["match", folder / "s.csv", folder / "m.csv", "--out", folder / "o.csv"]
    code, out, err = folder.run(*arguments, *options)
    assert (code, out) == (2, "")
    assert reason in err


def test_options_of_csv_are_for_csv(folder: Folder) -> None:
    (folder / "m.ndjson").write_text('{"id":1,"text":"fire","x":5,"y":5}\n')
    (folder / "s.ndjson").write_text('{"id":1,"keywords":["fire"]}\n')
    for option in ("--delimiter", "--encoding"):
        arguments = ["match", folder / "s.ndjson", folder / "m.ndjson", "--out", folder / "o.csv"]
        code, _, err = folder.run(*arguments, option, ";")
        assert code == 2
        assert f"{option} is for CSV, and nothing that is read is CSV" in err


def test_no_error_names_a_field_without_a_name() -> None:
    assert str(InvalidRow("m.csv", 3, "", "has 2 values")) == "m.csv, row 3: has 2 values"
    assert str(InvalidRow("m.csv", 3, "x", "is east")) == "m.csv, row 3, field 'x': is east"
