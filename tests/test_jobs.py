"""Jobs over files, from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numba.core import event

from earshot import Analyzer, Engine, Subscription
from earshot.cli import compilation
from earshot.errors import InvalidFile, InvalidParameter, InvalidRow, UnknownSubscription
from earshot.files import Reject
from earshot.jobs import (
    MESSAGE_BATCH_ROWS,
    FileOptions,
    RejectSink,
    explain_file,
    is_saved,
    load_engine,
    match_files,
)
from earshot.jobs.compiling import compile_ahead, use_kernels
from earshot.semantics import SEMANTICS
from earshot.semantics.index_matcher import IndexMatcher

N_MESSAGES = MESSAGE_BATCH_ROWS + 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        {"id": 1, "keywords": ["fire"]},
        {"id": 2, "keywords": ["rain"], "x": 0, "y": 0, "radius": 9},
        {"id": 3, "keywords": ["running"]},
    ]
    (tmp_path / "s.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(
        pa.table(
            {
                "id": range(N_MESSAGES),
                "text": ["fire", *["snow"] * (N_MESSAGES - 2), "rain"],
                "x": [0.0] * N_MESSAGES,
                "y": [0.0] * N_MESSAGES,
            }
        ),
        tmp_path / "m.parquet",
    )
    return tmp_path


def load(folder: Path, **options: Any) -> Engine:
    return load_engine(
        folder / "s.ndjson", files=FileOptions(), rejects=RejectSink(None), **options
    )


def test_a_job_in_several_batches(folder: Path) -> None:
    loaded: list[int] = []
    engine = load(folder, progress=loaded.append)
    assert (len(engine), sum(loaded)) == (3, 3)
    done: list[int] = []
    summary = match_files(
        engine, folder / "m.parquet", folder / "o.parquet",
        files=FileOptions(), rejects=RejectSink(None), progress=done.append,
    )  # fmt: skip
    assert done == [MESSAGE_BATCH_ROWS, 100]
    assert (summary.n_subscriptions, summary.n_messages, summary.n_updates) == (3, N_MESSAGES, 2)
    assert summary.counters["answers"] == 2
    assert summary.match_s > 0
    assert pq.read_table(folder / "o.parquet").to_pylist() == [
        {"message_id": 0, "subscription_id": 1},
        {"message_id": N_MESSAGES - 1, "subscription_id": 2},
    ]


def test_an_engine_is_loaded_from_a_file_or_a_directory(folder: Path) -> None:
    assert not is_saved(folder / "s.ndjson")
    stemming = load(
        folder, analyzer=Analyzer("en", stem=True), structure="linear_scan", n_threads=2
    )
    stemming.save(folder / "saved")
    assert is_saved(folder / "saved")
    opened = load_engine(
        folder / "saved", files=FileOptions(), rejects=RejectSink(None), n_threads=2
    )
    for engine in (stemming, opened):
        assert engine.structure == "linear_scan"
        assert engine.analyzer == Analyzer("en", stem=True)
        assert isinstance(engine.matcher, IndexMatcher)
        assert engine.matcher.n_threads == 2
        assert engine.analyzer.tokens("runs") == ["run"]


def test_ids_repeated_across_batches_are_found(tmp_path: Path) -> None:
    n = (1 << 16) + 1
    ids = [*range(n - 1), 5]
    pq.write_table(pa.table({"id": ids, "keywords": [["fire"]] * n}), tmp_path / "s.parquet")
    with pytest.raises(InvalidRow, match=r"s\.parquet, row 65536, field 'id': id 5 is already"):
        load_engine(tmp_path / "s.parquet", files=FileOptions(), rejects=RejectSink(None))
    files = FileOptions(on_error="reject", rejects=tmp_path / "r.csv")
    with RejectSink(files.rejects) as rejects:
        engine = load_engine(tmp_path / "s.parquet", files=files, rejects=rejects)
    assert rejects.n_rows == 1
    assert len(engine) == n - 1
    assert engine.facts()["n_changes"] == 0  # the batches are built as one index
    assert "row 65536" not in (tmp_path / "r.csv").read_text()
    assert ",65536,id," in (tmp_path / "r.csv").read_text().replace('"', "")


def test_a_job_that_fails_leaves_no_file(folder: Path) -> None:
    engine = load(folder)

    def fail(n_rows: int) -> None:
        raise RuntimeError("the terminal went away")

    before = set(folder.iterdir())
    with pytest.raises(RuntimeError, match="went away"):
        match_files(
            engine, folder / "m.parquet", folder / "o.parquet",
            files=FileOptions(), rejects=RejectSink(None), progress=fail,
        )  # fmt: skip
    assert set(folder.iterdir()) == before


def test_reject_sink(tmp_path: Path) -> None:
    reject = Reject("a.csv", 3, "x", "longitude 200", "{}")
    with RejectSink(None) as nowhere:
        nowhere.write([])
        with pytest.raises(InvalidRow, match=r"a\.csv, row 3, field 'x': longitude 200"):
            nowhere.write([reject])
    with RejectSink(tmp_path / "r.ndjson") as sink:
        sink.write([reject, reject])
        sink.write([])
    assert sink.n_rows == 2
    lines = (tmp_path / "r.ndjson").read_text().splitlines()
    assert json.loads(lines[1]) == reject._asdict()
    stopped = RejectSink(tmp_path / "q.ndjson")
    stopped.write([reject])
    stopped.__exit__(RuntimeError, RuntimeError("stop"), None)
    assert [path.name for path in tmp_path.iterdir()] == ["r.ndjson"]


def test_explain_file_finds_the_message_in_any_batch(folder: Path) -> None:
    engine = load(folder)
    last = str(N_MESSAGES - 1)
    assert explain_file(
        engine, folder / "m.parquet", last, "2", FileOptions(), RejectSink(None)
    ).matched
    assert not explain_file(
        engine, folder / "m.parquet", last, "1", FileOptions(), RejectSink(None)
    ).matched
    with pytest.raises(InvalidFile, match="no message with id 'x'"):
        explain_file(engine, folder / "m.parquet", "x", "1", FileOptions(), RejectSink(None))
    with pytest.raises(UnknownSubscription, match="the ids are integers"):
        explain_file(engine, folder / "m.parquet", "0", "one", FileOptions(), RejectSink(None))


def test_explain_file_reads_boxes_keywords_and_times(tmp_path: Path) -> None:
    (tmp_path / "m.ndjson").write_text(
        '{"id":"a","keywords":["fire"],"min_x":170,"min_y":0,"max_x":-170,"max_y":1,'
        '"time":"2026-05-01T12:00:00Z"}\n'
    )
    engine = Engine()
    engine.subscribe(Subscription("s", ("fire",)))
    found = explain_file(engine, tmp_path / "m.ndjson", "a", "s", FileOptions(), RejectSink(None))
    assert found.matched
    assert "box (170.0, 0.0, -170.0, 1.0)" in str(found)


@pytest.mark.parametrize("name", SEMANTICS)
def test_what_is_compiled_ahead_is_used(name: str) -> None:
    use_kernels(name)


def test_kernels_go_to_a_directory_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidParameter, match=r"holds 'thesis\.txt', which is no kernel"):
        compile_ahead(tmp_path)
    with pytest.raises(InvalidParameter, match="cannot compile for a386"):
        compile_ahead(tmp_path / "new", ["a386"])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_words_are_compiled_as_a_command_will_ask_for_them(folder: Path) -> None:
    """By the names of kernels, which say all that they depend on: nothing is compiled twice."""
    code = "import sys; from earshot.jobs.compiling import use_words; use_words({!r}); {}"
    tell = "from earshot.kernels.compiled import loaded; print(*loaded)"
    for name in ("boolean", "topk"):
        for _ in range(2):  # to compile, then to see what is looked for
            done = subprocess.run(
                [sys.executable, "-c", code.format(name, tell)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
        words = set(done.stdout.split())
        assert {"analyze_texts", "enter_ids"} <= {each.partition("-")[0] for each in words}
        done = subprocess.run(
            [sys.executable, "-m", "earshot.jobs.compiling", name],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert words <= set(done.stdout.split())


def test_a_command_compiles_in_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    class Helper:
        def __init__(self, command: list[str], **_: Any) -> None:
            commands.append(command[2:])

        def terminate(self) -> None:
            commands.append(["terminate"])

        def wait(self) -> None:
            commands.append(["wait"])

    monkeypatch.setattr(subprocess, "Popen", Helper)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with compilation.told("boolean"):
        assert commands == []
        with event.trigger_event("numba:compile", {"dispatcher": rehearsed}):
            assert commands == [["earshot.jobs.compiling", "boolean", "words"]]
    assert commands[1:] == [["terminate"], ["wait"]]
    assert "in 2 processes" in capsys.readouterr().err


class rehearsed:  # noqa: N801 - what a kernel is to a listener
    @staticmethod
    def py_func() -> None: ...
