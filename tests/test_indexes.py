"""The registry, the options of the structures, and what is special about some of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from earshot import storage
from earshot.checks.generate import Recipe, make_case, ragged
from earshot.errors import InvalidParameter, SavedIndexError
from earshot.indexes import SEMANTICS, default_structure, index_type, open_index, structures_of
from earshot.indexes.answers import collect_answers
from earshot.indexes.block_lists.index import BlockLists
from earshot.indexes.block_trie.index import BlockTrie
from earshot.indexes.block_trie.kernels.build import sort_codes
from earshot.indexes.contract import Index, Parameters
from earshot.indexes.keyword_first.index import KeywordFirst
from earshot.indexes.linear_scan.index import LinearScan
from earshot.indexes.ranked_contract import RankedIndex
from earshot.indexes.spatial_first.index import SpatialFirst, SpatialFirstParameters
from earshot.indexes.spatial_first.kernels import hilbert_position
from earshot.model.arrays import (
    Int32s,
    Int64s,
    MessageArrays,
    box_clauses,
)

TYPES = [each for semantics in SEMANTICS for each in structures_of(semantics).values()]
each_index = pytest.mark.parametrize(
    "tested", TYPES, ids=lambda tested: f"{tested.name}/{tested.semantics}"
)


# ---- registry -----------------------------------------------------------------------------------


def test_names_lead_to_their_structures() -> None:
    for semantics in SEMANTICS:
        for name, structure in structures_of(semantics).items():
            assert structure.name == name
            assert index_type(name, semantics) is structure
    assert default_structure("boolean") == BlockTrie.name
    assert default_structure("ranked") == BlockLists.name


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match=r"'r_tree'.*keyword_first.*linear_scan"):
        index_type("r_tree")
    with pytest.raises(InvalidParameter, match=r"'r_tree'.*block_lists.*linear_scan"):
        index_type("r_tree", "ranked")


@each_index
def test_open_index_knows_the_structure(tested: type[Index], tmp_path: Path) -> None:
    case = make_case(Recipe(n_subscriptions=50))
    tested.build(case.clauses, space=case.space).save(tmp_path / "saved")
    assert type(open_index(tmp_path / "saved")) is tested
    for other in TYPES:
        if other is not tested:
            held = f"a {tested.semantics} index of structure '{tested.name}'"
            with pytest.raises(SavedIndexError, match=held):
                other.open(tmp_path / "saved")


def test_the_semantics_are_told_apart() -> None:
    with pytest.raises(InvalidParameter, match="no ranked structure is called 'block_trie'"):
        index_type("block_trie", "ranked")
    with pytest.raises(InvalidParameter, match=r"'fuzzy'; expected one of boolean, ranked"):
        structures_of("fuzzy")


def test_open_index_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(SavedIndexError, match="not a saved index"):
        open_index(tmp_path)
    case = make_case(Recipe(n_subscriptions=5))
    contents = LinearScan.build(case.clauses, space=case.space).contents()
    contents.facts["structure"] = "future_tree"
    storage.save(tmp_path / "saved", contents)
    with pytest.raises(SavedIndexError, match=r"'future_tree'.*linear_scan"):
        open_index(tmp_path / "saved")


# ---- options ------------------------------------------------------------------------------------


@each_index
def test_wrong_options_are_refused(tested: type[Index]) -> None:
    case = make_case(Recipe(n_subscriptions=5))

    class OtherParameters(Parameters):
        pass

    if tested.parameters_type is not Parameters:
        with pytest.raises(InvalidParameter, match=tested.name):
            tested.build(case.clauses, parameters=OtherParameters())
    with pytest.raises(InvalidParameter, match="space is 'sphere'"):
        tested.build(case.clauses, space="sphere")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="n_threads is 0"):
        tested.build(case.clauses, space="planar").match(case.messages, n_threads=0)


@pytest.mark.parametrize("tested", structures_of("ranked").values(), ids=structures_of("ranked"))
def test_ranked_options_name_their_ranges(tested: type[RankedIndex]) -> None:
    with pytest.raises(InvalidParameter, match=r"alpha is 1\.5; expected a number from 0 to 1"):
        tested.parameters_type(alpha=1.5)
    with pytest.raises(InvalidParameter, match="threshold is 0; expected a number greater than 0"):
        tested.parameters_type(threshold=0)


@pytest.mark.parametrize("fan_out", [1, 0, -3, 1025])
def test_fan_out_has_a_range(fan_out: int) -> None:
    with pytest.raises(InvalidParameter, match=rf"fan_out is {fan_out}; expected 2 to 1024"):
        SpatialFirstParameters(fan_out)


@pytest.mark.parametrize("fan_out", [2, 3, 100, 1024])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 300])
def test_trees_of_any_shape_find_the_same(fan_out: int, n: int) -> None:
    case = make_case(Recipe(seed=n, n_subscriptions=n, n_tokens=2, side=0.7, message_side=0.2))
    tree = SpatialFirst.build(
        case.clauses, space=case.space, parameters=SpatialFirstParameters(fan_out)
    )
    scan = LinearScan.build(case.clauses, space=case.space)
    found, wanted = tree.match(case.messages), scan.match(case.messages)
    assert np.array_equal(found.offsets, wanted.offsets)
    for start, stop in zip(found.offsets[:-1], found.offsets[1:], strict=True):
        assert set(found.subscriptions[start:stop]) == set(wanted.subscriptions[start:stop])


# ---- structures ---------------------------------------------------------------------------------


def test_r_tree_nodes_are_the_smallest_boxes_around_their_children() -> None:
    case = make_case(Recipe(n_subscriptions=777, unbounded=0.02))
    fan_out = 5
    tree = SpatialFirst.build(
        case.clauses, space="planar", parameters=SpatialFirstParameters(fan_out)
    ).arrays
    assert sorted(tree.entry_clauses) == list(range(777))
    assert np.array_equal(tree.boxes[:777], case.clauses.boxes[tree.entry_clauses])
    levels = [tree.boxes[a:b] for a, b in pairwise(tree.level_offsets)]
    assert [len(level) for level in levels] == [777, 156, 32, 7, 2, 1]
    for below, level in pairwise(levels):
        for node, box in enumerate(level):
            children = below[node * fan_out : (node + 1) * fan_out]
            assert box[:2].tolist() == children[:, :2].min(axis=0).tolist()
            assert box[2:].tolist() == children[:, 2:].max(axis=0).tolist()


def test_r_tree_entries_carry_their_rarest_token() -> None:
    clauses = box_clauses([0, 2, 5, 6], [1, 2, 1, 3, ~4, 2], [[0, 0, 1, 1]] * 3)
    for frequencies, rarest in [
        ([0, 9, 5, 7, 1], {0: 2, 1: 3, 2: 2}),
        ([0, 3, 5, 7, 1], {0: 1, 1: 1, 2: 2}),
    ]:
        tree = SpatialFirst.build(clauses, frequencies=np.array(frequencies)).arrays
        assert dict(zip(tree.entry_clauses, tree.entry_tokens, strict=True)) == rarest


def test_unbounded_boxes_blow_up_few_nodes() -> None:
    case = make_case(Recipe(n_subscriptions=3200, unbounded=0.01, side=0.01))
    tree = SpatialFirst.build(case.clauses, space="planar").arrays
    n_unbounded = int(np.isinf(case.clauses.boxes).any(axis=1).sum())
    leaves = tree.boxes[tree.level_offsets[1] : tree.level_offsets[2]]
    assert n_unbounded > 16
    assert np.isinf(leaves).any(axis=1).sum() <= n_unbounded // 16 + 2


def test_hilbert_curve_visits_neighbours_in_turn() -> None:
    side = 32
    cells = {hilbert_position(x, y): (x, y) for x in range(side) for y in range(side)}
    # The corner of the curve that a small square lies in is passed without leaving the square.
    assert sorted(cells) == list(range(side * side))
    path = [cells[position] for position in range(side * side)]
    for (x, y), (next_x, next_y) in pairwise(path):
        assert abs(x - next_x) + abs(y - next_y) == 1


def test_keyword_first_reads_one_list_per_known_token() -> None:
    clauses = box_clauses([0, 1, 3, 6], [1, 1, 2, 1, 2, ~3], [[0, 0, 1, 1]] * 2 + [[5, 5, 6, 6]])
    index = KeywordFirst.build(clauses, space="planar")
    tokens = [[0, 1], [0, 1, 2], [0, 1, 2, 3, 99]]
    found = index.match(MessageArrays(*ragged(tokens), np.full((3, 4), 0.5)))
    # Lists 1, then 1 and 2 twice. Candidates satisfy the text, wherever they are.
    assert found.counters == (5, 1 + 3 + 2, 1 + 2 + 2)


def test_spatial_first_counts_nodes_and_touching_boxes() -> None:
    places = np.arange(16.0)
    boxes = np.column_stack([places, places, places, places])
    clauses = box_clauses(np.arange(17), np.ones(16), boxes)
    index = SpatialFirst.build(clauses, space="planar", parameters=SpatialFirstParameters(4))
    tokens = [[0, 1], [0], [0, 1]]
    asked = np.array([[3.0, 3, 3, 3], [3, 3, 3, 3], [99, 99, 99, 99]])
    found = index.match(MessageArrays(*ragged(tokens), asked))
    # Twice the root and one leaf; the third message does not even touch the root.
    assert found.counters == (4, 2, 1)


def lists(arrays: Any, kind: str, records: Any) -> dict[int, set[int]]:
    """Return the clauses in each token's list of a kind."""
    offsets = getattr(arrays, f"{kind}_offsets")
    clauses = records[getattr(arrays, f"{kind}_records")]
    return {
        token: set(clauses[start:stop].tolist())
        for token, (start, stop) in enumerate(pairwise(offsets.tolist()))
        if stop > start
    }


