"""The command line: files in, files out, and errors that say where to look."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import command_line
from command_line import rows_in
from earshot import cli
from earshot.files import write_table
from earshot.model.schemas import messages_schema, subscriptions_schema

SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"id": "fire-near", "keywords": ["fire"], "min_x": -1, "min_y": -1, "max_x": 1, "max_y": 1},
    {"id": "both", "keywords": ["fire", "rain"], "x": 0.0, "y": 0.0, "radius": 500_000.0},
    {"id": "either", "expression": "rain or (bus and not fire)", "x": 0, "y": 0, "radius": 1e5},
    {"id": "fiji", "keywords": ["fire"], "min_x": 177, "min_y": -20, "max_x": -178, "max_y": -15},
    {"id": "over", "keywords": ["fire"], "expires": "2026-05-01T12:00:00Z"},
]
MESSAGES: list[dict[str, Any]] = [
    {"id": 1, "text": "Fire in town", "x": 0.5, "y": 0.5, "time": "2026-05-01T11:00:00Z"},
    {"id": 2, "text": "rain stops the FIRE", "x": 1.0, "y": -1.0},
    {"id": 3, "text": "bus, bus and rain", "x": 0.0, "y": 0.0, "time": "2026-05-01T12:00:00Z"},
    {"id": 4, "text": "fire", "x": 180.0, "y": -17.0},
    {"id": 5, "text": "nothing", "x": 10.0, "y": 10.0},
]
MATCHES = {
    (1, "fire-near"), (1, "over"),
    (2, "fire-near"), (2, "both"), (2, "over"),
    (3, "either"),
    (4, "fiji"),
}  # fmt: skip


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    from datetime import datetime

    times = {"expires", "time"}
    return pa.Table.from_pylist(
        [
            {
                name: datetime.fromisoformat(value) if name in times else value
                for name, value in row.items()
            }
            for row in rows
        ],
        schema,
    )


class Folder(command_line.Folder):
    """A directory with files to match, and the command to do it."""

    def subscriptions(self, name: str, rows: list[dict[str, Any]] | None = None) -> Path:
        table = table_of(SUBSCRIPTIONS if rows is None else rows, subscriptions_schema(pa.string()))
        write_table(self / name, table)
        return self / name

    def messages(self, name: str, rows: list[dict[str, Any]] | None = None) -> Path:
        table = table_of(MESSAGES if rows is None else rows, messages_schema(pa.int64()))
        write_table(self / name, table)
        return self / name


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


def matches_in(path: Path) -> set[tuple[Any, Any]]:
    rows = rows_in(path)
    found = {(row["message_id"], row["subscription_id"]) for row in rows}
    assert len(found) == len(rows)
    return found


# ---- match --------------------------------------------------------------------------------------

INPUTS = ["parquet", "geoparquet", "ndjson", "csv", "geojson", "csv.gz"]


@pytest.mark.parametrize("suffix", INPUTS)
def test_match_files_of_any_format(suffix: str, folder: Folder) -> None:
    subscriptions = folder.subscriptions(f"s.{suffix}")
    messages = folder.messages(f"m.{suffix}")
    facts = folder.facts("match", subscriptions, messages, "--out", folder / "out.parquet")
    assert matches_in(folder / "out.parquet") == MATCHES
    assert (facts["n_subscriptions"], facts["n_messages"]) == (5, 5)
    assert (facts["n_updates"], facts["n_rejects"]) == (len(MATCHES), 0)
    assert facts["counters"]["answers"] == len(MATCHES)
    assert folder.names() == {subscriptions.name, messages.name, "out.parquet"}


@pytest.mark.parametrize("out", ["out.parquet", "out.ndjson", "out.csv", "new/folder/out.csv"])
def test_match_into_any_format(out: str, folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.ndjson")
    code, text, err = folder.run("match", subscriptions, messages, "--out", folder / out)
    assert (code, err) == (0, "")
    assert "5 messages against 5 subscriptions: 7 matches in" in text
    assert matches_in(folder / out) == MATCHES


def test_match_with_other_structures_threads_and_spaces(folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.csv")
    for options in (["--structure", "linear_scan"], ["--threads", "2"]):
        folder.facts("match", subscriptions, messages, "--out", folder / "o.csv", *options)
        assert matches_in(folder / "o.csv") == MATCHES
    plane = folder.subscriptions(
        "plane.csv", [{"id": "a", "keywords": ["fire"], "x": 1000, "y": 0, "radius": 5}]
    )
    near = folder.messages("near.csv", [{"id": 1, "text": "fire", "x": 1003, "y": 4}])
    folder.facts("match", plane, near, "--out", folder / "o.csv", "--space", "planar")
    assert matches_in(folder / "o.csv") == {(1, "a")}
    assert "longitude 1000" in folder.refusal("match", plane, near, "--out", folder / "p.csv")


def test_match_word_stems_without_stop_words(folder: Folder) -> None:
    subscriptions = folder.subscriptions("s.csv", [{"id": "a", "keywords": ["the running dogs"]}])
    messages = folder.messages("m.csv", [{"id": 1, "text": "A dog runs", "x": 0, "y": 0}])
    out = folder / "out.csv"
    text = ["--language", "en", "--stem", "--stop-words"]
    assert folder.facts("match", subscriptions, messages, "--out", out)["n_updates"] == 0
    assert folder.facts("match", subscriptions, messages, "--out", out, *text)["n_updates"] == 1


def test_match_columns_of_other_names(folder: Folder) -> None:
    (folder / "s.csv").write_text("key,wants\na,fire\n")
    (folder / "m.csv").write_text("nr,body,east,north\n7,Fire!,1,2\n")
    facts = folder.facts(
        "match", folder / "s.csv", folder / "m.csv", "--out", folder / "o.csv",
        "--subscription-column", "id=key", "--subscription-column", "keywords=wants",
        "--message-column", "id=nr", "--message-column", "text=body",
        "--message-column", "x=east", "--message-column", "y=north",
    )  # fmt: skip
    assert facts["n_updates"] == 1
    assert matches_in(folder / "o.csv") == {(7, "a")}


def test_match_nothing(folder: Folder) -> None:
    empty = folder.subscriptions("empty.parquet", [])
    none = folder.messages("none.parquet", [])
    some = folder.messages("some.parquet")
    for messages, n in ((none, 0), (some, 5)):
        facts = folder.facts("match", empty, messages, "--out", folder / "o.parquet")
        assert (facts["n_messages"], facts["n_updates"]) == (n, 0)
        found = pq.read_table(folder / "o.parquet")
        assert found.column_names == ["message_id", "subscription_id"]
        assert found.num_rows == 0


# ---- index --------------------------------------------------------------------------------------


def test_a_built_index_gives_the_same_matches(folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.parquet"), folder.messages("m.parquet")
    built = folder.facts("index", "build", subscriptions, "--out", folder / "index")
    assert (built["n_subscriptions"], built["n_clauses"]) == (5, 7)
    info = folder.facts("index", "info", folder / "index")
    for name in ("structure", "space", "n_subscriptions", "n_clauses", "n_tokens", "ids"):
        assert info[name] == built[name]
    assert (info["structure"], info["space"], info["n_tokens"]) == ("block_trie", "lonlat", 3)
    code, text, _ = folder.run("index", "info", folder / "index")
    assert code == 0
    assert "n_subscriptions: 5" in text.splitlines()
    assert info["n_bytes"] == sum(info["array_bytes"].values())
    told = {line.split()[-1]: line.split()[0] for line in text.splitlines() if line[:1] == " "}
    for sizes in (info["memory"], {"matcher/clauses/boxes": 7 * 32}):
        assert {name: told[name] for name in sizes} == {k: f"{v:,}" for k, v in sizes.items()}
    facts = folder.facts("match", folder / "index", messages, "--out", folder / "o.csv")
    assert facts["n_subscriptions"] == 5
    assert matches_in(folder / "o.csv") == MATCHES
    assert folder.names() == {"s.parquet", "m.parquet", "index", "o.csv"}


def test_an_index_has_its_own_options(folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.csv")
    assert folder.run("index", "build", subscriptions, "--out", folder / "i", "--quiet")[0] == 0
    err = folder.refusal(
        "match", folder / "i", messages, "--out", folder / "o.csv", "--stem", "--space", "planar"
    )
    assert "--space, --stem:" in err
    assert "is a built index, which has its own" in err
    assert folder.names() == {"s.csv", "m.csv", "i"}


def test_an_output_that_is_an_input_or_another_output_is_refused(folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.csv")
    before = messages.read_bytes()
    (folder / "link.csv").symlink_to(messages)
    out, rejecting = folder / "o.csv", ("--on-error", "reject", "--rejects")
    for options, told in (
        (("--out", messages), f"--out is {messages}, and so is MESSAGES"),
        (("--out", folder / "x" / ".." / "s.csv"), "and so is SUBSCRIPTIONS"),
        (("--out", folder / "link.csv"), "and so is MESSAGES"),
        (("--out", out, *rejecting, out), f"--rejects is {out}, and so is --out"),
        (("--out", out, "--save", out), f"--save is {out}, and so is --out"),
        (("--out", "-", "--save", folder.path), "is neither empty nor a saved state"),
        (
            ("--out", folder / "d" / "o.csv", "--save", folder / "d"),
            f"within --save {folder / 'd'}",
        ),
    ):
        assert told in folder.refusal("match", subscriptions, messages, *options)
    (folder / "link.csv").unlink()
    refused = folder.refusal("index", "build", subscriptions, "--out", subscriptions)
    assert refused.endswith("name another place for --out\n")
    assert messages.read_bytes() == before
    assert folder.names() == {"s.csv", "m.csv"}


def test_exit_codes(folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.csv")
    out = folder / "o.csv"
    assert folder.run("match", subscriptions, messages, "--out", out, "--threads", 0)[0] == 2
    assert folder.run("match", subscriptions, messages, "--out", messages)[0] == 2
    assert folder.run("match", subscriptions, folder / "no.csv", "--out", out)[0] == 1
    assert folder.run("index", "build", subscriptions, "--out", folder / "no" / "i")[0] == 1
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").touch()
    err = folder.refusal("index", "build", subscriptions, "--out", folder / "mine")
    assert "mine exists and is neither empty nor a saved state: 'notes.txt'" in err


def test_saving_again_replaces_what_was_saved(folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.csv")
    for _ in range(2):
        folder.facts(
            "match", subscriptions, messages, "--out", folder / "o.csv", "--save", folder / "saved"
        )
        assert folder.facts("index", "verify", folder / "saved")["n_arrays"] > 10


@pytest.mark.parametrize("options", [[], ["--rank"]])
def test_going_on_from_a_saved_engine(options: list[str], folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.csv")
    out, saved = folder / "o.csv", folder / "saved"
    folder.facts("match", subscriptions, messages, "--out", out, "--save", saved, *options)
    assert folder.facts("index", "info", saved)["n_subscriptions"] == 4  # one was over
    later = folder.messages("l.csv", [{"id": 6, "text": "fire", "x": 0.0, "y": 0.0}])
    folder.facts("match", saved, later, "--out", out)
    assert (6, "fire-near") in matches_in(out)
    assert (6, "over") not in matches_in(out)
    assert folder.refusal("match", saved, later, "--out", folder / "p.csv", "--save", saved) == (
        f"earshot: --save is {saved}, and so is SUBSCRIPTIONS; name another place for --save\n"
    )
    err = folder.refusal(
        "match", subscriptions, messages, "--out", folder / "p.csv", "--results", folder / "r.csv"
    )
    assert "boolean matching keeps no results to write to" in err
    assert folder.names() == {"s.csv", "m.csv", "l.csv", "o.csv", "saved"}


# ---- explain ------------------------------------------------------------------------------------


def test_explain(folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.ndjson"), folder.messages("m.csv")

    def ask(message: str, subscription: str, *more: str) -> tuple[int, str, str]:
        chosen = ("--message", message, "--subscription", subscription)
        return folder.run("explain", subscriptions, messages, *chosen, *more)

    code, out, _ = ask("2", "both")
    assert code == 0
    assert out.startswith("Message 2 is delivered to subscription 'both':")
    facts = json.loads(ask("1", "both", "--json")[1])
    assert facts["matched"] is False
    assert any("lacks 'rain'" in reason for reason in facts["reasons"])
    assert "expired at 2026-05-01T12:00:00+00:00" in ask("3", "over")[1]
    code, _, err = ask("99", "both")
    assert code == 1
    assert "m.csv has no message with id '99'" in err
    code, _, err = ask("1", "nobody")
    assert code == 1
    assert "no subscription 'nobody'" in err


@pytest.mark.parametrize("semantics", [(), ("--top-k", "1", "--window", "9")])
def test_explain_sets_bad_messages_aside(semantics: tuple[str, ...], folder: Folder) -> None:
    (folder / "s.csv").write_text(
        "id,keywords,x,y\n1,fire,0,0\n" if semantics else "id,keywords\n1,fire\n"
    )
    (folder / "m.csv").write_text("id,text,x,y\n1,fire,200,0\n2,,0,0\n3,fire,0,0\n")
    code, out, err = folder.run(
        "explain", folder / "s.csv", folder / "m.csv", "--message", "3", "--subscription", "1",
        "--on-error", "reject", "--rejects", folder / "r.csv", *semantics,
    )  # fmt: skip
    assert code == 0, err
    assert "2 rows rejected" in out + err
    assert [each["row"] for each in command_line.rows_in(folder / "r.csv")] == [0, 1]


def test_explain_with_integer_ids(folder: Folder) -> None:
    (folder / "s.csv").write_text("id,keywords\n5,fire\n")
    messages = folder.messages("m.csv")
    chosen = ("--message", "1", "--subscription")
    assert folder.facts("explain", folder / "s.csv", messages, *chosen, "5")["matched"] is True
    err = folder.refusal("explain", folder / "s.csv", messages, *chosen, "five")
    assert "no subscription 'five'; the ids are integers" in err


# ---- generate and demo --------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["parquet", "ndjson", "csv"])
def test_generated_files_can_be_matched(suffix: str, folder: Folder) -> None:
    sizes = ("--subscriptions", 300, "--messages", 20)
    facts = folder.facts("generate", "--out", folder / "w", "--format", suffix, *sizes)
    assert (facts["n_subscriptions"], facts["n_messages"]) == (300, 20)
    files = (facts["subscriptions"], facts["messages"])
    assert [Path(each).suffix for each in files] == [f".{suffix}"] * 2
    space = ("--space", facts["space"])
    found = folder.facts("match", *files, "--out", folder / "o.parquet", *space)
    assert (found["n_subscriptions"], found["n_messages"]) == (300, 20)
    scanned = ("--structure", "linear_scan")
    folder.facts("match", *files, "--out", folder / "p.parquet", *space, *scanned)
    assert matches_in(folder / "o.parquet") == matches_in(folder / "p.parquet")


def test_generate_is_seeded_and_lists_workloads(folder: Folder) -> None:
    def made(name: str, seed: int) -> bytes:
        sizes = ("--subscriptions", 50, "--messages", 5)
        folder.facts("generate", "--out", folder / name, "--seed", seed, "--format", "csv", *sizes)
        return (folder / name / "subscriptions.csv").read_bytes()

    assert made("a", 1) == made("b", 1) != made("c", 2)
    code, out, _ = folder.run("generate", "list")
    assert code == 0
    assert "headline" in out.split()
    assert "nonsense" in folder.refusal("generate", "nonsense", "--out", folder / "d")
    assert not (folder / "d").exists()


def test_demo(folder: Folder) -> None:
    facts = folder.facts("demo", "--engine", "--subscriptions", 500)
    assert facts["n_subscriptions"] == 500
    assert facts["n_matches"] > 0
    code, out, _ = folder.run("demo", "--engine", "--subscriptions", 500)
    assert code == 0
    assert "500 subscriptions" in out
    assert "reached" in out


def test_demo_of_moving_subscribers_draws_a_picture(folder: Folder) -> None:
    picture = folder / "taxis.svg"
    facts = folder.facts("demo", "--moving", picture)
    assert facts["n_positions"] == 8 * 24
    assert facts["n_updates"] > 50
    drawn = picture.read_text()
    root = ElementTree.fromstring(drawn)
    assert len(root.findall("{*}polyline")) == 8
    # A line for each street, and for each fare that a taxi holds, which is in its reach.
    held = [each for each in root.findall("{*}line") if each.get("stroke") != "#dcd6c8"]
    assert len(held) == facts["n_held"] > 3
    for line in held:
        x1, y1, x2, y2 = (float(line.get(name, "nan")) for name in ("x1", "y1", "x2", "y2"))
        assert (x1 - x2) ** 2 + (y1 - y2) ** 2 <= (0.12 * 680 + 1) ** 2
    assert "expected a file *.svg" in folder.refusal("demo", "--moving", folder / "taxis.png")
    assert "no such directory" in folder.refusal("demo", "--moving", folder / "no" / "t.svg")


def test_demo_without_java_is_the_engines(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    monkeypatch.setenv("JAVA_HOME", str(folder / "nowhere"))
    code, out, err = folder.run("demo", "--subscriptions", 500)
    assert code == 0
    assert "on one core" in out
    assert f"without Spark: JAVA_HOME is {folder / 'nowhere'}" in err
    assert folder.refusal("demo", "--seconds", 0) == (
        "earshot: --seconds is 0.0; expected more than 0\n"
    )


def test_without_pyspark_one_sentence_says_what_to_install() -> None:
    code = """
