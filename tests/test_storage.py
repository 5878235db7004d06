"""Saved directories: whole or not there, refused with a reason when damaged or not ours."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from earshot import storage
from earshot.errors import EarshotError, SavedIndexError
from earshot.storage import Contents, Saved


class Inner(NamedTuple):
    values: npt.NDArray[np.int32]


class Outer(NamedTuple):
    boxes: npt.NDArray[np.float64]
    nothing: npt.NDArray[np.uint8]
    inner: Inner


class Numbers(NamedTuple):
    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]


def example(colour: str = "grün") -> Contents:
    outer = Outer(
        np.array([[0.0, -np.inf], [np.inf, -0.0]]),
        np.empty((0, 4), np.uint8),
        Inner(np.arange(5, dtype=np.int32)),
    )
    part = Contents({"size": 3}, {"own": Inner(np.array([7], np.int32))})
    return Contents({"colour": colour}, {"outer": outer}, {"part": part})


def numbers(value: int, n: int = 1000) -> Contents:
    return Contents({"value": value}, {"numbers": Numbers(np.full(n, value), np.full(n, value))})


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def is_whole(directory: Path) -> None:
    """Assert that a state is there, and nothing beside it."""
    first, second = names(directory)
    assert first.startswith("arrays-")
    assert second == "facts.json"
    Saved.open(directory)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    storage.save(tmp_path / "saved", example())
    return tmp_path / "saved"


def test_what_is_saved_can_be_opened(saved: Path) -> None:
    opened, expected = Saved.open(saved), example()
    assert opened.facts == {"colour": "grün"}
    assert opened.has("outer")
    assert not opened.has("inner")
    outer = opened.group("outer", Outer)
    wanted: Any = expected.groups["outer"]
    for found, original in (
        (outer.boxes, wanted.boxes),
        (outer.nothing, wanted.nothing),
        (outer.inner.values, wanted.inner.values),
    ):
        assert found.dtype == original.dtype
        assert found.shape == original.shape
        assert found.tobytes() == original.tobytes()
        assert found.flags.writeable
        assert type(found) is np.ndarray
    assert isinstance(outer.inner, Inner)
    part = opened.inner("part")
    assert part.facts == {"size": 3}
    assert part.group("own", Inner).values.tolist() == [7]
    assert Saved.open(part) is part


def test_arrays_that_are_not_in_one_piece_are_saved_as_they_are(tmp_path: Path) -> None:
    grid = np.arange(12, dtype=np.int32).reshape(3, 4)
    for number, values in enumerate([grid.T, grid[:, ::2], grid[::-1], np.array(5, np.int32)]):
        storage.save(tmp_path / str(number), Contents({}, {"own": Inner(values)}))
        found = Saved.open(tmp_path / str(number)).group("own", Inner).values
        assert found.shape == values.shape
        assert found.tolist() == values.tolist()


def test_changes_to_opened_arrays_stay_in_the_process(saved: Path) -> None:
    Saved.open(saved).group("outer", Outer).inner.values[:] = 9
    assert Saved.open(saved).group("outer", Outer).inner.values.tolist() == [0, 1, 2, 3, 4]


# ---- where it is saved --------------------------------------------------------------------------


def test_an_empty_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    storage.save(str(tmp_path / "empty"), example())
    is_whole(tmp_path / "empty")


def test_a_saved_state_is_replaced_and_stays_with_who_has_it_open(saved: Path) -> None:
    opened = Saved.open(saved).group("outer", Outer)
    storage.save(saved, example("blau"))
    is_whole(saved)
    assert Saved.open(saved).facts == {"colour": "blau"}
    assert opened.inner.values.tolist() == [0, 1, 2, 3, 4]


def test_what_is_open_can_be_saved_where_it_came_from(tmp_path: Path) -> None:
    storage.save(tmp_path / "own", numbers(1))
    opened = Saved.open(tmp_path / "own").group("numbers", Numbers)
    opened.first[0] = 5
    storage.save(tmp_path / "own", Contents({}, {"numbers": opened}))
    assert Saved.open(tmp_path / "own").group("numbers", Numbers).first[:2].tolist() == [5, 1]


@pytest.mark.parametrize("kind", ["a file", "someone's folder", "someone's facts"])
def test_what_is_not_ours_is_left_alone(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "taken"
    named = {"a file": target, "someone's folder": target / "journal-2026.log"}
    file = named.get(kind, target / "facts.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(SavedIndexError, match="taken"):
        storage.save(target, example())
    assert file.read_text() == "mine"
    assert names(tmp_path) == ["taken"]


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(SavedIndexError, match=f"there is no directory {tmp_path / 'a'}"):
        storage.save(tmp_path / "a" / "b", example())
    assert names(tmp_path) == []


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_a_save_that_fails_leaves_what_was_there(
    is_first: bool, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "saved"
    if not is_first:
        storage.save(target, example("alt"))

    def fail(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif call == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(storage, "_write_array", fail)
    with pytest.raises(SavedIndexError, match="saved cannot be written: No space left on device"):
        storage.save(target, example("neu"))
    monkeypatch.undo()
    if is_first:
        assert names(tmp_path) == []
    else:
        is_whole(target)
        assert Saved.open(target).facts == {"colour": "alt"}


def test_what_cannot_be_told_in_json_leaves_what_was_there(saved: Path) -> None:
    with pytest.raises(TypeError):
        storage.save(saved, Contents({"not": {1}}, {}))
    is_whole(saved)


def test_the_remains_of_a_crash_are_removed(saved: Path) -> None:
    (saved / "arrays-0123456789abcdef.bin").write_bytes(b"half")
    (saved / "facts.json.draft").write_text("{")
    storage.save(saved, example("neu"))
    is_whole(saved)


def test_nothing_is_removed_while_nobody_knows_what_is_used(saved: Path) -> None:
    facts = (saved / "facts.json").read_text()
    (saved / "facts.json").write_text(facts.replace("grün", "grau"))
    with pytest.raises(TypeError):
        storage.save(saved, Contents({"not": {1}}, {}))
    (saved / "facts.json").write_text(facts)
    assert Saved.open(saved).facts == {"colour": "grün"}


def test_saves_to_one_place_come_one_after_the_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda value: storage.save(tmp_path / "one", numbers(value)), range(12)))
    is_whole(tmp_path / "one")
    opened = Saved.open(tmp_path / "one")
    values = opened.group("numbers", Numbers)
    assert {*values.first.tolist(), *values.second.tolist()} == {opened.facts["value"]}


def test_a_state_can_be_opened_while_it_is_replaced(tmp_path: Path) -> None:
    storage.save(tmp_path / "one", numbers(0))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(
            lambda: list(map(storage.save, repeat(tmp_path / "one", 60), map(numbers, range(60))))
        )
        while not done.done():
            opened = Saved.open(tmp_path / "one")
            assert opened.group("numbers", Numbers).second[-1] == opened.facts["value"]
    done.result()


KILLED = """
import sys
import numpy as np
from itertools import repeat
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_storage import numbers
from earshot import storage
value = 0
print("ready", flush=True)
while True:
    value += 1
    storage.save(Path(sys.argv[2]), numbers(value, 20_000))
