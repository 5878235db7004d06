"""The worked examples of KDD13 and TKDE15 (the same ones), for every index; others at the end.

The papers' Figure 1 is a drawing, so its twelve subscriptions are reconstructed here.

Tokens. Given in the text: s1 = {32GB, AT&T, iphone4s} and s4 to s6 = {verizon, iphone4s} (TKDE15
Examples 2 and 8), s7 = {AT&T, ipad2}, s10 = {32GB, AT&T, iphone4s} and s12 = {64GB, ipad2}
(Example 1), s8 = {AT&T, ipad2, iphone4s} (below Property 1). Of s2 we know verizon and iphone4s, of
s3 64GB and ipad2, of s9 and s11 iphone4s. The figures' captions give how many subscriptions have
each token; 64GB and verizon are used up by the above. We take it that s9 touches R_m, because
Example 3 refuses it for its text; as it is no answer of m_r, it must have a token that m_r lacks,
and that can only be the third 32GB. What remains are one AT&T (s2, s3, s9 or s11) and two ipad2
(among s2, s9, s11): twelve ways, and the examples must come out in each of them.

Regions. Chosen so that they lie as the text says: R_m touches s8 to s12 and the box around s4 to
s6, but neither s7 nor the box around s1 to s3; P_m lies in s10, s11 and s12, not in s7.

The figures of CIKM15 are drawings too; see above ``CIKM15_TOKENS`` for what the text says of them.
VLDBJ15's Figure 3 is one as well. Its nine subscriptions, s1 to s9, are reconstructed from the text
of its Examples 2, 3 and 6 at the end of this file.

The 59 tokens that Example 6 counts on the R^t-tree do not follow from the captions, nor from any of
the twelve ways, and are not tested.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from earshot.checks.generate import ragged
from earshot.indexes import structures_of
from earshot.indexes.ap_tree.index import ApTree
from earshot.indexes.ap_tree.kernels.nodes import KEYWORDS
from earshot.indexes.ap_tree.parameters import ApTreeParameters
from earshot.indexes.contract import Index
from earshot.indexes.iq_tree.index import IqTree
from earshot.indexes.kernels.token_tables import find
from earshot.indexes.keyword_first.index import KeywordFirst
from earshot.indexes.lfilter.index import LFilter
from earshot.indexes.mbr_trie.index import MbrTrie
from earshot.indexes.mbr_trie.kernels.nodes import N_NODES, START, TOP_NODE
from earshot.indexes.pt_quadtree.index import PtQuadtree, PtQuadtreeParameters
from earshot.indexes.rq_tree.index import RqTree
from earshot.indexes.spatial_first.index import SpatialFirst
from earshot.kernels.box_keys import box_key
from earshot.model.arrays import EVERYWHERE_TOKEN, MessageArrays, box_clauses

WORDS = ["", "iphone4s", "ipad2", "AT&T", "verizon", "32GB", "64GB"]
FREQUENCIES = {"iphone4s": 9, "ipad2": 6, "AT&T": 5, "verizon": 4, "32GB": 3, "64GB": 2}

Subscriptions = list[set[str]]

KNOWN: Subscriptions = [
    {"32GB", "AT&T", "iphone4s"},  # s1
    {"verizon", "iphone4s"},  # s2, perhaps more
    {"64GB", "ipad2"},  # s3, perhaps more
    {"verizon", "iphone4s"},
    {"verizon", "iphone4s"},
    {"verizon", "iphone4s"},
    {"AT&T", "ipad2"},  # s7
    {"AT&T", "ipad2", "iphone4s"},
    {"32GB", "iphone4s"},  # s9, perhaps more
    {"32GB", "AT&T", "iphone4s"},
    {"iphone4s"},  # s11, perhaps more
    {"64GB", "ipad2"},
]

REGIONS = [
    [0, 7, 1, 8], [1, 8, 2, 9], [2, 7, 3, 8],  # s1, s2, s3: n4
    [0, 4, 1, 6], [2, 5, 3, 6], [4, 4, 5, 5],  # s4, s5, s6: n5
    [9, 0, 10, 1], [5, 1, 7, 3], [6, 2, 8, 4],  # s7, s8, s9: n6
    [5, 3, 9, 5], [6, 3, 9, 6], [7, 3, 9, 5],  # s10, s11, s12: n7
]  # fmt: skip
R_M = [3.5, 2.5, 8.0, 4.5]
P_M = [8.0, 4.5, 8.0, 4.5]


def _completions() -> list[Subscriptions]:
    ways = []
    for phone, pads in product([2, 3, 9, 11], combinations([2, 9, 11], 2)):
        tokens = [set(words) for words in KNOWN]
        tokens[phone - 1].add("AT&T")
        for pad in pads:
            tokens[pad - 1].add("ipad2")
        ways.append(tokens)
    return ways


def _build(index_type: type[Index], subscriptions: Subscriptions) -> Index:
    rows = [sorted(map(WORDS.index, words)) for words in subscriptions]
    return index_type.build(box_clauses(*ragged(rows), REGIONS), space="planar")


def _answers(index: Index, words: set[str], box: list[float]) -> set[str]:
    """Return the names of the subscriptions that one message is delivered to."""
    found = index.match(_message(words, box))
    return {f"s{slot + 1}" for slot in found.subscriptions}


def _message(words: set[str], box: list[float]) -> MessageArrays:
    tokens = [EVERYWHERE_TOKEN, *map(WORDS.index, words)]
    return MessageArrays(*ragged([tokens]), np.array([box], np.float64))


each_index = pytest.mark.parametrize(
    "index_type", structures_of("boolean").values(), ids=lambda index_type: index_type.name
)
each_completion = pytest.mark.parametrize("subscriptions", _completions(), ids=range(12))


@each_completion
def test_figure_captions(subscriptions: Subscriptions) -> None:
    counts = {word: sum(word in words for words in subscriptions) for word in FREQUENCIES}
    assert counts == FREQUENCIES


@each_index
@each_completion
def test_example_1(index_type: type[Index], subscriptions: Subscriptions) -> None:
    index = _build(index_type, subscriptions)
    words = {"iphone4s", "ipad2", "AT&T", "64GB"}
    assert _answers(index, words, P_M) == {"s11", "s12"}  # m_p
    assert _answers(index, words, R_M) == {"s8", "s11", "s12"}  # m_r


@each_index
@each_completion
def test_example_3(index_type: type[Index], subscriptions: Subscriptions) -> None:
    index = _build(index_type, subscriptions)
    assert _answers(index, {"ipad2", "AT&T", "32GB", "64GB"}, R_M) == {"s12"}


@each_index
@each_completion
def test_examples_4_and_5(index_type: type[Index], subscriptions: Subscriptions) -> None:
    # Every subscription has iphone4s or ipad2, so a message with neither has no answer anywhere.
    index = _build(index_type, subscriptions)
    words = {"AT&T", "32GB", "64GB"}
    assert _answers(index, words, R_M) == set()
    assert _answers(index, words, [0, 0, 10, 10]) == set()


@each_index
@each_completion
def test_example_of_lemma_3(index_type: type[Index], subscriptions: Subscriptions) -> None:
    # s7 meets one of its two tokens only; s3 may meet both, but not the place.
    index = _build(index_type, subscriptions)
    assert _answers(index, {"ipad2", "64GB"}, R_M) == {"s12"}


@each_index
def test_disjunction_of_section_2(index_type: type[Index]) -> None:
    # "(iphone4s or ipad2) and AT&T" becomes two clauses of one subscription, delivered once.
    rows = [
        [WORDS.index("iphone4s"), WORDS.index("AT&T")],
        [WORDS.index("ipad2"), WORDS.index("AT&T")],
    ]
    clauses = box_clauses(*ragged(rows), [R_M, R_M], [0, 0])
    index = index_type.build(clauses, space="planar")
    for words, wanted in [
        ({"iphone4s", "AT&T"}, [0]),
        ({"ipad2", "AT&T"}, [0]),
        ({"iphone4s", "ipad2", "AT&T"}, [0]),
        ({"iphone4s", "ipad2"}, []),
    ]:
        assert index.match(_message(words, P_M)).subscriptions.tolist() == wanted


@each_index
def test_rectangles_that_cross_without_a_vertex_inside(index_type: type[Index]) -> None:
    # TKDE15 §3.2 tests whether a vertex of one rectangle lies in the other, which misses these.
    index = index_type.build(box_clauses([0, 1], [1], [[0, 4, 10, 5]]), space="planar")
    assert index.match(_message({"iphone4s"}, [4, 0, 5, 10])).subscriptions.tolist() == [0]


@each_completion
def test_baselines_find_the_candidates_of_section_2(subscriptions: Subscriptions) -> None:
    message = _message({"iphone4s", "ipad2", "AT&T", "64GB"}, R_M)  # m_r
    # Keyword-first: the text of s3, s7, s8, s11 and s12 is satisfied, wherever they are.
    assert _build(KeywordFirst, subscriptions).match(message).counters.candidates == 5
    # Spatial-first: s6 and s8 to s12 touch the message, whatever they ask for.
    assert _build(SpatialFirst, subscriptions).match(message).counters.candidates == 6


# ---- [CIKM15] ------------------------------------------------------------------------------------

# Figure 1 is a drawing. The text gives s1, s3 and s4 in full, m_p and m_r with their answers, the
# MBR of node 1 (above s1 and s2), the range [s3, s9] of node 8 (token b), the tokens of s3, s5 and
# s9 taken together, and which of the 31 nodes of figure 2 are visited. All paths follow from the
# numbers of these nodes, but that s2 may have d or e last, s5 f instead of h, and s10 e instead of
# d. The other regions are chosen so that they lie as the walk says.
CIKM15_TOKENS = [
    "abc", "acd", "bcd", "bcd", "bch", "bd", "bef", "bf", "bfh", "cd", "de", "df",
]  # fmt: skip
CIKM15_REGIONS = [
    [25, 0, 30, 20], [10, 30, 20, 40], [20, 32, 35, 35], [20, 10, 28, 18],  # s1 to s4
    [22, 36, 30, 39], [30, 22, 38, 28], [24, 12, 32, 16], [30, 25, 34, 30],  # s5 to s8
    [28, 20, 33, 34], [22, 8, 27, 15], [12, 22, 18, 28], [5, 30, 9, 35],  # s9 to s12
]  # fmt: skip
M_P, M_R = ("bcdef", [26, 14, 26, 14]), ("acde", [10, 10, 40, 40])


def _cikm15(index_type: type[Index], **parameters: Any) -> Any:
    """Build an index whose rarest-first order of tokens is the alphabetical one of figure 2."""
    rows = [_letters(tokens) for tokens in CIKM15_TOKENS]
    return index_type.build(
        box_clauses(*ragged(rows), CIKM15_REGIONS),
        space="planar",
        frequencies=np.arange(9, dtype=np.int64),
        parameters=index_type.parameters_type(**parameters),
    )


def _letters(tokens: str) -> list[int]:
    return [ord(letter) - ord("a") + 1 for letter in tokens]


def _matched(index: Any, message: tuple[str, list[int]]) -> Any:
    tokens, box = [EVERYWHERE_TOKEN, *_letters(message[0])], np.array([message[1]], np.float64)
    return index.match(MessageArrays(*ragged([tokens]), box))


@each_index
def test_answers_of_cikm15_section_2(index_type: type[Index]) -> None:
    index = _cikm15(index_type)
    assert sorted(_matched(index, M_P).subscriptions + 1) == [4, 7, 10]
    assert sorted(_matched(index, M_R).subscriptions + 1) == [2, 10, 11]


def test_trie_of_cikm15_figure_2() -> None:
    index = _cikm15(MbrTrie)
    trie = index.arrays
    # Subscriptions are in order already. The figure counts a leaf for each of 11 token sets.
    assert index.clauses.subscriptions.tolist() == list(range(12))
    assert trie.facts[N_NODES] == 31 - 11
    a, b, c, d = (int(trie.tokens[token, TOP_NODE]) for token in _letters("abcd"))
    numbers = [int(trie.nodes[top, START]) for top in (a, b, c, d)]
    assert numbers == [0, 2, 9, 10]  # node 8 has s3 to s9, node 26 has s11 and s12
    assert trie.keys[a] == box_key(trie.quantizer, 10.0, 0.0, 30.0, 40.0)


@pytest.mark.parametrize("probing", ["token_set", "trie", "cost"])
def test_walk_of_cikm15_section_3(probing: str) -> None:
    # Nodes 0, 8 to 10, 16, 17, 23 and 24: the paper's walk without its leaves, and without nodes 1
    # to 3, whose token the message lacks. Node 26 is pruned by its MBR, as are 14 and 19.
    work = _matched(_cikm15(MbrTrie, probing=probing), M_P).counters
    assert (work.nodes, work.candidates) == (8, 4)


@pytest.mark.parametrize("verification", ["pruned", "direct", "cost"])
def test_list_pruning_of_cikm15_section_5(verification: str) -> None:
    index = _cikm15(LFilter, filter_step="quadtree", verification=verification, tau_num=2)
    assert sorted(_matched(index, M_P).subscriptions + 1) == [4, 7, 10]
    assert sorted(_matched(index, M_R).subscriptions + 1) == [2, 10, 11]
    assert index.choices["quadtree"] == 2


# ---- CIKM15 and VLDBJ15: what their texts tell of drawings that are lost ------------------------

A, B, C, D, E, F, H = range(1, 8)


@each_index
def test_point_message_of_cikm15(index_type: type[Index]) -> None:
    # Section 2.1: of s1, s3 and s4, only s4 is an answer of m_p: s1 asks for "a", s3 is elsewhere.
    tokens, boxes = (
        [[A, B, C], [B, C, D], [B, C, D]],
        [[25, 0, 30, 20], [20, 32, 35, 35], [20, 10, 28, 18]],
    )
    index = index_type.build(box_clauses(*ragged(tokens), boxes), space="planar")
    offsets, ids = ragged([[EVERYWHERE_TOKEN, B, C, D, E, F]])
    message = MessageArrays(offsets, ids, np.array([[26.0, 14.0, 26.0, 14.0]]))
    assert index.match(message).subscriptions.tolist() == [2]


def test_cover_sets_of_cikm15() -> None:
    # Section 4.1: s3, s9 and s5 lie in the four leaves of a node and share "b", which is kept above
    # them; leaves with pivotal tokens d, b, b, b have none in common, so their node keeps {b, d}.
    # Here "b" is the rarest token, so that it is pivotal where a clause is alone in a leaf.
    tokens = [[B, C, D], [B, H], [B, F], [D], [B, A], [B, C], [B, E]]
    boxes = [
        [0, 0, 3, 1], [0, 3, 1, 3.5], [3, 3, 3.5, 3.5],  # s3 in two leaves, s9, s5
        [5, 5, 5, 5], [7, 5, 7, 5], [5, 7, 5, 7], [7, 7, 8, 8],
    ]  # fmt: skip
    parameters = PtQuadtreeParameters(tau_num=2)
    frequencies = np.full(8, 9)
    frequencies[B] = 1
    clauses = box_clauses(*ragged(tokens), np.array(boxes, np.float64))
    index = PtQuadtree.build(
        clauses, space="planar", frequencies=frequencies, parameters=parameters
    )
    tree, sets = index.arrays.tree, index.arrays.sets
    south_west = int(tree.children[0])
    north_east = south_west + 3
    assert sets.values[find(sets, 0, B)] == 0b0001_1001  # in both, covers the first
    assert sets.values[find(sets, 0, D)] == 0b0000_1000
    assert sets.used[south_west] == 0  # "b" has moved up
    assert sets.values[find(sets, north_east, B)] == 0b1110_1110
    assert sets.values[find(sets, north_east, D)] == 0b0001_0001
    # A message without "b" looks at no clause there, though s3 shares "c" and "d" with it.
    offsets, ids = ragged([[EVERYWHERE_TOKEN, A, C, D, E]])
    found = index.match(MessageArrays(offsets, ids, np.array([[0.0, 0.0, 3.9, 3.9]])))
    assert found.counters.candidates == 0


@pytest.mark.parametrize("structure", [IqTree, RqTree])
def test_ranked_keys_of_vldbj15(structure: type[IqTree]) -> None:
    # Section 3.1: s7 = {w3, w4} is in the list of w4, which is less frequent. So the message
    # {w2, w3, w4} finds it by w4, and a message with w3 alone does not look at it.
    w2, w3, w4 = 2, 3, 4
    clauses = box_clauses(*ragged([[w3, w4], [w3], [w2, w3]]), [R_M] * 3)
    index = structure.build(clauses, space="planar", frequencies=np.array([9, 0, 4, 5, 1]))
    for words, n_candidates, answers in (
        ([w2, w3, w4], 3, [0, 1, 2]),
        ([w3], 1, [1]),
        ([w4], 1, []),
    ):
        offsets, ids = ragged([[EVERYWHERE_TOKEN, *words]])
        found = index.match(MessageArrays(offsets, ids, np.array([P_M])))
        assert sorted(found.subscriptions.tolist()) == answers
        assert found.counters.candidates == n_candidates


# ---- VLDBJ15 -------------------------------------------------------------------------------------

# Given: s1 = {w1, w2} and s7 = {w3, w4}; s1, s2, s4 and s5 begin with w1 and go on with w2, w3 or
# w5; all nine begin with w1 to w5; m1 = {w2, w3, w4} has the words of s3 and s7, and lies in s1,
# s2, s4 and s7; m2 is delivered to s1 and s4. The rest is chosen.
RUNNING = [[1, 2], [1, 3], [2, 3], [1, 2, 5], [1, 5], [4, 6], [3, 4], [4, 5], [5, 6]]
RUNNING_BOXES = [
    [0, 0, 6, 6], [3, 3, 6, 6], [7, 7, 9, 9], [0, 0, 8, 6], [7, 0, 9, 2],
    [0, 8, 2, 9], [4, 4, 9, 9], [8, 4, 9, 5], [0, 7, 1, 9],
]  # fmt: skip
M1, M1_PLACE = [2, 3, 4], [5.0, 5.0, 5.0, 5.0]
M2, M2_PLACE = [1, 2, 5], [2.0, 2.0, 2.0, 2.0]


def _running(words: list[int], box: list[float]) -> MessageArrays:
    return MessageArrays(*ragged([[EVERYWHERE_TOKEN, *words]]), np.array([box], np.float64))


@each_index
def test_vldbj15_example_2(index_type: type[Index]) -> None:
    index = index_type.build(box_clauses(*ragged(RUNNING), RUNNING_BOXES), space="planar")
    assert sorted(index.match(_running(M1, M1_PLACE)).subscriptions + 1) == [7]
    assert sorted(index.match(_running(M2, M2_PLACE)).subscriptions + 1) == [1, 4]
    # By words alone (Fig. 4c).
    assert sorted(index.match(_running(M1, [0.0, 0.0, 10.0, 10.0])).subscriptions + 1) == [3, 7]


def test_vldbj15_examples_3_and_6() -> None:
    # Ten of each, as nine would stay in one list; keywords in the order of their numbers.
    index = ApTree.build(
        box_clauses(*ragged(RUNNING * 10), RUNNING_BOXES * 10), space="planar",
        frequencies=np.arange(7, 0, -1),
        parameters=ApTreeParameters(fanout=3, priority="keyword", keyword_order="frequent"),
    )  # fmt: skip
    tree = index.arrays
    first = int(tree.extras[0])
    assert (tree.kinds[0], tree.offsets[0]) == (KEYWORDS, 1)
    cuts = list(zip(tree.firsts[first : first + 3], tree.lasts[first : first + 3], strict=True))
    assert cuts == [(1, 1), (2, 3), (4, 5)]  # c[w1], c[w2, w3] and c[w4, w5]
    # m1 hits the second cut by two words and visits it once, and so it does the third.
    found = index.match(_running(M1, M1_PLACE))
    assert sorted({slot % 9 + 1 for slot in found.subscriptions.tolist()}) == [7]
    assert found.counters == (3, 50, 10)  # the root and two lists, of s3, s7 and of s6, s8, s9
