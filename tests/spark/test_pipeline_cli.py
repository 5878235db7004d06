"""``earshot pipeline``: what a person types, sees and finds afterwards."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from earshot import Engine, cli
from earshot.errors import EarshotError
from earshot.files import write_table
from earshot.semantics import SEMANTICS
from earshot.spark.batch_log import BatchLog
from earshot.spark.commands.run import StoppedAtOnce, watch
from earshot.spark.commands.session import plain_words
from earshot.spark.stream import Status
from earshot.spark.view import Log, Panel, View, line_of
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

from .conftest import TEST_SETTINGS
from .events import files_of_batches

FILE_MESSAGES = 100
N_FILES = 6
Pairs = list[tuple[str, str]]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([str(each) for each in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def facts(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def pairs_of(table: pa.Table) -> Pairs:
    names = ("message_id", "subscription_id")
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))


def pairs_in(folder: Path) -> Pairs:
    return pairs_of(ds.dataset(folder, format="parquet", partitioning="hive").to_table())


def engine_pairs(subscriptions: pa.Table, messages: pa.Table) -> Pairs:
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
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    messages: pa.Table,
    subscriptions: pa.Table,
) -> None:
    config = tmp_path / "p.toml"
    settings = [f'"{name}" = "{value}"' for name, value in TEST_SETTINGS.items()]
    config.write_text("\n".join([CONFIG, *settings]))
    write_table(tmp_path / "subscriptions.parquet", subscriptions)
    (tmp_path / "messages").mkdir()
    put_messages(tmp_path / "messages", messages, range(3))

    begun = tmp_path / "checkpoint" / "earshot" / "batches" / "00000001.json"
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
    assert f"building {tmp_path / 'index'}" in err
    assert "stopping after this batch" in err
    first = json.loads(out)
    assert first["signal"] == "SIGINT"
    records = BatchLog(tmp_path / "checkpoint").records()
    assert records[1].is_done  # the signal came while it ran
    assert first["batches"] == len([record for record in records if record.is_done])
    assert first["messages"] == first["batches"] * FILE_MESSAGES

    put_messages(tmp_path / "messages", messages, range(3, N_FILES))
    gone = subscriptions["id"].to_pylist()[::2]
    lines = [json.dumps({"op": "unsubscribe", "id": each}) for each in [*gone, "nobody"]]
    (tmp_path / "changes" / "1.ndjson").write_text("\n".join(lines))
    second = facts(capsys, "pipeline", "run", config, "--once")
    assert (second["changes"], second["version"], second["signal"]) == (len(gone), 2, None)
    assert second["n_subscriptions"] == subscriptions.num_rows - len(gone)
    assert second["rejects"] == 3

    records = BatchLog(tmp_path / "checkpoint").records()
    files = files_of_batches(tmp_path / "checkpoint", "messages")
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
    assert pairs_in(tmp_path / "out") == sorted(expected)
    reasons = {}
    for kind in ("messages", "changes"):
        lines = [
            line
            for path in (tmp_path / "rejects" / kind).rglob("*.json")
            for line in path.read_text().splitlines()
        ]
        reasons[kind] = sorted(json.loads(line)["field"] for line in lines)
    assert reasons == {"messages": ["", "y"], "changes": ["id"]}


def test_run_says_what_is_missing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "p.toml"
    table = '[subscriptions]\npath = "subscriptions.parquet"\n'
    config.write_text(CONFIG.replace(table, ""))
    code, out, err = run(capsys, "pipeline", "run", config)
    assert (code, out) == (1, "")
    assert err.startswith(
        f"earshot: {config}: {tmp_path / 'index'} holds no index, and there is no"
    )
    config.write_text(CONFIG)
    code, _, err = run(capsys, "pipeline", "run", config, "--quiet")
    missing = tmp_path / "subscriptions.parquet"
    assert (code, err) == (1, f"earshot: {missing} is not a file or directory\n")
    config.write_text(f"semantics = 'all'{CONFIG}")
    code, _, err = run(capsys, "pipeline", "run", config)
    assert (code, err) == (
        1,
        f'earshot: {config}: semantics is "all"; expected one of {", ".join(SEMANTICS)}\n',
    )  # fmt: skip


# ---- batch --------------------------------------------------------------------------------------


def test_files_are_built_changed_described_and_matched(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    messages: pa.Table,
    subscriptions: pa.Table,
) -> None:
    (tmp_path / "s").mkdir()
    write_table(tmp_path / "s" / "1.parquet", subscriptions.slice(0, 400))
    write_table(tmp_path / "s" / "2.ndjson", subscriptions.slice(400))
    with (tmp_path / "s" / "2.ndjson").open("a") as file:
        file.write('{"id": "bad", "keywords": ["?"]}\n')
    (tmp_path / "s" / "_SUCCESS").touch()
    (tmp_path / "m").mkdir()
    put_messages(tmp_path / "m", messages)
    index, rejects = tmp_path / "index", tmp_path / "rejects"
    good = messages.slice(0, N_FILES * FILE_MESSAGES)

    built = facts(
        capsys, "pipeline", "build", tmp_path / "s", "--out", index, "--placement", "sharded",
        "--shards", 2, "--messages", tmp_path / "m", "--on-error", "reject", "--rejects", rejects,
    )  # fmt: skip
    assert (built["n_subscriptions"], built["n_rejects"], built["n_shards"]) == (1_000, 1, 2)
    assert "'?'" in "".join(path.read_text() for path in (rejects / "subscriptions").glob("*.json"))

    arguments = ("pipeline", "match", index, tmp_path / "m", "--out")
    code, _, err = run(capsys, *arguments, tmp_path / "out")
    assert code == 1
    assert err.count("\n") == 1
    assert "5.ndjson, row 10" in err
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
    rejecting = ("--on-error", "reject", "--rejects", tmp_path / "refused")
    found = facts(
        capsys, *arguments, tmp_path / "out", *rejecting, "--shape", "lists", "--format", "ndjson"
    )
    expected = engine_pairs(subscriptions, good)
    lists = [
        json.loads(line)
        for path in (tmp_path / "out").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert sorted((row["message_id"], s) for row in lists for s in row["subscription_ids"]) == (
        expected
    )
    assert (found["n_messages"], found["n_updates"]) == (good.num_rows, len(expected))
    assert found["n_rejects"] == 2
    assert len(list((tmp_path / "refused" / "messages").glob("*.json"))) >= 1
    code, _, err = run(capsys, *arguments, tmp_path / "out")
    assert code == 1
    assert f"--out {tmp_path / 'out'} is not empty" in err
    code, _, err = run(capsys, *arguments, tmp_path / "o", "--stem")
    assert (code, "--stem: " in err) == (1, True)

    gone = [json.dumps({"op": "unsubscribe", "id": f"s{number}"}) for number in range(500)]
    (tmp_path / "c.ndjson").write_text("\n".join([*gone, gone[0]]))
    changing = ("pipeline", "changes", index, tmp_path / "c.ndjson")
    code, _, err = run(capsys, *changing)
    assert code == 1
    assert "c.ndjson, row 500, field 'id'" in err
    assert facts(capsys, "pipeline", "info", index)["version"] == 1
    changed = facts(capsys, *changing, "--on-error", "reject", "--rejects", tmp_path / "r.csv")
    assert changed == {
        "n_changes": 500, "n_rejects": 1, "version": 2, "n_subscriptions": 500
    }  # fmt: skip
    assert "c.ndjson,500,id," in (tmp_path / "r.csv").read_text().replace('"', "")
    found = facts(capsys, *arguments, tmp_path / "left", *rejecting[:-1], tmp_path / "refused-2")
    assert found["version"] == 2
    assert pairs_in(tmp_path / "left") == engine_pairs(subscriptions.slice(500), good)
    code, out, _ = run(capsys, "pipeline", "info", index)
    assert code == 0
    assert "n_subscriptions: 500\n" in out
    assert "placement: sharded\n" in out


def test_files_are_matched_without_an_index(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    messages: pa.Table,
    subscriptions: pa.Table,
) -> None:
    some = messages.slice(0, 300)
    write_table(tmp_path / "s.csv", subscriptions)
    write_table(tmp_path / "m.parquet", some)
    code, out, err = run(
        capsys, "pipeline", "match", tmp_path / "s.csv", tmp_path / "m.parquet",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert (code, err) == (0, "")
    expected = engine_pairs(subscriptions, some)
    assert f"300 messages against 1,000 subscriptions: {len(expected):,} matches" in out
    assert pairs_in(tmp_path / "out") == expected
    assert {path.name for path in tmp_path.iterdir()} == {"s.csv", "m.parquet", "out"}


def test_the_demo_equals_the_engine(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    found = facts(capsys, "demo", "--subscriptions", 2_000, "--seconds", 2)
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
    assert all(text in line_of(STATUS) for text in SHOWN)
    with Log(every_s=60) as log:
        log.show(Status())
        log.show(STATUS)
        for _ in range(2):
            log.show(Status(merge_error="no room"), is_stopping=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["no", "merging", "stopping"]
