"""Location-aware publish/subscribe: every message reaches exactly the subscribers in earshot."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earshot.engine.engine import Engine
    from earshot.engine.updates import Updates
    from earshot.errors import EarshotError
    from earshot.model.boolean import Boolean
    from earshot.model.events import Event, Move, Publish, Subscribe, Unsubscribe
    from earshot.model.explanations import Explanation
    from earshot.model.messages import Message
    from earshot.model.moving import Moving
    from earshot.model.ranking import Ranking
    from earshot.model.regions import Circle, Everywhere, Point, Polygon, Rectangle
    from earshot.model.subscriptions import Subscription
    from earshot.model.topk import TopK
    from earshot.model.updates import Result, Update
    from earshot.text import Analyzer

__version__ = "0.1.0"

_HOMES = {
    "Analyzer": "earshot.text",
    "Boolean": "earshot.model.boolean",
    "Circle": "earshot.model.regions",
    "EarshotError": "earshot.errors",
    "Engine": "earshot.engine.engine",
    "Event": "earshot.model.events",
    "Everywhere": "earshot.model.regions",
    "Explanation": "earshot.model.explanations",
    "Message": "earshot.model.messages",
    "Move": "earshot.model.events",
    "Moving": "earshot.model.moving",
    "Point": "earshot.model.regions",
    "Polygon": "earshot.model.regions",
    "Publish": "earshot.model.events",
    "Ranking": "earshot.model.ranking",
    "Rectangle": "earshot.model.regions",
    "Result": "earshot.model.updates",
    "Subscribe": "earshot.model.events",
    "Subscription": "earshot.model.subscriptions",
    "TopK": "earshot.model.topk",
    "Unsubscribe": "earshot.model.events",
    "Update": "earshot.model.updates",
    "Updates": "earshot.engine.updates",
}

__all__ = [
    "Analyzer",
    "Boolean",
    "Circle",
    "EarshotError",
    "Engine",
    "Event",
    "Everywhere",
    "Explanation",
    "Message",
    "Move",
    "Moving",
    "Point",
    "Polygon",
    "Publish",
    "Ranking",
    "Rectangle",
    "Result",
    "Subscribe",
    "Subscription",
    "TopK",
    "Unsubscribe",
    "Update",
    "Updates",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``earshot --help`` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'earshot' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
