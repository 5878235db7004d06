"""Ranked matching on the command line: scores in every format, saved engines, wrong options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from earshot import Engine, Ranking, cli
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


class Folder:
    """A directory with two files to match, and the command to do it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.capsys = path, capsys
        self.files = (path / "s.csv", path / "m.ndjson")
        self.files[0].write_text(SUBSCRIPTIONS)
        self.files[1].write_text(MESSAGES)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def run(self, *arguments: object) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = cli.main([str(each) for each in arguments])
        out, err = self.capsys.readouterr()
        return code, out, err

    def facts(self, *arguments: object) -> dict[str, Any]:
        code, out, err = self.run(*arguments, "--json")
        assert (code, err) == (0, "")
        facts: dict[str, Any] = json.loads(out)
        return facts


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


def scores_in(path: Path) -> dict[tuple[Any, Any], float]:
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
    elif path.suffix == ".csv":
        rows = pyarrow.csv.read_csv(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
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
        code, _, err = folder.run(
            "match", folder / "index", folder.files[1], "--out", folder / "p.csv", *option
        )
        assert code == 1
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
        (["--rank", "--alpha", "1.5"], "alpha is 1.5; expected a number from 0 to 1"),
        (["--rank", "--alpha", "nan"], "alpha is nan; expected a number from 0 to 1"),
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
        code, out, err = folder.run(*command, *options)
        assert (code, out) == (1, "")
        assert words in err
    assert {path.name for path in folder.path.iterdir()} == {"s.csv", "m.ndjson"}


def test_thresholds_need_ranked_matching(folder: Folder) -> None:
    code, _, err = folder.run("match", *folder.files, "--out", folder / "o.csv")
    assert code == 1
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
    code, _, err = folder.run("match", *folder.files, *options)
    assert code == 1
    assert "field 'threshold'" in err
    facts = folder.facts(
        "match", *folder.files, *options, "--on-error", "reject", "--rejects", folder / "r.ndjson"
    )
    assert (facts["n_subscriptions"], facts["n_rejects"]) == (2, 2)
    rejects = [json.loads(line) for line in (folder / "r.ndjson").read_text().splitlines()]
    assert {(each["row"], each["field"]) for each in rejects} == {
        (1, "threshold"),
        (2, "threshold"),
    }


def test_another_name_for_the_threshold(folder: Folder) -> None:
    folder.files[0].write_text("id,keywords,least\n1,fire,1\n2,fire,0.1\n")
    folder.facts(
        "match", *folder.files, "--rank", "--out", folder / "o.csv",
        "--subscription-column", "threshold=least",
    )  # fmt: skip
    assert {pair for pair in scores_in(folder / "o.csv") if pair[0] == "drill"} == {("drill", 2)}
