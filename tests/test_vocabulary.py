from __future__ import annotations

import itertools
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot import storage
from earshot.errors import InvalidInput
from earshot.model.arrays import EVERYWHERE_TOKEN
from earshot.text import Analyzer, TokenLists, Vocabulary, VocabularyArrays
from earshot.text.kernels import hash_table


def documents(*lists: list[int]) -> TokenLists:
    ends = np.cumsum([0] + [len(each) for each in lists])
    return TokenLists(ends.astype(np.int64), np.array([*itertools.chain(*lists)], np.int32))


def all_tokens(vocabulary: Vocabulary) -> list[str]:
    return vocabulary.tokens(np.arange(len(vocabulary)))


def test_an_empty_vocabulary_holds_the_everywhere_token() -> None:
    vocabulary = Vocabulary()
    assert len(vocabulary) == 1
    assert vocabulary.tokens([EVERYWHERE_TOKEN]) == [""]
    assert vocabulary.ids_of([""])[0] == EVERYWHERE_TOKEN
    assert vocabulary.ids_of(["fire"])[0] == -1
    assert vocabulary.frequencies.tolist() == [0]


def test_ids_are_handed_out_in_order() -> None:
    vocabulary = Vocabulary()
    assert vocabulary.add(["b", "a", "b", "東京"]).tolist() == [1, 2, 1, 3]
    assert vocabulary.add(["c", "a"]).tolist() == [4, 2]
    assert all_tokens(vocabulary) == ["", "b", "a", "東京", "c"]
    assert vocabulary.ids_of(["東京", "", "x", "c"]).tolist() == [3, 0, -1, 4]
    assert vocabulary.ids_of([]).tolist() == []
    assert repr(vocabulary).startswith("<Vocabulary of 4 tokens")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=40)))
def test_equals_a_dictionary(batches: list[list[str]]) -> None:
    vocabulary = Vocabulary()
    expected: dict[str, int] = {"": 0}
    for tokens in batches:
        for token in tokens:
            expected.setdefault(token, len(expected))
        assert vocabulary.add(tokens).tolist() == [expected[token] for token in tokens]
    assert all_tokens(vocabulary) == list(expected)


def test_tokens_of_every_length_are_told_apart() -> None:
    # Same beginnings, same ends, one byte different, around the length that slots store whole.
    tokens = {"x" * n for n in (*range(1, 40), 254, 255, 256, 257, 511, 1000)}
    tokens |= {token[:-1] + "y" for token in tokens} | {"y" + token[1:] for token in tokens}
    tokens |= {token + "\0" for token in tokens}
    ordered = sorted(tokens)
    vocabulary = Vocabulary()
    assert vocabulary.add(ordered).tolist() == list(range(1, len(ordered) + 1))
    assert vocabulary.ids_of(ordered).tolist() == list(range(1, len(ordered) + 1))
    assert all_tokens(vocabulary)[1:] == ordered


def colliding_tokens() -> tuple[str, str]:
    """Two tokens of 16 bytes with one hash: the last word makes up for the first."""
    mask = 2**64 - 1
    a, b = int(hash_table._MULTIPLIER_A), int(hash_table._MULTIPLIER_B)

    def mixed(word: int, more: int) -> int:
        h = (word ^ more * b & mask) * a & mask
        h = (h ^ h >> 32) * b & mask
        return h ^ h >> 29

    def product(head: bytes) -> int:
        return mixed(int.from_bytes(head, "little"), 16) * b & mask

    head, tail = b"collides", b"with-one"
    for i in range(100_000):
        other = b"%08d" % i
        word = int.from_bytes(tail, "little") ^ product(head) ^ product(other)
        other_tail = word.to_bytes(8, "little")
        if other_tail.isascii():
            return (head + tail).decode(), (other + other_tail).decode()
    raise AssertionError("no ASCII token found")


def test_tokens_with_the_same_hash_are_told_apart() -> None:
    first, second = colliding_tokens()
    vocabulary = Vocabulary()
    assert vocabulary.add([first]).tolist() == [1]
    occupied = vocabulary.arrays.slots[:, 0]
    hash_of_first = occupied[occupied > 0].copy()
    alone = Vocabulary()
    alone.add([second])
    assert hash_of_first in alone.arrays.slots[:, 0]  # else this test tests nothing
    assert vocabulary.ids_of([second])[0] == -1
    assert vocabulary.add([second, first]).tolist() == [2, 1]
    assert all_tokens(vocabulary) == ["", first, second]


def test_growing_keeps_everything() -> None:
    rng = random.Random(5)
    tokens = [f"{rng.randrange(10**9)}" * rng.choice([1, 1, 3]) for _ in range(30_000)]
    vocabulary = Vocabulary()
    for start in range(0, len(tokens), 700):
        vocabulary.add(tokens[start : start + 700])
    distinct = list(dict.fromkeys(tokens))
    assert all_tokens(vocabulary)[1:] == distinct
    assert vocabulary.ids_of(distinct).tolist() == list(range(1, len(distinct) + 1))
    assert vocabulary.ids_of([token + "x" for token in distinct]).max() == -1
    # Amortised: never more than four times what is needed.
    assert vocabulary.nbytes < 4 * sum(array.nbytes for array in vocabulary.arrays)


def test_frequencies_count_documents() -> None:
    vocabulary = Vocabulary()
    vocabulary.add(["a", "b", "c"])
    vocabulary.add_documents(documents([1, 2], [], [2]))
    vocabulary.add_documents(documents([2, 3]))
    assert vocabulary.frequencies.tolist() == [0, 1, 3, 1]
    vocabulary.add([f"more{i}" for i in range(1000)])
    assert vocabulary.frequencies[:4].tolist() == [0, 1, 3, 1]
    assert vocabulary.frequencies[4:].tolist() == [0] * 1000
    vocabulary.add_documents(Analyzer().analyze(["more7 a a"], vocabulary, grow=False))
    assert vocabulary.frequencies[[1, 11]].tolist() == [2, 1]


