"""The figures of [PVLDB16] section 7, drawn again: one image per suite, a panel per question."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from earshot.errors import MissingExtra

Row = dict[str, Any]
Value = Callable[[Row], Any]

WIDE_SPAN, WIDE_SPAN_OF_BARS = 12.0, 100.0
"""Largest over smallest value of a panel from which on its axis is logarithmic.

Bars are compared by their lengths, which a logarithmic axis cuts somewhere.
"""

LEAST_WIDTH = 8.0
"""Of an image; a title needs that."""

PANELS_PER_LINE = 3


class Panel(NamedTuple):
    """One pair of axes: lines over numbers, bars over names."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[tuple[Any, float]]]  # by label; a point at ``None`` is a level line

    @property
    def ticks(self) -> list[Any]:
        """Places on the horizontal axis: numbers ascending, names as they came."""
        found = dict.fromkeys(x for points in self.lines.values() for x, _ in points)
        ticks = [tick for tick in found if tick is not None]
        return ticks if self.has_names else sorted(ticks)

    @property
    def has_names(self) -> bool:
        """Whether the horizontal axis has names instead of numbers."""
        return any(isinstance(x, str) for points in self.lines.values() for x, _ in points)


def _field(name: str) -> Value:
    return lambda row: row.get(name)


def _subscription_bytes(row: Row) -> float:
    """Memory of the subscription index: subscriptions and structure, without results."""
    parts = ("subscriptions_bytes_per_subscription", "structure_bytes_per_subscription")
    return float(sum(row[part] for part in parts))


class Measure(NamedTuple):
    """What a panel shows."""

    title: str
    y_label: str
    value: Value


ARRIVAL = Measure("arrival", "µs per message", _field("amp_us"))
EXPIRY = Measure("expiry", "µs per message", _field("emp_us"))
TOTAL = Measure("arrival and expiry", "µs per message", _field("total_us"))
BUFFER = Measure("buffers", "messages per subscription", _field("mean_buffer"))
MEMORY = Measure("subscription index", "bytes per subscription", _subscription_bytes)


def _panel(rows: list[Row], measure: Measure, x: Value, x_label: str, line: Value) -> Panel:
    lines: dict[str, list[tuple[Any, float]]] = {}
    for row in rows:
        value = measure.value(row)
        if value is not None:  # a machine without a clock tells no shares
            lines.setdefault(str(line(row)), []).append((x(row), float(value)))
    return Panel(measure.title, x_label, measure.y_label, lines)


class Shape(NamedTuple):
    """How the rows of a suite become panels."""

    title: str
    x: str  # field of the horizontal axis
    x_label: str
    line: str  # field that tells lines apart
    measures: tuple[Measure, ...]


BOTH = (ARRIVAL, EXPIRY, TOTAL)

SHAPES: dict[str, Shape] = {
    "topk_tuning": Shape("Tuning of kmax and Skyband", "factor", "factor", "reevaluation",
                         (TOTAL, BUFFER)),
    "topk_groups": Shape("IGPT, number of groups", "n_groups", "groups", "workload", (ARRIVAL,)),
    "topk_pruning": Shape("IGPT, rules of pruning", "workload", "", "rules", (ARRIVAL,)),
    "topk_dissemination": Shape("How messages find subscriptions", "workload", "", "competitor",
                                (ARRIVAL, MEMORY)),
    "topk_reevaluation": Shape("How results are kept full", "workload", "", "competitor",
                               (EXPIRY, BUFFER, TOTAL)),
    "topk_keywords": Shape("Number of keywords", "n_keywords", "keywords", "competitor", BOTH),
    "topk_k": Shape("Number of results", "k", "k", "competitor", BOTH),
    "topk_subscriptions": Shape("Number of subscriptions", "n_subscriptions", "subscriptions",
                                "competitor", BOTH),
    "topk_window": Shape("Size of the window", "window", "messages", "competitor", BOTH),
    "topk_zipf": Shape("Where keywords are from", "keywords_from", "", "competitor", BOTH),
    "topk_time": Shape("Window by time", "k", "k", "competitor", BOTH),
}  # fmt: skip
"""By suite, in the order of the paper."""


