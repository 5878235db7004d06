"""Location-aware publish/subscribe: every message reaches exactly the subscribers in earshot."""

from earshot.engine import Deliveries, Engine
from earshot.errors import EarshotError
from earshot.explanation import Explanation
from earshot.model.events import Event, Move, Publish, Subscribe, Unsubscribe
from earshot.model.messages import Message
from earshot.model.regions import Circle, Everywhere, Point, Polygon, Rectangle
from earshot.model.subscriptions import Subscription
from earshot.model.updates import Update
from earshot.text import Analyzer

__version__ = "0.1.0"

__all__ = [
    "Analyzer",
    "Circle",
    "Deliveries",
    "EarshotError",
    "Engine",
    "Event",
    "Everywhere",
    "Explanation",
    "Message",
    "Move",
    "Point",
    "Polygon",
    "Publish",
    "Rectangle",
    "Subscribe",
    "Subscription",
    "Unsubscribe",
    "Update",
    "__version__",
]
