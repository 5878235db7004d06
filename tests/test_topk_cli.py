"""Top-k on the command line: updates in any format, going on from a saved state, lateness."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import command_line
from command_line import rows_in
from earshot import Engine, TopK
from earshot.errors import InvalidParameter
from earshot.jobs import FileOptions, RejectSink, load_engine, match_files
from earshot.model.amounts import read_distance, read_duration, read_window

SUBSCRIPTIONS = """\
id,keywords,x,y,k,alpha
ann,"fire, smoke",0,0,,
ben,fire,3,0,1,1
"""
MESSAGES = [
    {"id": 1, "text": "Fire!", "x": 1, "y": 0, "time": "2026-05-01T12:00:00Z"},
    {"id": 2, "text": "Smoke and fire", "x": 5, "y": 0, "time": "2026-05-01T12:01:00Z"},
    {"id": 3, "text": "Rain", "x": 0, "y": 0, "time": "2026-05-01T12:02:00Z"},
    {"id": 4, "text": "More fire", "x": 3, "y": 0, "time": "2026-05-01T12:03:00Z"},
    {"id": 5, "text": "Smoke", "x": 0, "y": 0, "time": "2026-05-01T12:02:30Z"},
]
OPTIONS = ("--space", "planar", "--max-distance", 10, "--top-k", 2)


class Folder(command_line.Folder):
    """A directory with two files, and the command."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(path, capsys)
        self.files = (path / "s.csv", path / "m.ndjson")
        self.files[0].write_text(SUBSCRIPTIONS)
        self.messages("m.ndjson", MESSAGES)

    def messages(self, name: str, rows: list[dict[str, Any]]) -> Path:
        (self / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self / name


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


def updates_in(path: Path) -> list[str]:
    rows = rows_in(path)
    assert all(list(row) == UPDATE_COLUMNS for row in rows)
    return [f"{row['sign']}{row['message_id']} {row['subscription_id']}" for row in rows]


UPDATE_COLUMNS = ["message_id", "subscription_id", "sign", "score", "reason", "time"]
COUNTED = [
    "+1 ann", "+1 ben",
    "+2 ann", "-1 ben", "+2 ben",
    "-1 ann",  # 3 comes
    "-2 ann", "-2 ben", "+4 ann", "+4 ben",
    "+5 ann",
]  # fmt: skip
"""What a window of two messages gives."""


@pytest.mark.parametrize("out", ["out.parquet", "out.ndjson", "out.csv", "new/out.csv"])
def test_updates_in_any_format(out: str, folder: Folder) -> None:
    code, text, err = folder.run(
        "match", *folder.files, "--window", 2, *OPTIONS, "--out", folder / out
    )
    assert (code, err) == (0, "")
    assert "5 messages against 2 subscriptions: 11 updates in" in text
    assert "messages/s" in text
    assert updates_in(folder / out) == COUNTED
    first = rows_in(folder / out)[1]
    assert str(first.pop("time"))[:19].replace("T", " ") == "2026-05-01 12:00:00"
    assert first == {
        "message_id": 1, "subscription_id": "ben", "sign": "+", "score": 0.8, "reason": "match",
    }  # fmt: skip


def test_facts_and_results(folder: Folder) -> None:
    facts = folder.facts(
        "match", *folder.files, "--window", 2, *OPTIONS,
        "--out", folder / "o.csv", "--results", folder / "r.csv",
    )  # fmt: skip
    assert (facts["n_subscriptions"], facts["n_messages"], facts["n_updates"]) == (2, 5, 11)
    assert (facts["engine"]["n_messages"], facts["n_late"], facts["n_rejects"]) == (2, 0, 0)
    assert sum(facts["memory"].values()) > 0
    found = [(row["subscription_id"], row["rank"], row["message_id"])
             for row in rows_in(folder / "r.csv")]  # fmt: skip
    assert sorted(found) == [("ann", 1, 5), ("ann", 2, 4), ("ben", 1, 4)]


def test_going_on_from_a_saved_state(folder: Folder) -> None:
    early = folder.messages("early.ndjson", MESSAGES[:3])
    late = folder.messages("late.ndjson", MESSAGES[3:])
    out, saved = folder / "o.ndjson", folder / "state"
    folder.facts(
        "match", folder.files[0], early, "--window", 2, *OPTIONS, "--weights", 0, "--out", out,
        "--save", saved,
    )  # fmt: skip
    found = rows_in(out)
    facts = folder.facts("match", saved, late, "--out", out)
    assert (facts["n_subscriptions"], facts["n_messages"]) == (2, 2)
    found += rows_in(out)
    folder.facts("match", *folder.files, "--window", 2, *OPTIONS, "--weights", 0, "--out", out)
    assert found == rows_in(out)
    for option in (["--window", 5], ["--top-k", 3], ["--structure", "a+b"], ["--weights", 5]):
        err = folder.refusal("match", saved, late, "--out", folder / "p.csv", *option)
        assert f"{option[0]}: {saved} is a built index, which has its own" in err
    assert folder.refusal("match", saved, late, "--out", folder / "p.csv", "--save", saved) == (
        f"earshot: --save is {saved}, and so is SUBSCRIPTIONS; name another place for --save\n"
    )
    err = folder.refusal(
        "match", *folder.files, "--window", 2, "--out", folder / "p.csv", "--save", folder / "s.csv"
    )
    assert not (folder / "p.csv").exists()


def test_a_window_of_time_and_late_messages(folder: Folder) -> None:
    options = (*OPTIONS, "--window", "2m", "--out", folder / "o.csv")
    err = folder.refusal("match", *folder.files, *options)
    assert "m.ndjson, row 4, field 'time': 2026-05-01T12:02:30+00:00 is before" in err
    assert not (folder / "o.csv").exists()
    late = ("--on-error", "reject", "--rejects", folder / "r.ndjson")
    code, text, _ = folder.run("match", *folder.files, *options, *late)
    assert code == 0
    assert "1 message came too late\n1 row rejected, see" in text
    (row,) = rows_in(folder / "r.ndjson")
    assert (row["row"], row["field"]) == (4, "time")
    assert '"Smoke"' in row["raw"]
    facts = folder.facts("match", *folder.files, *options, "--lateness", "30s")
    assert (facts["n_messages"], facts["n_late"], facts["engine"]["n_messages"]) == (5, 0, 3)


def test_words_weigh_by_the_first_messages(folder: Folder) -> None:
    def scores(*options: object) -> list[float]:
        out = folder / "o.ndjson"
        folder.facts(
            "match", *folder.files, "--window", 9, *OPTIONS, "--alpha", 0, "--out", out, *options
        )
        return [row["score"] for row in rows_in(out) if row["subscription_id"] == "ann"]

    same, one, every = scores("--weights", 0), scores("--weights", 1), scores()
    assert len({same[0], one[0], every[0]}) == 3
    assert every == scores("--weights", 5)
    assert one[0] < every[0] < same[0]  # fire is everywhere, smoke is rarer


def test_messages_count_once_for_the_weights_of_a_saved_state(folder: Folder) -> None:
    """Although the first of them are read twice: to weigh words, and to be published."""
    for n_learned in (0, 3, 100):
        saved = folder / f"state{n_learned}"
        folder.facts(
            "match", *folder.files, "--window", 9, *OPTIONS, "--weights", n_learned,
            "--out", folder / "o.csv", "--save", saved,
        )  # fmt: skip
        vocabulary = Engine.open(saved).vocabulary
        counts = dict(
            zip(vocabulary.tokens(range(len(vocabulary))), vocabulary.frequencies, strict=True)
        )
        assert (counts[""], counts["fire"], counts["smoke"]) == (5, 3, 2)


def test_no_updates_leave_a_file_with_columns(folder: Folder) -> None:
    nothing = folder.messages("none.ndjson", [{"id": "a", "text": "snow", "x": 0, "y": 0}])
    folder.facts(
        "match", folder.files[0], nothing, "--window", 2, *OPTIONS, "--out", folder / "o.parquet",
        "--results", folder / "r.parquet",
    )  # fmt: skip
    assert pq.read_table(folder / "o.parquet").num_rows == 0
    assert pq.read_table(folder / "r.parquet").column_names == [
        "subscription_id", "rank", "message_id", "score",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--window is missing: say how many messages it holds"),
        (
            ["--window", "ten"],
            "--window is 'ten'; expected a number of messages, or a time such as",
        ),
        (["--window", "0"], "--window is 0; expected"),
        (["--window", "5", "--lateness", "30"], "--lateness is '30'; expected a time such as 30s"),
        (["--window", "5", "--top-k", "0"], "--top-k is 0; expected"),
        (["--window", "5", "--alpha", "2"], "--alpha is 2.0; expected a number from 0 to 1"),
        (["--window", "5", "--max-distance", "far"], "--max-distance is 'far'; expected metres"),
        (["--window", "5", "--max-distance", "0"], "--max-distance is 0.0; expected"),
        (["--window", "5", "--space", "planar"], "--max-distance is not given; a plane has no end"),
        (["--window", "5", "--space", "planar", "--max-distance", "5km"], "expected a number"),
        (["--window", "5", "--weights", "-1"], "--weights is -1; expected 0 or more"),
        (
            ["--window", "5", "--structure", "tree"],
            "no dissemination 'tree'; expected one of reach",
        ),
        (["--window", "5", "--structure", "igpt+all"], "no re-evaluation 'all'; expected one of"),
        (["--window", "5", "--rank"], "--rank and --top-k choose different semantics"),
        (["--window", "5", "--threshold", "0.5"], "--threshold is only for --rank"),
        (["--window", "5", "--out", "o.docx"], "o.docx"),
        (["--window", "5", "--results", "o.docx"], "o.docx"),
    ],
)
def test_wrong_options(options: list[str], words: str, folder: Folder) -> None:
    err = folder.refusal(
        "match", *folder.files, "--top-k", "1", "--out", folder / "o.csv", *options
    )
    assert words in err
    assert folder.names() == {"s.csv", "m.ndjson"}


