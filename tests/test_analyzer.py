# ruff: noqa: RUF001 - texts of many scripts are what is tested
from __future__ import annotations

import itertools
import pickle
import random
import re
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot.errors import InvalidInput, InvalidParameter, InvalidRow, MissingExtra
from earshot.text import (
    Analyzer,
    TokenLists,
    Vocabulary,
    analyzer,
    invalid_utf8,
    merge_counts,
)

# ---- the oracle: the rules of the module docstring, in Python, sharing no code with the kernels -

IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U0001f3fb-\U0001f3ff\U000e0001-\U000e01ef]"
)
NO_SPACE_NAMES = (
    "CJK UNIFIED",
    "CJK COMPATIBILITY IDEOGRAPH",
    "IDEOGRAPHIC",
    "VERTICAL IDEOGRAPHIC",
    "VERTICAL KANA",
    "OLD CHINESE",
    "HANGZHOU",
    "MASU MARK",
    "HIRAGANA",
    "KATAKANA",
    "HENTAIGANA",
    "THAI ",
    "LAO ",
    "KHMER ",
    "MYANMAR ",
)


def character_class(character: str) -> str:
    special = {"_": "u", "'": "a", ".": "p", ",": "p", "#": "s", "@": "s"}
    if character in special:
        return special[character]
    if character in "\ufffc\ufffd":
        return "-"
    category = unicodedata.category(character)
    if "\U0001f1e6" <= character <= "\U0001f1ff":
        return "r"
    if category[0] == "L" or category == "Nl":
        return "n" if unicodedata.name(character, "").startswith(NO_SPACE_NAMES) else "l"
    if category in ("Nd", "No"):
        return "d"
    if category[0] == "M":
        return "m"
    if category == "So" or character in "\u2194\u25fb\u25fc\u25fd\u25fe":
        return "y"
    if category == "Cn" and "\U0001f000" <= character <= "\U0001faff":
        return "y"
    if category == "Cn" and "\U00020000" <= character <= "\U0003fffd":
        return "n"  # planes reserved for Han
    return "-"


def oracle_folded(text: str) -> str:
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return IGNORED.sub("", text).replace("\u2019", "'")


def oracle_occurrences(text: str) -> list[str]:
    text = oracle_folded(text)
    classes = "".join(map(character_class, text))
    classes = re.sub(r"(?:^|(?<=[^ldumn]))m+", lambda found: "-" * len(found[0]), classes)
    tokens: list[str] = []

    def scan(start: int, stop: int) -> None:
        while start < stop:
            if found := re.compile(r"(?<![ldumn])s[ldun][ldumn]*").match(classes, start, stop):
                tokens.append(text[start : found.end()])
                if text[start] == "#":
                    scan(start + 1, found.end())
            elif found := re.compile(r"(?:lm*a(?=l)|dm*p(?=d)|[ldu]m*)+").match(
                classes, start, stop
            ):
                tokens.append(found_text(found))
            elif found := re.compile(r"(?:nm*)+").match(classes, start, stop):
                units = list(re.compile(r"nm*").finditer(classes, found.start(), found.end()))
                for previous, unit in zip([None, *units], units, strict=False):
                    tokens.append(found_text(unit))
                    if previous is not None:
                        tokens.append(text[previous.start() : unit.end()])
            elif found := re.compile(r"rr?|y").match(classes, start, stop):
                tokens.append(found_text(found))
            start = found.end() if found else start + 1

    def found_text(found: re.Match[str]) -> str:
        return text[found.start() : found.end()]

    scan(0, len(text))
    return tokens


def oracle_tokens(text: str) -> list[str]:
    return list(dict.fromkeys(oracle_occurrences(text)))


def kernel_tokens(texts: Iterable[str]) -> list[list[str]]:
    vocabulary = Vocabulary()
    offsets, ids = Analyzer().analyze(list(texts), vocabulary, grow=True)
    tokens = vocabulary.tokens(ids)
    return [tokens[a:b] for a, b in itertools.pairwise(offsets)]


