"""Ranked matching on the command line: scores in every format, saved engines, wrong options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import command_line
from command_line import rows_in
from earshot import Engine, Ranking
from earshot.indexes import structures_of

SUBSCRIPTIONS = """\
id,keywords,expression,min_x,min_y,max_x,max_y,threshold
1,"fire, smoke",,0,0,2,2,
2,"fire, smoke",,0,0,2,2,0.95
3,,rain and not drill,0,0,2,2,0.5
4,fire,,10,10,12,12,
"""
MESSAGES = """\
{"id": "half", "text": "Fire!", "x": 1, "y": 1}
{"id": "all", "text": "Smoke and fire", "x": 1, "y": 1}
{"id": "quarter", "text": "Smoke and fire", "min_x": 1, "min_y": 1, "max_x": 9, "max_y": 9}
{"id": "drill", "text": "Rain drill", "x": 1, "y": 1}
"""


class Folder(command_line.Folder):
    """A directory with two files to match, and the command to do it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(path, capsys)
        self.files = (path / "s.csv", path / "m.ndjson")
        self.files[0].write_text(SUBSCRIPTIONS)
        self.files[1].write_text(MESSAGES)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


def scores_in(path: Path) -> dict[tuple[Any, Any], float]:
    rows = rows_in(path)
    assert all(list(row) == ["message_id", "subscription_id", "score"] for row in rows)
    return {(row["message_id"], row["subscription_id"]): row["score"] for row in rows}


def expected() -> dict[tuple[Any, Any], Any]:
    """Return what ``--alpha 0.5 --threshold 0.6`` gives.

    Of four subscriptions three ask for fire and two for smoke.
    """
    from math import log

    fire, smoke = (round((log(ratio) + 1) * 2**16) / 2**16 for ratio in (5 / 4, 5 / 3))
    scores = {
        ("half", 1): 0.5 + 0.5 * fire / (fire + smoke),
        ("half", 3): 0.5,
        ("all", 1): 1.0,
        ("all", 2): 1.0,
        ("all", 3): 0.5,
        ("quarter", 1): 0.625,
    }
    return {pair: pytest.approx(score, abs=1e-12) for pair, score in scores.items()}


@pytest.mark.parametrize("out", ["out.parquet", "out.ndjson", "out.csv", "new/out.csv"])
def test_matches_have_scores(out: str, folder: Folder) -> None:
    code, text, err = folder.run(
        "match", *folder.files, "--rank", "--alpha", 0.5, "--threshold", 0.6, "--out", folder / out
    )
    assert (code, err) == (0, "")
    assert "4 messages against 4 subscriptions: 6 matches in" in text
    assert scores_in(folder / out) == expected()


@pytest.mark.parametrize("structure", structures_of("ranked"))
def test_ranked_structures_by_name(structure: str, folder: Folder) -> None:
    named = ("--structure", structure)
    folder.facts("match", *folder.files, "--rank", *named, "--out", folder / "o.csv")
    assert scores_in(folder / "o.csv") == expected()  # 0.5 and 0.6 are the defaults


def test_alpha_and_threshold_count(folder: Folder) -> None:
    out = folder / "o.csv"
    facts = folder.facts("match", *folder.files, "--rank", "--alpha", 1, "--out", out)
    assert facts["n_updates"] == 3 + 3 + 2  # the points; the drill is out for one
    folder.facts("match", *folder.files, "--rank", "--threshold", 1, "--out", out)
    assert set(scores_in(out)) == {("all", 1), ("all", 2), ("half", 3), ("all", 3)}


def test_no_messages_leave_a_file_with_the_column(folder: Folder) -> None:
    folder.files[1].write_text('{"id": 1, "text": "snow", "x": 90, "y": 0}\n')
    folder.facts("match", *folder.files, "--rank", "--out", folder / "o.parquet")
    assert pq.read_table(folder / "o.parquet").column_names == [
        "message_id", "subscription_id", "score",
    ]  # fmt: skip


def test_a_saved_ranked_engine_knows_what_it_is(folder: Folder) -> None:
    options = ("--rank", "--alpha", 0.5, "--threshold", 0.6)
    built = folder.facts("index", "build", folder.files[0], "--out", folder / "index", *options)
    info = folder.facts("index", "info", folder / "index")
    for facts in (built, info):
        assert (facts["semantics"], facts["alpha"], facts["threshold"]) == ("ranked", 0.5, 0.6)
        assert facts["structure"] in structures_of("ranked")
    _, text, _ = folder.run("index", "info", folder / "index")
    assert text.startswith("semantics: ranked\nalpha: 0.5\nthreshold: 0.6\nstructure: ")
    folder.facts("match", folder / "index", folder.files[1], "--out", folder / "o.csv")
    assert scores_in(folder / "o.csv") == expected()
    engine = Engine.open(folder / "index")
    assert engine.semantics == Ranking(0.5, 0.6)
    for option in (["--rank"], ["--alpha", 0], ["--threshold", 0.3]):
        err = folder.refusal(
            "match", folder / "index", folder.files[1], "--out", folder / "p.csv", *option
        )
        assert f"{option[0]}: {folder / 'index'} is a built index, which has its own" in err


