"""What a subscriber asks for."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from earshot.errors import InvalidInput, described
from earshot.model.expressions import And, Expression, Keyword, Not, Or, all_of, parse
from earshot.model.moving import check_duration
from earshot.model.ranking import check_alpha, check_threshold
from earshot.model.regions import Circle, Everywhere, Point, Polygon, Rectangle, RegionOrPoint
from earshot.model.topk import check_k

Id: TypeAlias = int | str
"""How callers name their subscriptions and messages."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Keywords and a region: matches the messages that have the keywords and touch the region.

    With top-k over a window it has keywords and a point: it gets the messages that score best.

    Attributes:
        id: The caller's name for it.
        keywords: All of them must be in the message. Without any (and without an expression) every
            message in the region matches.
        expression: A boolean expression over keywords instead; text is read on construction.
        region: Where it listens; a point is the same as a circle of radius 0.
        expires: When it ends by itself, with a time zone.
        threshold: Score from which a message is delivered, above 0 and at most 1, in place of the
            engine's; for ranked matching.
        k: How many messages it gets, 1 to 10,000, in place of the engine's; for top-k.
        alpha: Share of the place in the score, 0 to 1, in place of the engine's; for top-k.
        dwell: How long a message must match before it is given; for moving subscribers.
        cooldown: How long a message that left is not given again; for moving subscribers.
        leaving: Whether updates tell what leaves, too; None: they do. For moving subscribers.
    """

    id: Id
    keywords: Sequence[str] = ()
    expression: Expression | str | None = None
    region: RegionOrPoint = Everywhere()  # noqa: RUF009 - frozen, so one instance can be shared
    expires: datetime | None = None
    threshold: float | None = None
    k: int | None = None
    alpha: float | None = None
    dwell: timedelta | None = None
    cooldown: timedelta | None = None
    leaving: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", checked_id(self.id, "subscription"))
        where = f"subscription {self.id!r}"
        keywords = checked_keywords(self.keywords, where)
        object.__setattr__(self, "keywords", keywords)
        if isinstance(self.expression, str):
            object.__setattr__(self, "expression", parse(self.expression))
        elif not isinstance(self.expression, (Keyword, And, Or, Not, type(None))):
            raise InvalidInput(f"{where}: expression {described(self.expression)} is not text")
        if keywords and self.expression is not None:
            raise InvalidInput(f"{where} has keywords and an expression; expected one of the two")
        check_region(self.region, where)
        if not keywords and self.expression is None and isinstance(self.region, Everywhere):
            raise InvalidInput(
                f"{where} has neither keywords nor a region, so every message would match; "
                f"give at least one"
            )
        check_time(self.expires, f"{where}: expires")
        if self.threshold is not None:
            threshold = check_threshold(self.threshold, f"{where}: threshold")
            object.__setattr__(self, "threshold", threshold)
        if self.k is not None:
            object.__setattr__(self, "k", check_k(self.k, f"{where}: k"))
        if self.alpha is not None:
            object.__setattr__(self, "alpha", check_alpha(self.alpha, f"{where}: alpha"))
        for name in ("dwell", "cooldown"):
            if getattr(self, name) is not None:
                check_duration(getattr(self, name), f"{where}: {name}")
        if not isinstance(self.leaving, bool | None):
            raise InvalidInput(
                f"{where}: leaving is {described(self.leaving)}; expected True, False or None"
            )

    @property
    def condition(self) -> Expression | None:
        """The keywords or the expression as one expression; None when the region is all."""
        if self.keywords:
            return all_of(self.keywords)
        assert not isinstance(self.expression, str)
        return self.expression


def checked_id(value: object, noun: str) -> Id:
    """Return an id as a plain int or str."""
    if isinstance(value, str):
        return str(value)
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type]  # this is the check
            if -(2**63) <= number < 2**63:
                return number
            raise InvalidInput(
                f"the id of a {noun} is {described(value)}, outside the range of 64-bit integers; "
                f"use strings"
            )
        except TypeError:
            pass
    raise InvalidInput(f"the id of a {noun} is an int or a str, got {described(value)}")


def checked_keywords(keywords: Iterable[str], where: str) -> tuple[str, ...]:
    """Return keywords as a tuple; a single text in their place is a mistake."""
    if isinstance(keywords, str):
        raise InvalidInput(
            f"{where}: keywords is the text {described(keywords)}; expected [{described(keywords)}]"
        )
    if isinstance(keywords, bytes | Mapping) or not isinstance(keywords, Iterable):
        raise InvalidInput(f"{where}: keywords is {described(keywords)}; expected a list of texts")
    result = tuple(keywords)
    for keyword in result:
        if not isinstance(keyword, str) or not keyword.strip():
            raise InvalidInput(
                f"{where}: keyword {described(keyword)} is not a text with something in it"
            )
    return result


def check_region(region: object, where: str) -> None:
    """Refuse what is no region."""
    if not isinstance(region, (Point, Rectangle, Circle, Polygon, Everywhere)):
        raise InvalidInput(
            f"{where}: region {described(region)} is not a Point, Rectangle, Circle, Polygon or "
            f"Everywhere"
        )


def check_time(time: object, where: str) -> None:
    """Refuse times without a zone: what they mean depends on the machine that reads them."""
    if time is None:
        return
    if not isinstance(time, datetime):
        raise InvalidInput(f"{where} {described(time)} is not a datetime")
    if time.utcoffset() is None:
        raise InvalidInput(
            f"{where} {time.isoformat()} has no time zone; "
            f"add one, for example .replace(tzinfo=datetime.UTC)"
        )
