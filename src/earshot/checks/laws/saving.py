"""Laws about saving, opening and pickling: nothing is lost, and nothing is shared."""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from pathlib import Path

from earshot.checks.subjects import Subject
from earshot.indexes.contract import Index


def check_saved_equals_opened(subject: Subject) -> None:
    """An opened index answers like the saved one, changes included, and tells the same facts."""
    changed, case, expected, live = subject.changed()
    fresh = subject.build(case)
    for index, alive in ((fresh, set(range(case.n_slots))), (changed, live)):
        with tempfile.TemporaryDirectory() as parent:
            index.save(Path(parent) / "saved")
            opened = subject.index_type.open(Path(parent) / "saved")
        subject.assert_live(opened, case, expected, alive)
        subject.assert_live(index, case, expected, alive)
        assert _facts(opened) == _facts(index)


def check_changes_stay_out_of_the_directory(subject: Subject) -> None:
    """Changes to an opened index reach neither the directory nor the index that was saved."""
    index, case, expected, live = subject.changed()
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "saved"
        index.save(directory)
        before = _digest(directory)
        opened = subject.index_type.open(directory)
        opened.insert(case.part(index.n_slots, case.n_slots).clauses)
        gone = sorted(live)[::3]
        opened.remove(gone)
        now = (live | set(range(index.n_slots, case.n_slots))) - set(gone)
        subject.assert_live(opened, case, expected, now)
        assert _digest(directory) == before
        subject.assert_live(index, case, expected, live)
        subject.assert_live(subject.index_type.open(directory), case, expected, live)
        # And what was changed after opening can be saved in turn.
        opened.save(Path(parent) / "again")
        again = subject.index_type.open(Path(parent) / "again")
        subject.assert_live(again, case, expected, now)


def check_empty_index_is_saved(subject: Subject) -> None:
    """An index of nothing is saved and opened like any other."""
    case, expected = subject.mixed()
    with tempfile.TemporaryDirectory() as parent:
        subject.build(case.part(0, 0)).save(Path(parent) / "saved")
        opened = subject.index_type.open(Path(parent) / "saved")
        subject.assert_live(opened, case, expected, set())
        opened.insert(case.clauses)
        subject.assert_live(opened, case, expected, set(range(case.n_slots)))


def check_pickle_equals(subject: Subject) -> None:
    """A pickled index answers like the original, on its own, and leaves the original as it was."""
    index, case, expected, live = subject.changed()
    index.match(case.messages)
    copy = pickle.loads(pickle.dumps(index))
    subject.assert_live(copy, case, expected, live)
    gone = sorted(live)[::2]
    copy.remove(gone)
    subject.assert_live(copy, case, expected, live - set(gone))
    subject.assert_live(index, case, expected, live)


def _facts(index: Index) -> tuple[object, ...]:
    weights = getattr(index, "weights", None)
    return (
        index.parameters, index.space, index.n_slots, index.n_changes, index.n_tokens,
        None if weights is None else weights.tolist(), getattr(index, "later_weight", None),
    )  # fmt: skip


def _digest(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
