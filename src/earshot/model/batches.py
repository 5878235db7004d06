"""Single subscriptions and messages as Arrow batches in the canonical columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import shapely

from earshot.errors import InvalidInput, InvalidRegion
from earshot.model.messages import Message
from earshot.model.regions import Circle, Point, Polygon, Rectangle, RegionOrPoint
from earshot.model.schemas import BOX_FIELDS, CIRCLE_FIELDS, COLUMN_TYPES, POINT_FIELDS
from earshot.model.subscriptions import Subscription

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def time_us(time: datetime) -> int:
    """Return a time with a zone as microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def instant(us: int) -> datetime:
    """Return microseconds since 1970 as an instant."""
    return _EPOCH + timedelta(microseconds=us)


def subscription_batch(subscriptions: Sequence[Subscription]) -> pa.RecordBatch:
    """Return subscriptions as a canonical batch; columns that none of them needs are left out."""
    n = len(subscriptions)
    columns: dict[str, list[Any]] = {}

    def put(name: str, row: int, value: Any) -> None:
        columns.setdefault(name, [None] * n)[row] = value

    for row, subscription in enumerate(subscriptions):
        if subscription.keywords:
            put("keywords", row, list(subscription.keywords))
        if subscription.expression is not None:
            put("expression", row, str(subscription.expression))
        _put_region(subscription.region, row, put)
        if subscription.expires is not None:
            put("expires", row, time_us(subscription.expires))
        if subscription.threshold is not None:
            put("threshold", row, subscription.threshold)
        if subscription.k is not None:
            put("k", row, subscription.k)
        if subscription.alpha is not None:
            put("alpha", row, subscription.alpha)
    return _batch([each.id for each in subscriptions], columns)


def region_batch(ids: Sequence[int | str], regions: Sequence[RegionOrPoint]) -> pa.RecordBatch:
    """Return where subscriptions move to as a canonical batch."""
    columns: dict[str, list[Any]] = {}

    def put(name: str, row: int, value: Any) -> None:
        columns.setdefault(name, [None] * len(ids))[row] = value

    for row, region in enumerate(regions):
        _put_region(region, row, put)
    return _batch(list(ids), columns)


def message_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return messages as a canonical batch; columns that none of them needs are left out."""
    n = len(messages)
    columns: dict[str, list[Any]] = {}

    def put(name: str, row: int, value: Any) -> None:
        columns.setdefault(name, [None] * n)[row] = value

    for row, message in enumerate(messages):
        if message.text is not None:
            put("text", row, message.text)
        if message.keywords is not None:
            put("keywords", row, list(message.keywords))
        fields = POINT_FIELDS if isinstance(message.place, Point) else BOX_FIELDS
        for name in fields:
            put(name, row, getattr(message.place, name))
        if message.time is not None:
            put("time", row, time_us(message.time))
    return _batch([each.id for each in messages], columns)


def _put_region(region: RegionOrPoint, row: int, put: Callable[[str, int, Any], None]) -> None:
    fields: Sequence[str] = CIRCLE_FIELDS
    values: tuple[Any, ...] = ()
    match region:
        case Rectangle() as box:
            fields, values = BOX_FIELDS, tuple(getattr(box, name) for name in BOX_FIELDS)
        case Circle(x, y, radius):
            values = (x, y, radius)
        case Point(x, y):  # with its radius it is a region for every engine
            values = (x, y, 0.0)
        case Polygon() as polygon:
            fields, values = ("geometry",), (_wkb(polygon),)
    for name, value in zip(fields, values, strict=bool(values)):
        put(name, row, value)


def _batch(ids: list[int | str], columns: dict[str, list[Any]]) -> pa.RecordBatch:
    arrays = [id_array(ids)]
    for name, values in columns.items():
        try:
            arrays.append(pa.array(values, COLUMN_TYPES[name]))
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{name}: half a surrogate pair is not text: {error}") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidInput(f"{name}: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, ["id", *columns])


def id_array(ids: Sequence[int | str]) -> pa.Array:
    """Return ids as an Arrow array of 64-bit integers or of strings."""
    try:
        if all(isinstance(value, str) for value in ids) and len(ids):
            return pa.array(ids, pa.string())
        return pa.array(ids, pa.int64())
    except OverflowError:
        raise InvalidInput("an id is outside the range of 64-bit integers; use strings") from None
    except UnicodeEncodeError as error:
        raise InvalidInput(f"id: half a surrogate pair is not text: {error}") from None
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise InvalidInput("ids must be all integers or all strings") from None


def _wkb(polygon: Polygon) -> bytes:
    """Return the rings as a polygon or multipolygon.

    A ring inside an odd number of others is a hole. Rings that cross are left as they are, for the
    encoder to refuse.
    """
    try:
        rings = [shapely.Polygon(ring) for ring in polygon.rings]
    except (ValueError, shapely.errors.ShapelyError) as error:
        raise InvalidRegion(f"polygon: {error}") from None
    if len(rings) == 1:
        wkb: bytes = shapely.to_wkb(rings[0])
        return wkb
    holders = [
        [i for i, other in enumerate(rings) if i != j and shapely.covers(other, ring)]
        for j, ring in enumerate(rings)
    ]
    parts = []
    for i, inside in enumerate(holders):
        if len(inside) % 2 == 0:
            holes = [
                polygon.rings[j]
                for j, others in enumerate(holders)
                if i in others and len(others) == len(inside) + 1
            ]
            parts.append(shapely.Polygon(polygon.rings[i], holes))
    wkb = shapely.to_wkb(parts[0] if len(parts) == 1 else shapely.MultiPolygon(parts))
    return wkb
