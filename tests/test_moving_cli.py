"""Moving subscribers on the command line: buses that report, and messages beside their routes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from command_line import Folder
from earshot.files import FileBatch, write_table
from earshot.jobs.merging import merged_by_time
from earshot.model.schemas import TIME

# As buses report: some at the same second, one with a gap, one row late.
BUSES = """vehicle_id,lon,lat,time
8929,-97.74414,30.268604,2015-03-07T06:00:22Z
5015,-97.70010,30.291100,2015-03-07T06:00:22Z
8929,-97.74200,30.270100,2015-03-07T06:00:52Z
5015,-97.70210,30.290000,2015-03-07T06:00:40Z
8929,-97.73900,30.272900,2015-03-07T06:01:22Z
8929,-97.74414,30.268604,2015-03-07T06:00:30Z
5015,-97.70510,30.288800,2015-03-07T06:01:30Z
"""
RIDERS = """id,keywords,lon,lat,radius
8929,wheelchair,-97.75,30.26,250
5015,,-97.75,30.26,250
"""
WAITING = """id,text,lon,lat,time,end
1,Wheelchair waiting at 6th,-97.74200,30.270100,2015-03-07T06:00:00Z,
2,Rider waiting,-97.70210,30.290000,2015-03-07T06:00:30Z,2015-03-07T06:01:00Z
3,Wheelchair waiting,-97.73900,30.272900,2015-03-07T06:01:00Z,
"""


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    for name, text in {"buses": BUSES, "riders": RIDERS, "waiting": WAITING}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return Folder(tmp_path, capsys)


def test_buses_meet_who_waits(folder: Folder) -> None:
    """Both files are merged by time, and a late position is set aside."""
    facts = folder.facts(
        "match", folder / "riders.csv", folder / "waiting.csv", "--moving", "--lifetime", "5m",
        "--positions", folder / "buses.csv", "--position-column", "id=vehicle_id",
        "--out", folder / "updates.csv", "--on-error", "reject", "--rejects", folder / "bad.csv",
    )  # fmt: skip
    assert (facts["n_messages"], facts["n_positions"], facts["n_late"]) == (3, 6, 1)
    rows = (folder / "updates.csv").read_text().splitlines()[1:]
    assert [row.replace(chr(34), "") for row in rows] == [
        "2,5015,+,match,2015-03-07T06:00:30.000000Z",
        "1,8929,+,entered,2015-03-07T06:00:52.000000Z",
        "2,5015,-,expired,2015-03-07T06:01:00.000000Z",
        "1,8929,-,left,2015-03-07T06:01:22.000000Z",
        "3,8929,+,entered,2015-03-07T06:01:22.000000Z",
    ]
    assert "before the last position" in (folder / "bad.csv").read_text()


@pytest.mark.parametrize("ending", ["csv", "ndjson", "parquet"])
def test_a_position_without_coordinates_is_refused(folder: Folder, ending: str) -> None:
    """Else its subscriber would listen everywhere from then on."""
    rows = [
        {"id": 8929, "x": None, "y": None, "time": "2015-03-07T06:00:31Z"},
        {"id": 8929, "x": 1.0, "y": 2.0, "time": "2015-03-07T06:00:32Z"},
        {"id": 8929, "x": 1.0, "y": None, "time": "2015-03-07T06:00:33Z"},
    ]
    write_table(folder / f"lost.{ending}", pa.Table.from_pylist(rows))
    facts = folder.facts(
        "match", folder / "riders.csv", folder / "waiting.csv", "--moving", "--lifetime", "5m",
        "--positions", folder / f"lost.{ending}", "--out", folder / "updates.csv",
        "--on-error", "reject", "--rejects", folder / "bad.csv",
    )  # fmt: skip
    assert facts["n_positions"] == 1
    _, *bad = (folder / "bad.csv").read_text().splitlines()
    assert [row.split(",")[1:3] for row in bad] == [["0", '"x"'], ["2", '"y"']]
    assert all("a position needs x and y" in row for row in bad)


def test_ids_of_positions_are_read_as_those_of_subscriptions(folder: Folder) -> None:
    """Whatever they look like: a file of positions may have none but 17, or one that is wrong."""
    options = ("--moving", "--lifetime", "5m", "--out", folder / "updates.csv")
    (folder / "lost.csv").write_text(
        "id,x,y,time\n8929,1,2,2015-03-07T06:00:31Z\nbus,1,2,2015-03-07T06:00:32Z\n"
    )
    lost = ("--positions", folder / "lost.csv")
    reason = folder.refusal("match", folder / "riders.csv", folder / "waiting.csv", *options, *lost)
    assert "row 1, field 'id'" in reason
    assert "integer" in reason
    (folder / "named.csv").write_text("id,keywords,x,y,radius\nbus,stop,0,0,9\n17,stop,0,0,9\n")
    (folder / "found.csv").write_text("id,x,y,time\n17,1,2,2015-03-07T06:00:31Z\n")
    found = ("--positions", folder / "found.csv")
    facts = folder.facts("match", folder / "named.csv", folder / "waiting.csv", *options, *found)
    assert facts["n_positions"] == 1


@pytest.mark.parametrize("ending", ["ndjson", "parquet"])
def test_positions_mean_the_same_in_every_format(folder: Folder, ending: str) -> None:
    table = pyarrow.csv.read_csv(folder / "buses.csv")
    write_table(folder / f"buses.{ending}", table)
    for name in ("csv", ending):
        folder.facts(
            "match", folder / "riders.csv", folder / "waiting.csv", "--moving", "--lifetime", "5m",
            "--positions", folder / f"buses.{name}", "--position-column", "id=vehicle_id",
            "--out", folder / f"{name}.csv", "--on-error", "reject", "--rejects", folder / "b.csv",
        )  # fmt: skip
    told = (folder / "csv.csv").read_text()
    assert told.count("\n") == 6
    assert (folder / f"{ending}.csv").read_text() == told


@pytest.mark.skipif("EARSHOT_DATA" not in os.environ, reason="needs the positions of buses")
def test_buses_of_austin(folder: Folder) -> None:
    """Half a million real positions, merged with messages by time."""
    path = Path(os.environ["EARSHOT_DATA"]) / "austin_bus_gps.parquet"
    buses = pq.read_table(path)
    names = buses["vehicle_id"].unique().to_pylist()
    places = buses.slice(0, 4000).take(pa.array(np.arange(0, 4000, 40)))
    write_table(folder / "buses.parquet", pa.table({
        "id": names, "keywords": [["rider"]] * len(names), "lon": [0.0] * len(names),
        "lat": [0.0] * len(names), "radius": [400.0] * len(names),
    }))  # fmt: skip
    write_table(folder / "riders.csv", pa.table({
        "id": np.arange(len(places)), "text": ["Rider waiting"] * len(places),
        "lon": places["lon"], "lat": places["lat"], "time": [buses["time"][0]] * len(places),
    }))  # fmt: skip
    facts = folder.facts(
        "match", folder / "buses.parquet", folder / "riders.csv", "--moving", "--lifetime", "9999h",
        "--positions", path, "--position-column", "id=vehicle_id", "--out", folder / "updates.csv",
        "--on-error", "reject", "--rejects", folder / "bad.csv", "--results", folder / "held.csv",
    )  # fmt: skip
    assert facts["n_positions"] + facts["n_late"] == len(buses)
    assert facts["n_updates"] > 10_000


def test_options_that_do_not_go_together(folder: Folder) -> None:
    files = ("match", folder / "riders.csv", folder / "waiting.csv", "--out", folder / "out.csv")
    assert "--lifetime is missing" in folder.refusal(*files, "--moving")
    assert "takes no positions" in folder.refusal(*files, "--positions", folder / "buses.csv")
    assert "--lifetime is only for --moving" in folder.refusal(*files, "--lifetime", "5m")


def batch(ids: list[int], seconds: list[int | None]) -> FileBatch:
    us = [None if each is None else each * 1_000_000 for each in seconds]
    table = pa.record_batch({"id": pa.array(ids), "time": pa.array(us, pa.int64()).cast(TIME)})
    return FileBatch(table, np.arange(len(ids)), [], "")


def test_merging_keeps_each_order_and_lets_positions_come_first() -> None:
    messages = [batch([1, 2], [1, 5]), batch([], []), batch([3, 4], [None, 4])]
    positions = [batch([10, 11, 12], [5, None, 9])]
    parts = list(merged_by_time(iter(messages), iter(positions)))
    events = []
    for said, moved, is_move in parts:
        queues = [
            iter(() if each is None else each.batch.column("id").to_pylist())
            for each in (said, moved)
        ]
        events.append([next(queues[int(each)]) for each in is_move])
        assert [list(queue) for queue in queues] == [[], []]
    assert events == [[1, 10, 11, 2], [3, 4], [12]]
