"""Single subscriptions and messages as Arrow batches in the canonical columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import shapely

from earshot.errors import InvalidInput, InvalidRegion, described
from earshot.model.messages import Message
from earshot.model.regions import Circle, Everywhere, Point, Polygon, Rectangle, RegionOrPoint
from earshot.model.schemas import BOX_FIELDS, COLUMN_TYPES, POINT_FIELDS
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
    rows = [
        {
            "keywords": each.keywords or None,
            "expression": None if each.expression is None else str(each.expression),
            **_region_columns(each.region),
            "expires": None if each.expires is None else time_us(each.expires),
            "threshold": each.threshold,
            "k": each.k,
            "alpha": each.alpha,
            "dwell": _seconds(each.dwell),
            "cooldown": _seconds(each.cooldown),
            "leaving": each.leaving,
        }
        for each in subscriptions
    ]
    return _batch([each.id for each in subscriptions], rows)


def region_batch(
    ids: Sequence[int | str],
    regions: Sequence[RegionOrPoint],
    times: Sequence[datetime | None] = (),
    *,
    has_positions: bool = False,
) -> pa.RecordBatch:
    """Return where subscriptions move to as a canonical batch.

    Args:
        ids: Whom.
        regions: Where to.
        times: When, where that is known.
        has_positions: Whether a point is the position of a region that moves with it; else it is a
            region of its own.
    """
    rows: list[dict[str, Any]] = [
        {"x": region.x, "y": region.y}
        if has_positions and isinstance(region, Point)
        else _region_columns(region)
        for region in regions
    ]
    for row, time in zip(rows, times, strict=bool(times)):
        row["time"] = None if time is None else time_us(time)
    return _batch(ids, rows)


def message_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return messages as a canonical batch; columns that none of them needs are left out."""
    rows = []
    for each in messages:
        fields = POINT_FIELDS if isinstance(each.place, Point) else BOX_FIELDS
        rows.append(
            {
                "text": each.text,
                "keywords": each.keywords,
                **{name: getattr(each.place, name) for name in fields},
                "time": None if each.time is None else time_us(each.time),
                "end": None if each.end is None else time_us(each.end),
            }
        )
    return _batch([each.id for each in messages], rows)


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration / timedelta(seconds=1)


def _region_columns(region: RegionOrPoint) -> dict[str, Any]:
    match region:
        case Rectangle():
            return {name: getattr(region, name) for name in BOX_FIELDS}
        case Circle(x, y, radius):
            return {"x": x, "y": y, "radius": radius}
        case Point(x, y):  # with its radius it is a region for every engine
            return {"x": x, "y": y, "radius": 0.0}
        case Polygon():
            return {"geometry": _wkb(region)}
        case Everywhere():
            return {}


def _batch(ids: Sequence[int | str], rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as a batch; a column of which no row has a value is left out."""
    columns = dict.fromkeys(
        name for row in rows for name, value in row.items() if value is not None
    )
    arrays = [id_array(ids)]
    for name in columns:
        try:
            arrays.append(pa.array([row.get(name) for row in rows], COLUMN_TYPES[name]))
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{name}: half a surrogate pair is not text: {error}") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidInput(f"{name}: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, ["id", *columns])


def check_kind(values: Iterable[Any], kind: type, call: str) -> None:
    """Raise InvalidInput unless all values are what a call takes."""
    for value in values:
        if not isinstance(value, kind):
            noun = kind.__name__
            hint = f"; for several, {call}(*{noun.lower()}s)" if isinstance(value, list) else ""
            raise InvalidInput(f"{call}: {described(value)} is not a {noun}{hint}")


def checked_id_array(ids: Any) -> pa.Array:
    """Return an Arrow array of ids, refusing what is none."""
    if isinstance(ids, pa.ChunkedArray):
        return ids.combine_chunks()
    if not isinstance(ids, pa.Array):
        raise InvalidInput(f"ids is {described(ids)}; expected an Arrow array, as pa.array([1, 2])")
    return ids


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
    wkb: bytes = shapely.to_wkb(parts[0] if len(parts) == 1 else shapely.MultiPolygon(parts))
    return wkb