def test_a_boolean_index_says_so(folder: Folder) -> None:
    folder.files[0].write_text("id,keywords\n1,fire\n")
    folder.facts("index", "build", folder.files[0], "--out", folder / "index")
    facts = folder.facts("index", "info", folder / "index")
    assert facts["semantics"] == "boolean"
    assert "alpha" not in facts


def test_explain(folder: Folder) -> None:
    chosen = ("--message", "half", "--subscription", 1)
    code, text, err = folder.run("explain", *folder.files, *chosen, "--rank")
    assert (code, err) == (0, "")
    place, words, verdict = text.splitlines()[1:]
    assert place == (
        "  - place 1: the message's point (1.0, 1.0) touches the region (0.0, 0.0, 2.0, 2.0)"
    )
    assert words == (
        "  - text 0.447389: the text has 'fire' (weight 1.22314), "
        "the text lacks 'smoke' (weight 1.51082)"
    )
    assert verdict == (
        "  - ✓ score 0.723694 = 0.5 * 1 + 0.5 * 0.447389 reaches the engine's threshold 0.6"
    )
    facts = folder.facts("explain", *folder.files, *chosen, "--rank", "--threshold", 0.9)
    assert not facts["matched"]
    assert facts["score"] == pytest.approx(0.723694, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--alpha", "0.5"], "--alpha is only for --rank or --top-k"),
        (["--threshold", "0.5"], "--threshold is only for --rank"),
        (["--rank", "--alpha", "1.5"], "--alpha is 1.5; expected a number from 0 to 1"),
        (["--rank", "--alpha", "nan"], "--alpha is nan; expected a number from 0 to 1"),
        (["--rank", "--threshold", "0"], "expected a number greater than 0 and at most 1"),
        (["--rank", "--structure", "block_trie"], "no ranked structure is called 'block_trie'"),
    ],
)
def test_wrong_options(options: list[str], words: str, folder: Folder) -> None:
    for command in (
        ["match", *folder.files, "--out", folder / "o.csv"],
        ["index", "build", folder.files[0], "--out", folder / "index"],
        ["explain", *folder.files, "--message", "half", "--subscription", "1"],
    ):
        assert words in folder.refusal(*command, *options)
    assert folder.names() == {"s.csv", "m.ndjson"}


def test_thresholds_need_ranked_matching(folder: Folder) -> None:
    err = folder.refusal("match", *folder.files, "--out", folder / "o.csv")
    assert "s.csv, row 1, field 'threshold': is not for boolean matching but for ranked" in err
    assert "--rank" in err
    facts = folder.facts(
        "match", *folder.files, "--out", folder / "o.csv",
        "--on-error", "reject", "--rejects", folder / "r.csv",
    )  # fmt: skip
    assert (facts["n_subscriptions"], facts["n_rejects"]) == (2, 2)


def test_wrong_thresholds_are_rejects(folder: Folder) -> None:
    folder.files[0].write_text(
        "id,keywords,threshold\n1,fire,0.5\n2,fire,2\n3,fire,much\n4,fire,\n"
    )
    options = ("--rank", "--out", folder / "o.csv")
    assert "field 'threshold'" in folder.refusal("match", *folder.files, *options)
    facts = folder.facts(
        "match", *folder.files, *options, "--on-error", "reject", "--rejects", folder / "r.ndjson"
    )
    assert (facts["n_subscriptions"], facts["n_rejects"]) == (2, 2)
    rejects = {(each["row"], each["field"]) for each in rows_in(folder / "r.ndjson")}
    assert rejects == {(1, "threshold"), (2, "threshold")}


def test_another_name_for_the_threshold(folder: Folder) -> None:
    folder.files[0].write_text("id,keywords,least\n1,fire,1\n2,fire,0.1\n")
    folder.facts(
        "match", *folder.files, "--rank", "--out", folder / "o.csv",
        "--subscription-column", "threshold=least",
    )  # fmt: skip
    assert {pair for pair in scores_in(folder / "o.csv") if pair[0] == "drill"} == {("drill", 2)}
