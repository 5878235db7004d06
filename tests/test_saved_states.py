"""A damaged engine is refused, a killed save leaves a whole one, for every semantics."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from earshot import Engine
from earshot.cli import main
from earshot.errors import SavedIndexError
from earshot.storage import FACTS, _checksum_of_facts
from saved_states import DEFAULTS, KINDS, answers, filled, outcome_of_damage, outcome_of_kill


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_engine_is_refused_or_answers_the_same(kind: str, tmp_path: Path) -> None:
    filled(kind).save(tmp_path / "saved")
    expected = answers(Engine.open(tmp_path / "saved"))
    n_trials = 40 if kind in DEFAULTS else 8
    outcomes = [
        outcome_of_damage(kind, tmp_path / "saved", expected, seed) for seed in range(n_trials)
    ]
    assert outcomes.count("refused") >= 0.6 * n_trials


@pytest.mark.parametrize("kind", DEFAULTS[:3])
def test_a_killed_save_leaves_a_whole_engine(kind: str, tmp_path: Path) -> None:
    filled(kind, 2000).save(tmp_path / "saved")
    n_before = len(Engine.open(tmp_path / "saved"))
    assert outcome_of_kill(kind, tmp_path / "saved", 0.1) >= n_before


def test_a_full_disk_leaves_what_was_there() -> None:
    # In a process of its own, whose files may not grow: nothing else can be short of room.
    program = str(Path(__file__).parent / "saved_states.py")
    command = [sys.executable, program, "--full", "4", "--no-mount"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert "'not saved': " in said.stdout
    assert "'not all in the journal': 4" in said.stdout


@pytest.mark.parametrize("kind", DEFAULTS[:3])
def test_an_engine_goes_on_where_the_saved_one_was(kind: str, tmp_path: Path) -> None:
    engine = filled(kind)
    for number in range(3):
        engine.save(tmp_path / "saved")
        other = Engine.open(tmp_path / "saved", verify=number == 0)
        assert answers(other) == answers(engine)
        engine = Engine.open(tmp_path / "saved")


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_state_that_lacks_something_is_refused(kind: str, tmp_path: Path) -> None:
    filled(kind).save(tmp_path / "saved")
    text = (tmp_path / "saved" / FACTS).read_text()

    def lacking(names: list[str]) -> dict[str, Any]:
        header: dict[str, Any] = json.loads(text)
        del header["checksum"]
        part = header
        for name in names[:-1]:
            part = part[name]
        del part[names[-1]]
        return header

    def paths(part: dict[str, Any], *names: str) -> Iterator[list[str]]:
        for name, value in part.items():
            yield [*names, name]
            if isinstance(value, dict):
                yield from paths(value, *names, name)

    for names in paths(json.loads(text)):
        if names == ["checksum"]:
            continue
        header = lacking(names)
        header["checksum"] = _checksum_of_facts(header)
        (tmp_path / "saved" / FACTS).write_text(json.dumps(header))
        # What has a default may be missing: a parameter, what nobody reads.
        with contextlib.suppress(SavedIndexError):
            assert len(Engine.open(tmp_path / "saved")) == 48, names


def test_verify_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled("boolean-block_trie").save(tmp_path / "saved")
    assert main(["index", "verify", str(tmp_path / "saved")]) == 0
    assert "is whole" in capsys.readouterr().out
    (arrays,) = (tmp_path / "saved").glob("arrays-*")
    content = bytearray(arrays.read_bytes())
    content[0] ^= 1
    arrays.write_bytes(content)
    assert main(["index", "verify", str(tmp_path / "saved")]) == 1
    assert "is damaged in array" in capsys.readouterr().err
    with pytest.raises(SavedIndexError, match="restore it from a copy"):
        Engine.open(tmp_path / "saved")
