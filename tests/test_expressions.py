"""Expressions: reading, printing, and clauses that say the same as the expression."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earshot.errors import InvalidExpression
from earshot.model.expressions import (
    MAX_DEPTH,
    MAX_LENGTH,
    And,
    Clause,
    Expression,
    Keyword,
    Not,
    Or,
    all_of,
    clauses,
    parse,
)

A, B, C = Keyword("a"), Keyword("b"), Keyword("c")


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def rewritten(text: str, max_clauses: int = 256) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [tuple(clause) for clause in clauses(parse(text), words, max_clauses)]  # type: ignore[misc]


# ---- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", A),
        ("  a\n", A),
        ("a and b", And((A, B))),
        ("a AND b And c", And((A, B, C))),
        ("a or b and c", Or((A, And((B, C))))),
        ("(a or b) and c", And((Or((A, B)), C))),
        ("((a))", A),
        ("a and (b and c)", And((A, And((B, C))))),
        ("not a and b", And((Not(A), B))),
        ("not (a and b)", Not(And((A, B)))),
        ("not not a", Not(Not(A))),
        ("not(a)or(b)", Or((Not(A), B))),
        ('"new york" or x', Or((Keyword("new york"), Keyword("x")))),
        ("'new york'", Keyword("new york")),
        ('"and" and "Not"', And((Keyword("and"), Keyword("Not")))),
        (r'"say \"hi\" \\ there"', Keyword('say "hi" \\ there')),
        (
            "#tag or @user or o'neill or x-y_z.1",
            Or(tuple(map(Keyword, ["#tag", "@user", "o'neill", "x-y_z.1"]))),
        ),
        ("ñandú or 東京", Or((Keyword("ñandú"), Keyword("東京")))),
        ("android and orange", And((Keyword("android"), Keyword("orange")))),
    ],
)
def test_text_is_read(text: str, expected: Expression) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the expression is empty; expected a keyword"),
        ("  ", "the expression is empty; expected a keyword"),
        (
            "a b",
            "'a' and 'b' at position 3 stand side by side; put 'and' or 'or' between them, "
            "or quote a keyword of several words",
        ),
        ("a not b", "'a' and 'not' at position 3 stand side by side"),
        ("a (b)", "'a' and '(' at position 3 stand side by side"),
        ("(a) b", "')' and 'b' at position 5 stand side by side"),
        ("a and", "expected a keyword, 'not' or '(' after 'and', found the end"),
        ("or a", "expected a keyword, 'not' or '(', found 'or' at position 1"),
        ("a and or b", "after 'and', found 'or' at position 7"),
        ("()", "after '(', found ')' at position 2"),
        ("not", "after 'not', found the end"),
        ("(a or (b)", "'(' at position 1 is never closed"),
        ("a) or b", "')' at position 2 closes nothing"),
        ('a or "b', 'the quote " at position 6 is never closed'),
        ("a or 'b", "the quote ' at position 6 is never closed"),
        ("'a'b", "the quote ' at position 1 is never closed"),
        ("(" * (MAX_DEPTH + 1), f"nest more than {MAX_DEPTH} deep at position {MAX_DEPTH + 1}"),
        ("not " * 4000 + "a", f"nest more than {MAX_DEPTH} deep"),
        ("a" * (MAX_LENGTH + 1), f"has {MAX_LENGTH + 1} characters; at most {MAX_LENGTH} are read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidExpression) as error:
        parse(text)
    assert reason in str(error.value)


def test_the_deepest_text_that_is_read_can_be_handled() -> None:
    text = "a"
    for level in range(MAX_DEPTH):
        text = f"({text} or b{level} and c{level})"
    expression = parse(text)
    assert parse(str(expression)) == expression
    assert hash(copy.deepcopy(expression)) == hash(expression)
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert len(clauses(expression, words)) == MAX_DEPTH + 1


def test_expressions_built_by_hand_are_checked() -> None:
    assert And([A, B]) == And((A, B))  # type: ignore[arg-type]
    assert all_of(["a", "b"]) == And((A, B))
    assert all_of(["a"]) == A
    with pytest.raises(InvalidExpression, match="'and' needs at least 2 operands, got 1"):
        And((A,))
    with pytest.raises(InvalidExpression, match="an operand of 'or' is a Keyword"):
        Or((A, "b"))  # type: ignore[arg-type]
    with pytest.raises(InvalidExpression, match="an operand of 'not' is a Keyword"):
        Not("a")  # type: ignore[arg-type]
    with pytest.raises(InvalidExpression, match="a keyword is text, got 5"):
        Keyword(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidExpression, match="an expression is text, got a int"):
        parse(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidExpression, match="nested more than"):
        build_deep()


def build_deep() -> Expression:
    expression: Expression = A
    for _ in range(10_000):
        expression = Not(expression)
    return expression


keywords = st.one_of(
    st.sampled_from(["a", "b", "c", "new york", "and", "o'x", '"', "\\", "'", "(", "#x", "a b"]),
    st.text(max_size=5),
)


def expressions(leaves: st.SearchStrategy[str]) -> st.SearchStrategy[Expression]:
    def above(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.one_of(st.builds(Not, inner), st.builds(And, several), st.builds(Or, several))

    return st.recursive(leaves.map(Keyword), above, max_leaves=8)


@given(expressions(keywords))
def test_printed_expression_reads_back(expression: Expression) -> None:
    assert parse(str(expression)) == expression


@given(st.text(alphabet="ab ()\"'\\", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expression = parse(text)
    except InvalidExpression:
        return
    assert parse(str(expression)) == expression


def test_printed_form_is_readable() -> None:
    text = '(coffee or tea) and not "new york" or (milk and sugar)'
    assert str(parse("(coffee OR tea) AND NOT 'new york' OR milk AND sugar")) == (
        '((coffee or tea) and not "new york") or (milk and sugar)'
    )
    assert parse(text) == parse(str(parse(text)))


# ---- rewriting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [(("a",), ())]),
        ("b and a and b", [(("b", "a"), ())]),
        ("a or b", [(("a",), ()), (("b",), ())]),
        ("a and not b", [(("a",), ("b",))]),
        ("a and not (b and c)", [(("a",), ("b",)), (("a",), ("c",))]),
        ("a and not (b or c)", [(("a",), ("b", "c"))]),
        ("a or (a and b)", [(("a",), ())]),  # absorbed
        ("a and (b or not a)", [(("a", "b"), ())]),  # one side contradicts itself
        ('"new york" and not "los angeles"', [(("new", "york"), (t,)) for t in ("los", "angeles")]),
        ("new-york", [(("new", "york"), ())]),
        ("(a or not a) and b", [(("a", "b"), ()), (("b",), ("a",))]),
        # [KDD13] section 2: "(iphone4s or ipad2) and AT&T" becomes two subscriptions.
        (
            "(iphone4s or ipad2) and att",
            [(("iphone4s", "att"), ()), (("ipad2", "att"), ())],
        ),
    ],
)
def test_clauses(text: str, expected: list[tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
    found = clauses(parse(text), words)
    assert found == tuple(Clause(*each) for each in expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a and !!!", "'!!!' has no letters or digits, so no message can have it"),
        ("a and not ''", "'' has no letters or digits"),
        ("a and not a", "'a and not a' can never match: it asks for and forbids the same keyword"),
        (
            "a or not b",
            "'a or not b' can match a message that has none of its keywords, because of: not b; "
            "add a keyword that such a message must have",
        ),
        ("not (a or b)", "because of: not a and not b"),
        ("a or not a", "because of: not a"),
        (
            " and ".join(f"(a{i} or b{i})" for i in range(40)),
            "makes more than 256 clauses (alternatives without 'or'); "
            "split it into several subscriptions",
        ),
        (" or ".join(f"a{i}" for i in range(257)), "makes more than 256 clauses"),
    ],
)
def test_what_cannot_be_matched_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidExpression) as error:
        clauses(parse(text), words)
    assert reason in str(error.value)


def test_keyword_of_stop_words_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidExpression, match="'the' has only words that are left out, so no"):
        clauses(parse("a or the"), lambda text: [] if text == "the" else [text])


def test_limit_counts_clauses_that_are_left() -> None:
    many = " or ".join(f"a{i}" for i in range(256))
    assert len(rewritten(many)) == 256
    assert rewritten(f"({many} or b or c) and b") == [(("b",), ())]
    assert len(rewritten("a or b", max_clauses=2)) == 2
    with pytest.raises(InvalidExpression, match="makes more than 1 clauses"):
        rewritten("a or b", max_clauses=1)


def test_rewriting_that_takes_too_long_is_refused() -> None:
    # A million pairs of alternatives, of which only one would be left in the end.
    many = " or ".join(f"{i:x}" for i in range(0x1000, 0x1000 + 800))
    with pytest.raises(InvalidExpression, match="makes more than 256 clauses"):
        rewritten(f"(({many}) and ({many})) and 1000")


def holds(expression: Expression, tokens: set[str]) -> bool:
    match expression:
        case Keyword(text):
            return set(words(text)) <= tokens
        case Not(operand):
            return not holds(operand, tokens)
        case And(operands):
            return all(holds(each, tokens) for each in operands)
        case Or(operands):
            return any(holds(each, tokens) for each in operands)


@given(expressions(st.sampled_from(["a", "b", "c", "d", "a b", "c d e"])))
def test_clauses_say_the_same_as_the_expression(expression: Expression) -> None:
    universe = "abcde"
    messages = [set(tokens) for n in range(6) for tokens in itertools.combinations(universe, n)]
    truth = [holds(expression, message) for message in messages]
    if truth[0] or not any(truth):
        # A message without any keyword matches, or no message at all.
        with pytest.raises(InvalidExpression, match=r"none of its keywords|can never match"):
            clauses(expression, words)
        return
    found = clauses(expression, words)
    assert [
        any(
            set(clause.required) <= message and not set(clause.forbidden) & message
            for clause in found
        )
        for message in messages
    ] == truth
    for one, other in itertools.permutations(found, 2):
        absorbs = set(one.required) <= set(other.required) and set(one.forbidden) <= set(
            other.forbidden
        )
        assert not absorbs
    assert found == clauses(expression, words)
