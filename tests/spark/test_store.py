"""Shared directories, and the versions of an index in them."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from earshot.errors import InUse, InvalidFile, InvalidParameter, SavedIndexError
from earshot.indexes import default_structure, index_type
from earshot.spark import folders
from earshot.spark.commands import release_versions
from earshot.spark.folders import Folder
from earshot.spark.store import Base, Delta, IndexSettings, IndexStore, Version

SETTINGS = IndexSettings(
    "integer",
    structure=default_structure("boolean"),
    parameters=index_type(default_structure("boolean")).parameters_type(),
)
ODD_NAMES = ["plain", "with space", "a#b", "100%25", "ü"]


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make folders believe that they are not local; return what they are to lie in."""
    (tmp_path / "bucket").mkdir()
    monkeypatch.setattr(Folder, "is_local", property(lambda self: False))
    monkeypatch.setattr(folders, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "bucket"


def cached(root: Path) -> set[str]:
    """Return the files below a cache directory, without what tells which folder they are of."""
    indexes = root.parent / "cache" / "indexes"
    return {"/".join(path.parts[-2:]) for path in indexes.rglob("*") if path.is_file()}


# ---- folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_is_where_its_name_says(tmp_path: Path, name: str) -> None:
    for location in (tmp_path / name, f"file:{tmp_path}/{name}", f"file://{tmp_path}/{name}"):
        folder = Folder(location)
        assert folder.path == str(tmp_path / name)
        # Spark takes what follows the scheme as it is.
        assert folder.uri == f"file://{tmp_path}/{name}"
        assert pickle.loads(pickle.dumps(folder)).path == folder.path
    (folder / "deep er").write_json("one.json", {"a": 1})
    assert (tmp_path / name / "deep er" / "one.json").exists()
    assert Folder(f"{folder.uri}/deep er").read_json("one.json") == {"a": 1}


def test_a_folder_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="give a path"):
        Folder("ftp://somewhere/else")


def test_files_appear_whole_and_are_replaced(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "new")
    assert folder.names() == []
    folder.write_json("a.json", 1)
    folder.write_json("a.json", 2)
    assert folder.read_json("a.json") == 2
    assert folder.names() == ["a.json"]
    (tmp_path / "new" / ".draft-x").mkdir()
    assert folder.names() == ["a.json"], "drafts are not there yet"
    folder.rename("a.json", "b.json")
    folder.remove("a.json")
    assert folder.names() == ["b.json"]


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"a": ')
    with pytest.raises(InvalidFile, match=r"one.json is damaged: Expecting value"):
        Folder(tmp_path).read_json("one.json")


