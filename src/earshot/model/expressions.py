"""Boolean expressions over keywords, and their rewriting into clauses.

::

    expression := conjunction ("or" conjunction)*
    conjunction := factor ("and" factor)*
    factor := "not" factor | "(" expression ")" | word | "quoted words" | 'quoted words'

Operators are read in any case. A word is any run of characters without spaces, parentheses and
double quotes; quotes hold keywords with spaces, and keywords named ``and``, ``or`` or ``not``. A
backslash inside quotes keeps the character after it.

An expression is matched as a disjunction of clauses ([VLDBJ15] "general boolean expressions", and
the decomposition in [KDD13] section 2). Each clause must require at least one keyword, because
only the keywords of a message lead to the clauses it can match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from earshot.errors import InvalidExpression

MAX_LENGTH = 16_384
"""Characters in the text of an expression."""
MAX_DEPTH = 50
"""Nested parentheses and negations."""
MAX_CLAUSES = 256
"""Clauses of one expression, unless the caller allows more or fewer."""

# One pair of parentheses can hold an "or" of "and", and there is one such pair around the whole.
_MAX_NODE_DEPTH = 2 * MAX_DEPTH + 2

_RESERVED = frozenset({"and", "or", "not"})
_LEXEME = re.compile(
    r"""\s*(?:
        (?P<bracket>[()])
      | (?P<double>"(?:[^"\\]|\\.)*")
      | (?P<single>'(?:[^'\\]|\\.)*'(?![^\s()"]))
      | (?P<word>[^\s()"]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_BARE_WORD = re.compile(r"""[^\s()"'][^\s()"]*""")


@dataclass(frozen=True, slots=True)
class Keyword:
    """True for a message that has the keyword; one of several words needs all of them."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InvalidExpression(f"a keyword is text, got {self.text!r}")

    def __str__(self) -> str:
        if _BARE_WORD.fullmatch(self.text) and self.text.lower() not in _RESERVED:
            return self.text
        escaped = self.text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class _Joined:
    operands: tuple[Expression, ...]
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        operands = tuple(self.operands)
        if len(operands) < 2:
            raise InvalidExpression(
                f"'{self._operator}' needs at least 2 operands, got {len(operands)}"
            )
        object.__setattr__(self, "operands", operands)
        object.__setattr__(self, "depth", _depth_above(operands, self._operator))

    def __str__(self) -> str:
        return f" {self._operator} ".join(_enclosed(each) for each in self.operands)

    @property
    def _operator(self) -> str:
        return type(self).__name__.lower()


class And(_Joined):
    """True where all operands are."""

    __slots__ = ()


class Or(_Joined):
    """True where at least one operand is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Not:
    """True where the operand is not."""

    operand: Expression
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _depth_above((self.operand,), "not"))

    def __str__(self) -> str:
        return f"not {_enclosed(self.operand)}"


Expression: TypeAlias = Keyword | And | Or | Not


class Clause(NamedTuple):
    """A conjunction of tokens that a message must have and tokens that it must not have."""

    required: tuple[str, ...]
    forbidden: tuple[str, ...]

    def __str__(self) -> str:
        return " and ".join([*self.required, *(f"not {token}" for token in self.forbidden)])


def all_of(keywords: Iterable[str]) -> Expression:
    """Return the conjunction of one or more keywords."""
    return _together(And, [Keyword(keyword) for keyword in keywords])


def _together(kind: type[And | Or], operands: Sequence[Expression]) -> Expression:
    return operands[0] if len(operands) == 1 else kind(tuple(operands))


def _depth_above(operands: tuple[Expression, ...], operator: str) -> int:
    """Return the depth of a node over operands; bounded, as nodes are handled by recursion."""
    depth = 0
    for each in operands:
        if not isinstance(each, (Keyword, And, Or, Not)):
            raise InvalidExpression(
                f"an operand of '{operator}' is a Keyword, And, Or or Not, got {each!r}"
            )
        if not isinstance(each, Keyword):
            depth = max(depth, each.depth)
    if depth >= _MAX_NODE_DEPTH:
        raise InvalidExpression(f"the expression is nested more than {_MAX_NODE_DEPTH} deep")
    return depth + 1


def _enclosed(expression: Expression) -> str:
    return f"({expression})" if isinstance(expression, (And, Or)) else str(expression)


# ---- reading ------------------------------------------------------------------------------------


class _Lexeme(NamedTuple):
    kind: str  # "and", "or", "not", "(", ")", "keyword" or "end"
    text: str  # as written; of a keyword, without quotes
    position: int  # of its first character, counted from 1


def parse(text: str) -> Expression:
    """Read an expression; see the module for its grammar.

    Raises:
        InvalidExpression: Says what was found, where (characters count from 1), what was expected.
    """
    if not isinstance(text, str):
        raise InvalidExpression(f"an expression is text, got a {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise InvalidExpression(
            f"the expression has {len(text)} characters; at most {MAX_LENGTH} are read"
        )
    reader = _Reader(text)
    expression = reader.expression(depth=0)
    if reader.next.kind == ")":
        raise InvalidExpression(f"')' at position {reader.next.position} closes nothing")
    return expression


class _Reader:
    """Recursive descent, one method per rule of the grammar; ``MAX_DEPTH`` bounds the recursion."""

    def __init__(self, text: str) -> None:
        self.lexemes = _lexemes(text)
        self.next = next(self.lexemes)
        self.previous: _Lexeme | None = None

    def expression(self, depth: int) -> Expression:
        return self.joined(Or, self.conjunction, depth)

    def conjunction(self, depth: int) -> Expression:
        return self.joined(And, self.factor, depth)

    def joined(
        self, kind: type[And | Or], operand: Callable[[int], Expression], depth: int
    ) -> Expression:
        operands = [operand(depth)]
        while self.next.kind == kind.__name__.lower():
            self.take()
            operands.append(operand(depth))
        return _together(kind, operands)

    def factor(self, depth: int) -> Expression:
        found, previous = self.next, self.previous
        if found.kind not in ("keyword", "not", "("):
            raise InvalidExpression(_missing_operand(found, previous))
        if found.kind != "keyword" and depth == MAX_DEPTH:
            raise InvalidExpression(
                f"parentheses and negations nest more than {MAX_DEPTH} deep "
                f"at position {found.position}"
            )
        self.take()
        if found.kind == "not":
            return Not(self.factor(depth + 1))
        operand: Expression = Keyword(found.text)
        if found.kind == "(":
            operand = self.expression(depth + 1)
            if self.next.kind == "end":
                raise InvalidExpression(f"'(' at position {found.position} is never closed")
            self.take()
        if self.next.kind in ("keyword", "not", "("):
            assert self.previous is not None
            raise InvalidExpression(
                f"{self.previous.text!r} and {self.next.text!r} at position {self.next.position} "
                f"stand side by side; put 'and' or 'or' between them, or quote a keyword of "
                f"several words"
            )
        return operand

    def take(self) -> None:
        self.previous, self.next = self.next, next(self.lexemes)


def _lexemes(text: str) -> Iterator[_Lexeme]:
    position = 0
    end = len(text.rstrip())
    while position < end:
        found = _LEXEME.match(text, position)
        if found is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise InvalidExpression(
                f"the quote {text[start]} at position {start + 1} is never closed"
            )
        kind = str(found.lastgroup)
        written = found.group(kind)
        start = found.start(kind) + 1
        position = found.end()
        if kind == "bracket":
            yield _Lexeme(written, written, start)
        elif kind in ("double", "single"):
            yield _Lexeme("keyword", re.sub(r"\\(.)", r"\1", written[1:-1], flags=re.DOTALL), start)
        elif written.startswith("'"):
            raise InvalidExpression(f"the quote ' at position {start} is never closed")
        elif written.lower() in _RESERVED:
            yield _Lexeme(written.lower(), written, start)
        else:
            yield _Lexeme("keyword", written, start)
    yield _Lexeme("end", "", len(text) + 1)


def _missing_operand(lexeme: _Lexeme, previous: _Lexeme | None) -> str:
    if lexeme.kind == "end" and previous is None:
        return "the expression is empty; expected a keyword"
    found = "the end" if lexeme.kind == "end" else f"{lexeme.text!r} at position {lexeme.position}"
    after = f" after {previous.text!r}" if previous is not None else ""
    return f"expected a keyword, 'not' or '('{after}, found {found}"


# ---- rewriting ----------------------------------------------------------------------------------

# While rewriting, a clause is an integer with two bits per token: bit 2i is set when token i is
# required, bit 2i + 1 when it is forbidden. "a absorbs b" is then ``a & b == a``.

# Intermediate results may hold this many times the clauses allowed at the end, as later operands
# can make most of them superfluous: (a1 or ... or a300) and a1.
_SLACK = 4
# Pairs of clauses compared or combined, so that no text takes more than about half a second.
_MAX_WORK = 5_000_000


def clauses(
    expression: Expression,
    tokens_of: Callable[[str], list[str]],
    max_clauses: int = MAX_CLAUSES,
) -> tuple[Clause, ...]:
    """Rewrite an expression into clauses of which a message must match at least one.

    A keyword becomes the conjunction of its tokens, so ``not "new york"`` is ``not new or not
    york``. Clauses that others make superfluous and those that can never match are left out. Tokens
    are ordered by their first appearance in the expression, clauses by their tokens.

    Args:
        expression: What to rewrite.
        tokens_of: Returns the tokens of a keyword; the analyzer of the messages' text.
        max_clauses: More clauses than this are refused.

    Raises:
        InvalidExpression: A keyword has no token, no message can match, a message without any of
            the keywords could match, or there are too many clauses.
    """
    rewriter = _Rewriter(tokens_of, max_clauses)
    found = rewriter.rewrite(expression, negated=False)
    if not found:
        raise InvalidExpression(
            f"{_shortened(expression)} can never match: it asks for and forbids the same keyword"
        )
    if len(found) > max_clauses:
        raise rewriter.too_many(expression)
    result = tuple(rewriter.clause(bits) for bits in sorted(found, key=_bit_positions))
    for clause in result:
        if not clause.required:
            raise InvalidExpression(
                f"{_shortened(expression)} can match a message that has none of its keywords, "
                f"because of: {clause}; add a keyword that such a message must have"
            )
    return result


class _Rewriter:
    def __init__(self, tokens_of: Callable[[str], list[str]], max_clauses: int) -> None:
        self.tokens_of = tokens_of
        self.max_clauses = max_clauses
        self.token_numbers: dict[str, int] = {}
        self.required_bits = 0
        self.work = 0

    def rewrite(self, expression: Expression, negated: bool) -> list[int]:
        """Return the clauses of the expression or of its negation; none absorbs another."""
        match expression:
            case Not(operand):
                return self.rewrite(operand, not negated)
            case Keyword(text):
                return self.keyword(text, negated)
            case And(operands) | Or(operands):
                parts = [self.rewrite(each, negated) for each in operands]
                if isinstance(expression, And) != negated:
                    return self.product(parts, expression)
                union = {bits for part in parts for bits in part}
                return self.absorbed(union, expression)

    def keyword(self, text: str, negated: bool) -> list[int]:
        tokens = self.tokens_of(text)
        if not tokens:
            has_words = any(character.isalnum() for character in text)
            lack = "has only words that are left out" if has_words else "has no letters or digits"
            raise InvalidExpression(f"{text!r} {lack}, so no message can have it")
        required = set()
        for token in tokens:
            required.add(1 << 2 * self.token_numbers.setdefault(token, len(self.token_numbers)))
        bits = sum(required)
        self.required_bits |= bits
        return sorted(2 * bit for bit in required) if negated else [bits]

    def product(self, parts: list[list[int]], expression: Expression) -> list[int]:
        """Return the conjunction of several disjunctions, the short ones first."""
        parts = sorted(parts, key=len)
        result = parts[0]
        for part in parts[1:]:
            found: set[int] = set()
            for first in result:
                self.do_work(len(part), expression)
                for second in part:
                    bits = first | second
                    if not bits & (bits >> 1) & self.required_bits:
                        found.add(bits)
                if len(found) > _SLACK * _SLACK * self.max_clauses:
                    found = set(self.absorbed(found, expression))
            result = self.absorbed(found, expression)
        return result

    def absorbed(self, found: set[int], expression: Expression) -> list[int]:
        """Return the clauses that no other absorbs."""
        kept: list[int] = []
        for bits in sorted(found, key=lambda bits: (bits.bit_count(), bits)):
            self.do_work(len(kept), expression)
            if not any(each & bits == each for each in kept):
                kept.append(bits)
                if len(kept) > _SLACK * self.max_clauses:
                    raise self.too_many(expression)
        return kept

    def do_work(self, n_pairs: int, expression: Expression) -> None:
        self.work += n_pairs
        if self.work > _MAX_WORK:
            raise self.too_many(expression)

    def too_many(self, expression: Expression) -> InvalidExpression:
        return InvalidExpression(
            f"{_shortened(expression)} makes more than {self.max_clauses} clauses "
            f"(alternatives without 'or'); split it into several subscriptions"
        )

    def clause(self, bits: int) -> Clause:
        tokens = list(self.token_numbers)
        positions = _bit_positions(bits)
        return Clause(
            tuple(tokens[i // 2] for i in positions if i % 2 == 0),
            tuple(tokens[i // 2] for i in positions if i % 2 == 1),
        )


def _bit_positions(bits: int) -> list[int]:
    return [position for position, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]


def _shortened(expression: Expression) -> str:
    text = str(expression)
    return f"'{text}'" if len(text) <= 80 else f"'{text[:77]}...'"
