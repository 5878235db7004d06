"""Every index obeys the laws of ``earshot.checks.laws``; small cases are searched by Hypothesis."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot.checks import laws
from earshot.checks.generate import Case, Recipe, make_case, ragged
from earshot.checks.oracle import matches_of
from earshot.errors import InvalidParameter, SavedIndexError
from earshot.indexes import default_structure, index_type, open_index, structures_of
from earshot.indexes.answers import collect_answers
from earshot.indexes.block_trie.index import BlockTrie
from earshot.indexes.block_trie.kernels.build import sort_codes
from earshot.indexes.contract import Index, Parameters
from earshot.indexes.keyword_first.index import KeywordFirst
from earshot.indexes.linear_scan.index import LinearScan
from earshot.indexes.spatial_first.index import SpatialFirst, SpatialFirstParameters
from earshot.indexes.spatial_first.kernels.boolean import hilbert_position
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    Int32s,
    Int64s,
    MessageArrays,
    box_clauses,
    take_clauses,
)

TYPES = list(structures_of("boolean").values())
each_index = pytest.mark.parametrize("tested", TYPES, ids=lambda tested: tested.name)


LAWS = [
    pytest.param(tested, law, id=f"{tested.name}:{law.__name__}")
    for tested in TYPES
    for law in laws.laws_for(tested)
]


@pytest.mark.parametrize(("tested", "law"), LAWS)
def test_law(tested: type[Index], law: laws.Law) -> None:
    law(tested)


def test_every_check_is_a_law_of_some_index() -> None:
    checks = {name for name in vars(laws) if name.startswith("check_")}
    listed = [law.__name__ for tested in TYPES for law in laws.laws_for(tested)]
    assert set(listed) == checks
    assert len(laws.laws_for(KeywordFirst)) == len(checks)


def test_only_structures_must_prune() -> None:
    assert laws.check_prunes not in laws.laws_for(LinearScan)
    with pytest.raises(AssertionError):
        laws.check_prunes(LinearScan)


# ---- small cases --------------------------------------------------------------------------------

# Few values and few tokens, so that equal, touching and nested things are the rule.
COORDINATES = st.sampled_from([0.0, 1.0, float(np.nextafter(1.0, 2.0)), 2.0, 3.0])
BOUNDS = COORDINATES | st.sampled_from([-np.inf, np.inf])
TOKENS = st.sets(st.integers(1, 5), max_size=4)


@st.composite
def boxes(draw: st.DrawFn, bounds: st.SearchStrategy[float]) -> list[float]:
    (min_x, max_x), (min_y, max_y) = (sorted([draw(bounds), draw(bounds)]) for _ in "xy")
    return [min_x, min_y, max_x, max_y]


@st.composite
def clause_tokens(draw: st.DrawFn) -> list[int]:
    required, forbidden = draw(TOKENS), draw(TOKENS)
    return [*(required or {EVERYWHERE_TOKEN}), *(~token for token in forbidden - required)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = draw(st.lists(st.tuples(clause_tokens(), boxes(BOUNDS)), max_size=40))
    repeats = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    slots = np.cumsum([0, *(not repeat for repeat in repeats[1:])])[: len(rows)]
    asked = draw(st.lists(st.tuples(TOKENS, boxes(COORDINATES)), min_size=1, max_size=6))
    clauses = box_clauses(*ragged([tokens for tokens, _ in rows]), [b for _, b in rows], slots)
    message_tokens = [[EVERYWHERE_TOKEN, *tokens] for tokens, _ in asked]
    messages = MessageArrays(*ragged(message_tokens), np.array([b for _, b in asked]))
    return Case("planar", clauses, messages)


@each_index
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_small_cases_equal_the_oracle(tested: type[Index], case: Case) -> None:
    laws.assert_case(tested, case)


@each_index
@settings(max_examples=40, deadline=None)
@given(data=st.data(), case=cases())
def test_small_changes_equal_the_oracle(
    tested: type[Index], data: st.DataObject, case: Case
) -> None:
    n_slots = int(case.clauses.subscriptions.max(initial=-1)) + 1
    cuts = sorted(data.draw(st.lists(st.integers(0, n_slots), max_size=3), label="cuts"))
    parts = np.searchsorted(cuts, case.clauses.subscriptions, side="right")
    index = tested.build(take_clauses(case.clauses, np.flatnonzero(parts == 0)), space="planar")
    expected = matches_of(case.clauses, case.messages, case.space)
    live = set(range(cuts[0] if cuts else n_slots))
    for part, (start, stop) in enumerate(pairwise([*cuts, n_slots]), 1):
        index.insert(take_clauses(case.clauses, np.flatnonzero(parts == part)))
        live |= set(range(start, stop))
        gone = data.draw(st.sets(st.sampled_from(sorted(live))) if live else st.just(set()))
        index.remove(sorted(gone))
        live -= gone
        laws.assert_live(index, case, expected, live)


# ---- registry -----------------------------------------------------------------------------------


def test_names_lead_to_their_structures() -> None:
    for name, structure in structures_of("boolean").items():
        assert structure.name == name
        assert index_type(name) is structure
    assert default_structure("boolean") == BlockTrie.name


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match=r"'r_tree'.*keyword_first.*linear_scan"):
        index_type("r_tree")


@each_index
def test_open_index_knows_the_structure(tested: type[Index], tmp_path: Path) -> None:
    case = make_case(Recipe(n_subscriptions=50))
    tested.build(case.clauses, space=case.space).save(tmp_path / "saved")
    assert type(open_index(tmp_path / "saved")) is tested
    other = next(structure for structure in TYPES if structure is not tested)
    with pytest.raises(SavedIndexError, match=tested.name):
        other.open(tmp_path / "saved")


def test_open_index_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(SavedIndexError, match="not a saved index"):
        open_index(tmp_path)
    case = make_case(Recipe(n_subscriptions=5))
    LinearScan.build(case.clauses, space=case.space).save(tmp_path / "saved")
    facts = tmp_path / "saved" / "facts.json"
    facts.write_text(facts.read_text().replace("linear_scan", "future_tree"))
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