def test_values_from_texts() -> None:
    assert read_window("1000000") == 1_000_000
    assert read_window("90s") == timedelta(seconds=90)
    assert read_window("7d") == timedelta(days=7)
    assert read_duration("1.5m") == timedelta(seconds=90)
    for text, metres in (("500", 500), ("500m", 500), ("50km", 50_000), ("0.5km", 500)):
        assert read_distance(text, "lonlat") == metres
    assert read_distance("500", "planar") == 500
    with pytest.raises(InvalidParameter, match="longer than any time"):
        read_window("9999999999d")


def test_settings_from_options(folder: Folder) -> None:
    options = ("--top-k", 3, "--alpha", 0.1, "--window", "90s", "--lateness", "1.5m")
    far = ("--max-distance", "50km", "--structure", "igpt+kmax")
    folder.facts("index", "build", folder.files[0], *options, *far, "--out", folder / "index")
    engine = Engine.open(folder / "index")
    lateness = timedelta(seconds=90)
    assert engine.semantics == TopK(lateness, 3, 0.1, 50_000, lateness=lateness)
    assert engine.structure == "igpt+kmax"


def test_a_built_index_gives_the_same_updates(folder: Folder) -> None:
    subscriptions, messages = folder.files
    out, index = folder / "o.ndjson", folder / "index"
    options = ("--window", 2, *OPTIONS)
    folder.facts("match", *folder.files, *options, "--out", out)
    expected = rows_in(out)
    built = folder.facts(
        "index", "build", subscriptions, *options, "--messages", messages, "--out", index
    )
    info = folder.facts("index", "info", index)
    for facts in (built, info):
        assert (facts["semantics"], facts["window"], facts["k"]) == ("topk", 2, 2)
        assert (facts["structure"], facts["n_subscriptions"]) == ("reach+cskyband", 2)
        assert facts["n_messages"] == 0  # they were learned from, not published
    folder.facts("match", index, messages, "--out", out)
    assert rows_in(out) == expected


