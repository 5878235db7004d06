"""Results as tables and plots: ``REPORT.md`` beside the results, and a table for the README."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from earshot.bench.plots import plot_growth, plot_match
from earshot.bench.rt_plots import FIGURE_SUITES, draw, figure_table, figures_of
from earshot.bench.rt_targets import figure_target_table
from earshot.bench.targets import lead, target_table
from earshot.bench.topk_plots import SHAPES, draw_topk
from earshot.bench.topk_targets import topk_target_table
from earshot.errors import InvalidFile
from earshot.workloads.synthetic import WORKLOADS

BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"

KIND = ("suite", "workload", "competitor", "n_subscriptions", "n_threads", "changes_per_call",
        "n_shards", "token_order", "message_tokens", "alpha", "threshold", "window", "k",
        "n_keywords", "keywords_from")  # fmt: skip
"""Fields that tell rows of one profile apart; of equal ones the newest counts."""

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def report(results: str | Path, *, readme: str | Path | None = None) -> Path:
    """Write ``REPORT.md`` and its plots from all results, the newest row of each kind.

    Args:
        results: Directory of the JSON lines.
        readme: File to put the main table into, between the lines ``<!-- benchmark:begin -->`` and
            ``<!-- benchmark:end -->``.

    Returns:
        The report.
    """
    folder = Path(results)
    runs = merged_rows(folder)
    if not runs:
        raise InvalidFile(f"{folder} holds no results (*.jsonl); run the benchmark first")
    every = [row for rows in runs.values() for row in rows]
    pieces = [
        "# Benchmark results",
        "Made by `python -m earshot.bench report` from the newest row of each suite, workload, "
        "competitor and size. Rates are the best of the repetitions, one thread unless said "
        "otherwise; ± is the standard deviation of the repetitions. All competitors of a workload "
        "gave the same answers.",
        "## Targets",
        "Of the default index, at the largest size that was measured. Rates are compared on the "
        "same messages in the same run; a group of workloads tells its worst one.",
        target_table(every),
    ]
    shapes = figure_target_table(every)
    if shapes:
        pieces += [
            "What the figures of the R^t papers are meant to show again. Work is compared on the "
            "same messages; of all points of a figure, the worst one is told.",
            shapes,
        ]
    topk = topk_target_table(every)
    if topk:
        pieces += [
            "Of top-k over a window. Methods are compared on the same messages; of kmax and of "
            "Skyband, the factor counts that made a message cheapest.",
            topk,
        ]
    for profile, rows in runs.items():
        pieces += _profile_report(folder, profile, rows)
    target = folder / "REPORT.md"
    target.write_text("\n\n".join(pieces) + "\n", encoding="utf-8")
    if readme is not None:
        update_readme(Path(readme), main_table(every))
    return target


def merged_rows(folder: Path) -> dict[str, list[Row]]:
    """Return the newest row of each kind, by profile; each row gains the ``file`` it is from."""
    found = []
    for path in folder.glob("*.jsonl"):
        rows = read_rows(path)
        written = path.stat().st_mtime_ns
        found += [(row["run"]["started"], written, path.name, row) for row in rows]
    found.sort(key=lambda each: each[:3])
    merged: dict[str, dict[tuple[Any, ...], Row]] = {}
    for _, _, name, row in found:
        of_profile = merged.setdefault(row["run"]["profile"], {})
        kind = tuple(row.get(field) for field in KIND)
        of_profile.pop(kind, None)  # so that the rows of the newest run stay together
        of_profile[kind] = {**row, "file": name}
    return {profile: list(merged[profile].values()) for profile in sorted(merged)}


def read_rows(path: Path) -> list[Row]:
    """Read the rows of one run."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InvalidFile(f"{path}, line {number + 1} is not JSON: {error}") from error
    return rows


def main_table(rows: list[Row]) -> str:
    """Return the headline workload's rows of the largest size and the targets, as two tables."""
    headline = [row for row in rows if row["suite"] == "match" and row["workload"] == "headline"]
    if not headline:
        raise InvalidFile("no results of the suite 'match' on the workload 'headline'")
    size = max(row["n_subscriptions"] for row in headline)
    newest: dict[str, Row] = {}
    for row in sorted(headline, key=lambda row: row["run"]["started"]):
        if row["n_subscriptions"] == size:
            newest[row["competitor"]] = row
    chosen = list(newest.values())
    most = max(chosen, key=lambda row: row["n_messages"])
    facts = most["run"]
    return (
        f"{size:,} subscriptions, {most['answers_per_message']:,.0f} answers per message, "
        f"one thread of {facts['machine']['processor']}, {facts['started'][:10]}, "
        f"commit {facts['commit'] or 'unknown'}:\n\n"
        f"{table(_by_rate(chosen), README_COLUMNS)}\n\n{target_table(rows)}"
    )