def test_wrong_ids_are_refused() -> None:
    vocabulary = Vocabulary()
    vocabulary.add(["a"])
    for wrong in (-1, 2):
        with pytest.raises(InvalidInput, match=rf"token id {wrong} is unknown; .* 0 to 1"):
            vocabulary.tokens([wrong])
        with pytest.raises(InvalidInput, match="this vocabulary has 0 to 1"):
            vocabulary.add_documents(documents([1, wrong]))
    with pytest.raises(InvalidInput, match="token 1 is empty"):
        vocabulary.add(["b", ""])
    assert len(vocabulary) == 2


def grow(vocabulary: Vocabulary, tokens: list[str]) -> None:
    ids = vocabulary.add(tokens)
    vocabulary.add_documents(documents(ids.tolist()))


def test_copies_go_their_own_ways() -> None:
    original = Vocabulary()
    grow(original, ["a", "b"])
    copied = original.copy()
    # Both orders of change, with few tokens (in place) and many (new buffers).
    grow(copied, ["c"])
    grow(original, ["d", "e"])
    second = original.copy()
    original.add_documents(documents([1]))
    grow(second, [f"t{i}" for i in range(500)])
    assert all_tokens(original) == ["", "a", "b", "d", "e"]
    assert all_tokens(copied) == ["", "a", "b", "c"]
    assert original.frequencies.tolist() == [0, 2, 1, 1, 1]
    assert copied.frequencies.tolist() == [0, 1, 1, 1]
    assert second.frequencies[:5].tolist() == [0, 1, 1, 1, 1]
    assert [each.ids_of(["d"])[0] for each in (original, copied, second)] == [3, -1, 3]
    assert [each.ids_of(["c"])[0] for each in (original, copied, second)] == [-1, 3, -1]
    assert [each.ids_of(["t499"])[0] for each in (original, copied, second)] == [-1, -1, 504]


def test_pickles_without_what_analyzers_remember() -> None:
    vocabulary = Vocabulary()
    english = Analyzer("en", stem=True)
    vocabulary.add_documents(english.analyze(["burning fires", "fire"], vocabulary, grow=True))
    assert vocabulary.caches
    loaded = pickle.loads(pickle.dumps(vocabulary))
    assert loaded.caches == {}
    assert all_tokens(loaded) == ["", "burn", "fire"]
    assert loaded.frequencies.tolist() == [0, 1, 2]
    grow(loaded, ["x"])
    assert (len(loaded), len(vocabulary)) == (4, 3)


def test_saved_and_opened(tmp_path: Path) -> None:
    vocabulary = Vocabulary()
    grow(vocabulary, [f"word{i}" for i in range(1000)] + ["a token of many bytes", "東京"])
    storage.save(tmp_path / "saved", storage.Contents({}, {"vocabulary": vocabulary.arrays}))

    def opened() -> Vocabulary:
        arrays = storage.Saved.open(tmp_path / "saved").group("vocabulary", VocabularyArrays)
        found = Vocabulary.from_arrays(arrays)
        # Nothing is rebuilt: these are the mapped arrays themselves.
        assert all(a is b for a, b in zip(found._buffers, arrays, strict=True))
        return found

    first = opened()
    assert all_tokens(first) == all_tokens(vocabulary)
    np.testing.assert_array_equal(first.frequencies, vocabulary.frequencies)
    grow(first, ["new"])
    grow(first, [f"newer{i}" for i in range(3000)])
    assert first.ids_of(["new"])[0] == len(vocabulary)
    assert first.ids_of(["newer2999"])[0] == len(vocabulary) + 3000
    second = opened()
    assert len(second) == len(vocabulary)
    assert second.ids_of(["new"])[0] == -1
    assert second.ids_of(["a token of many bytes"])[0] == 1001
    np.testing.assert_array_equal(second.frequencies, vocabulary.frequencies)


def test_an_empty_vocabulary_is_saved_and_opened(tmp_path: Path) -> None:
    storage.save(tmp_path / "saved", storage.Contents({}, {"vocabulary": Vocabulary().arrays}))
    arrays = storage.Saved.open(tmp_path / "saved").group("vocabulary", VocabularyArrays)
    opened = Vocabulary.from_arrays(arrays)
    assert opened.add(["a"]).tolist() == [1]


def test_arrays_that_disagree_are_refused() -> None:
    vocabulary = Vocabulary()
    vocabulary.add(["a", "b"])
    arrays = vocabulary.arrays
    for wrong in (
        arrays._replace(frequencies=np.zeros(7, np.int64)),
        arrays._replace(token_bytes=np.zeros(1, np.uint8)),
        arrays._replace(slots=arrays.slots[:100]),
        arrays._replace(slots=arrays.slots[:4]),
        arrays._replace(frequencies=np.zeros(0, np.int64), token_offsets=np.zeros(1, np.int64)),
    ):
        with pytest.raises(InvalidInput, match="vocabulary arrays disagree"):
            Vocabulary.from_arrays(wrong)


def test_read_only_arrays_may_be_used() -> None:
    vocabulary = Vocabulary()
    vocabulary.add(["a", "b"])
    arrays: VocabularyArrays = pickle.loads(pickle.dumps(vocabulary.arrays))
    for array in arrays:
        array.flags.writeable = False
    opened = Vocabulary.from_arrays(arrays)
    grow(opened, ["c"])
    assert opened.ids_of(["a", "b", "c"]).tolist() == [1, 2, 3]