def check_equals_oracle(texts: list[str]) -> None:
    for text, tokens in zip(texts, kernel_tokens(texts), strict=True):
        assert tokens == oracle_tokens(text), repr(text)


# ---- rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("  .,;- \t\n", []),
        ("Fire! fire FIRE", ["fire"]),
        ("I don't; O’Neill's 'quoted' dogs'", ["i", "don't", "o'neill's", "quoted", "dogs"]),
        (
            "3.5 km, 5,000 men. 1.2.3. v1.5 1.a a.1",
            ["3.5", "km", "5,000", "men", "1.2.3", "v1.5", "1", "a"],
        ),
        ("1'2 a'1", ["1", "2", "a"]),
        ("snake_case _x well-known", ["snake_case", "_x", "well", "known"]),
        ("#Fire @Bob", ["#fire", "fire", "@bob"]),
        ("##fire #@bob x#y x@y.com #", ["#fire", "fire", "@bob", "x", "y", "com"]),
        ("#trump's @bob's", ["#trump", "trump", "s", "@bob"]),
        ("#3.5", ["#3", "3", "5"]),
        ("@a@b @_c", ["@a", "b", "@_c"]),
        ("東京", ["東", "京", "東京"]),
        ("東京都", ["東", "京", "東京", "都", "京都"]),
        ("東京 都", ["東", "京", "東京", "都"]),
        ("Tokyo東京2020", ["tokyo", "東", "京", "東京", "2020"]),
        ("#東京fire", ["#東京fire", "東", "京", "東京", "fire"]),
        ("ラーメン", ["ラ", "ー", "ラー", "メ", "ーメ", "ン", "メン"]),
        ("ﾗｰﾒﾝ ｶﾞ", ["ラ", "ー", "ラー", "メ", "ーメ", "ン", "メン", "ガ"]),
        ("ดีที่", ["ดี", "ที่", "ดีที่"]),
        ("한국어 한국어", ["한국어"]),
        ("\u1112\u1161\u11ab", ["한"]),
        ("Straße STRASSE ﬁre ＦＩＲＥ", ["strasse", "fire"]),
        ("cafe\u0301 CAFÉ", ["café"]),
        ("co\u00adoperate Ko\u200bala man\u200dgo", ["cooperate", "ko", "ala", "mango"]),
        ("don\u00ad\u2019\u00adt", ["don't"]),
        ("fire\u2060man \ufefffire\ufeffman 3\u2060.5", ["fireman", "3.5"]),  # joined
        ("#fire\u2060man x\u2060#y #\ufeffz", ["#fireman", "fireman", "x", "y", "#z", "z"]),
        ("#1,2 #1,200 @a,b", ["#1", "1", "2", "200", "@a", "b"]),
        ("\u0301#fire \u0301@bob", ["#fire", "fire", "@bob"]),  # a mark on nothing separates
        ("x\u0323#y x\u0323@z", ["x\u0323", "y", "z"]),  # one on a letter is its
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("سَلَام", ["سَلَام"]),
        ("I ❤️ NY❤👍🏽👍", ["i", "❤", "ny", "👍"]),
        ("🇩🇪🇫🇷🇩", ["🇩🇪", "🇫🇷", "🇩"]),
        ("don´t \u0301x", ["don", "t", "x"]),
        ("30°C ½ x²", ["30", "°", "c", "1", "2", "x2"]),
        ("https://a.b/c?d=e_f", ["https", "a", "b", "c", "d", "e_f"]),
        ("İstanbul ΣΊΣΥΦΟΣ", ["i̇stanbul", "σίσυφοσ"]),
    ],
)
def test_rules(text: str, tokens: list[str]) -> None:
    assert Analyzer().tokens(text) == tokens
    assert oracle_tokens(text) == tokens