def update_readme(readme: Path, text: str) -> None:
    """Replace what stands between the benchmark markers of a file."""
    old = readme.read_text(encoding="utf-8")
    if old.count(BEGIN) != 1 or old.count(END) != 1 or old.index(BEGIN) > old.index(END):
        raise InvalidFile(f"{readme} needs the line {BEGIN} once, and after it {END} once")
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def table(rows: list[Row], columns: list[Column]) -> str:
    """Return rows as a Markdown table; columns without any value are left out."""
    cells = [[show(row) for _, show in columns] for row in rows]
    kept = [i for i in range(len(columns)) if any(line[i] for line in cells)]
    lines = [[columns[i][0] for i in kept], ["---" for _ in kept]]
    lines += [[line[i] for i in kept] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(field: str, digits: int = 0, scale: float = 1.0) -> Callable[[Row], str]:
    """Show a field; ``a.b`` is field b of the group a. Empty where there is none."""

    def show(row: Row) -> str:
        value: Any = row
        for part in field.split("."):
            value = None if value is None else value.get(part)
        return "" if value is None else f"{value * scale:,.{digits}f}"

    return show


def _text(field: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(field, ""))


def _lead(row: Row) -> str:
    ratio = lead(row)
    return "" if ratio is None else f"{ratio:,.1f} x"


def _rate(row: Row) -> str:
    if "messages_per_s" not in row:
        return ""
    return f"{row['messages_per_s']:,.0f} ± {row['messages_per_s_std']:,.0f}"


MATCH_COLUMNS: list[Column] = [
    ("workload", _text("workload")),
    ("competitor", _text("competitor")),
    ("messages/s", _rate),
    ("default is faster by", _lead),
    ("answers/s", _number("answers_per_s")),
    ("messages", _number("n_messages")),
    ("p50 µs", _number("latency_us.p50")),
    ("p99 µs", _number("latency_us.p99")),
    ("build s", _number("build_s", 2)),
    ("open ms", _number("open_s", 1, 1e3)),
    ("index B/subscription", _number("index_bytes_per_subscription", 1)),
    ("stored B/subscription", _number("stored_bytes_per_subscription", 1)),
    ("candidates/message", _number("counters_per_message.candidates")),
    ("nodes/message", _number("counters_per_message.nodes")),
    ("checksum", _text("checksum")),
]

README_COLUMNS: list[Column] = [
    column
    for column in MATCH_COLUMNS
    if column[0]
    in (
        "competitor", "messages/s", "default is faster by", "p50 µs", "p99 µs", "build s",
        "open ms", "index B/subscription",
    )
]  # fmt: skip

_WHO: list[Column] = [("workload", _text("workload")), ("competitor", _text("competitor"))]
_SIZE: Column = ("subscriptions", _number("n_subscriptions"))

TOPK_COLUMNS: list[Column] = [
    ("data", _text("workload")),
    ("method", _text("competitor")),
    ("subscriptions", _number("n_subscriptions")),
    ("window", _number("window")),
    ("k", _number("k")),
    ("keywords", lambda row: "-".join(str(n) for n in dict.fromkeys(row["keywords"]))),
    ("keywords from", _text("keywords_from")),
    ("arrival µs", _number("amp_us", 1)),
    ("expiry µs", _number("emp_us", 1)),
    ("messages/s", _rate),
    ("buffer", _number("mean_buffer", 1)),
    ("changes/message", _number("changes_per_message", 1)),
    ("groups/message", _number("counters_per_message.groups", 1)),
    ("postings/message", _number("counters_per_message.postings", 1)),
    ("candidates/message", _number("counters_per_message.candidates", 1)),
    ("re-evaluations/message", _number("counters_per_message.reevaluations", 3)),
    ("structure B/subscription", _number("structure_bytes_per_subscription", 1)),
    ("buffers B/subscription", _number("buffers_bytes_per_subscription", 1)),
    ("B/message", _number("bytes_per_message", 1)),
    ("messages", _number("n_messages")),
    ("fill s", _number("setup_s", 1)),
    ("build s", _number("build_s", 2)),
    ("checksum", _text("checksum")),
]

SUITE_COLUMNS: dict[str, list[Column]] = {
    "match": MATCH_COLUMNS,
    "real": MATCH_COLUMNS,
    "growth": [_SIZE, *MATCH_COLUMNS[1:]],
    "threads": [
        *_WHO,
        ("threads", _number("n_threads")),
        ("messages/s", _rate),
        ("over one", _number("speedup", 2)),
    ],
    "churn": [
        *_WHO,
        ("changes per call", _number("changes_per_call")),
        ("inserts/s", _number("inserts_per_s")),
        ("removes/s", _number("removes_per_s")),
        ("in flux %", _number("flux_share", 1, 100.0)),
        ("messages/s before", _number("before_messages_per_s")),
        ("messages/s after", _rate),
        ("slowdown", _number("slowdown", 3)),
        ("first change s", _number("first_change_s", 2)),
        ("merge s", _number("rebuild_s", 2)),
        ("checksum", _text("checksum")),
    ],
    "text": [
        *_WHO,
        ("messages/s", _rate),
        ("MB/s", _number("megabytes_per_s")),
        ("words", _number("n_words")),
        ("new words/s", _number("grow_words_per_s")),
    ],
    "command_line": [
        *_WHO,
        ("messages/s", _rate),
        ("answers/s", _number("answers_per_s")),
        ("index alone, messages/s", _number("index_alone_messages_per_s")),
        ("share", _number("share_of_index_rate", 2)),
        ("build s", _number("build_s", 2)),
        ("load s", _number("load_s", 2)),
    ],
    "placement": [
        *_WHO,
        ("shards", _number("n_shards")),
        ("candidates, of one index", _number("candidates_to_whole", 2)),
        ("shards per message", _number("shards_per_message", 2)),
        ("busiest: candidates", _number("balance_of_candidates", 2)),
        ("messages", _number("balance_of_messages", 2)),
        ("subscriptions", _number("balance_of_subscriptions", 2)),
        ("time", _number("balance_of_time", 2)),
        ("routing µs/message", _number("route_us_per_message", 1)),
        ("cut s", _number("cut_s", 1)),
        ("checksum", _text("checksum")),
    ],
    "spark_memory": [
        *_WHO,
        ("index MB", _number("index_bytes", 0, 1e-6)),
        ("open ms", _number("open_s", 1, 1e3)),
        ("Rss MB", _number("rss_bytes", 0, 1e-6)),
        ("Pss MB", _number("pss_bytes", 0, 1e-6)),
        ("shared MB", _number("shared_bytes", 0, 1e-6)),
        ("private dirty MB", _number("private_dirty_bytes", 0, 1e-6)),
        ("before opening", _number("before_private_dirty_bytes", 0, 1e-6)),
        ("copied % of the index", _number("copied_share", 1, 100.0)),
        ("checksum", _text("checksum")),
    ],
    "spark_batch": [
        *_WHO,
        ("messages/s", _rate),
        ("answers/s", _number("answers_per_s")),
        ("of the engine", _number("share_of_engine", 2)),
        ("over Spark SQL", _number("over_spark_sql", 1)),
        ("messages", _number("n_messages")),
        ("build s", _number("build_s", 1)),
        ("checksum", _text("checksum")),
    ],
    "spark_stream": [
        *_WHO,
        ("messages/s", _rate),
        ("answers/s", _number("answers_per_s")),
        ("messages per batch", _number("messages_per_batch")),
        ("small batch p50 ms", _number("small_batch_p50_ms")),
        ("p90 ms", _number("small_batch_p90_ms")),
        ("checksum", _text("checksum")),
    ],
}


RANKED = ("match", "growth", "real")
"""Suites in which competitors are told in the order of their rates."""


def _by_rate(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -row["messages_per_s"])


def _profile_report(folder: Path, profile: str, rows: list[Row]) -> list[str]:
    pieces = [f"## {profile}", *_origins(rows)]
    present = {row["suite"] for row in rows}
    for suite in [name for name in (*SUITE_COLUMNS, *FIGURE_SUITES, *SHAPES) if name in present]:
        of_suite = [row for row in rows if row["suite"] == suite]
        sizes = sorted({row["n_subscriptions"] for row in of_suite})
        pieces.append(f"### {suite} ({', '.join(f'{size:,}' for size in sizes)} subscriptions)")
        if suite in FIGURE_SUITES:
            for figure in figures_of(suite, of_suite):
                image = folder / f"{profile}-{figure.name}.png"
                draw(image, figure)
                pieces += [f"![{figure.title}]({image.name})", figure_table(figure)]
            continue
        if suite in SHAPES:
            image = folder / f"{profile}-{suite}.png"
            draw_topk(image, suite, of_suite)
            pieces += [f"![{SHAPES[suite].title}]({image.name})", table(of_suite, TOPK_COLUMNS)]
            continue
        if suite in ("match", "growth"):
            image = folder / f"{profile}-{suite}.png"
            (plot_match if suite == "match" else plot_growth)(image, of_suite)
            pieces.append(f"![{suite}]({image.name})")
        pieces.append(table(_in_order(of_suite), SUITE_COLUMNS[suite]))
    return pieces


def _origins(rows: list[Row]) -> list[str]:
    """Say of each run that rows are from when, where and with what it was made."""
    told = {}
    for row in rows:
        facts = row["run"]
        machine = facts["machine"]
        versions = ", ".join(f"{name} {text}" for name, text in facts["versions"].items() if text)
        told[row["file"]] = (
            f"`{row['file']}`: {facts['started']}, commit {facts['commit'] or 'unknown'}, seed "
            f"{facts['seed']}; {machine['processor']}, {machine['n_cores']} cores, "
            f"{machine['memory_bytes'] / 2**30:.0f} GB; {versions}."
        )
    return [told[name] for name in sorted(told)]


def _in_order(rows: list[Row]) -> list[Row]:
    """Return rows by size and workload, the fastest first where there is something to compare."""
    places = {name: place for place, name in enumerate(dict.fromkeys([*WORKLOADS, *(
        row["workload"] for row in rows)]))}  # fmt: skip
    return sorted(
        rows,
        key=lambda row: (
            row["n_subscriptions"],
            places[row["workload"]],
            row["n_threads"],
            row.get("n_shards", 0),
            -row.get("messages_per_s", 0.0) if row["suite"] in RANKED else 0.0,
        ),
    )