import sys
sys.modules["pyspark"] = None
from earshot.cli import main
assert main(["pipeline", "info", "index"]) == main(["pipeline", "run", "p.toml"]) == 1
assert main(["demo", "--subscriptions", "50"]) == 0
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    said = "PySpark is not installed; run: pip install 'earshot[spark]'"
    assert done.stderr.splitlines() == [
        f"earshot: {said}", f"earshot: {said}", f"earshot: the engine alone, without Spark: {said}"
    ]  # fmt: skip
    assert "on one core" in done.stdout


def test_bench_takes_its_options_with_and_without_a_command(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from earshot.bench import commands

    given: list[Any] = []

    def main(argv: list[str]) -> int:
        given.append(argv)
        return 0

    monkeypatch.setattr(commands, "main", main)
    for arguments in ([], ["--profile", "smoke"], ["run", "--seed", "3"], ["report"], ["--help"]):
        assert folder.run("bench", *arguments)[0] == 0
    assert given == [
        ["run"],
        ["run", "--profile", "smoke"],
        ["run", "--seed", "3"],
        ["report"],
        ["--help"],
    ]


# ---- bad options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["match"],
        ["match", "s.csv", "m.csv"],
        ["match", "s.csv", "m.csv", "--out", "o.csv", "--space", "round"],
        ["match", "s.csv", "m.csv", "--out", "o.csv", "--threads", "many"],
        ["match", "s.csv", "m.csv", "--out", "o.csv", "--on-error", "ignore"],
        ["index"],
        ["pipeline"],
        ["pipeline", "run"],
        ["pipeline", "match", "i", "m.csv"],
        ["pipeline", "match", "i", "m.csv", "--out", "o", "--shape", "round"],
        ["generate", "--format", "xlsx"],
        ["explain", "s.csv", "m.csv", "--message", "1"],
    ],
)
def test_usage_errors_exit_with_2(
    arguments: list[str], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path)
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: earshot" in folder.capsys.readouterr().err
    assert folder.names() == set()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--threads", "0"], "--threads is 0; expected 1 or more"),
        (["--structure", "best"], "no boolean structure is called 'best'"),
        (["--stem"], "language"),
        (["--language", "xx", "--stem"], "'xx'"),
        (["--on-error", "reject"], "--on-error reject needs --rejects FILE"),
        (["--rejects", "r.csv"], "--rejects is for --on-error reject"),
        (["--message-column", "x"], "--message-column is 'x'; expected FIELD=COLUMN"),
        (["--message-column", "colour=x"], "unknown field 'colour'"),
        (["--message-column", "text=body"], "m.csv: no column"),
        (["--out", "o.xlsx"], "unknown file type '.xlsx'"),
        (["--out", "o"], "unknown file type ''"),
        (["--out", "o.geojson"], "GeoJSON"),
    ],
)
def test_bad_options_are_explained(
    options: list[str], reason: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path)
    folder.subscriptions("s.csv")
    folder.messages("m.csv")
    err = folder.refusal("match", "s.csv", "m.csv", "--out", "o.csv", *options)
    assert err.startswith("earshot: ")
    assert reason in err
    assert folder.names() == {"s.csv", "m.csv"}


