"""The plots of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from earshot.errors import MissingExtra
from earshot.workloads.synthetic import WORKLOADS

Row = dict[str, Any]

WORKLOADS_PER_LINE = 6
"""Groups of bars side by side; more would be too narrow to read."""


def plot_match(image: Path, rows: list[Row]) -> None:
    """Draw bars of messages/s of the largest size, grouped by workload."""
    size = max(row["n_subscriptions"] for row in rows)
    rows = [row for row in rows if row["n_subscriptions"] == size]
    workloads = [name for name in WORKLOADS if any(row["workload"] == name for row in rows)]
    lines = [
        workloads[at : at + WORKLOADS_PER_LINE]
        for at in range(0, len(workloads), WORKLOADS_PER_LINE)
    ]
    names = sorted({row["competitor"] for row in rows}, key=lambda name: -_mean(rows, name))
    figure = _figure(10.0, 1.0 + 2.6 * len(lines))
    all_axes = figure.subplots(len(lines), 1, squeeze=False, sharey=True)[:, 0]
    width = 0.85 / len(names)
    for axes, line in zip(all_axes, lines, strict=True):
        for i, name in enumerate(names):
            rates = {
                row["workload"]: row["messages_per_s"]
                for row in rows
                if row["competitor"] == name and row["workload"] in line
            }
            places = [line.index(w) + (i - (len(names) - 1) / 2) * width for w in rates]
            axes.bar(places, list(rates.values()), width, color=f"C{i}", label=name)
        axes.set_xticks(range(len(line)), line)
        axes.set_xlim(-0.6, WORKLOADS_PER_LINE - 0.4 if len(lines) > 1 else len(line) - 0.4)
        axes.set_yscale("log")
        axes.set_ylabel("messages/s")
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    figure.suptitle(f"One thread, {size:,} subscriptions", fontsize=11)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(image, dpi=120)


def plot_growth(image: Path, rows: list[Row]) -> None:
    """Draw lines of messages/s over the number of subscriptions."""
    figure = _figure(7.5, 4.5)
    axes = figure.subplots()
    names = sorted({row["competitor"] for row in rows}, key=lambda name: -_mean(rows, name))
    for name in names:
        own = [row for row in rows if row["competitor"] == name]
        own.sort(key=lambda row: row["n_subscriptions"])
        sizes = [row["n_subscriptions"] for row in own]
        axes.plot(sizes, [row["messages_per_s"] for row in own], marker="o", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    every = sorted({row["n_subscriptions"] for row in rows})
    axes.set_xticks(every, [f"{size:,}" for size in every])
    axes.minorticks_off()
    axes.set_xlabel("subscriptions")
    axes.set_ylabel("messages/s, one thread")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(image, dpi=120)


def _mean(rows: list[Row], name: str) -> float:
    rates = [row["messages_per_s"] for row in rows if row["competitor"] == name]
    return float(sum(rates)) / len(rates)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtra("plots need Matplotlib: pip install 'earshot[bench]'") from error
    return Figure(figsize=(width, height), layout="constrained")
