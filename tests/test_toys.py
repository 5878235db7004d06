"""A semantics and a structure that only the tests know go through the engine and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import toys
from earshot import Circle, Engine, Message, Point, Subscription, cli
from earshot.checks.engine_laws import EngineSubject, engine_laws_for
from earshot.checks.laws import laws_for
from earshot.checks.subjects import subject_of
from earshot.errors import InvalidParameter

SUBSCRIPTIONS = """\
id,keywords,x,y,radius
1,"fire, smoke",0,0,1000
2,fire,90,0,1000
3,rain,0,0,1000
"""
MESSAGES = """\
{"id": "a", "text": "Smoke and fire", "x": 0, "y": 0}
{"id": "b", "text": "Fire!", "x": 0, "y": 0}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = (tmp_path / "s.csv", tmp_path / "m.ndjson")
    paths[0].write_text(SUBSCRIPTIONS)
    paths[1].write_text(MESSAGES)
    return paths


def run(*arguments: object) -> None:
    assert cli.main([*map(str, arguments), "--quiet"]) == 0


def pairs_in(path: Path) -> list[tuple[str, int]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(list(row) == ["message_id", "subscription_id"] for row in rows)
    return [(row["message_id"], row["subscription_id"]) for row in rows]


# ---- a semantics --------------------------------------------------------------------------------


@pytest.fixture
def semantics(monkeypatch: pytest.MonkeyPatch) -> None:
    toys.register_semantics(monkeypatch)


def test_nobody_else_knows_the_toy_semantics() -> None:
    with pytest.raises(InvalidParameter, match="is no semantics; expected one of Boolean, Ranking"):
        Engine(toys.Anywhere())


@pytest.mark.usefixtures("semantics")
def test_an_engine_of_the_toy_semantics(tmp_path: Path) -> None:
    engine = Engine(toys.Anywhere())
    engine.subscribe(
        Subscription("both", ("fire", "smoke"), region=Circle(0, 0, 9)),
        Subscription("one", ("fire",), region=Circle(90, 0, 9)),
        Subscription("gone", ("fire",)),
    )
    engine.unsubscribe("gone")
    engine.move("one", Circle(45, 0, 9))
    engine.save(tmp_path / "saved")
    for each in (engine, Engine.open(tmp_path / "saved")):
        each.warm_up()
        assert (len(each), each.semantics, each.structure) == (2, toys.Anywhere(), "none")
        found = each.publish(
            Message("a", "Smoke and fire", place=Point(0, 0)),
            Message("b", "fire", place=Point(0, 0)),
        )
        assert [(update.message_id, update.subscription_id) for update in found] == [
            ("a", "both"), ("a", "one"), ("b", "one"),
        ]  # fmt: skip
        assert not each.explain(Message("c", "fire", place=Point(0, 0)), "both").matched


@pytest.mark.usefixtures("semantics")
def test_the_command_with_the_toy_semantics(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, saved = tmp_path / "o.ndjson", tmp_path / "saved"
    run("match", *files, "--anywhere", "--out", out, "--save", saved)
    assert pairs_in(out) == [("a", 1), ("a", 2), ("b", 2)]
    run("match", saved, files[1], "--out", out)
    assert pairs_in(out) == [("a", 1), ("a", 2), ("b", 2)]
    run("index", "build", files[0], "--anywhere", "--spare", 1, "--out", tmp_path / "index")
    run("match", tmp_path / "index", files[1], "--out", out)
    assert pairs_in(out) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]
    chosen = ("--message", "b", "--subscription", 1)
    capsys.readouterr()
    run("explain", *files, *chosen, "--anywhere")
    assert capsys.readouterr().out.startswith("Message 'b' is not delivered to subscription 1")
    run("index", "info", tmp_path / "index")
    assert "semantics: anywhere\nspare: 1\nstructure: none\n" in capsys.readouterr().out
    for options, words in (
        (["--spare", "1"], "--spare is only for --anywhere"),
        (["--anywhere", "--rank"], "--rank and --anywhere choose different semantics"),
        (["--anywhere", "--alpha", "1"], "--alpha is only for --rank or --top-k"),
    ):
        assert cli.main(["match", *map(str, files), "--out", str(out), *options]) == 2
        assert words in capsys.readouterr().err


# ---- a structure --------------------------------------------------------------------------------


@pytest.fixture
def structure(monkeypatch: pytest.MonkeyPatch) -> None:
    toys.register_structure(monkeypatch)


def drawn(n: int) -> tuple[list[Subscription], list[Message]]:
    """Return subscriptions and messages of a few words in a few places."""
    words = ("fire", "smoke", "rain", "bus")
    subscriptions = [
        Subscription(i, (words[i % 4], words[i % 3]), region=Circle(i % 7, 0, 150_000))
        for i in range(n)
    ]
    messages = [
        Message(i, f"{words[i % 4]} {words[i // 4 % 4]}", place=Point(i % 5 + 0.5, 0.5))
        for i in range(n)
    ]
    return subscriptions, messages


@pytest.mark.usefixtures("structure")
def test_an_engine_of_the_toy_structure(tmp_path: Path) -> None:
    subscriptions, messages = drawn(40)
    found: list[Any] = []
    for name in ("toy", "linear_scan"):
        engine = Engine(structure=name)
        engine.subscribe(*subscriptions[:30])
        engine.warm_up()
        engine.subscribe(*subscriptions[30:])
        engine.unsubscribe(3, 35)
        engine.move(4, Circle(0, 0, 1_000_000))
        engine.save(tmp_path / name)
        for each in (engine, Engine.open(tmp_path / name)):
            assert (each.structure, len(each)) == (name, 38)
            table = each.publish(*messages).table(["message_id", "subscription_id"])
            found.append(table.sort_by([(column, "ascending") for column in table.column_names]))
    assert found[0].num_rows > 0
    assert all(each == found[0] for each in found)


@pytest.mark.usefixtures("structure")
def test_the_command_with_the_toy_structure(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.ndjson"
    run("match", *files, "--structure", "toy", "--out", out)
    assert pairs_in(out) == [("a", 1)]
    run("index", "build", *files[:1], "--structure", "toy", "--out", tmp_path / "index")
    run("match", tmp_path / "index", files[1], "--out", out)
    assert pairs_in(out) == [("a", 1)]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(["match", "--help"])
    boolean, ranked = (
        capsys.readouterr().out.partition("structures, the default")[2].split("\n")[1:3]
    )
    assert boolean.endswith(", toy")
    assert "toy" not in ranked
    code = cli.main(["match", *map(str, files), "--out", str(out), "--rank", "--structure", "toy"])
    assert code == 2
    assert "no ranked structure is called 'toy'" in capsys.readouterr().err


@pytest.mark.usefixtures("structure")
def test_the_toy_structure_obeys_the_laws() -> None:
    subject = subject_of(toys.ToyIndex)
    slow = {"check_long_lists", "check_long_lists_of_few_tokens", "check_many_distinct_coordinates",
            "check_skewed_tokens", "check_growing_answers", "check_repeated_batches"}  # fmt: skip
    for law in laws_for(subject):
        if law.__name__ not in slow:  # it compares everything with everything, in Python
            law(subject)


@pytest.mark.usefixtures("structure")
def test_an_engine_over_the_toy_structure_obeys_the_laws() -> None:
    subject = EngineSubject(None, toys.ToyIndex.name)
    for law in engine_laws_for(subject):
        law(subject)