def test_a_sample_of_messages_is_for_weights(folder: Folder) -> None:
    build = ("index", "build", folder.files[0], "--out", folder / "index")
    for options, words in (
        (["--messages", folder.files[1]], "--messages is for semantics that weigh words by them"),
        (["--rank", "--messages", folder.files[1]], "--messages is for semantics that weigh"),
        (["--top-k", 2, "--window", 2, "--weights", 5], "--weights needs --messages SAMPLE"),
    ):
        assert words in folder.refusal(*build, *options)
    assert not (folder / "index").exists()


def test_explain_finds_what_the_messages_before_left(folder: Folder) -> None:
    def ask(message: int, subscription: str) -> dict[str, Any]:
        return folder.facts(
            "explain", *folder.files, "--window", 2, *OPTIONS,
            "--message", message, "--subscription", subscription,
        )  # fmt: skip

    for message, subscription, enters in ((1, "ben", True), (3, "ann", False), (4, "ben", True)):
        facts = ask(message, subscription)
        assert facts["matched"] is enters
        assert (f"+{message} {subscription}" in COUNTED) is enters
    assert ask(1, "ben")["score"] == pytest.approx(0.8)
    code, text, _ = folder.run(
        "explain", *folder.files, "--top-k", 1, "--window", 5, "--alpha", 1,
        "--message", 4, "--subscription", "ann",
    )  # fmt: skip
    assert code == 0
    assert text.startswith("Message 4 is not delivered to subscription 'ann'")  # 1 is nearer


def test_jobs_from_python(folder: Folder) -> None:
    done: list[int] = []
    with RejectSink(None) as rejects:
        options: dict[str, Any] = {"files": FileOptions(), "rejects": rejects}
        engine = load_engine(folder.files[0], TopK(2, 1), **options, progress=done.append)
        summary = match_files(
            engine, folder.files[1], folder / "o.csv", **options, progress=done.append
        )
        engine.save(folder / "state")
        with pytest.raises(InvalidParameter, match="with a semantics and a structure of its own"):
            load_engine(folder / "state", TopK(2), **options)
    assert sum(done) == 2 + 5
    assert (summary.n_messages, summary.engine["n_messages"]) == (5, 2)


def test_a_job_that_fails_leaves_no_file(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("earshot.files.updates.ROW_GROUP_ROWS", 1)
    broken = folder.messages("b.ndjson", [*MESSAGES, {"id": 9, "text": "fire"}])
    monkeypatch.setattr("earshot.jobs.rows.MESSAGE_BATCH_ROWS", 2)
    err = folder.refusal(
        "match", folder.files[0], broken, "--top-k", 2, "--window", 2, "--out", folder / "o.csv"
    )
    assert "row 5" in err
    assert folder.names() == {"s.csv", "m.ndjson", "b.ndjson"}
