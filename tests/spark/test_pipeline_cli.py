"""``earshot pipeline``: what a person types, sees and finds afterwards."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from command_line import Folder
from earshot import Engine
from earshot.errors import EarshotError
from earshot.files import write_table
from earshot.semantics import SEMANTICS
from earshot.spark.commands import StoppedAtOnce, watch
from earshot.spark.session import plain_words
from earshot.spark.stream import BatchLog, Status
from earshot.spark.view import Log, Panel, View
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

from .conftest import TEST_SETTINGS
from .events import files_of_batches, json_rows_in, pairs_of, updates_in

FILE_MESSAGES = 100
N_FILES = 6


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


def engine_pairs(subscriptions: pa.Table, messages: pa.Table) -> list[tuple[Any, Any]]:
    engine = Engine()
    engine.subscribe_batch(subscriptions)
    return pairs_of(engine.publish_batch(messages).table())


@pytest.fixture(scope="module")
def messages() -> pa.Table:
    return bundled_messages().drop_columns(["kind"])


@pytest.fixture(scope="module")
def subscriptions(messages: pa.Table) -> pa.Table:
    return draw_subscriptions(messages, 1_000)


# ---- run ----------------------------------------------------------------------------------------


CONFIG = """
index = "index"
checkpoint = "checkpoint"
[subscriptions]
path = "subscriptions.parquet"
[messages]
source = "files"
path = "messages"
files_per_batch = 1
[changes]
source = "files"
path = "changes"
[sink]
kind = "files"
path = "out"
[rejects]
path = "rejects"
[spark]
"""


def messages_of_file(messages: pa.Table, number: int) -> pa.Table:
    return messages.slice(number * FILE_MESSAGES, FILE_MESSAGES)


def put_messages(root: Path, messages: pa.Table, numbers: Iterable[int] = range(N_FILES)) -> None:
    """Write files in an order that their times tell."""
    for number in numbers:
        path = root / f"{number}.ndjson"
        write_table(path, messages_of_file(messages, number))
        if number == N_FILES - 1:
            with path.open("a") as file:
                file.write('{"id": "high", "text": "fire", "x": 1, "y": 99}\n{"id"\n')
        os.utime(path, (1e9 + number, 1e9 + number))


def test_ctrl_c_stops_after_the_batch_and_the_next_start_goes_on(
    spark: SparkSession, folder: Folder, messages: pa.Table, subscriptions: pa.Table
) -> None:
    config = folder / "p.toml"
    settings = [f'"{name}" = "{value}"' for name, value in TEST_SETTINGS.items()]
    config.write_text("\n".join([CONFIG, *settings]))
    write_table(folder / "subscriptions.parquet", subscriptions)
    (folder / "messages").mkdir()
    put_messages(folder / "messages", messages, range(3))

    begun = folder / "checkpoint" / "earshot" / "batches" / "00000001.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "earshot", "pipeline", "run", str(config), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        while not begun.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        # As a terminal does it: to Java and to Python's workers as well.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert f"building {folder / 'index'}" in err
    assert "stopping after this batch" in err
    first = json.loads(out)
    assert first["signal"] == "SIGINT"
    records = BatchLog(folder / "checkpoint").records()
    assert records[1].is_done  # the signal came while it ran
    assert first["batches"] == len([record for record in records if record.is_done])
    assert first["messages"] == first["batches"] * FILE_MESSAGES

    put_messages(folder / "messages", messages, range(3, N_FILES))
    gone = subscriptions["id"].to_pylist()[::2]
    lines = [json.dumps({"op": "unsubscribe", "id": each}) for each in [*gone, "nobody"]]
    (folder / "changes" / "1.ndjson").write_text("\n".join(lines))
    second = folder.facts("pipeline", "run", config, "--once", "--quiet")
    assert (second["changes"], second["version"], second["signal"]) == (len(gone), 2, None)
    assert second["n_subscriptions"] == subscriptions.num_rows - len(gone)
    assert second["rejects"] == 3

    records = BatchLog(folder / "checkpoint").records()
    files = files_of_batches(folder / "checkpoint", "messages")
    assert [record.batch for record in records] == list(files)
    left = subscriptions.filter(pa.array(number % 2 == 1 for number in range(1_000)))
    expected = []
    numbers = []
    for record in records:
        for path in files[record.batch]:
            numbers.append(int(path.stem))
            rows = messages_of_file(messages, numbers[-1])
            expected += engine_pairs(subscriptions if record.version == 1 else left, rows)
    assert numbers == list(range(N_FILES))
    assert {record.version for record in records} == {1, 2}
    assert updates_in(folder / "out") == sorted(expected)
    for kind, fields in {"messages": ["", "y"], "changes": ["id"]}.items():
        assert sorted(row["field"] for row in json_rows_in(folder / "rejects" / kind)) == fields


def test_run_says_what_is_missing(spark: SparkSession, folder: Folder) -> None:
    config = folder / "p.toml"
    table = '[subscriptions]\npath = "subscriptions.parquet"\n'
    config.write_text(CONFIG.replace(table, ""))
    err = folder.refusal("pipeline", "run", config)
    assert err.startswith(f"earshot: {config}: {folder / 'index'} holds no index, and there is no")
    config.write_text(CONFIG)
    missing = folder / "subscriptions.parquet"
    err = folder.refusal("pipeline", "run", config, "--quiet")
    assert err == f"earshot: {missing} is not a file or directory\n"
    nobody = 'source = "kafka"\nservers = "SSL://127.0.0.1:1,127.0.0.1:x"\ntopic = "t"'
    config.write_text(CONFIG.replace('source = "files"\npath = "changes"', nobody))
    err = folder.refusal("pipeline", "run", config, "--quiet")
    told = "Kafka at SSL://127.0.0.1:1,127.0.0.1:x cannot be reached from here: SSL://127.0.0.1:1 ("
    assert err.startswith(f"earshot: {told}")
    config.write_text(f"semantics = 'all'{CONFIG}")
    assert folder.refusal("pipeline", "run", config) == (
        f'earshot: {config}: semantics is "all"; expected one of {", ".join(SEMANTICS)}\n'
    )


def test_run_says_what_an_index_was_built_with(
    spark: SparkSession, folder: Folder, subscriptions: pa.Table
) -> None:
    write_table(folder / "subscriptions.parquet", subscriptions)
    config = folder / "p.toml"
    config.write_text(CONFIG)
    folder.run("pipeline", "run", config, "--once", "--quiet")
    for said, told in {
        'language = "en"\nstem = true': "language in [subscriptions] is en, and .* None; say",
        'space = "planar"': "space in [subscriptions] is planar, and .* built with lonlat; say",
        'ids = "integer"': "ids in [subscriptions] is integer, and .* built with string; say",
    }.items():
        config.write_text(CONFIG.replace("[messages]", f"{said}\n[messages]"))
        err = folder.refusal("pipeline", "run", config, "--once", "--quiet")
        assert re.search(told.replace("[", r"\["), err), err


# ---- batch --------------------------------------------------------------------------------------


def test_files_are_built_changed_described_and_matched(
    spark: SparkSession, folder: Folder, messages: pa.Table, subscriptions: pa.Table
) -> None:
    (folder / "s").mkdir()
    write_table(folder / "s" / "1.parquet", subscriptions.slice(0, 400))
    write_table(folder / "s" / "_2.ndjson", subscriptions.slice(400))
    with (folder / "s" / "_2.ndjson").open("a") as file:
        file.write('{"id": "bad", "keywords": ["?"]}\n')
    (folder / "s" / "_SUCCESS").touch()
    (folder / "m").mkdir()
    put_messages(folder / "m", messages)
    index, rejects = folder / "index", folder / "rejects"
    good = messages.slice(0, N_FILES * FILE_MESSAGES)

    built = folder.facts(
        "pipeline", "build", folder / "s", "--out", index, "--placement", "sharded",
        "--shards", 2, "--messages", folder / "m", "--on-error", "reject", "--rejects", rejects,
    )  # fmt: skip
    assert (built["n_subscriptions"], built["n_rejects"], built["n_shards"]) == (1_000, 3, 2)
    assert "'?'" in "".join(path.read_text() for path in (rejects / "subscriptions").glob("*.json"))
    refused = json_rows_in(rejects / "messages")
    assert len(refused) == 2

    arguments = ("pipeline", "match", index, folder / "m", "--out")
    err = folder.refusal(*arguments, folder / "out")
    assert err.count("\n") == 1
    assert "5.ndjson, row 10" in err
    assert not [path for path in folder.path.iterdir() if "out" in path.name]
    rejecting = ("--on-error", "reject", "--rejects", folder / "refused")
    found = folder.facts(
        *arguments, folder / "out", *rejecting, "--shape", "lists", "--format", "ndjson"
    )
    expected = engine_pairs(subscriptions, good)
    lists = json_rows_in(folder / "out")
    found_pairs = sorted((row["message_id"], s) for row in lists for s in row["subscription_ids"])
    assert found_pairs == expected
    assert (found["n_messages"], found["n_updates"]) == (good.num_rows, len(expected))
    assert found["n_rejects"] == 2
    assert len(list((folder / "refused" / "messages").glob("*.json"))) >= 1
    err = folder.refusal(*arguments, folder / "out")
    assert f"--out {folder / 'out'} is not empty" in err
    assert "--stem: " in folder.refusal(*arguments, folder / "o", "--stem")

    gone = [json.dumps({"op": "unsubscribe", "id": f"s{number}"}) for number in range(500)]
    (folder / "c.ndjson").write_text("\n".join([*gone, gone[0]]))
    changing = ("pipeline", "changes", index, folder / "c.ndjson")
    assert "c.ndjson, row 500, field 'id'" in folder.refusal(*changing)
    assert folder.facts("pipeline", "info", index)["version"] == 1
    changed = folder.facts(*changing, "--on-error", "reject", "--rejects", folder / "r.csv")
    assert changed == {
        "n_changes": 500, "n_rejects": 1, "version": 2, "n_subscriptions": 500
    }  # fmt: skip
    assert "c.ndjson,500,id," in (folder / "r.csv").read_text().replace('"', "")
    found = folder.facts(*arguments, folder / "left", *rejecting[:-1], folder / "refused-2")
    assert found["version"] == 2
    assert updates_in(folder / "left") == engine_pairs(subscriptions.slice(500), good)
    code, out, _ = folder.run("pipeline", "info", index)
    assert code == 0
    assert "n_subscriptions: 500\n" in out
    assert "placement: sharded\n" in out


def test_files_are_matched_without_an_index(
    spark: SparkSession, folder: Folder, messages: pa.Table, subscriptions: pa.Table
) -> None:
    some = messages.slice(0, 300)
    write_table(folder / "s.csv", subscriptions)
    write_table(folder / "m.parquet", some)
    code, out, err = folder.run(
        "pipeline", "match", folder / "s.csv", folder / "m.parquet",
        "--out", folder / "out",
    )  # fmt: skip
    assert (code, err) == (0, "")
    expected = engine_pairs(subscriptions, some)
    assert f"300 messages against 1,000 subscriptions: {len(expected):,} matches" in out
    assert updates_in(folder / "out") == expected
    assert folder.names() == {"s.csv", "m.parquet", "out"}


def test_of_two_places_the_chosen_one_counts(
    spark: SparkSession, folder: Folder, messages: pa.Table, subscriptions: pa.Table
) -> None:
    some = messages.slice(0, 100)
    both = some
    for name in ("min_x", "min_y", "max_x", "max_y"):
        both = both.append_column(name, pa.nulls(100, pa.float64()).fill_null(0))
    write_table(folder / "s.parquet", subscriptions)
    write_table(folder / "m.parquet", both)
    building = ("pipeline", "build", folder / "s.parquet", "--out", folder / "index")
    assert "--place is for --messages" in folder.refusal(*building, "--place", "box")
    assert not (folder / "index").exists()
    sampled = ("--placement", "sharded", "--shards", 2, "--messages", folder / "m.parquet")
    folder.facts(*building, *sampled, "--place", "point")
    matching = ("pipeline", "match", folder / "index", folder / "m.parquet", "--out")
    assert "row 0" in folder.refusal(*matching, folder / "out")
    folder.facts(*matching, folder / "out", "--place", "point")
    assert updates_in(folder / "out") == engine_pairs(subscriptions, some)


def test_the_demo_equals_the_engine(spark: SparkSession, folder: Folder) -> None:
    found = folder.facts("demo", "--subscriptions", 2_000, "--seconds", 2, "--quiet")
    assert found["equals_engine"] is True
    assert found["messages"] >= 7_000
    assert found["changes"] >= 600
    assert found["version"] > 1


@pytest.mark.parametrize(
    ("account", "told"),
    [
        ("An error occurred while calling o1.x.\n: org.SparkException: No master\n\tat x", "No ma"),
        ("Aborted: a.B: x\n\tat y\nCaused by: a.B: x\nCaused by: java.IOException: full", "full"),
        ("Return Message: Traceback:\n  File\npyspark.errors.AnalysisException: [P] bad", "[P] ba"),
        ("no table t\nat x", "no table t"),
        ("An exception was thrown:\nTraceback:\n  File\n    read()\nEOFError\n", "EOFError"),
        ("", "it does not say why"),
    ],
)
def test_failures_of_spark_are_one_sentence(account: str, told: str) -> None:
    with pytest.raises(EarshotError, match=r"^Spark failed: ") as caught, plain_words():
        raise PySparkException(account)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- watching -----------------------------------------------------------------------------------


STATUS = Status(
    batch=7, messages=1_000, updates=2_000_000, rejects=3, changes=40, messages_per_s=123.4,
    updates_per_s=5_678.9, batch_s=0.25, lag_s=1.5, version=9, n_subscriptions=50_000, merges=2,
    is_merging=True,
)  # fmt: skip
SHOWN = ("1,000", "123/s", "2,000,000", "5,679/s", "250 ms", "1.5 s", "50,000", "40", "merging")


class Interrupted:
    """A pipeline that gets signals while it is looked at."""

    is_active = True

    def __init__(self, signals: list[signal.Signals], stop_s: float) -> None:
        self.signals, self.stop_s = signals, stop_s
        self.is_stopped = False

    def status(self) -> Status:
        if self.signals:
            os.kill(os.getpid(), self.signals.pop())
        return STATUS

    def stop(self, patience_s: float) -> None:
        time.sleep(self.stop_s)
        self.is_stopped = True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_the_second_does_not_wait(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    pipeline: Any = Interrupted([number], 0.01)
    assert watch(pipeline, View()) == number
    assert pipeline.is_stopped
    stuck: Any = Interrupted([number, number], 20)
    with pytest.raises(StoppedAtOnce):
        watch(stuck, View())
    assert not stuck.is_stopped
    assert signal.getsignal(number) == before
    enough: Any = Interrupted([], 0.01)
    assert watch(enough, View(), is_enough=lambda: True) is None
    assert enough.is_stopped


def test_the_table_shows_the_state() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Panel(console) as panel:
        panel.note(["“Fire” reached everybody " + "far away " * 20])
        panel.show(STATUS)
        panel.show(Status(merge_error="no room"), is_stopping=True)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (*SHOWN, "“Fire” reached everybody", "no room", "waiting for the first"):
        assert text in shown, text


def test_a_log_has_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Log(every_s=60) as log:
        log.show(STATUS)
        log.show(Status())
        for _ in range(2):
            log.show(Status(merge_error="no room"), is_stopping=True)
    lines = capsys.readouterr().err.splitlines()
    assert all(text in lines[0] for text in SHOWN)
    assert [line.split()[1] for line in lines] == ["messages", "merging", "stopping"]
