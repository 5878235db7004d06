"""What the figures of [KDD13] and [TKDE15] are meant to show again, and what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from earshot.bench.rt_figures import (
    BEST_TREE,
    GROUPS,
    ORDERS,
    TREES,
    shared_prefix,
)
from earshot.bench.targets import Measured, Target, largest
from earshot.indexes import default_structure

Row = dict[str, Any]

SIZES_GB = dict(zip((tree.name for tree in TREES), (1.63, 0.79, 0.89), strict=True))
"""Of the trees over 10 M subscriptions, [TKDE15] Table 1."""

PAPERS_SUBSCRIPTIONS = 10_000_000
SHORT_MESSAGE_MS = 2.0
"""Of R^t++ at 10 M subscriptions, [TKDE15] section 7.2."""

PLACE = ("workload", "message_tokens", "alpha", "threshold")
"""Fields that tell points of a figure apart."""

Measure = Callable[[list[Row]], Measured | None]
Work = tuple[str, ...]


def _newest(rows: list[Row], suite: str) -> dict[tuple[Any, ...], dict[tuple[Any, ...], Row]]:
    """Return, by point and then by index and order, the newest row of the largest size."""
    points: dict[tuple[Any, ...], dict[tuple[Any, ...], Row]] = {}
    for row in largest(row for row in rows if row["suite"] == suite):
        point = tuple(row.get(name) for name in PLACE)
        who = (row["competitor"], row.get("token_order"))
        points.setdefault(point, {}).setdefault(who, row)
    return points


def _ratio(row: Row, other: Row, work: Work) -> float | None:
    """Return the work of a row over that of another one, on the same messages."""
    length = shared_prefix([row, other])
    if length is None:
        return None
    own, others = (sum(each["prefixes"][length][name] for name in work) for each in (row, other))
    if others == 0:
        return 1.0 if own == 0 else math.inf
    return float(own / others)


def _place(row: Row) -> str:
    told = [row["workload"]]
    told += [f"{row[name]:,} tokens" for name in ("message_tokens",) if row.get(name) is not None]
    told += [f"{name} {row[name]}" for name in ("alpha", "threshold") if row.get(name) is not None]
    return ", ".join(told)


def _most(found: Sequence[Measured]) -> Measured | None:
    return max(found, key=lambda each: each.value, default=None)


def _over(suite: str, who: tuple[Any, ...], others: list[tuple[Any, ...]], work: Work) -> Measure:
    """The most that the work of one is of the least of others, over all points."""

    def measure(rows: list[Row]) -> Measured | None:
        found = []
        for of_point in _newest(rows, suite).values():
            row = of_point.get(who)
            for other in (of_point.get(other) for other in others):
                if row is None or other is None:
                    continue
                ratio = _ratio(row, other, work)
                if ratio is not None:
                    note = " ".join(
                        str(part) for part in (other["competitor"], _order(other)) if part
                    )
                    found.append(Measured(ratio, f"over {note}: {_place(row)}", row))
        return _most(found)

    return measure


def _order(row: Row) -> str:
    return row.get("token_order") or ""


def _short_ms(rows: list[Row]) -> Measured | None:
    found = [
        Measured(1e3 / row["messages_per_s"], _place(row), row)
        for of_point in _newest(rows, "rt_trees").values()
        for who, row in of_point.items()
        if who == tuple(BEST_TREE) and "_short_" in row["workload"]
    ]
    return _most(found)


def _size_gb(index: str) -> Measure:
    def measure(rows: list[Row]) -> Measured | None:
        for of_point in _newest(rows, "rt_trees").values():
            for (name, _), row in of_point.items():
                size = row.get("index_bytes_per_subscription")
                if name == index and size is not None:
                    note = f"{size:,.1f} B/subscription; stored subscriptions apart"
                    return Measured(size * PAPERS_SUBSCRIPTIONS / 1e9, note, row)
        return None

    return measure


def _ranked_lead(group: str) -> Measure:
    """The least lead of the ranked default over any other, at any alpha and threshold."""

    def measure(rows: list[Row]) -> Measured | None:
        found = []
        for suite in ("ranking_alpha", "ranking_threshold"):
            for of_point in _newest(rows, suite).values():
                own = of_point.get((default_structure("ranked"), None))
                if own is None or not own["workload"].endswith(group):
                    continue
                for row in of_point.values():
                    lead = None if row is own else _lead(own, row)
                    if lead is not None:
                        found.append(Measured(lead, f"{row['competitor']}: {_place(row)}", row))
        return min(found, key=lambda each: each.value, default=None)

    return measure


def _lead(own: Row, row: Row) -> float | None:
    """Return how many times faster a row is than another one; best times if both took all."""
    if own["checksum"] == row["checksum"] and own["n_messages"] == row["n_messages"]:
        return float(own["messages_per_s"] / row["messages_per_s"])
    return _ratio(row, own, ("ms",))


_BY_INDEX = {tree.name: tuple(tree) for tree in TREES}

TARGETS: tuple[Target, ...] = (
    *(
        Target(f"candidates of `{better}` over `{worse}`", 1.0, False, 3, " x",
               _over("rt_trees", _BY_INDEX[better], [_BY_INDEX[worse]], ("candidates",)))
        for worse, better in (("rt_tree", "rt_plus_tree"), ("rt_plus_tree", "rt_plus_plus_tree"))
    ),
    *(
        Target(f"order local over the best other, `{index}`: {' + '.join(work)}", 1.0, False, 3,
               " x", _over("token_orders", (index, "local"),
                           [(index, order) for order in ORDERS if order != "local"], work))
        for index, work in (("rt_plus_tree", ("candidates",)),
                            ("rt_plus_plus_tree", ("nodes", "candidates")))
    ),
    Target(f"short message, `{BEST_TREE.name}`", SHORT_MESSAGE_MS, False, 3, " ms", _short_ms),
    *(
        Target(f"size at 10 M, `{index}`", size_gb, False, 2, " GB", _size_gb(index))
        for index, size_gb in SIZES_GB.items()
    ),
    *(
        Target(f"ranked default over the best other: {group.replace('_', ' ')}", 1.0, True, 2,
               " x", _ranked_lead(group))
        for group in GROUPS
    ),
)  # fmt: skip
"""In the order of the report; all but the sizes at the worst of the points."""


def figure_target_table(rows: list[Row]) -> str:
    """Return one line per target that was measured, as a Markdown table; empty if none was."""
    lines = []
    for target in TARGETS:
        measured = target.measure(rows)
        if measured is None or target.wanted is None:
            continue
        cells = (
            target.name,
            f"{'≥' if target.at_least else '≤'} {target.shown(target.wanted)}",
            target.shown(measured.value),
            "yes" if target.is_met(measured) else "**no**",
            f"{measured.row['n_subscriptions']:,}",
            measured.note,
        )
        lines.append(f"| {' | '.join(cells)} |")
    head = ["| target | wanted | measured | reached | subscriptions | where |", "| --- " * 6 + "|"]
    return "\n".join([*head, *lines]) if lines else ""