def test_every_code_point_alone_and_between_others() -> None:
    # Han and Hangul are sampled; the rest is complete.
    codes = [c for c in range(0x30000) if not (0x3500 <= c < 0xF900 or 0x20100 <= c < 0x2F800)]
    codes += range(0x3500, 0xD800, 61)
    codes += [*range(0x20100, 0x2F800, 61), *range(0xE0000, 0xE0200), 0x30000, 0xF0000, 0x10FFFF]
    check_equals_oracle([f"a{chr(code)}b {chr(code)}1" for code in codes])


NASTY = (
    "aZ19_'’.,#@ -\u00df\u0130\ufb01\u00e9\u0301\u0323\u0327\u0345\u0313\u0338\u1100\u1161\u11a8"
    "\uac00\u3042\u3099\uff76\uff9e\u6771\u4eac\u0e01\u0e33\u0e38\u0e48\u093c\u094d\u0958\u0928"
    "\u09c7\u09be\u00ad\u200d\ufe0f\u20e3\u1f82\u03c3\u0390\u00b4\u00a8\u1e9b\u212b\u2126\U0001d15f"
    "\U0001d15e\U0001f600\U0001f1e9\U0001f3fd\ufdfa\u0f73\u0f71\u0fb2\u2adc\u05b4\u05bc\ufb1d"
)


def test_combinations_that_normalise_in_context() -> None:
    rng = random.Random(3)
    texts = ["".join(rng.choices(NASTY, k=rng.randrange(1, 9))) for _ in range(30_000)]
    texts += [a + b for a in NASTY for b in NASTY]
    check_equals_oracle(texts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(), st.text(NASTY), st.text("ab1.,'#@ \u0301\u6771"))))
def test_any_text_equals_the_oracle(texts: list[str]) -> None:
    check_equals_oracle(texts)


@pytest.mark.parametrize(
    "text",
    [
        "Все люди рождаются свободными и равными в своём достоинстве и правах.",
        "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
        "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
        "人人生而自由,在尊严和权利上一律平等。",
        "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
        "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
        "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
        "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
        "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்",
        "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
        "כָּל בְּנֵי אָדָם נוֹלְדוּ בְּנֵי חוֹרִין",
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
        "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့်",
        "មនុស្សទាំងអស់កើតមកមានសេរីភាព",
        "ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ",
        "ყველა ადამიანი იბადება თავისუფალი",
        "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
        "L'État, c'est moi — qu’est-ce que c’est? Ça coûte 3,50 €",
    ],
)
def test_real_scripts(text: str) -> None:
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        version = unicodedata.normalize(form, text)
        check_equals_oracle([version, version.upper()])
        assert Analyzer().tokens(version) == Analyzer().tokens(text)


def test_long_tokens_and_texts_are_kept_whole() -> None:
    long = ["x" * n for n in (11, 12, 15, 16, 17, 254, 255, 256, 5000, 70_000)]
    assert Analyzer().tokens(" ".join(long)) == long


# ---- batches --------------------------------------------------------------------------------


def random_texts(n: int) -> list[str]:
    rng = random.Random(7)
    words = [f"word{i}" for i in range(3000)] + ["東京都", "e\u0301te\u0301", "Café", "#Tag", "👍"]
    return [" ".join(rng.choices(words, k=rng.choice([0, 1, 9, 9, 60]))) for _ in range(n)]


def test_many_equals_one_by_one() -> None:
    texts = random_texts(3000)
    vocabulary = Vocabulary()
    lists = Analyzer().analyze(texts, vocabulary, grow=True)
    one_by_one = Vocabulary()
    for i, text in enumerate(texts):
        single = Analyzer().analyze([text], one_by_one, grow=True).ids
        assert single.tolist() == lists.ids[lists.offsets[i] : lists.offsets[i + 1]].tolist()
    assert len(vocabulary) == len(one_by_one) > 3000
    again = Analyzer().analyze(texts, vocabulary, grow=False)
    np.testing.assert_array_equal(again.ids, lists.ids)
    np.testing.assert_array_equal(again.offsets, lists.offsets)
    assert lists.ids.min() > 0