def postings(alpha: float, threshold: float) -> list[dict[int, set[int]]]:
    """Return near, sure and far lists of clauses {1}, {1, 2}, {1, 2, 3} with weights 3, 2, 1."""
    clauses = box_clauses(*ragged([[1], [2, 1], [3, 1, 2]]), [[0, 0, 1, 1]] * 3)
    arrays = BlockLists.build(
        clauses,
        parameters=BlockLists.parameters_type(alpha=alpha, threshold=threshold),
        weights=np.array([1.0, 3.0, 2.0, 1.0]),
    ).arrays
    clauses_of_records = arrays.record_heads.reshape(-1, 4)[:, 3]
    return [lists(arrays, kind, clauses_of_records) for kind in ("near", "sure", "far")]


def test_tokens_that_can_decide_are_listed() -> None:
    # Text and place are needed, and of the text a third: 1/3 of {1, 2, 3} are tokens 2 and 3.
    near, sure, far = postings(0.4, 0.6)
    assert near == {1: {0, 1, 2}, 2: {1, 2}}
    assert sure == {1: {0, 1}}  # 0.6 can be had by text alone, by all of it
    assert far == {1: {2}}
    near, sure, far = postings(0.5, 0.6)  # a fifth of the text, and no longer without the place
    assert near == {1: {0, 1, 2}, 2: {1, 2}}
    assert sure == far == {}
    assert postings(0.6, 0.6) == [{}, {}, {}]  # the place alone decides
    near, sure, far = postings(0.0, 0.5)  # text alone
    assert near == {}
    assert sure == {1: {0}}
    assert far == {1: {1, 2}, 2: {2}}