def test_remote_folders_are_fetched_once(remote: Path) -> None:
    folder = Folder(remote / "bases" / "1")
    with folder.draft() as draft:
        (draft / "shard").mkdir()
        (draft / "shard" / "data").write_bytes(b"1234")
        (remote / "bases" / "1" / "shard").mkdir(parents=True)  # as object stores do by themselves
        folder.put("shard", draft / "shard")
    assert (remote / "bases" / "1" / "shard" / "data").read_bytes() == b"1234"
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(folder.local("shard"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert (found[0] / "data").read_bytes() == b"1234"
    assert not found[0].is_relative_to(remote)
    (remote / "bases" / "1" / "shard" / "data").write_bytes(b"other")
    assert (folder.local("shard") / "data").read_bytes() == b"1234", "written once, kept"


def test_what_was_fetched_goes_when_it_is_gone(remote: Path) -> None:
    for name in "12":
        (remote / "bases" / name / "shard").mkdir(parents=True)
        (remote / "bases" / name / "shard" / f"data{name}").touch()
    bases = Folder(remote / "bases")
    (bases / "1").local("shard")
    assert cached(remote) == {"shard/data1"}
    bases.remove("1")
    left = next((remote.parent / "cache" / "indexes").iterdir()) / ".draft-killed"
    left.mkdir()
    (bases / "2").local("shard")
    assert cached(remote) == {"shard/data2"}
    assert not left.exists(), "what a killed process left behind goes as well"
    (bases / "2").forget()
    assert cached(remote) == set()


def test_other_file_systems_do_the_same(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder._files, folder._path = fs._MockFileSystem(), "index"
    folder._files.create_dir("index")
    assert not folder.is_local
    folder.write_json("a.json", {"b": [1]})
    assert folder.read_json("a.json") == {"b": [1]}
    assert folder.names() == ["a.json"]
    folder.rename("a.json", "c.json")
    assert folder.exists("c.json")
    folder.remove("c.json")
    folder.remove("c.json")
    assert folder.names() == []
    with pytest.raises(FileNotFoundError):
        folder.read_json("c.json")


# ---- versions -----------------------------------------------------------------------------------


def a_version(store: IndexStore, number: int, deltas: tuple[str, ...] = ()) -> Version:
    name = store.next_name("bases")
    (store.folder / "bases" / name).write_json("x.json", 0)
    for delta in deltas:
        (store.folder / "deltas" / delta).write_json("x.json", 0)
    base = Base(name, "replicated", (3,), (9,), ("0000",))
    version = Version(number, base, tuple(Delta(each, 1, 1, 1) for each in deltas))
    store.publish(version)
    return version


@pytest.fixture
def store(tmp_path: Path) -> IndexStore:
    store = IndexStore(tmp_path / "index")
    store.begin(SETTINGS)
    return store


def test_versions_are_what_was_published(store: IndexStore) -> None:
    with pytest.raises(SavedIndexError, match="no complete version"):
        store.latest()
    first = a_version(store, 1, ("00000001-a",))
    second = replace(first, number=first.number + 1, clock_us=5, taken_in={"s": 3})
    store.publish(second)
    assert (store.version(1), store.latest()) == (first, second)
    with pytest.raises(InUse, match="another process"):
        store.publish(second)
    with pytest.raises(SavedIndexError, match="there are: 1, 2"):
        store.version(3)


def test_settings_hold_for_all_versions(store: IndexStore) -> None:
    store.begin(replace(SETTINGS, ids="string"))  # no version was completed with the others
    assert store.settings == replace(SETTINGS, ids="string")
    a_version(store, 1)
    store.begin(replace(SETTINGS, ids="string"))
    with pytest.raises(SavedIndexError, match="other settings"):
        store.begin(SETTINGS)


def test_names_are_never_used_again(tmp_path: Path) -> None:
    """Workers keep what they have opened, also when an index is removed and built again."""
    names = [IndexStore(tmp_path / "index").next_name("bases") for _ in range(2)]
    assert names[0] != names[1]
    store = IndexStore(tmp_path / "index")
    first = store.next_name("bases")
    (store.folder / "bases" / first).write_json("x.json", 0)
    assert store.next_name("bases") > first


def test_only_what_nobody_holds_is_cleaned(store: IndexStore) -> None:
    for number in range(1, 8):
        a_version(store, number, (f"{number:08d}-a",))
    store.hold("slow", 3)
    store.hold("fast", 6)
    assert store.is_held("slow")
    assert not store.is_held("other")
    (store.folder / "bases" / "00000002-abandoned").write_json("x.json", 0)
    (store.folder / "bases" / "00000099-being-written").write_json("x.json", 0)
    assert store.clean() == [1, 2]
    assert store.version_numbers() == [3, 4, 5, 6, 7]
    assert (store.folder / "deltas").names() == [f"{number:08d}-a" for number in range(3, 8)]
    bases = (store.folder / "bases").names()
    assert "00000002-abandoned" not in bases
    assert "00000099-being-written" in bases
    assert len(bases) == 6
    store.release("slow")
    assert store.clean() == [3, 4, 5]
    store.release("fast")
    assert store.clean(keep=1) == [6]
    assert store.latest().number == 7
    assert (store.folder / "bases").names()[0] == store.latest().base.name


def test_what_is_read_here_is_kept(store: IndexStore) -> None:
    a_version(store, 1, ("00000001-a",))
    with store.keeping_latest() as version:
        assert version == store.version(1)
        for number in range(2, 6):
            a_version(store, number, (f"{number:08d}-a",))
        assert store.clean() == [2, 3]
        assert (store.folder / "deltas").names()[0] == "00000001-a"
        assert version.base.name in (store.folder / "bases").names()
    assert store.clean() == [1]
    assert "00000001-a" not in (store.folder / "deltas").names()


def test_cleaning_does_not_mind_a_reader_that_leaves(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 4):
        a_version(store, number)
    store.hold("gone", 1)
    names = Folder.names

    def names_then_gone(folder: Folder) -> list[str]:
        found = names(folder)
        if folder.uri.endswith("/readers"):
            store.release("gone")
        return found

    monkeypatch.setattr(Folder, "names", names_then_gone)
    assert store.clean() == [1]


def test_what_a_pipeline_held_can_be_released(store: IndexStore) -> None:
    for number in range(1, 5):
        a_version(store, number)
    store.hold("gone", 1)
    store.hold("there", 3)
    assert store.readers() == {"gone": 1, "there": 3}
    with pytest.raises(InvalidParameter, match="not held by 'other'; it is by 'gone', 'there'"):
        release_versions(store.folder.path, "other")
    assert release_versions(store.folder.path, "gone") == [1, 2]
    assert store.readers() == {"there": 3}
    assert store.version_numbers() == [3, 4]


def test_what_is_no_index_is_said(tmp_path: Path) -> None:
    store = IndexStore(tmp_path)
    with pytest.raises(SavedIndexError, match="holds no index"):
        _ = store.settings
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(SavedIndexError, match=r"index\.json"):
        _ = store.settings
    (tmp_path / "index.json").write_text('{"format": "other", "version": 7}')
    with pytest.raises(SavedIndexError, match="build the index again"):
        _ = store.settings