def test_repeats_in_long_texts_are_dropped() -> None:
    texts = [" ".join(f"w{i % n}" for i in range(300)) for n in (1, 23, 24, 25, 26, 60, 300)]
    check_equals_oracle([*texts, *random_texts(300)])


def test_more_ids_than_expected_make_room() -> None:
    # One id per two bytes; the buffer starts with one per six.
    text = " ".join("abcdefghijklmnopqrstuvwxyz")
    lists = Analyzer().analyze([text] * 5000, Vocabulary(), grow=True)
    assert lists.ids.tolist() == list(range(1, 27)) * 5000


# ---- counts ---------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab #東京.'1", max_size=60), max_size=8))
def test_counts_equal_the_oracle(texts: list[str]) -> None:
    vocabulary = Vocabulary()
    offsets, ids, counts, overfull = Analyzer().count(texts, vocabulary, grow=True)
    assert counts.dtype == np.uint16
    assert overfull.tolist() == []
    tokens = vocabulary.tokens(ids)
    for i, text in enumerate(texts):
        span = slice(offsets[i], offsets[i + 1])
        found = dict(zip(tokens[span], counts[span].tolist(), strict=True))
        assert list(found.items()) == list(Counter(oracle_occurrences(text)).items()), repr(text)


def test_counts_come_with_the_lists() -> None:
    # Texts with few and with many distinct tokens, in all numbers around where the way changes.
    texts = [" ".join(f"w{i % n}" for i in range(300)) for n in (1, 23, 24, 25, 26, 60, 300)]
    texts = [
        *texts,
        *random_texts(1000),
        "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 5000,
    ]
    lists = Analyzer().analyze(texts, Vocabulary(), grow=True)
    vocabulary = Vocabulary()
    for rows in (texts, pa.chunked_array([texts[:9], [], texts[9:]])):
        found = Analyzer().count(rows, vocabulary, grow=True)
        np.testing.assert_array_equal(found.ids, lists.ids)
        np.testing.assert_array_equal(found.offsets, lists.offsets)
        tokens = vocabulary.tokens(found.ids)
        for i, text in enumerate(texts[:-1]):
            expected = Counter(oracle_occurrences(text))
            for j in range(found.offsets[i], found.offsets[i + 1]):
                assert found.counts[j] == expected[tokens[j]]
        assert found.counts[found.offsets[-2] :].tolist() == [5000] * 26


def test_counts_without_growing() -> None:
    vocabulary = Vocabulary()
    Analyzer().analyze(["fire flood"], vocabulary, grow=True)
    found = Analyzer().count(["flood a flood", None, "news"], vocabulary, grow=False)
    assert found.offsets.tolist() == [0, 1, 1, 1]
    assert found.counts.tolist() == [2]
    assert Analyzer().count([], vocabulary, grow=True).offsets.tolist() == [0]


@pytest.mark.parametrize("words", ["a", "a b c d e f g h i j k l m n o p q r s t u v w x y z"])
def test_counts_that_cannot_be_told_are_reported(words: str) -> None:
    most = f"{words} " * 65_535
    texts = ["x", most, f"{most} {words}", most, f"{most} {most}"]
    found = Analyzer(max_text_bytes=1 << 28).count(texts, Vocabulary(), grow=True)
    assert found.overfull.tolist() == [2, 4]
    assert found.counts.tolist() == [1] + [65_535] * 4 * len(words.split())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.text("abcdefg ", max_size=12), max_size=12), max_size=6))
