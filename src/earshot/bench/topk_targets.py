"""What top-k over a window is meant to reach, after [PVLDB16], and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from earshot.bench.targets import Measured, Target, largest, target_table
from earshot.bench.topk_figures import MAIN_DATA, default_method, shared_costs
from earshot.semantics.topk import DEFAULT_REEVALUATION
from earshot.workloads.topk import TOPK_WORKLOADS

Row = dict[str, Any]
Measure = Callable[[list[Row]], Measured | None]

REEVALUATION_SUITES = ("topk_reevaluation", "topk_tuning")
BASELINES = ("kmax", "skyband")
GROWTH = 5
"""Times as many subscriptions, with which a message should cost less than so many times as much."""


def _newest(rows: Iterable[Row]) -> dict[str, Row]:
    """Return, by method, the newest row of the most subscriptions."""
    found: dict[str, Row] = {}
    for row in largest(rows):
        found.setdefault(row["competitor"], row)
    return found


def _over_ciq(data: str) -> Measure:
    """Arrival: how many times faster the default is than CIQ, on the same messages."""

    def measure(rows: list[Row]) -> Measured | None:
        found = _newest(_of(rows, ("topk_dissemination",), data))
        own = found.get(default_method().label)
        ciq = next((row for row in found.values() if row["dissemination"] == "ciq"), None)
        costs = None if own is None or ciq is None else shared_costs(own, ciq)
        if own is None or costs is None or not costs[0]["amp_us"] or not costs[1]["amp_us"]:
            return None
        ours, theirs = (each["amp_us"] for each in costs)
        return Measured(theirs / ours, f"{ours:,.0f} against {theirs:,.0f} µs per arrival", own)

    return measure


def _tuned(rows: list[Row], data: str) -> tuple[Row, list[Row]] | None:
    """Return cSkyband, and of kmax and Skyband the row with the least cost of a message each."""
    own_dissemination = default_method().dissemination.name
    found = [
        row
        for row in _newest(_of(rows, REEVALUATION_SUITES, data)).values()
        if row["dissemination"] == own_dissemination and row["emp_us"] is not None
    ]
    own = next((row for row in found if row["reevaluation"] == DEFAULT_REEVALUATION), None)
    tuned = []
    for name in BASELINES:
        of_name = [row for row in found if row["reevaluation"] == name]
        if of_name:
            tuned.append(min(of_name, key=lambda row: float(row["total_us"])))
    return (own, tuned) if own is not None and len(tuned) == len(BASELINES) else None


def _expiry_lead(data: str) -> Measure:
    def measure(rows: list[Row]) -> Measured | None:
        found = _tuned(rows, data)
        if found is None:
            return None
        own, tuned = found
        pairs = [(shared_costs(own, row), row) for row in tuned]
        leads = [(costs[1]["emp_us"] / max(costs[0]["emp_us"], 1e-9), costs, row)
                 for costs, row in pairs if costs is not None]  # fmt: skip
        if len(leads) < len(tuned):
            return None
        lead, costs, row = min(leads, key=lambda each: each[0])
        note = (
            f"{costs[0]['emp_us']:,.1f} against {costs[1]['emp_us']:,.1f} µs per expiry of "
            f"`{row['competitor']}`; total {costs[0]['total_us']:,.0f} against "
            f"{costs[1]['total_us']:,.0f} µs"
        )
        return Measured(lead, note, own)

    return measure


def _buffer_share(data: str) -> Measure:
    def measure(rows: list[Row]) -> Measured | None:
        found = _tuned(rows, data)
        if found is None:
            return None
        own, tuned = found
        least = min(tuned, key=lambda row: float(row["mean_buffer"]))
        note = (
            f"{own['mean_buffer']:,.1f} against {least['mean_buffer']:,.1f} messages of "
            f"`{least['competitor']}`"
        )
        return Measured(own["mean_buffer"] / max(least["mean_buffer"], 1e-9), note, own)

    return measure


def _rate(rows: list[Row]) -> Measured | None:
    """The rate of the default where its window is by count and nothing else is varied."""
    suites = ("topk_dissemination", "topk_reevaluation")
    row = _newest(_of(rows, suites, MAIN_DATA)).get(default_method().label)
    return None if row is None else Measured(row["messages_per_s"], _sizes(row), row)


def _growth(rows: list[Row]) -> Measured | None:
    """Growth of the cost of a message from a number of subscriptions to five times as many."""
    label = default_method().label
    own = [row for row in _of(rows, ("topk_subscriptions",)) if row["competitor"] == label]
    top = largest(own)
    if not top:
        return None
    large = top[0]
    small = [
        row
        for row in own
        if row["n_subscriptions"] * GROWTH == large["n_subscriptions"]
        and row["run"]["profile"] == large["run"]["profile"]
    ]
    costs = shared_costs(largest(small)[0], large) if small else None
    if costs is None:
        return None
    note = (
        f"{costs[0]['total_us']:,.0f} and {costs[1]['total_us']:,.0f} µs per message with "
        f"{large['n_subscriptions'] // GROWTH:,} and {large['n_subscriptions']:,} subscriptions"
    )
    return Measured(costs[1]["total_us"] / costs[0]["total_us"], note, large)


def _of(rows: Iterable[Row], suites: tuple[str, ...], data: str | None = None) -> list[Row]:
    return [row for row in rows if row["suite"] in suites and data in (None, row["workload"])]


def _sizes(row: Row) -> str:
    return f"window {row['window']:,}, {row['changes_per_message']:,.1f} changes per message"


TARGETS: tuple[Target, ...] = (
    *(
        Target(f"arrival over CIQ: {data}", 10.0, True, 1, " x", _over_ciq(data))
        for data in TOPK_WORKLOADS
    ),
    *(
        Target(f"expiry of cSkyband over the better of tuned kmax and Skyband: {data}", 4.0, True,
               1, " x", _expiry_lead(data))
        for data in TOPK_WORKLOADS
    ),
    *(
        Target(f"buffers of cSkyband over the smaller of these: {data}", 1.0, False, 2, " x",
               _buffer_share(data))
        for data in TOPK_WORKLOADS
    ),
    Target("top-k, messages/s", 1_000.0, True, 0, "", _rate),
    Target(f"cost of a message with {GROWTH} times the subscriptions", float(GROWTH), False, 2,
           " x", _growth),
)  # fmt: skip
"""In the order of the report."""


def topk_target_table(rows: list[Row]) -> str:
    """Return one line per target that was measured, as a Markdown table; empty if none was."""
    if all(target.measure(rows) is None for target in TARGETS):
        return ""
    return target_table(rows, TARGETS)
