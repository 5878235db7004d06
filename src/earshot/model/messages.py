"""What a publisher posts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from earshot.errors import InvalidInput, described
from earshot.model.regions import Place, Point, Rectangle
from earshot.model.subscriptions import Id, check_time, checked_id, checked_keywords


@dataclass(frozen=True, slots=True)
class Message:
    """Text or keywords, at a place.

    Attributes:
        id: The caller's name for it.
        text: Free text; its keywords are found by the engine's analyzer.
        keywords: The keywords themselves, instead of a text; may be empty.
        place: The point or rectangle that it concerns.
        time: When it was published, with a time zone.
        end: When it ends, later than its time, in place of the engine's lifetime; for moving
            subscribers.
    """

    id: Id
    text: str | None = None
    keywords: Sequence[str] | None = None
    place: Place = field(kw_only=True)
    time: datetime | None = field(default=None, kw_only=True)
    end: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", checked_id(self.id, "message"))
        where = f"message {self.id!r}"
        if (self.text is None) == (self.keywords is None):
            found = "neither text nor keywords" if self.text is None else "text and keywords"
            raise InvalidInput(f"{where} has {found}; expected one of the two")
        if self.text is not None and not isinstance(self.text, str):
            raise InvalidInput(f"{where}: text {described(self.text)} is not a str")
        if self.keywords is not None:
            object.__setattr__(self, "keywords", checked_keywords(self.keywords, where))
        if not isinstance(self.place, (Point, Rectangle)):
            raise InvalidInput(
                f"{where}: place {described(self.place)} is not a Point or a Rectangle"
            )
        check_time(self.time, f"{where}: time")
        check_time(self.end, f"{where}: end")