def test_counts_of_texts_add_up(rows: list[list[str]]) -> None:
    vocabulary = Vocabulary()
    row_ends = np.cumsum([0, *map(len, rows)])
    texts = [text for row in rows for text in row]
    found = merge_counts(row_ends, Analyzer().count(texts, vocabulary, grow=True))
    whole = Analyzer().count([" ".join(row) for row in rows], vocabulary, grow=False)
    for merged, expected in zip(found, whole, strict=True):
        np.testing.assert_array_equal(merged, expected)


def test_an_overfull_text_makes_its_row_so() -> None:
    texts = ["a " * 70_000, "b", "a " * 65_000, "a " * 535, "a " * 65_000, "a " * 536]
    counts = Analyzer().count(texts, Vocabulary(), grow=True)
    found = merge_counts(np.array([0, 2, 4, 6]), counts)
    assert found.overfull.tolist() == [0, 2]
    assert found.counts.tolist() == [65_535, 1, 65_535, 65_535]


def test_unknown_tokens_are_dropped_and_leave_no_trace() -> None:
    vocabulary = Vocabulary()
    Analyzer().analyze(["fire flood"], vocabulary, grow=True)
    lists = Analyzer().analyze(["a flood of news", None, "news"], vocabulary, grow=False)
    assert lists.offsets.tolist() == [0, 1, 1, 1]
    assert vocabulary.tokens(lists.ids) == ["flood"]
    assert len(vocabulary) == 3


ROWS = ["Fire here", None, "", "東京 fire", "cafe\u0301"]


@pytest.mark.parametrize(
    "texts",
    [
        ROWS,
        tuple(ROWS),
        pa.array(ROWS),
        pa.array(ROWS, pa.large_string()),
        pa.array(ROWS, pa.string_view()),
        pa.array([row and row.encode() for row in ROWS], pa.binary()),
        pa.array([row and row.encode() for row in ROWS], pa.large_binary()),
        pa.array([row and row.encode() for row in ROWS], pa.binary_view()),
        pa.array(ROWS).dictionary_encode(),
        pa.array(["not", "these", *ROWS, "nor this"])[2:7],
        pa.chunked_array([["not", *ROWS[:2]], [], [*ROWS[2:], "nor"]]).slice(1, 5),
        pa.chunked_array([ROWS]).dictionary_encode(),
    ],
    ids=lambda texts: str(getattr(texts, "type", type(texts).__name__)),
)
def test_kinds_of_input(texts: Any) -> None:
    vocabulary = Vocabulary()
    lists = Analyzer().analyze(texts, vocabulary, grow=True)
    assert lists.offsets.dtype == np.int64
    assert lists.ids.dtype == np.int32
    assert lists.offsets.tolist() == [0, 2, 2, 2, 6, 7]
    assert vocabulary.tokens(lists.ids) == ["fire", "here", "東", "京", "東京", "fire", "café"]


@pytest.mark.parametrize(
    "texts", [[], pa.array([], pa.string()), pa.chunked_array([], pa.string()), pa.nulls(0)]
)
def test_no_texts(texts: Any) -> None:
    lists = Analyzer().analyze(texts, Vocabulary(), grow=True)
    assert lists.offsets.tolist() == [0]
    assert lists.ids.tolist() == []
    assert Analyzer().too_long(texts).shape == invalid_utf8(texts).shape == (0,)


def test_nulls_have_no_tokens_whatever_lies_behind_them() -> None:
    text = pa.array(["one", "two", "six"])
    mask = pa.py_buffer(bytes([0b101]))
    array = pa.Array.from_buffers(pa.string(), 3, [mask, *text.buffers()[1:]])
    lists = Analyzer().analyze(array, Vocabulary(), grow=True)
    assert lists.offsets.tolist() == [0, 1, 1, 2]
    assert Analyzer().analyze(pa.nulls(2), Vocabulary(), grow=True).offsets.tolist() == [0, 0, 0]


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="single string"):
        Analyzer().analyze("text", Vocabulary(), grow=True)
    with pytest.raises(InvalidInput, match="int64; expected strings"):
        Analyzer().analyze(pa.array([1]), Vocabulary(), grow=True)
    for wrong in ("\ud800", 7):
        with pytest.raises(InvalidRow, match="row 1, field 'text'"):
            Analyzer().analyze(["a", wrong], Vocabulary(), grow=True)


