"""The figures of [KDD13] and [TKDE15], drawn again: four panels each, and the same as a table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from earshot.bench.rt_figures import GROUPS, OTHERS, TREES
from earshot.errors import MissingExtra
from earshot.indexes import default_structure

Row = dict[str, Any]

WIDE_SPAN = 12.0
"""Largest over smallest value of a panel from which on its axis is logarithmic."""

TREE_NAMES = tuple(tree.name for tree in TREES)
LINE_ORDER = (*TREE_NAMES, *(other.name for other in OTHERS), default_structure("boolean"))


class Axis(NamedTuple):
    """What a figure shows on one of its axes."""

    label: str
    value: Callable[[Row], float]


class Figure(NamedTuple):
    """One image."""

    name: str
    title: str
    rows: list[Row]
    x: Axis
    y: Axis
    line: Callable[[Row], str]


TIME = Axis("ms per message", lambda row: 1e3 / float(row["messages_per_s"]))
RATE = Axis("operations/s", lambda row: float(row["operations_per_s"]))
TOKENS = Axis("tokens of a message", lambda row: float(row["message_tokens"]))
SIZE = Axis("subscriptions", lambda row: float(row["n_subscriptions"]))
ALPHA = Axis("alpha", lambda row: float(row["alpha"]))
THRESHOLD = Axis("threshold", lambda row: float(row["threshold"]))


def _competitor(row: Row) -> str:
    return str(row["competitor"])


def _order(row: Row) -> str:
    return str(row["token_order"])


def _tokens(row: Row) -> str:
    return f"{row['message_tokens']:,} tokens"


Maker = Callable[[list[Row]], list[Figure]]


def _token_orders(rows: list[Row]) -> list[Figure]:
    return [
        Figure(
            f"token_orders-{tree}", f"Orders of tokens, {tree}",
            [row for row in rows if row["competitor"] == tree], TOKENS, TIME, _order,
        )
        for tree in TREE_NAMES
    ]  # fmt: skip


def _rivals(rows: list[Row]) -> list[Figure]:
    return [
        Figure(
            f"rt_rivals-{data}", f"R^t++ and others, {data}",
            [row for row in rows if row["workload"].startswith(f"{data}_")],
            TOKENS, TIME, _competitor,
        )
        for data in ("tweets", "usa")
    ]  # fmt: skip


def _one(name: str, title: str, x: Axis, y: Axis, line: Callable[[Row], str]) -> Maker:
    return lambda rows: [Figure(name, title, rows, x, y, line)]


FIGURE_SUITES: dict[str, Maker] = {
    "token_orders": _token_orders,
    "rt_trees": _one("rt_trees", "Three R^t trees", TOKENS, TIME, _competitor),
    "rt_rivals": _rivals,
    "rt_growth": _one("rt_growth", "R^t++ over subscriptions", SIZE, TIME, _tokens),
    "rt_updates": _one("rt_updates", "10 % inserts, 10 % deletes", TOKENS, RATE, _competitor),
    "ranking_alpha": _one("ranking_alpha", "Ranked, by alpha", ALPHA, TIME, _competitor),
    "ranking_threshold": _one(
        "ranking_threshold", "Ranked, by threshold", THRESHOLD, TIME, _competitor
    ),
}
"""Figures of each suite."""


def figures_of(suite: str, rows: list[Row]) -> list[Figure]:
    """Return the figures of a suite that there are rows for, at the largest size of the rows."""
    if suite != "rt_growth":
        size = max(row["n_subscriptions"] for row in rows)
        rows = [row for row in rows if row["n_subscriptions"] == size]
    return [figure for figure in FIGURE_SUITES[suite](rows) if figure.rows]


def draw(image: Path, figure: Figure) -> None:
    """Draw a figure with a panel for each group of messages."""
    canvas = _canvas(9.0, 6.5)
    lines = _lines(figure)
    panels = canvas.subplots(2, 2).ravel()
    for axes, group in zip(panels, GROUPS, strict=True):
        shown = []
        for i, line in enumerate(lines):
            points = _points(figure, group, line)
            shown += [y for _, y in points]
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.plot(xs, ys, marker="o", markersize=4, color=f"C{i}", label=line)
        ticks = sorted({figure.x.value(row) for row in figure.rows if _is_of(row, group)})
        axes.set_xticks(ticks, [f"{tick:,.12g}" for tick in ticks])
        if shown and max(shown) > WIDE_SPAN * max(min(shown), 1e-12):
            axes.set_yscale("log")
        elif shown:
            axes.set_ylim(bottom=0.0)
        axes.set_title(f"{group.replace('_', ' ')} messages", fontsize=10)
        axes.set_xlabel(figure.x.label)
        axes.set_ylabel(figure.y.label)
        axes.grid(alpha=0.3)
    canvas.suptitle(f"{figure.title}: one thread{_size_told(figure)}", fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(
        handles, labels, loc="outside lower center", ncols=min(len(lines), 5), frameon=False
    )
    canvas.savefig(image, dpi=120)


def figure_table(figure: Figure) -> str:
    """Return the points of a figure as a Markdown table: a line for each line of each panel.

    Columns behind the points are means per message of the rightmost point; sizes are those of the
    index alone, without the subscriptions themselves.
    """
    lines = []
    for group in GROUPS:
        rows = [row for row in figure.rows if _is_of(row, group)]
        ticks = sorted({figure.x.value(row) for row in rows})
        head = [
            f"{group.replace('_', ' ')}: {figure.y.label}",
            *(f"{tick:,.12g}" for tick in ticks),
            *(name for name, _ in _FACTS),
        ]
        body = []
        for line in _lines(figure):
            points = dict(_points(figure, group, line))
            if not points:
                continue
            last = max((row for row in rows if figure.line(row) == line), key=figure.x.value)
            cells = [_shown(points.get(tick)) for tick in ticks]
            body.append([line, *cells, *(show(last) for _, show in _FACTS)])
        kept = [i for i in range(len(head)) if i == 0 or any(cells[i] for cells in body)]
        for cells in [head, ["---"] * len(head), *body] if body else []:
            lines.append(f"| {' | '.join(cells[i] for i in kept)} |")
        lines.append("")
    return "\n".join(lines).strip()


def _counter(name: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        counters = row.get("counters_per_message") or {}
        return _shown(counters.get(name))

    return show


def _field(name: str, digits: int) -> Callable[[Row], str]:
    return lambda row: "" if row.get(name) is None else f"{row[name]:,.{digits}f}"


_FACTS: list[tuple[str, Callable[[Row], str]]] = [
    ("answers", lambda row: _shown(row["answers_per_message"])),
    ("candidates", _counter("candidates")),
    ("nodes", _counter("nodes")),
    ("messages", _field("n_messages", 0)),
    ("insert µs", _field("insert_us", 0)),
    ("remove µs", _field("remove_us", 0)),
    ("match µs", _field("match_us", 0)),
    ("first change s", _field("first_change_s", 2)),
    ("build s", _field("build_s", 1)),
    ("index B/subscription", _field("index_bytes_per_subscription", 1)),
]


def _shown(value: float | None) -> str:
    """Return a figure with three digits, or all of those before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _is_of(row: Row, group: str) -> bool:
    return str(row["workload"]).endswith(group)


def _points(figure: Figure, group: str, line: str) -> list[tuple[float, float]]:
    return sorted(
        (figure.x.value(row), figure.y.value(row))
        for row in figure.rows
        if _is_of(row, group) and figure.line(row) == line
    )


def _lines(figure: Figure) -> list[str]:
    """Return the lines of a figure: indexes in the papers' order, others as they were measured."""
    found = dict.fromkeys(figure.line(row) for row in figure.rows)
    known = [name for name in LINE_ORDER if name in found]
    return known + [name for name in found if name not in known]


def _size_told(figure: Figure) -> str:
    sizes = [size for size, _ in groupby(sorted(row["n_subscriptions"] for row in figure.rows))]
    return f", {sizes[0]:,} subscriptions" if len(sizes) == 1 else ""


def _canvas(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtra("plots need Matplotlib: pip install 'earshot[bench]'") from error
    return Canvas(figsize=(width, height), layout="constrained")