# ---- bugs that were ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 64, 65, 1000])
def test_codes_are_sorted_by_their_high_halves_and_stay_in_order(n: int) -> None:
    random = np.random.default_rng(n)
    codes = (random.integers(0, 1 << 31, n) >> random.integers(0, 31)) << 32 | np.arange(n)
    expected = codes[np.argsort(codes >> 32, kind="stable")]
    sort_codes(codes, n)
    assert codes.tolist() == expected.tolist()


def test_a_nearly_sorted_list_is_built_in_no_time() -> None:
    # Quicksort needed minutes for the last clause, which goes to the front of a long sorted list.
    n = 500_000
    offsets = np.append(np.arange(0, 2 * n + 1, 2), 2 * n + 1)
    tokens = np.append(np.tile(np.array([1, 2], np.int32), n), np.int32(1))
    index = BlockTrie.build(
        box_clauses(offsets, tokens, np.zeros((n + 1, 4))), frequencies=np.array([0, 1, 2])
    )
    assert index.n_subscriptions == n + 1


def test_an_answer_buffer_does_not_leap_ahead_of_the_answers() -> None:
    n_messages = 1_000_000
    largest = 0

    def kernel(row: int, answers: Int32s, offsets: Int64s) -> int:
        nonlocal largest
        largest = max(largest, len(answers))
        wanted = 40_000_000  # all of them of the first message
        if row == 0 and len(answers) < wanted:
            return 0
        offsets[1:] = wanted
        return n_messages

    offsets, _ = collect_answers(n_messages, kernel)
    assert offsets[-1] == 40_000_000
    assert largest <= 8 * 40_000_000
