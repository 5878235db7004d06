"""The moving part of the demo: taxis on streets, and fares beside them that wait for a while.

Ends with a picture: streets, where each taxi went, how far it sees, and lines to the fares that it
holds.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from earshot.engine.engine import Engine
from earshot.model.arrays import Float64s
from earshot.model.batches import instant
from earshot.model.moving import Moving
from earshot.model.regions import Circle
from earshot.model.subscriptions import Subscription
from earshot.model.updates import Update
from earshot.workloads.moving import Movement, Network, Said, Traffic, lattice

N_TAXIS, N_FARES, N_STREETS = 8, 90, 12
REACH = 0.12
"""How far a taxi sees, in a city one wide."""
KINDS = ("airport", "station", "downtown", "harbour")
MOVEMENT = Movement(
    N_TAXIS, N_FARES, 24, mobility=1.0, velocity=2.0, arrivals=9, n_words=len(KINDS),
    keywords=(1, 1), tokens=(1, 1), seed=3,
)  # fmt: skip

_SIZE = 720
_COLOURS = ("#d1495b", "#00798c", "#edae49", "#30638e", "#7b2d8b", "#2e933c", "#c05805", "#5c4742")
_SHOWN = 12


def run_moving_demo(picture: Path) -> tuple[dict[str, Any], list[str]]:
    """Let taxis drive, and draw where they went; return facts, and lines for a person."""
    network = lattice(N_STREETS, MOVEMENT.seed)
    traffic = Traffic(MOVEMENT, network)
    engine = Engine(Moving(timedelta(minutes=10)), space="planar")
    wanted = [KINDS[rank - 1] for rank in traffic.keywords.ranks.tolist()]
    engine.subscribe(*(
        Subscription(f"taxi {i + 1}", [kind], region=Circle(x, y, REACH))
        for i, (kind, (x, y)) in enumerate(zip(wanted, traffic.places.tolist(), strict=True))
    ))  # fmt: skip
    paths, fares = [[place] for place in traffic.places.tolist()], dict[int, tuple[float, float]]()
    told: list[Update] = []
    n_positions = 0
    for said, who, places, times in (
        (traffic.said, np.empty(0, np.int64), np.empty((0, 2)), np.empty(0, np.int64)),
        *((step.said, step.who, step.places, step.times) for step in traffic.steps()),
    ):
        first = len(fares)
        fares |= {first + i: (x, y) for i, (x, y) in enumerate(said.places.tolist())}
        moves = pa.table({
            "id": [f"taxi {taxi + 1}" for taxi in who.tolist()],
            "x": places[:, 0], "y": places[:, 1], "time": pa.array(times).cast(_TIME),
        })  # fmt: skip
        found = (
            engine.take_batch(_fares(said, first), moves)
            if len(who)
            else (engine.publish_batch(_fares(said, first)))
        )
        told += found
        n_positions += len(who)
        for taxi, place in zip(who.tolist(), places.tolist(), strict=True):
            paths[taxi].append(place)
    held = {i: engine.results(f"taxi {i + 1}") for i in range(N_TAXIS)}
    live = engine.matcher.sequences().tolist()
    picture.write_text(_drawn(network, paths, wanted, fares, held, live), encoding="utf-8")
    facts = {
        "n_positions": n_positions, "n_messages": len(fares), "n_updates": len(told),
        "n_held": sum(map(len, held.values())), "picture": str(picture),
    }  # fmt: skip
    lines = [
        f"{N_TAXIS} taxis reported {n_positions} positions in {MOVEMENT.n_timestamps // 2} "
        f"minutes, while {len(fares)} fares came and went: {len(told)} updates, of which the last "
        f"are",
        "",
        *(
            f"    {each.time:%H:%M:%S}  {each.sign} fare {each.message_id}  "
            f"{each.subscription_id}  {each.reason}"
            for each in told[-_SHOWN:] if each.time is not None
        ),
        "",
        f"at {instant(int(traffic.start_us)):%d %b}, {engine.time:%H:%M:%S}:",
        *(
            f"    taxi {i + 1} ({wanted[i]}) holds "
            + (", ".join(f"fare {each.message_id}" for each in found) or "nothing")
            for i, found in held.items()
        ),
        "",
        f"the picture is in {picture}: open it in a browser",
    ]  # fmt: skip
    return facts, lines


_TIME = pa.timestamp("us", tz="UTC")


def _fares(said: Said, first: int) -> pa.Table:
    return pa.table({
        "id": np.arange(first, first + len(said.times)),
        "keywords": [[KINDS[rank - 1]] for rank in said.words.ranks.tolist()],
        "x": said.places[:, 0], "y": said.places[:, 1],
        "time": pa.array(said.times).cast(_TIME), "end": pa.array(said.ends).cast(_TIME),
    })  # fmt: skip


# ---- the picture ---------------------------------------------------------------------------------


def _at(place: Any) -> tuple[float, float]:
    """Return where a place is on the picture."""
    x, y = place
    return round(20 + x * (_SIZE - 40), 1), round(_SIZE - 20 - y * (_SIZE - 40), 1)


def _line(from_: Any, to: Any, style: str) -> str:
    (x1, y1), (x2, y2) = _at(from_), _at(to)
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'


def _drawn(
    network: Network, paths: Any, wanted: list[str], fares: dict[int, tuple[float, float]],
    held: Any, live: list[int],
) -> str:  # fmt: skip
    """Return the picture as SVG."""
    places: Float64s = network.places
    starts = np.repeat(np.arange(len(places)), np.diff(network.offsets))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE + 70}" '
        f'font-family="sans-serif" font-size="13">',
        f'<rect width="{_SIZE}" height="{_SIZE + 70}" fill="#fbfaf6"/>',
    ]
    widths = ("1.5", "2.5", "5")
    for start, end, kind in zip(starts.tolist(), network.ends.tolist(), network.classes.tolist(),
                                strict=True):  # fmt: skip
        if start < end:
            style = f'stroke="#dcd6c8" stroke-width="{widths[kind]}"'
            parts.append(_line(places[start], places[end], style))
    is_held = {each.message_id for found in held.values() for each in found}
    for taxi, path in enumerate(paths):
        colour, (x, y) = _COLOURS[taxi], _at(path[-1])
        points = " ".join(f"{px},{py}" for px, py in map(_at, path))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" '
                     f'stroke-width="2.5" stroke-opacity="0.55"/>')  # fmt: skip
        parts.append(f'<circle cx="{x}" cy="{y}" r="{REACH * (_SIZE - 40):.1f}" fill="{colour}" '
                     f'fill-opacity="0.10" stroke="{colour}" stroke-dasharray="4 3"/>')  # fmt: skip
        parts += [_line(path[-1], fares[each.message_id], f'stroke="{colour}" stroke-width="1.5"')
                  for each in held[taxi]]  # fmt: skip
    for fare in live:
        x, y = _at(fares[fare])
        fill = "#222" if fare in is_held else "white"
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{fill}" stroke="#222"/>')
    for taxi, path in enumerate(paths):
        colour, (x, y) = _COLOURS[taxi], _at(path[-1])
        parts.append(f'<circle cx="{x}" cy="{y}" r="9" fill="{colour}"/>')
        parts.append(f'<text x="{x}" y="{y + 4.5}" fill="white" text-anchor="middle" '
                     f'font-weight="bold">{taxi + 1}</text>')  # fmt: skip
        column, row = taxi % 4, taxi // 4
        parts.append(f'<text x="{20 + column * 175}" y="{_SIZE + 16 + row * 20}" '
                     f'fill="{colour}">taxi {taxi + 1}: {wanted[taxi]}</text>')  # fmt: skip
    parts.append(f'<text x="20" y="{_SIZE + 58}" fill="#222">dots: fares that wait; full where a '
                 f"taxi in reach holds them, which the line says</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>", ""])
