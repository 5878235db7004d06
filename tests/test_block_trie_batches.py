"""Batches are matched in several ways, all of which give what single messages give."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from earshot.checks.generate import MIXED, Case, Recipe, case_of, make_case
from earshot.errors import InvalidInput
from earshot.indexes.answers import Matches
from earshot.indexes.block_trie import batches
from earshot.indexes.block_trie import index as block_trie
from earshot.indexes.block_trie.batches import WAYS
from earshot.indexes.block_trie.index import BlockTrie
from earshot.indexes.block_trie.kernels.arrays import CODE_COLUMNS, N_EXACT_CODES, NO_CODE, code_of
from earshot.indexes.block_trie.kernels.batch_arrays import SIGNATURE_WORDS
from earshot.indexes.block_trie.kernels.choosing import count_blocks
from earshot.indexes.block_trie.kernels.vectors import (
    GROUP,
    HIGH_TOKEN_BIT,
    coded_mask,
    copy_block,
    first_member,
    n_members,
    pack_numbers,
    pack_rows,
    signed_mask,
    tally,
    touched_limits,
    touching_masks,
    twice_signed_mask,
    vector_level,
)
from earshot.kernels.box_keys import BLOCK, box_limit, key_touches, strict_limit
from earshot.kernels.jit import lean_kernel
from earshot.model.arrays import MessageArrays, take_messages

CASES = {
    "everything at once": MIXED,
    "ties": Recipe(seed=5, grid=30.0, n_tokens=6, message_side=0.4, flat=0.4, max_keywords=6),
    "long messages": Recipe(seed=6, n_tokens=300, max_message_tokens=200, max_keywords=6,
                            n_unknown_tokens=40, forbidden=0.2, several=0.3, shapes=0.1),
    "expressions": Recipe(seed=10, grid=30.0, n_tokens=8, message_side=0.4, several=1.5, pieces=0.2,
                          expressions=0.8, forbidden=0.1, shapes=0.05),
    "many answers": Recipe(seed=7, n_tokens=3, side=1.0, n_messages=200, everywhere=0.3),
    "few subscriptions": Recipe(seed=8, n_subscriptions=9, n_tokens=3, side=1.0),
    "none": Recipe(seed=9, n_subscriptions=0),
}  # fmt: skip
each_way = pytest.mark.parametrize("way", ["chosen", *WAYS])
each_case = pytest.mark.parametrize("name", CASES)


def _answers(found: Matches) -> list[list[int]]:
    bounds = found.offsets.tolist()
    slots = found.subscriptions.tolist()
    return [sorted(slots[a:b]) for a, b in pairwise(bounds)]


def _one_by_one(index: BlockTrie, messages: MessageArrays) -> list[list[int]]:
    rows = range(len(messages.boxes))
    return [_answers(index.match(take_messages(messages, np.array([m]))))[0] for m in rows]


def _changed(case: Case) -> BlockTrie:
    """Return an index of which some was built, some inserted, and some of both removed."""
    n = case.n_slots
    index = BlockTrie.build(case.part(0, 2 * n // 3).clauses, space=case.space)
    if n > 0:
        index.insert(case.part(2 * n // 3, n).clauses)
        index.remove(np.arange(0, n, 7))
    return index


@each_case
@each_way
def test_a_batch_gives_what_its_messages_give(name: str, way: str, tmp_path: Path) -> None:
    case = make_case(CASES[name])
    index = _changed(case)
    expected = _one_by_one(index, case.messages)
    index.save(tmp_path / "saved")
    opened = BlockTrie.open(tmp_path / "saved")
    for each in (index, opened):
        each.way = way
        found = each.match(case.messages)
        assert _answers(found) == expected
        assert found.counters.answers == sum(map(len, expected))
        again = each.match(case.messages, n_threads=3)
        assert _answers(again) == expected
        assert again.counters == found.counters


@each_way
def test_a_batch_that_finds_no_room_goes_on(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(MIXED)
    index = _changed(case)
    expected = _one_by_one(index, case.messages)
    index.way = way
    plain = index.match(case.messages)
    for name, size in (("CHUNK", 40), ("FIRST_ROOM", 16), ("CHECKS", 16), ("PAIRS_PER_MESSAGE", 0),
                       ("CHUNK_TOKENS", 150)):  # fmt: skip
        monkeypatch.setattr(batches, name, size)
    index._batches = None
    found = index.match(case.messages)
    assert _answers(found) == expected
    # The size of a chunk has a part in the choice, not in what each way costs.
    assert way == "chosen" or found.counters == plain.counters


def test_tokens_that_share_a_code() -> None:
    # One token has its own code, two share one, and the last would have that of no token.
    same = [N_EXACT_CODES + 5, 2 * N_EXACT_CODES + 5]
    last = 2 * N_EXACT_CODES - 1
    tokens = [5, *same, last, last - 1]
    assert [code_of(t) for t in tokens[:3]] == [5, N_EXACT_CODES + 5, N_EXACT_CODES + 5]
    assert code_of(last) == code_of(last - 1) == NO_CODE - 1
    case = case_of(
        [[t] for t in tokens], [[0, 0, 1, 1]] * 5, [[t] for t in tokens] * 20, [[0.5] * 4] * 100
    )
    index = BlockTrie.build(case.clauses, space="planar")
    for way in WAYS:
        index.way = way
        assert _answers(index.match(case.messages)) == [[0], [1], [2], [3], [4]] * 20


def test_small_batches_load_nothing_more() -> None:
    case = make_case(Recipe(n_messages=31))
    index = BlockTrie.build(case.clauses, space=case.space)
    index.match(case.messages)
    assert index._batches is None
    index.way = "trie"
    index.match(case.messages)
    assert index._batches is not None


@lean_kernel
def _count_blocks(costs, limit):  # type: ignore[no-untyped-def]  # typed by Numba
    return count_blocks(costs, limit)


def test_the_histogram_counts_blocks() -> None:
    case = make_case(Recipe(seed=4, n_subscriptions=3000, message_side=0.5))
    index = BlockTrie.build(case.clauses, space=case.space)
    arrays, n = index.arrays, len(case.clauses.subscriptions)
    first = int(arrays.root_summary[0])
    keys = arrays.summary_keys[first : first + (n + BLOCK - 1) // BLOCK]
    lane = np.uint64((1 << 15 - int(arrays.costs.cell_bits[0])) - 1)
    within = np.uint64(0x0001_0001_0001_0001) * lane
    for box in case.messages.boxes:
        limit = box_limit(arrays.quantizer, *box.tolist())
        # Cell by cell: what touches it at least, and what touches all around it at most.
        widest = np.uint64(limit) | within
        n_least = sum(bool(key_touches(key, limit)) for key in keys)
        n_most = sum(bool(key_touches(key & ~within, widest)) for key in keys)
        assert n_least <= _count_blocks(arrays.costs, limit) <= n_most


# ---- vector instructions -------------------------------------------------------------------------


@lean_kernel
def _use_vectors(  # type: ignore[no-untyped-def]  # typed by Numba
    keys, limit, limits, rows, tokens, signatures, codes, bits, out, masks, counts
):
    masks[0] = touching_masks(keys, 1, limit)
    masks[1], masks[2] = touched_limits(limits, keys[2])
    masks[3] = signed_mask(tokens, 1, signatures, 1)
    masks[8] = twice_signed_mask(tokens, 1, signatures, signatures[SIGNATURE_WORDS:], 1)
    masks[4] = coded_mask(codes, 1, bits)
    n = pack_rows(rows, 1, np.uint32(masks[0]) & np.uint32(0xFFFF), out, 0)
    n = pack_numbers(7, np.uint32(masks[3]), out, n)
    copy_block(rows, 3, out, n)
    tally(masks[1], counts)
    tally(masks[2], counts)
    masks[5] = n
    masks[6] = n_members(masks[1])
    masks[7] = first_member(masks[1] | np.uint64(1) << np.uint64(63))


def check_vectors() -> None:
    """Compare each vector instruction with what NumPy makes of the same."""
    random = np.random.default_rng(1)
    for _ in range(20):
        lanes = random.integers(0, 0x7FFF, (BLOCK + 2, 4)).astype(np.uint64) // np.uint64(4)
        shifts = np.arange(0, 64, 16).astype(np.uint64)
        keys = np.bitwise_or.reduce(lanes << shifts, axis=1)
        tops = random.integers(0, 0x7FFF, (GROUP, 4)).astype(np.uint64) | np.uint64(0x8000)
        limits = np.bitwise_or.reduce(tops << shifts, axis=1)
        limits[0] = limit = np.uint64(0xA000_A000_A000_A000) + keys[2] // np.uint64(2)
        rows = random.integers(0, 1 << 30, 3 * BLOCK).astype(np.int32)
        tokens = random.integers(-100, 1 << 20, BLOCK + 2).astype(np.int32)
        tokens[3], tokens[4] = -1, -2
        signatures = random.integers(0, 1 << 32, 3 * SIGNATURE_WORDS).astype(np.uint32)
        codes = random.integers(0, 1 << 16, BLOCK + 2).astype(np.uint16)
        bits = random.integers(0, 1 << 32, 2048).astype(np.uint32)
        out, masks = np.zeros(4 * BLOCK, np.int32), np.zeros(9, np.uint64)
        counts = np.zeros(GROUP, np.uint8)
        _use_vectors(keys, limit, limits, rows, tokens, signatures, codes, bits, out, masks, counts)
        inner = range(1, BLOCK + 1)
        touching = [bool(key_touches(keys[k], limit)) for k in inner]
        surely = [bool(key_touches(keys[k], strict_limit(limit))) for k in inner]
        assert masks[0] == _mask(touching) | _mask(surely) << BLOCK
        touched = [bool(key_touches(keys[2], each)) for each in limits]
        sure = [bool(key_touches(keys[2], strict_limit(each))) for each in limits]
        assert (masks[1], masks[2]) == (_mask(touched), _mask(sure))
        named = np.where(tokens < 0, -2 - tokens, tokens)[1:-1]
        words = signatures[SIGNATURE_WORDS:][named >> 5 & (SIGNATURE_WORDS - 1)]
        signed = (words >> (named & 31) & 1).astype(bool) | (tokens[1:-1] == -1)
        assert masks[3] == _mask(signed)
        high = named >> HIGH_TOKEN_BIT
        high_words = signatures[2 * SIGNATURE_WORDS :][high >> 5 & (SIGNATURE_WORDS - 1)]
        twice = words >> (named & 31) & high_words >> (high & 31) & 1
        assert masks[8] == _mask(twice.astype(bool) | (tokens[1:-1] == -1))
        coded = bits[codes[1:-1] >> 5] >> (codes[1:-1] & 31) & 1
        assert masks[4] == _mask(coded.astype(bool))
        packed = [*rows[1 : BLOCK + 1][touching], *(7 + np.flatnonzero(signed))]
        assert out[: len(packed)].tolist() == packed
        assert masks[5] == len(packed)
        assert out[len(packed) : len(packed) + BLOCK].tolist() == rows[3 : 3 + BLOCK].tolist()
        assert counts.tolist() == (np.array(touched, int) + np.array(sure, int)).tolist()
        assert masks[6] == sum(touched)
        assert masks[7] == [*touched[:-1], True].index(True)


def _mask(bits: object) -> int:
    return sum(1 << k for k, bit in enumerate(np.asarray(bits).tolist()) if bit)


def test_vectors_of_this_processor() -> None:
    check_vectors()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="features of x86-64 are switched off")
@pytest.mark.parametrize(
    ("level", "name", "features"),
    [("avx2", "x86-64-v3", ""), ("avx2", "x86-64-v4", "-avx512f"), ("generic", "x86-64-v2", "")],
)
def test_vectors_without_some_features(level: str, name: str, features: str) -> None:
    assert vector_level(("x86_64-unknown-linux-gnu", name, features)) == level
    code = (
        "import test_block_trie_batches as tests\n"
        "from earshot.indexes.block_trie.kernels.vectors import level_here\n"
        f"assert level_here() == {level!r}\n"
        "tests.check_vectors()\n"
    )
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=Path(__file__).parent,
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


def test_levels_of_vectors() -> None:
    x86, arm = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
    wide = "+avx2,+avx512f,+avx512bw,+avx512dq,+avx512vl"
    assert vector_level((x86, "x86-64-v4", "")) == "avx512"
    assert vector_level((x86, "emeraldrapids", wide)) == "avx512"
    assert vector_level((x86, "emeraldrapids", wide.replace("+avx512vl", "-avx512vl"))) == "avx2"
    assert vector_level((x86, "emeraldrapids", "-avx2")) == "generic"
    assert vector_level((arm, "generic", "")) == "generic"
    assert CODE_COLUMNS == 4  # as many as a group intersects


def test_more_clauses_than_entries_have_numbers_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clauses = make_case(CASES["few subscriptions"]).clauses
    monkeypatch.setattr(block_trie, "MOST_CLAUSES", len(clauses.subscriptions))
    BlockTrie.build(clauses)
    monkeypatch.setattr(block_trie, "MOST_CLAUSES", len(clauses.subscriptions) - 1)
    with pytest.raises(InvalidInput, match="split the subscriptions into several engines"):
        BlockTrie.build(clauses)


@each_case
def test_clauses_are_found_for_removal_with_a_table_and_without(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(CASES[name], n_subscriptions=min(CASES[name].n_subscriptions, 1) * 3_000)
    case = make_case(recipe)
    searched, listed = (BlockTrie.build(case.clauses, space=recipe.space) for _ in range(2))
    slots = np.random.default_rng(1).permutation(searched.n_slots).astype(np.int32)
    for part in np.array_split(slots[: 2 * len(slots) // 3], 20):
        for index, share in ((searched, 1e-9), (listed, 1e9)):
            monkeypatch.setattr(block_trie, "SEARCHED_SHARE", share)
            index.remove(part)
        assert (searched.arrays.keys == listed.arrays.keys).all()
    assert searched._clause_positions is None
    if len(slots):
        assert listed._clause_positions is not None
    monkeypatch.setattr(block_trie, "SEARCHED_SHARE", 1)  # from now on it would take too long
    searched.remove(slots[-len(slots) // 4 :])
    listed.remove(slots[-len(slots) // 4 :])
    assert (searched.arrays.keys == listed.arrays.keys).all()
    assert (searched._clause_positions is None) == (len(slots) == 0)
