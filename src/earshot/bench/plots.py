"""Figures as data, and one way to draw any of them or to tell it as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from earshot.bench.results import Column, Row, markdown, three_digits, value_of
from earshot.errors import MissingExtra

Rows = list[Row]
Split = Callable[[Rows], dict[str, Rows]]

WIDE_SPAN, WIDE_SPAN_OF_BARS = 12.0, 100.0
"""Largest over smallest value of a panel from which on its axis is logarithmic.

Bars are compared by their lengths, which a logarithmic axis cuts somewhere.
"""

LEAST_WIDTH = 8.0
"""Of an image; a title needs that."""

BARS_PER_PANEL = 6
"""Groups of bars side by side; more would be too narrow to read."""

TOLD_SIZES = {"n_subscriptions": "subscriptions", "window": "messages in the window"}
"""Sizes that a title tells where all rows have the same."""


class Measure(NamedTuple):
    """What a panel has on its vertical axis; a machine without a clock tells no shares."""

    label: str
    value: str | Callable[[Row], float | None]  # a field, or made of some
    title: str = ""


@dataclass(frozen=True)
class Plot:
    """How the rows of a suite are drawn.

    Numbers on the horizontal axis become lines, names become bars. A row without is a level line.
    """

    title: str
    x: str  # field of the horizontal axis
    x_label: str
    measures: tuple[Measure, ...]  # a panel for each
    line: str | Callable[[Row], str] = "competitor"  # what tells lines apart
    panels: Split = lambda rows: {"": rows}  # by title; measures are drawn for each of them
    images: Split = lambda rows: {"": rows}  # by what name and title end with
    all_sizes: bool = True  # else only rows of the most subscriptions are shown
    facts: tuple[Column, ...] = ()  # of the last point of each line, where a table tells points


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    plot: Plot
    measure: Measure
    rows: dict[str, Rows]  # by line

    def points(self, line: str) -> list[tuple[Any, float]]:
        """Return the points of a line, numbers ascending, names as they came."""
        figure = self.measure.value
        found = [(row.get(self.plot.x), float(value_of(row, figure))) for row in self.rows[line]]
        return found if self.has_names else sorted(found, key=lambda point: point[0] or 0)

    @property
    def ticks(self) -> list[Any]:
        """Places on the horizontal axis."""
        found = dict.fromkeys(row.get(self.plot.x) for rows in self.rows.values() for row in rows)
        ticks = [tick for tick in found if tick is not None]
        return ticks if self.has_names else sorted(ticks)

    @property
    def has_names(self) -> bool:
        """Whether the horizontal axis has names instead of numbers."""
        return any(isinstance(row.get(self.plot.x), str)
                   for rows in self.rows.values() for row in rows)  # fmt: skip


class Image(NamedTuple):
    """One figure of a suite, with its rows."""

    name: str
    title: str
    plot: Plot
    rows: Rows

    def panels(self) -> Iterator[Panel]:
        """Yield the panels that there is something to show in."""
        for title, rows in self.plot.panels(self.rows).items():
            for measure in self.plot.measures:
                told = f"{title}: {measure.title}" if title and measure.title else title
                lines = by_field(self.plot.line)(
                    [row for row in rows if value_of(row, measure.value) is not None]
                )
                if lines:
                    yield from _narrow(Panel(told or measure.title, self.plot, measure, lines))


def _narrow(panel: Panel) -> Iterator[Panel]:
    """Cut a panel with too many groups of bars."""
    ticks = panel.ticks
    if not panel.has_names or len(ticks) <= BARS_PER_PANEL:
        yield panel
        return
    for at in range(0, len(ticks), BARS_PER_PANEL):
        shown = ticks[at : at + BARS_PER_PANEL]
        lines = {line: [row for row in rows if row[panel.plot.x] in shown]
                 for line, rows in panel.rows.items()}  # fmt: skip
        yield panel._replace(rows={line: rows for line, rows in lines.items() if rows})


def images_of(name: str, plot: Plot, rows: Rows) -> list[Image]:
    """Return the figures of a suite that there are rows for."""
    if not plot.all_sizes:
        size = max(row["n_subscriptions"] for row in rows)
        rows = [row for row in rows if row["n_subscriptions"] == size]
    return [
        Image(f"{name}-{part}" if part else name, ", ".join(filter(None, (plot.title, part))),
              plot, of_part)
        for part, of_part in plot.images(rows).items() if of_part
    ]  # fmt: skip


def by_field(field: str | Callable[[Row], Any]) -> Split:
    """Return a split of rows by the values of a field, or by what is made of some."""

    def split(rows: Rows) -> dict[str, Rows]:
        groups: dict[str, Rows] = {}
        for row in rows:
            groups.setdefault(str(value_of(row, field)), []).append(row)
        return groups

    return split


def points_table(image: Image) -> str:
    """Return the points of a figure as tables: one for each panel, a line for each line.

    Columns behind the points are of the rightmost point.
    """
    tables = []
    for panel in image.panels():
        x = panel.plot.x
        ticks = panel.ticks
        head = [f"{panel.title}: {panel.measure.label}", *(f"{tick:,.12g}" for tick in ticks)]
        body = []
        for line, rows in panel.rows.items():
            points, last = dict(panel.points(line)), max(rows, key=lambda row: float(row[x]))
            cells = [three_digits(points.get(tick)) for tick in ticks]
            body.append([line, *cells, *(column.show(last) for column in panel.plot.facts)])
        tables.append(markdown([*head, *(column.title for column in panel.plot.facts)], body))
    return "\n\n".join(tables)


# ---- drawing -------------------------------------------------------------------------------------


def draw(path: Path, image: Image) -> None:
    """Draw a figure into a file."""
    panels = list(image.panels())
    is_wide = any(panel.has_names and len(panel.ticks) > BARS_PER_PANEL / 2 for panel in panels)
    width = 1 if is_wide else 2 if len(panels) == 4 else min(max(len(panels), 1), 3)
    height = -(-max(len(panels), 1) // width)
    canvas = _canvas(max(1.0 + (9.0 if is_wide else 4.2) * width, LEAST_WIDTH), 1.2 + 3.0 * height)
    all_axes = canvas.subplots(height, width, squeeze=False).ravel()
    labels = dict.fromkeys(line for panel in panels for line in panel.rows)
    colours = {label: f"C{i % 10}" for i, label in enumerate(labels)}
    handles: dict[str, Any] = {}
    for axes, panel in zip(all_axes, panels, strict=False):
        (_bars if panel.has_names else _lines)(axes, panel, colours)
        _scale(axes, panel)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    canvas.suptitle(f"{image.title}: {', '.join(['one thread', *_sizes(image.rows)])}", fontsize=11)
    canvas.legend(
        list(handles.values()), list(handles), loc="outside lower center",
        ncols=max(1, min(len(handles), 2 * max(width, 2))), frameon=False, fontsize=8,
    )  # fmt: skip
    canvas.savefig(path, dpi=120)


def _lines(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    for label in panel.rows:
        points = panel.points(label)
        for _, level in (point for point in points if point[0] is None):
            axes.axhline(level, color=colours[label], linestyle="--", label=label)
        places = [point for point in points if point[0] is not None]
        if places:
            axes.plot(*zip(*places, strict=True), marker="o", markersize=4, color=colours[label],
                      label=label)  # fmt: skip
    axes.set_xticks(panel.ticks, [f"{tick:,.12g}" for tick in panel.ticks])


def _bars(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    ticks = panel.ticks
    width = 0.85 / len(panel.rows)
    for i, label in enumerate(panel.rows):
        points = panel.points(label)
        places = [ticks.index(x) + (i - (len(panel.rows) - 1) / 2) * width for x, _ in points]
        axes.bar(places, [y for _, y in points], width, color=colours[label], label=label)
    axes.set_xticks(range(len(ticks)), ticks)


def _scale(axes: Any, panel: Panel) -> None:
    shown = [y for line in panel.rows for _, y in panel.points(line)]
    span = WIDE_SPAN_OF_BARS if panel.has_names else WIDE_SPAN
    if max(shown) > span * max(min(shown), 1e-12):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0.0)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.plot.x_label)
    axes.set_ylabel(panel.measure.label)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _sizes(rows: Rows) -> Iterator[str]:
    for field, what in TOLD_SIZES.items():
        sizes = {row.get(field) for row in rows}
        if len(sizes) == 1 and (size := sizes.pop()) is not None:
            yield f"{size:,} {what}"


def _canvas(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtra("plots need Matplotlib: pip install 'earshot[bench]'") from error
    return Figure(figsize=(width, height), layout="constrained")