def panels_of(suite: str, rows: list[Row]) -> list[Panel]:
    """Return the panels of a suite; those of ``topk_tuning`` apart for each baseline."""
    shape = SHAPES[suite]
    x, line = _field(shape.x), _field(shape.line)
    groups = {"": rows}
    if suite == "topk_tuning":
        ours = [row for row in rows if row["factor"] is None]
        names = dict.fromkeys(row["reevaluation"] for row in rows if row["factor"] is not None)
        groups = {
            f"{name}: ": [row for row in rows if row["reevaluation"] == name] + ours
            for name in names
        }
    made = [
        _panel(of_group, measure, x, shape.x_label, line)._replace(title=name + measure.title)
        for name, of_group in groups.items()
        for measure in shape.measures
    ]
    return [panel for panel in made if panel.lines]


def draw_topk(image: Path, suite: str, rows: list[Row]) -> None:
    """Draw the figure of a suite."""
    panels = panels_of(suite, rows)
    width = 2 if suite == "topk_tuning" else min(max(len(panels), 1), PANELS_PER_LINE)
    height = -(-max(len(panels), 1) // width)
    canvas = _canvas(max(1.0 + 4.2 * width, LEAST_WIDTH), 1.2 + 3.2 * height)
    all_axes = canvas.subplots(height, width, squeeze=False).ravel()
    labels = list(dict.fromkeys(label for panel in panels for label in panel.lines))
    colours = {label: f"C{i % 10}" for i, label in enumerate(labels)}
    handles: dict[str, Any] = {}
    for axes, panel in zip(all_axes, panels, strict=False):
        (_bars if panel.has_names else _lines)(axes, panel, colours)
        _scale(axes, panel)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    canvas.suptitle(f"{SHAPES[suite].title}: one thread, {_sizes_told(rows)}", fontsize=11)
    canvas.legend(
        list(handles.values()), list(handles), loc="outside lower center",
        ncols=max(1, min(len(handles), 2 * max(width, 2))), frameon=False, fontsize=8,
    )  # fmt: skip
    canvas.savefig(image, dpi=120)


def _lines(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    for label, points in panel.lines.items():
        for _, level in (point for point in points if point[0] is None):
            axes.axhline(level, color=colours[label], linestyle="--", label=label)
        places = sorted(point for point in points if point[0] is not None)
        if places:
            xs, ys = [x for x, _ in places], [y for _, y in places]
            axes.plot(xs, ys, marker="o", markersize=4, color=colours[label], label=label)
    axes.set_xticks(panel.ticks, [f"{tick:,.12g}" for tick in panel.ticks])


def _bars(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    ticks = panel.ticks
    width = 0.85 / len(panel.lines)
    for i, (label, points) in enumerate(panel.lines.items()):
        places = [ticks.index(x) + (i - (len(panel.lines) - 1) / 2) * width for x, _ in points]
        axes.bar(places, [y for _, y in points], width, color=colours[label], label=label)
    axes.set_xticks(range(len(ticks)), ticks)


def _scale(axes: Any, panel: Panel) -> None:
    shown = [y for points in panel.lines.values() for _, y in points]
    span = WIDE_SPAN_OF_BARS if panel.has_names else WIDE_SPAN
    if max(shown) > span * max(min(shown), 1e-12):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0.0)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _sizes_told(rows: list[Row]) -> str:
    told = []
    for name, what in (("n_subscriptions", "subscriptions"), ("window", "messages in the window")):
        sizes = {row[name] for row in rows}
        if len(sizes) == 1:
            told.append(f"{sizes.pop():,} {what}")
    return ", ".join(told)


def _canvas(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtra("plots need Matplotlib: pip install 'earshot[bench]'") from error
    return Figure(figsize=(width, height), layout="constrained")
