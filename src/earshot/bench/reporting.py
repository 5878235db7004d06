"""Results as tables and plots: ``REPORT.md`` beside the results, and a table for the README."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from earshot.errors import InvalidFile, MissingExtra

BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def report(results: str | Path, *, readme: str | Path | None = None) -> Path:
    """Write ``REPORT.md`` and its plots from the newest results of each profile.

    Args:
        results: Directory of the JSON lines.
        readme: File to put the main table into, between the lines ``<!-- benchmark:begin -->`` and
            ``<!-- benchmark:end -->``.

    Returns:
        The report.
    """
    folder = Path(results)
    newest = newest_files(folder)
    if not newest:
        raise InvalidFile(f"{folder} holds no results (*.jsonl); run the benchmark first")
    runs = {profile: read_rows(path) for profile, path in newest.items()}
    pieces = [
        "# Benchmark results",
        "Made by `python -m earshot.bench report` from the newest results of each profile. Rates "
        "are the best of the repetitions, one thread unless said otherwise; ± is the standard "
        "deviation of the repetitions. All competitors of a workload gave the same answers.",
    ]
    for profile, rows in runs.items():
        pieces += _profile_report(folder, profile, newest[profile].name, rows)
    target = folder / "REPORT.md"
    target.write_text("\n\n".join(pieces) + "\n", encoding="utf-8")
    if readme is not None:
        update_readme(Path(readme), main_table(runs))
    return target


def newest_files(folder: Path) -> dict[str, Path]:
    """Return the newest file of each profile, by when its run was started."""
    newest: dict[str, tuple[str, int, Path]] = {}
    for path in folder.glob("*.jsonl"):
        rows = read_rows(path)
        if not rows:
            continue  # a run that failed before its first row
        facts = rows[0]["run"]
        age = (facts["started"], path.stat().st_mtime_ns, path)
        profile = facts["profile"]
        newest[profile] = max(newest.get(profile, age), age)
    return {profile: newest[profile][2] for profile in sorted(newest)}


def read_rows(path: Path) -> list[Row]:
    """Read the rows of one run."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InvalidFile(f"{path}, line {number + 1} is not JSON: {error}") from error
    return rows


def main_table(runs: dict[str, list[Row]]) -> str:
    """Return the headline workload's rows of the largest run, as a table."""
    rows = [
        row
        for rows in runs.values()
        for row in rows
        if row["suite"] == "match" and row["workload"] == "headline"
    ]
    if not rows:
        raise InvalidFile("no results of the suite 'match' on the workload 'headline'")
    largest = max(row["n_subscriptions"] for row in rows)
    chosen = [row for row in rows if row["n_subscriptions"] == largest]
    facts = chosen[0]["run"]
    machine = facts["machine"]
    return (
        f"{largest:,} subscriptions, {chosen[0]['answers_per_message']:,.0f} answers per message, "
        f"one thread of {machine['processor']}, {facts['started'][:10]}, "
        f"commit {facts['commit'] or 'unknown'}:\n\n"
        + table(_by_rate(chosen), [column for column in MATCH_COLUMNS if column[0] != "workload"])
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


def _rate(row: Row) -> str:
    return f"{row['messages_per_s']:,.0f} ± {row['messages_per_s_std']:,.0f}"


MATCH_COLUMNS: list[Column] = [
    ("workload", _text("workload")),
    ("competitor", _text("competitor")),
    ("messages/s", _rate),
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

_WHO: list[Column] = [("workload", _text("workload")), ("competitor", _text("competitor"))]
_SIZE: Column = ("subscriptions", _number("n_subscriptions"))

SUITE_COLUMNS: dict[str, list[Column]] = {
    "match": MATCH_COLUMNS,
    "real": MATCH_COLUMNS,
    "growth": [_SIZE, *MATCH_COLUMNS[1:]],
    "threads": [*_WHO, ("threads", _number("n_threads")), ("messages/s", _rate)],
    "churn": [
        *_WHO,
        ("inserts/s", _number("inserts_per_s")),
        ("removes/s", _number("removes_per_s")),
        ("messages/s before", _number("before_messages_per_s")),
        ("messages/s after", _rate),
        ("slowdown", _number("slowdown", 2)),
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
    ],
}


def _by_rate(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -row["messages_per_s"])


def _profile_report(folder: Path, profile: str, file: str, rows: list[Row]) -> list[str]:
    facts = rows[0]["run"]
    machine, versions = facts["machine"], facts["versions"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    pieces = [
        f"## {profile}",
        f"`{file}`: {facts['started']}, commit {facts['commit'] or 'unknown'}, seed "
        f"{facts['seed']}; {machine['processor']}, {machine['n_cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GB; {told}.",
    ]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        of_suite = [row for row in rows if row["suite"] == suite]
        sizes = sorted({row["n_subscriptions"] for row in of_suite})
        pieces.append(f"### {suite} ({', '.join(f'{size:,}' for size in sizes)} subscriptions)")
        if suite in ("match", "growth"):
            image = folder / f"{profile}-{suite}.png"
            (_plot_match if suite == "match" else _plot_growth)(image, of_suite)
            pieces.append(f"![{suite}]({image.name})")
        pieces.append(table(of_suite, SUITE_COLUMNS[suite]))
    return pieces


def _figure(width: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtra("plots need Matplotlib: pip install 'earshot[bench]'") from error
    figure = Figure(figsize=(width, 4.5), layout="constrained")
    return figure, figure.subplots()


def _plot_match(image: Path, rows: list[Row]) -> None:
    """Bars of messages/s, grouped by workload."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    names = list(dict.fromkeys(row["competitor"] for row in rows))
    figure, axes = _figure(max(6.0, 0.22 * len(workloads) * (len(names) + 1) + 2))
    width = 0.85 / len(names)
    for i, name in enumerate(names):
        rates = {
            row["workload"]: row["messages_per_s"] for row in rows if row["competitor"] == name
        }
        places = [workloads.index(w) + (i - (len(names) - 1) / 2) * width for w in rates]
        axes.bar(places, list(rates.values()), width, label=name)
    axes.set_xticks(range(len(workloads)), workloads, rotation=30, ha="right")
    axes.set_yscale("log")
    axes.set_ylabel("messages/s, one thread")
    axes.legend()
    figure.savefig(image, dpi=120)


def _plot_growth(image: Path, rows: list[Row]) -> None:
    """Lines of messages/s over the number of subscriptions."""
    figure, axes = _figure(7.0)
    for name in dict.fromkeys(row["competitor"] for row in rows):
        own = [row for row in rows if row["competitor"] == name]
        sizes = [row["n_subscriptions"] for row in own]
        axes.plot(sizes, [row["messages_per_s"] for row in own], marker="o", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("subscriptions")
    axes.set_ylabel("messages/s, one thread")
    axes.legend()
    figure.savefig(image, dpi=120)