def test_texts_that_are_too_long_are_refused() -> None:
    short = Analyzer(max_text_bytes=4)
    texts = pa.chunked_array([["abcd", None], ["東", "東a", "東京"]])
    assert short.too_long(texts).tolist() == [False, False, False, False, True]
    with pytest.raises(InvalidRow, match="row 4, field 'text': 6 bytes long; expected at most 4"):
        short.analyze(texts, Vocabulary(), grow=True)
    for wrong in (0, 1 << 29):
        with pytest.raises(InvalidParameter, match=f"max_text_bytes is {wrong}; expected 1 to"):
            Analyzer(max_text_bytes=wrong)


def as_string_array(texts: list[bytes]) -> pa.Array:
    binary = pa.array(texts, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(binary), binary.buffers())


def is_valid(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(), st.text().map(str.encode))))
def test_broken_utf8_is_found_and_harmless(texts: list[bytes]) -> None:
    array = as_string_array(texts)
    assert invalid_utf8(array).tolist() == [not is_valid(text) for text in texts]
    offsets, ids = Analyzer().analyze(array, Vocabulary(), grow=True)
    assert len(offsets) == len(texts) + 1
    assert (ids > 0).all()


def test_every_broken_sequence_is_found() -> None:
    firsts = [bytes([a]) for a in range(128, 256)]
    seconds = [a + bytes([b]) for a in firsts for b in (0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xBF)]
    thirds = [a + b"\x80" for a in seconds]
    fourths = [a + b"\xbf" for a in thirds]
    texts = firsts + seconds + thirds + fourths
    texts += [b"abcdefg" + text + b"hijklmnop" for text in texts]
    assert invalid_utf8(as_string_array(texts)).tolist() == [not is_valid(text) for text in texts]


def test_broken_utf8_separates_words() -> None:
    vocabulary = Vocabulary()
    array = as_string_array([b"fire\xfffloods", b"\xe6\x9d", b"caf\xc3", b"e\xcc\x81\xff#a"])
    lists = Analyzer().analyze(array, vocabulary, grow=True)
    assert lists.offsets.tolist() == [0, 2, 2, 3, 6]
    assert vocabulary.tokens(lists.ids) == ["fire", "floods", "caf", "é", "#a", "a"]


