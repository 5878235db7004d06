"""The table of ids, in lock-step with a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot.engine.ids import IdArrays, IdTable, id_bytes
from earshot.errors import DuplicateSubscription, InvalidInput, UnknownSubscription

integers = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
strings = st.one_of(
    st.sampled_from(["", "a", "b", "ab", "ä", "\x00", "a\x00"]),
    st.text(st.characters(codec="utf-8"), max_size=12),
)


def ints(*values: int) -> pa.Array:
    return pa.array(values, pa.int64())


def slots(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def typed(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.int64() if isinstance(values[0], int) else pa.string())


def copied(arrays: IdArrays) -> IdArrays:
    copies: list[Any] = [each.copy() for each in arrays]
    return IdArrays(*copies)


@pytest.mark.parametrize("ids", [integers, strings], ids=["integers", "strings"])
def test_a_table_is_a_dict(ids: st.SearchStrategy[Any]) -> None:
    step = st.tuples(
        st.sampled_from(["append", "append", "append", "forget", "save", "renumber"]),
        st.lists(ids, min_size=1, max_size=30),
    )

    @given(st.lists(step, max_size=12))
    @settings(deadline=None, max_examples=60)
    def check(steps: list[tuple[str, list[Any]]]) -> None:
        table = IdTable()
        names: list[Any] = []  # of each slot, live or not
        live: dict[Any, int] = {}
        for verb, values in steps:
            if verb == "append":
                is_good = len(set(values)) == len(values) and not live.keys() & set(values)
                if is_good:
                    live.update((value, len(names) + i) for i, value in enumerate(values))
                    names += values
                    table.append(typed(values))
                else:
                    with pytest.raises(DuplicateSubscription, match="exists already"):
                        table.append(typed(values))
            elif verb == "forget":
                gone = [live.pop(value) for value in dict.fromkeys(values) if value in live]
                table.forget(slots(*gone))
            elif verb == "save":
                table = IdTable(table.kind, copied(table.arrays))
            else:
                kept = sorted(live.values())
                table = table.renumbered(slots(*kept))
                names = [names[slot] for slot in kept]
                live = {name: slot for slot, name in enumerate(names)}
            assert len(table) == len(names)
            assert table.contains(typed(values)).tolist() == [value in live for value in values]
            if live:
                assert table.slots_of(typed(list(live))).tolist() == list(live.values())
            if names:
                everyone = table.ids_of(slots(*range(len(names))))
                assert everyone.to_pylist() == names

    check()


@pytest.mark.parametrize("n", [1000, 100_000])
def test_many_ids(n: int) -> None:
    table = IdTable()
    table.append(pa.array(np.arange(n) * 1024))  # a bad hash would send these to one place
    table.append(pa.array(np.arange(n) * 1024 + 1))
    assert table.slots_of(ints(1024 * (n - 1), 1)).tolist() == [n - 1, n]
    table.forget(np.arange(n, dtype=np.int32))
    assert not table.contains(pa.array(np.arange(n) * 1024)).any()
    assert table.contains(pa.array(np.arange(n) * 1024 + 1)).all()


def test_an_id_that_comes_and_goes_does_not_fill_the_table() -> None:
    table = IdTable()
    for turn in range(2000):
        table.append(pa.array(["visitor"]))
        table.forget(slots(turn))
    assert len(table.arrays.table) <= 128
    assert table.ids_of(slots(0, 1999)).to_pylist() == ["visitor", "visitor"]
    assert not table.contains(pa.array(["visitor"]))[0]


def test_refused_ids_do_not_fill_a_saved_table() -> None:
    table = IdTable()
    table.append(ints(0))
    for turn in range(20):
        with pytest.raises(DuplicateSubscription, match="subscription 0 exists"):
            table.append(ints(*range(100 * turn + 1, 100 * turn + 40), 0))
        table = IdTable(table.kind, copied(table.arrays))
        free = table.arrays.table == -1
        assert 3 * free.sum() > len(free), "in the end a search would find no end"
    table.append(ints(*range(1, 100)))
    assert table.slots_of(ints(0, 99)).tolist() == [0, 99]


def test_an_emptied_table_of_integers_takes_integers_again() -> None:
    table = IdTable()
    table.append(ints(7, 8))
    table.forget(slots(0, 1))
    empty = table.renumbered(slots())
    assert empty.kind == "integer"
    empty.append(ints(*range(100)))
    assert empty.slots_of(ints(99, 0)).tolist() == [99, 0]
    assert not empty.contains(ints(100))[0]


def test_slices_and_types_of_arrow_mean_the_same_ids() -> None:
    table = IdTable()
    table.append(pa.array(["x", "b", "c", "d"]).slice(1, 2))
    for data_type in (pa.string(), pa.large_string(), pa.string_view()):
        found = pa.array(["a", "c", "b", "z"], data_type).slice(1, 2)
        assert table.slots_of(found).tolist() == [1, 0]
    assert table.contains(pa.array(["b", "x"]).dictionary_encode()).tolist() == [True, False]
    assert table.ids_of(slots(1, 0, 1)).to_pylist() == ["c", "b", "c"]
    numbers = IdTable()
    numbers.append(pa.array([9, 5, 6, 9], pa.int16()).slice(1, 2))
    assert numbers.slots_of(pa.array([6, 5], pa.uint32())).tolist() == [1, 0]


def test_ids_of_another_kind_are_refused() -> None:
    table = IdTable()
    assert table.contains(pa.array(["a"])).tolist() == [False]
    with pytest.raises(UnknownSubscription, match="no subscription 'a'"):
        table.slots_of(pa.array(["a"]))
    table.append(ints(1))
    for refused in (pa.array(["1"]), pa.array([1.0])):
        for call in (table.append, table.contains):
            with pytest.raises(InvalidInput, match="kind integer; ids must be all"):
                call(refused)
        with pytest.raises(UnknownSubscription):
            table.slots_of(refused)
    assert len(table) == 1


def test_unknown_ids_are_named() -> None:
    table = IdTable()
    table.append(ints(1, 2))
    with pytest.raises(UnknownSubscription) as caught:
        table.slots_of(ints(1, 3, 4))
    assert str(caught.value) == "no subscription 3"


def test_bytes_of_ids() -> None:
    data, offsets = id_bytes(pa.array(["é", "", "ab"]))
    assert (data.tobytes(), offsets.tolist()) == ("éab".encode(), [0, 2, 2, 4])
    data, offsets = id_bytes(ints(1, -1))
    assert (data.view(np.int64).tolist(), len(offsets)) == ([1, -1], 0)
    assert id_bytes(pa.array([], pa.string()))[1].tolist() == [0]


def test_the_bytes_of_a_slice_are_only_its_own() -> None:
    ids = pa.array([f"id{i}" for i in range(1000)]).slice(500, 2)
    data, offsets = id_bytes(ids)
    assert bytes(data) == b"id500id501"
    assert offsets.tolist() == [0, 5, 10]


@pytest.mark.parametrize("ids", [pa.array([1, None]), pa.array(["a", None])])
def test_a_null_is_no_id(ids: pa.Array) -> None:
    with pytest.raises(InvalidInput, match="null"):
        id_bytes(ids)


def test_ids_in_sequence_take_no_memory() -> None:
    table = IdTable()
    for start in range(0, 100_000, 1_000):
        table.append(pa.array(range(start, start + 1_000)))
    assert table.nbytes < 1_000
    table.append(ints(-5))  # no longer a sequence
    table.append(ints(100_000))
    assert table.nbytes < 2_000
    assert table.ids_of(slots(100_000, 7, 100_001)).to_pylist() == [-5, 7, 100_000]
    table = IdTable(table.kind, copied(table.arrays))
    assert table.slots_of(ints(100_000, 7, -5)).tolist() == [100_001, 7, 100_000]
    table.forget(slots(7, 100_000))
    assert table.contains(ints(6, 7, 8, -5, 100_000)).tolist() == [True, False, True, False, True]
    assert table.live_slots().tolist() == [*range(7), *range(8, 100_000), 100_001]
    with pytest.raises(DuplicateSubscription, match="subscription 8 exists already"):
        table.append(ints(7, 8))
    table.append(ints(7))
    assert table.slots_of(ints(7, 8)).tolist() == [100_002, 8]


def test_ids_that_ascend_need_no_table() -> None:
    table = IdTable()
    for start in range(0, 300_000, 3_000):  # in sequence at first
        table.append(pa.array(range(start, start + 3_000, 1 if start < 30_000 else 3)))
    assert len(table.arrays.table) == 64
    table = IdTable(table.kind, copied(table.arrays))
    assert table.slots_of(ints(0, 29_999, 30_003, 299_997)).tolist() == [0, 29_999, 30_001, 119_999]
    assert not table.contains(ints(-1, 30_001, 299_998, 2**62, -(2**63))).any()
    table.append(ints(300_000))  # what was opened is not copied to be enlarged
    assert len(table.arrays.values) == 120_000
    table.forget(slots(0, 119_999))
    kept = table.live_slots()
    assert len(kept) == 119_999
    assert len(table.renumbered(kept).arrays.table) == 64
    assert table.renumbered(kept).ids_of(slots(0, 119_998)).to_pylist() == [1, 300_000]


def test_the_largest_ids_do_not_overflow() -> None:
    table = IdTable()
    least, most = -(2**63), 2**63 - 1
    table.append(ints(most - 1, most))
    table.append(ints(least))
    assert table.slots_of(ints(least, most, most - 1)).tolist() == [2, 1, 0]
    table = IdTable()
    table.append(ints(least, most))
    assert table.contains(ints(least, 0, most)).tolist() == [True, False, True]
