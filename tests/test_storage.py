"""Saved directories: whole or not there, and refused with a reason when they are not ours."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from earshot import storage
from earshot.errors import EarshotError, SavedIndexError


class Inner(NamedTuple):
    values: npt.NDArray[np.int32]


class Outer(NamedTuple):
    boxes: npt.NDArray[np.float64]
    nothing: npt.NDArray[np.uint8]
    inner: Inner


def example() -> Outer:
    return Outer(
        np.array([[0.0, -np.inf], [np.inf, -0.0]]),
        np.empty((0, 4), np.uint8),
        Inner(np.arange(5, dtype=np.int32)),
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    storage.save(tmp_path / "saved", {"colour": "grün"}, {"outer": example()})
    return tmp_path / "saved"


def test_what_is_saved_can_be_opened(saved: Path) -> None:
    facts = storage.read_facts(saved)
    assert (facts["colour"], facts["groups"]) == ("grün", ["outer"])
    opened = storage.open_group(saved, "outer", Outer)
    pairs: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = [
        (opened.boxes, example().boxes),
        (opened.nothing, example().nothing),
        (opened.inner.values, example().inner.values),
    ]
    for found, expected in pairs:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
        assert type(found) is np.ndarray
    assert isinstance(opened.inner, Inner)


def test_changes_to_opened_arrays_stay_in_the_process(saved: Path) -> None:
    opened = storage.open_group(saved, "outer", Outer)
    opened.inner.values[:] = 9
    assert storage.open_group(saved, "outer", Outer).inner.values.tolist() == [0, 1, 2, 3, 4]


def test_saving_makes_missing_folders_and_uses_an_empty_one(tmp_path: Path) -> None:
    storage.save(tmp_path / "a" / "b", {}, {})
    (tmp_path / "empty").mkdir()
    storage.save(str(tmp_path / "empty"), {}, {})
    assert names(tmp_path / "empty") == ["facts.json"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "taken"
    file = target if kind == "file" else target / "mine.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(SavedIndexError, match="taken exists and is not an empty directory"):
        storage.save(target, {}, {"outer": example()})
    assert file.read_text() == "mine"
    assert names(tmp_path) == ["taken"]


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        directory.mkdir()
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        storage.save(tmp_path / "saved", {}, {"outer": example()}, inner={"index": fail})
    with pytest.raises(TypeError):
        storage.save(tmp_path / "saved", {"not": {1}.union}, {"outer": example()})
    assert names(tmp_path) == []


def test_the_remains_of_a_crash_are_not_in_the_way(tmp_path: Path) -> None:
    import os

    remains = tmp_path / f".new.{os.getpid()}.draft"
    remains.mkdir()
    (remains / "half.npy").write_bytes(b"half")
    storage.save(tmp_path / "new", {}, {})
    assert names(tmp_path / "new") == ["facts.json"]
    assert set(names(tmp_path)) <= {"new", remains.name}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is not a saved index: facts.json"),
        ("", "is not a saved index: facts.json"),
        ("{", "is not a saved index: facts.json"),
        ("[]", "no 'earshot-arrays' in facts.json"),
        ("3", "no 'earshot-arrays' in facts.json"),
        ("{}", "no 'earshot-arrays' in facts.json"),
        (json.dumps({"format": "earshot-arrays", "version": 99}), "has format version 99"),
        (b"\xff\xfe", "is not a saved index: facts.json"),
    ],
)
def test_a_directory_that_is_not_ours_is_refused(
    content: str | bytes | None, reason: str, saved: Path
) -> None:
    facts = saved / "facts.json"
    facts.unlink()
    if content is not None:
        facts.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SavedIndexError, match=reason) as caught:
        storage.read_facts(saved)
    assert str(saved) in str(caught.value)
    assert isinstance(caught.value, EarshotError)
    assert isinstance(caught.value, OSError)


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(content[:-8])
    elif how == "no header":
        path.write_bytes(content[:40])
    else:
        objects: Any = np.array([{"a": 1}], object)
        np.save(path, objects)


@pytest.mark.parametrize("how", ["missing", "empty", "truncated", "no header", "pickled"])
def test_a_damaged_array_is_named(how: str, saved: Path) -> None:
    file = saved / "outer" / "boxes.npy"
    damage(file, how)
    with pytest.raises(SavedIndexError, match="cannot be opened") as caught:
        storage.open_group(saved, "outer", Outer)
    assert str(file) in str(caught.value)


def test_two_threads_that_save_to_one_place_leave_one_whole_directory(tmp_path: Path) -> None:
    class Numbers(NamedTuple):
        first: npt.NDArray[np.int64]
        second: npt.NDArray[np.int64]

    def save(value: int) -> str:
        group = Numbers(np.full(1000, value), np.full(1000, value))
        try:
            storage.save(target, {}, {"numbers": group})
        except SavedIndexError:
            return "refused"
        return "saved"

    for trial in range(10):
        target = tmp_path / str(trial)
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(save, range(4)))
        assert outcomes.count("saved") == 1
        numbers = storage.open_group(target, "numbers", Numbers)
        assert len({*numbers.first.tolist(), *numbers.second.tolist()}) == 1
    assert {path.name for path in tmp_path.iterdir()} == {str(trial) for trial in range(10)}