def test_places_that_cannot_be_written(folder: Folder) -> None:
    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.csv")
    (folder / "file").write_text("mine")
    for arguments in (
        ["match", subscriptions, messages, "--out", folder / "file" / "o.csv"],
        ["index", "build", subscriptions, "--out", folder / "file"],
        ["index", "build", subscriptions, "--out", folder / "file" / "index"],
        ["generate", "--subscriptions", 5, "--messages", 5, "--out", folder / "file"],
    ):
        assert "file" in folder.refusal(*arguments)
    assert folder.names() == {"s.csv", "m.csv", "file"}
    assert (folder / "file").read_text() == "mine"


def test_paths_that_are_not_there(folder: Folder) -> None:
    messages = folder.messages("m.csv")
    (folder / "dir").mkdir()
    for subscriptions, reason in (
        ("no.csv", "no.csv does not exist"),
        ("dir", "not a saved index"),
    ):
        err = folder.refusal("match", folder / subscriptions, messages, "--out", folder / "o.csv")
        assert reason in err
    assert folder.run("index", "info", folder / "nowhere")[0] == 1


# ---- bad files ----------------------------------------------------------------------------------


def text_file(content: str | bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def truncated_parquet(path: Path) -> None:
    table = table_of(SUBSCRIPTIONS, subscriptions_schema(pa.string()))
    pq.write_table(table, path)
    path.write_bytes(path.read_bytes()[:-100])


def parquet_without_ids(path: Path) -> None:
    pq.write_table(pa.table({"keywords": [["fire"]]}), path)


def parquet_with_nan(path: Path) -> None:
    pq.write_table(
        pa.table({"id": [1, 2], "keywords": [["a"]] * 2, "x": [0.0, float("nan")],
                  "y": [0.0, 0.0], "radius": [1.0, 1.0]}), path
    )  # fmt: skip


BOX = "id,keywords,min_x,min_y,max_x,max_y\n"
BAD_SUBSCRIPTIONS: list[tuple[str, Callable[[Path], None], list[str]]] = [
    ("truncated.parquet", truncated_parquet, ["truncated.parquet"]),
    ("not.parquet", text_file("hello"), ["not.parquet"]),
    ("noid.parquet", parquet_without_ids, ["noid.parquet", "no column 'id'"]),
    ("nan.parquet", parquet_with_nan, ["nan.parquet, row 1, field 'x'", "nan"]),
    ("nan.csv", text_file(BOX + "1,a,0,0,1,1\n2,b,nan,0,1,1\n"), ["row 1, field 'min_x'"]),
    ("wide.csv", text_file(BOX + "1,a,0,0,200,1\n"), ["row 0, field 'max_x'", "longitude 200"]),
    ("inverted.csv", text_file(BOX + "1,a,0,0,1,1\n2,b,0,5,1,1\n"), ["row 1, field 'min_y'"]),
    ("empty.csv", text_file(""), ["empty.csv"]),
    ("ragged.csv", text_file(BOX + "1,a,0\n"), ["ragged.csv"]),
    ("text.csv", text_file(BOX + "1,a,0,zero,1,1\n"), ["row 0, field 'min_y'", "zero"]),
    ("twice.csv", text_file("id,keywords\n7,a\n8,b\n7,c\n"), ["row 2, field 'id'", "7"]),
    ("blank.csv", text_file("id,keywords\n7,a\n8,\n"), ["row 1, field 'keywords'"]),
    (
        "word.ndjson",
        text_file('{"id":1,"keywords":["a"]}\n{"id":2,"keywords":["b",""]}\n'),
        ["word.ndjson, row 1, field 'keywords'"],
    ),
    (
        "utf8.csv",
        text_file(b"id,keywords\n1,caf\xc3\xa9\n2,caf\xe9\n"),
        ["utf8.csv", "UTF-8"],
    ),
    (
        "utf8.ndjson",
        text_file(b'{"id":1,"keywords":["a"]}\n{"id":2,"keywords":["\xff"]}\n'),
        ["utf8.ndjson", "row 1", "UTF-8"],
    ),
    ("broken.ndjson", text_file('{"id":1,"keywords":["a"]}\n{"id":2,\n'), ["broken.ndjson, row 1"]),
    ("broken.geojson", text_file('{"type":"FeatureCollection","fea'), ["broken.geojson"]),
    (
        "logic.csv",
        text_file("id,expression\n1,fire and rain\n2,not fire\n"),
        ["logic.csv, row 1, field 'expression'"],
    ),
    (
        "time.ndjson",
        text_file('{"id":1,"keywords":["a"],"expires":"2026-05-01T12:00:00"}\n'),
        ["time.ndjson, row 0, field 'expires'", "zone"],
    ),
    ("mixed.ndjson", text_file('{"id":1,"keywords":["a"]}\n{"id":"x","keywords":["a"]}\n'),
     ["mixed.ndjson, row 1, field 'id'"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make", "words"), BAD_SUBSCRIPTIONS, ids=[each[0] for each in BAD_SUBSCRIPTIONS]
)
def test_a_bad_file_of_subscriptions_is_named(
    name: str, make: Callable[[Path], None], words: list[str], folder: Folder
) -> None:
    make(folder / name)
    messages = folder.messages("m.csv")
    for arguments in (
        ["match", folder / name, messages, "--out", folder / "o.parquet"],
        ["index", "build", folder / name, "--out", folder / "index"],
    ):
        err = folder.refusal(*arguments)
        assert err.startswith("earshot: ")
        assert "Traceback" not in err
        for word in words:
            assert word in err
    assert folder.names() == {name, "m.csv"}


BAD_MESSAGES: list[tuple[str, str | bytes, list[str]]] = [
    ("far.csv", "id,text,x,y\n1,fire,0,0\n2,fire,0,-91\n", ["far.csv, row 1, field 'y'"]),
    ("nowhere.csv", "id,text\n1,fire\n", ["nowhere.csv: no place"]),
    ("half.ndjson", '{"id":1,"text":"fire","x":1}\n', ["half.ndjson", "y"]),
    ("long.ndjson", '{"id":1,"text":"fire","x":0,"y":0}\n{"id":2,"x":0,"y":0,"text":"'
     + "fire " * 2_000_000 + '"}\n', ["long.ndjson, row 1, field 'text'", "10000000 bytes"]),
    ("utf8.csv", b"id,text,x,y\n1,fire \xff,0,0\n", ["utf8.csv", "UTF-8"]),
    ("null.ndjson", '{"id":null,"text":"fire","x":0,"y":0}\n', ["null.ndjson, row 0, field 'id'"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "words"), BAD_MESSAGES, ids=[each[0] for each in BAD_MESSAGES]
)
def test_a_bad_file_of_messages_is_named(
    name: str, content: str | bytes, words: list[str], folder: Folder
) -> None:
    text_file(content)(folder / name)
    subscriptions = folder.subscriptions("s.csv")
    err = folder.refusal("match", subscriptions, folder / name, "--out", folder / "o.parquet")
    for word in words:
        assert word in err
    assert len(err) < 2000
    assert folder.names() == {name, "s.csv"}


def test_an_error_late_in_the_file_leaves_no_half_written_output(folder: Folder) -> None:
    subscriptions = folder.subscriptions("s.csv")
    rows = [{"id": i, "text": "fire", "x": 0.0, "y": 0.0} for i in range(20_000)]
    rows[-1]["y"] = 95.0
    messages = folder.messages("m.parquet", rows)
    (folder / "o.parquet").write_text("from the last run")
    err = folder.refusal("match", subscriptions, messages, "--out", folder / "o.parquet")
    assert "m.parquet, row 19999, field 'y': latitude 95" in err
    assert folder.names() == {"s.csv", "m.parquet", "o.parquet"}
    assert (folder / "o.parquet").read_text() == "from the last run"


# ---- rejects ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "ndjson", "parquet"])
def test_rejected_rows_are_written_and_the_good_ones_matched(suffix: str, folder: Folder) -> None:
    (folder / "s.csv").write_text(
        BOX + "1,fire,0,0,1,1\n2,fire,0,0,200,1\n3,fire,0,0,1,1\n1,rain,0,0,1,1\n4,,0,9,1,1\n"
    )
    (folder / "m.ndjson").write_text(
        '{"id":1,"text":"fire","x":0,"y":0}\n{"id":2,\n{"id":3,"text":"fire","x":0,"y":99}\n'
        '{"id":4,"text":"fire","x":1,"y":1}\n'
    )
    rejects = folder / f"r.{suffix}"
    facts = folder.facts(
        "match", folder / "s.csv", folder / "m.ndjson", "--out", folder / "o.csv",
        "--on-error", "reject", "--rejects", rejects,
    )  # fmt: skip
    assert matches_in(folder / "o.csv") == {(m, s) for m in (1, 4) for s in (1, 3)}
    assert (facts["n_subscriptions"], facts["n_messages"], facts["n_rejects"]) == (2, 2, 5)
    rows = rows_in(rejects)
    found = {(Path(row["source"]).name, row["row"], row["field"]) for row in rows}
    assert {each[:2] for each in found} == {
        ("s.csv", 1), ("s.csv", 3), ("s.csv", 4), ("m.ndjson", 1), ("m.ndjson", 2),
    }  # fmt: skip
    assert {("s.csv", 1, "max_x"), ("s.csv", 3, "id"), ("m.ndjson", 2, "y")} <= found
    assert all(row["reason"] and row["raw"] for row in rows)
    assert folder.names() == {"s.csv", "m.ndjson", "o.csv", rejects.name}


def test_rejecting_does_not_excuse_a_file_that_cannot_be_read(folder: Folder) -> None:
    subscriptions = folder.subscriptions("s.csv")
    truncated_parquet(folder / "m.parquet")
    err = folder.refusal(
        "match", subscriptions, folder / "m.parquet", "--out", folder / "o.csv",
        "--on-error", "reject", "--rejects", folder / "r.csv",
    )  # fmt: skip
    assert "m.parquet" in err
    assert folder.names() == {"s.csv", "m.parquet"}


def test_index_build_with_rejects(folder: Folder) -> None:
    (folder / "s.csv").write_text("id,keywords,expression\n1,fire,\n2,,not rain\n3,rain,\n")
    options = ("--on-error", "reject", "--rejects", folder / "r.csv")
    code, out, _ = folder.run("index", "build", folder / "s.csv", "--out", folder / "i", *options)
    assert code == 0
    assert "2 subscriptions" in out
    assert "1 row rejected, see" in out
    assert folder.facts("index", "info", folder / "i")["n_subscriptions"] == 2


# ---- the process --------------------------------------------------------------------------------


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def test_help_answers_at_once() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = python("-m", "earshot", "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("match", "index", "explain", "pipeline", "generate", "bench", "demo"):
        assert command in done.stdout
    # Not the time on the wall, which other processes share.
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert cpu_s < 1.5


def test_help_does_not_load_numba() -> None:
    done = python("-X", "importtime", "-m", "earshot", "--help")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "earshot.cli" in loaded
    assert not {"numba", "llvmlite", "pyarrow", "shapely", "pyspark"} & loaded


def test_help_of_match_names_all_structures(folder: Folder) -> None:
    from earshot.indexes import structures_of
    from earshot.semantics.topk import DISSEMINATIONS, REEVALUATIONS

    with pytest.raises(SystemExit):
        cli.main(["match", "--help"])
    said = folder.capsys.readouterr().out.partition("structures, the default first:")[2]
    boolean, ranked, topk = said.split("\n")[1:4]
    assert boolean.split(":")[1].strip().split(", ") == list(structures_of("boolean"))
    assert ranked.split(":")[1].strip().split(", ") == list(structures_of("ranked"))
    assert set(topk.replace("+", "").replace(",", "").split()) >= {*DISSEMINATIONS, *REEVALUATIONS}


@pytest.mark.parametrize("command", ["build", "match"])
def test_help_of_pipelines_lists_what_the_command_takes(command: str, folder: Folder) -> None:
    from earshot.cli.semantics import SEMANTICS_OPTIONS
    from earshot.semantics import SEMANTICS, matches_tables

    with pytest.raises(SystemExit):
        cli.main(["pipeline", command, "--help"])
    said = folder.capsys.readouterr().out
    takes = [
        each
        for name, each in SEMANTICS_OPTIONS.items()
        if command == "build" or matches_tables(SEMANTICS[name])
    ]
    listed = {option for each in takes for option in each.all_options}
    for each in SEMANTICS_OPTIONS.values():
        assert all((option.flag in said) == (option in listed) for option in each.all_options)


def test_the_command_and_the_module_are_the_same() -> None:
    assert importlib.util.find_spec("earshot.__main__") is not None
    done = python("-m", "earshot", "match", "no.csv", "m.csv", "--out", "o.csv")
    assert done.returncode == 1
    assert done.stderr == "earshot: no.csv does not exist\n"
    assert done.stdout == ""


def test_ctrl_c_is_not_a_crash(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    subscriptions, messages = folder.subscriptions("s.csv"), folder.messages("m.csv")
    monkeypatch.setattr("earshot.engine.engine.Engine.publish_batch", interrupted)
    code, out, err = folder.run("match", subscriptions, messages, "--out", folder / "o.csv")
    assert (code, out, err) == (130, "", "earshot: stopped\n")
    assert folder.names() == {"s.csv", "m.csv"}