"""


def test_a_killed_save_leaves_a_whole_state(tmp_path: Path) -> None:
    target = tmp_path / "saved"
    storage.save(target, numbers(0, 20_000))
    for trial in range(5):
        saver = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(target)],
            stdout=subprocess.PIPE,
        )
        assert saver.stdout is not None
        assert saver.stdout.readline() == b"ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            saver.wait(0.02 + 0.017 * trial)
        saver.send_signal(signal.SIGKILL)
        saver.wait()
        saver.stdout.close()
        opened = Saved.open(target)
        values = opened.group("numbers", Numbers)
        assert {*values.first.tolist(), *values.second.tolist()} == {opened.facts["value"]}
    storage.save(target, numbers(1))
    is_whole(target)


# ---- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is not a saved index: facts.json"),
        ("", "is not a saved index: facts.json"),
        ("{", "is not a saved index: facts.json"),
        ("[" * 100_000, "is not a saved index: facts.json"),
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
        Saved.open(saved)
    assert str(saved) in str(caught.value)
    assert isinstance(caught.value, EarshotError)
    assert isinstance(caught.value, OSError)


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.mark.parametrize("name", ["facts.json", "arrays"])
def test_no_flipped_bit_goes_unseen(name: str, saved: Path) -> None:
    (file,) = (path for path in saved.iterdir() if path.name.startswith(name))
    content = file.read_bytes()
    spare = spare_bytes(saved) if name == "arrays" else set()
    for bit in range(8 * len(content)):
        if bit // 8 in spare:  # between two arrays, where nobody looks
            continue
        file.write_bytes(flipped(content, bit))
        with pytest.raises(SavedIndexError):
            Saved.open(saved)
    file.write_bytes(content)
    is_whole(saved)


def spare_bytes(saved: Path) -> set[int]:
    header = json.loads((saved / "facts.json").read_text())
    used = set[int]()
    for place in header["arrays"].values():
        size = int(np.prod(place["shape"])) * np.dtype(place["dtype"]).itemsize
        used |= set(range(place["offset"], place["offset"] + size))
    return set(range(header["size"])) - used


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: b"", "has 0 bytes, not"),
        (lambda content: content[:-1], "bytes, not"),
        (lambda content: content + b"\0", "bytes, not"),
        (lambda content: None, "is missing"),
    ],
)
def test_arrays_of_another_size_are_named(
    change: Callable[[bytes], bytes | None], reason: str, saved: Path
) -> None:
    (file,) = saved.glob("arrays-*")
    content = change(file.read_bytes())
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SavedIndexError, match=reason) as caught:
        Saved.open(saved)
    assert str(file) in str(caught.value)


def test_a_damaged_array_is_named(saved: Path) -> None:
    Saved.open(saved)
    (file,) = saved.glob("arrays-*")
    file.write_bytes(flipped(file.read_bytes(), 0))
    os.utime(file, ns=(1, 1))
    for verify in (False, True, False):
        with pytest.raises(SavedIndexError, match="damaged in array 'outer/boxes'"):
            Saved.open(saved, verify=verify)


def test_a_process_compares_a_file_once_unless_it_is_told_to(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    monkeypatch.setattr(storage, "_verify", lambda path, *_: compared.append(path.name))
    (file,) = saved.glob("arrays-*")
    for verify, n in ((False, 1), (False, 1), (True, 2), (False, 2)):
        Saved.open(saved, verify=verify)
        assert len(compared) == n
    os.utime(file, ns=(1, 1))
    Saved.open(saved)
    assert len(compared) == 3
    storage.save(saved, example("rot"))
    Saved.open(saved)
    assert len(compared) == 4


def place(name: str, **other: Any) -> Callable[[dict[str, Any]], object]:
    return lambda header: header["arrays"][name].update(other)


@pytest.mark.parametrize(
    "change",
    [
        *(lambda header, name=name: header.pop(name) for name in ("state", "size", "arrays")),
        lambda header: header.update(state=3),
        lambda header: header.update(arrays=[]),
        lambda header: header["arrays"].update({"outer/boxes": 3}),
        lambda header: header["facts"].pop("own"),
        *(
            place("outer/boxes", **other)
            for other in (
                {"dtype": "|O"},
                {"dtype": "<f4"},
                {"dtype": "<i8"},
                {"dtype": "no"},
                {"shape": [-2, -2]},
                {"shape": [2, 3]},
                {"shape": [1 << 40, 1 << 40]},
                {"shape": "many"},
                {"shape": [2.0, 2.0]},
                {"offset": -64},
                {"offset": 1 << 62},
                {"offset": None},
                {"checksum": None},
            )
        ),
    ],
)
def test_facts_that_are_wrong_and_yet_whole_are_refused(
    change: Callable[[dict[str, Any]], object], saved: Path
) -> None:
    header = json.loads((saved / "facts.json").read_text())
    del header["checksum"]
    change(header)
    header["checksum"] = storage._checksum_of_facts(header)
    (saved / "facts.json").write_text(json.dumps(header))
    with pytest.raises(SavedIndexError) as caught:
        Saved.open(saved, verify=True).group("outer", Outer)
    assert str(saved) in str(caught.value)


def test_another_kind_of_state_is_told_apart(saved: Path) -> None:
    with pytest.raises(SavedIndexError, match="has no array 'outer/first'"):
        Saved.open(saved).group("outer", Numbers)
    with pytest.raises(SavedIndexError, match="has no part 'matcher'"):
        Saved.open(saved).inner("matcher")