def test_threads_give_the_same_answers() -> None:
    texts = random_texts(2000)
    for each in (Analyzer(), Analyzer("en", stop_words=True, stem=True)):
        vocabulary = Vocabulary()
        expected = each.analyze(texts[:1000], vocabulary, grow=True)
        expected = each.analyze(texts, vocabulary, grow=False)
        answers: list[TokenLists] = []
        threads = [
            threading.Thread(
                target=lambda each=each, vocabulary=vocabulary, answers=answers: answers.append(
                    each.analyze(texts, vocabulary, grow=False)
                )
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 4
        for answer in answers:
            np.testing.assert_array_equal(answer.ids, expected.ids)
            np.testing.assert_array_equal(answer.offsets, expected.offsets)


# ---- languages ------------------------------------------------------------------------------


def test_stop_words_and_stems() -> None:
    text = "The fires were burning; don't burn #burning @the_fires THE 東京 3.5"
    english = Analyzer("en", stop_words=True, stem=True)
    assert english.tokens(text) == [
        "fire",
        "burn",
        "#burning",
        "@the_fires",
        *"東京",
        "東京",
        "3.5",
    ]
    assert Analyzer("en", stop_words=True).tokens("the fires of the") == ["fires"]
    assert Analyzer("en", stem=True).tokens("the fires of the") == ["the", "fire", "of"]
    assert Analyzer("de", stop_words=True, stem=True).tokens("die Häuser") == ["haus"]
    assert Analyzer("en").tokens("the fires") == ["the", "fires"]


def test_words_count_by_their_stems() -> None:
    english = Analyzer("en", stop_words=True, stem=True)
    texts = ["The floods were burning; flood, burn the burned!", None, "#burning the flood"]
    vocabulary = Vocabulary()
    found = english.count(texts, vocabulary, grow=True)
    lists = english.analyze(texts, vocabulary, grow=False)
    np.testing.assert_array_equal(found.offsets, lists.offsets)
    np.testing.assert_array_equal(found.ids, lists.ids)
    assert vocabulary.tokens(found.ids) == ["flood", "burn", "#burning", "burn", "flood"]
    assert found.counts.tolist() == [2, 3, 1, 1, 1]
    mixed = english.count(
        ["burn burns " * 32_767 + "burning", "burn burns " * 40_000], vocabulary, grow=False
    )
    assert mixed.overfull.tolist() == [1]
    assert mixed.counts.tolist() == [65_535, 65_535]


def test_words_unknown_to_the_cache_are_found_by_their_stems() -> None:
    english = Analyzer("en", stem=True)
    vocabulary = Vocabulary()
    assert english.analyze(["burning floods"], vocabulary, grow=False).ids.tolist() == []
    english.analyze(["burned"], vocabulary, grow=True)
    # Known to the memory as an unknown stem, then added by way of another form.
    assert vocabulary.tokens(english.analyze(["burning"], vocabulary, grow=False).ids) == ["burn"]
    # Added behind the analyzer's back.
    vocabulary.add(["flood"])
    lists = english.analyze(["floods burns flooded"], vocabulary, grow=False)
    assert vocabulary.tokens(lists.ids) == ["flood", "burn"]
    assert len(vocabulary) == 3


def test_ids_do_not_depend_on_what_was_analysed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["running dogs and cats", "the dog ran", "cats dog catlike cats"]
    english = Analyzer("en", stop_words=True, stem=True)
    fresh, used, forgetful = Vocabulary(), Vocabulary(), Vocabulary()
    expected = english.analyze(texts, fresh, grow=True)
    english.analyze(["cat dogs run", "mouse"], used, grow=False)
    np.testing.assert_array_equal(english.analyze(texts, used, grow=True).ids, expected.ids)
    monkeypatch.setattr(analyzer, "SURFACE_FORMS_KEPT", 0)
    for text, first, last in zip(texts, expected.offsets[:-1], expected.offsets[1:], strict=True):
        ids = english.analyze([text], forgetful, grow=True).ids
        np.testing.assert_array_equal(ids, expected.ids[first:last])
    assert forgetful.caches == {english: []}
    assert fresh.tokens(range(len(fresh))) == forgetful.tokens(range(len(forgetful)))


def test_languages_are_checked() -> None:
    with pytest.raises(InvalidParameter, match="stem needs a language"):
        Analyzer(stem=True)
    with pytest.raises(InvalidParameter, match=r"'xx'; expected one of .*en.*fr"):
        Analyzer("xx", stop_words=True)
    with pytest.raises(InvalidParameter, match=r"'english'; expected one of .*en.*fr"):
        Analyzer("english", stem=True)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    monkeypatch.setitem(sys.modules, "stopwordsiso", None)
    analyzer._stop_words.cache_clear()
    with pytest.raises(MissingExtra, match=r"PyStemmer: pip install 'earshot\[language\]'"):
        Analyzer("en", stem=True)
    with pytest.raises(MissingExtra, match=r"stopwordsiso: pip install 'earshot\[language\]'"):
        Analyzer("en", stop_words=True)


def test_analyzers_are_values() -> None:
    english = Analyzer("en", stop_words=True, stem=True)
    assert pickle.loads(pickle.dumps(english)) == english == Analyzer("en", True, True)
    assert len({english, Analyzer("en", True, True), Analyzer()}) == 2
