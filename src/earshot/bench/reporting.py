"""Results as tables and plots: ``REPORT.md`` beside the results, and the page of the documents."""

from __future__ import annotations

from pathlib import Path

from earshot.bench.plots import draw, images_of, points_table
from earshot.bench.results import Row, lead, markdown, merged_rows, table
from earshot.bench.suites import HEADLINE_COLUMNS, SUITES, Suite
from earshot.bench.targets import DEFAULT, SECTIONS, target_table
from earshot.errors import InvalidFile
from earshot.workloads.synthetic import WORKLOADS

PAGE = Path("docs") / "benchmarks.md"

PAGE_TEXT = """\
# Benchmarks

`earshot bench report` writes this page from the committed results.
[bench/README.md](../bench/README.md) says how they are measured and what they do not show;
[bench/results/REPORT.md](../bench/results/REPORT.md) has all tables and plots.

## Headline

"""


def report(results: str | Path, *, page: str | Path | None = None) -> Path:
    """Write ``REPORT.md`` beside the results, and its plots; return where it is.

    Args:
        results: Directory of the JSON lines; the newest row of each kind counts.
        page: File for the headline and the targets.
    """
    folder = Path(results)
    runs = merged_rows(folder)
    pieces = [
        "# Benchmark results",
        "Made by `earshot bench report` from the newest row of each suite, workload, "
        "competitor and size. Rates are the best of the repetitions, one thread unless said "
        "otherwise; ± is the standard deviation of the repetitions. All competitors of a workload "
        "gave the same answers.",
        "## Targets",
        *_targets([row for rows in runs.values() for row in rows]),
    ]
    for profile, rows in runs.items():
        pieces += [f"## {profile}", *_origins(rows)]
        for suite in SUITES.values():
            of_suite = [row for row in rows if row["suite"] == suite.name]
            if of_suite:
                pieces += _suite_report(folder, profile, suite, of_suite)
    target = folder / "REPORT.md"
    target.write_text("\n\n".join(pieces) + "\n", encoding="utf-8")
    if page is not None:
        Path(page).parent.mkdir(parents=True, exist_ok=True)
        Path(page).write_text(page_text(folder), encoding="utf-8")
    return target


def page_text(results: Path) -> str:
    """Return the page: the headline's rows of the largest size, and the targets."""
    rows = [row for rows in merged_rows(results).values() for row in rows]
    headline = [row for row in rows if row["suite"] == "match" and row["workload"] == "headline"]
    if not headline:
        raise InvalidFile("no results of the suite 'match' on the workload 'headline'")
    size = max(row["n_subscriptions"] for row in headline)
    newest = {
        row["competitor"]: row
        for row in sorted(headline, key=lambda row: str(row["run"]["started"]))
        if row["n_subscriptions"] == size
    }
    most = max(newest.values(), key=lambda row: int(row["n_messages"]))
    facts = most["run"]
    told = (
        f"{size:,} subscriptions, {most['answers_per_message']:,.0f} answers per message, "
        f"one thread of {facts['machine']['processor']}, {facts['started'][:10]}, "
        f"commit {facts['commit'] or 'unknown'}:"
    )
    ranked = sorted(newest.values(), key=lambda row: -float(row["messages_per_s"]))
    pieces = [told, table(ranked, HEADLINE_COLUMNS), *_batch_sizes(rows, newest)]
    pieces += ["## Targets", *_targets(rows)]
    return PAGE_TEXT + "\n\n".join(pieces) + "\n"


BATCHES_TEXT = """\
Many messages in one call help every competitor, and a join in SQL most. So a ratio over DuckDB
holds at its batch size only.{above} Messages/s by messages a call:"""


def _batch_sizes(rows: list[Row], headline: dict[str, Row]) -> list[str]:
    """Return the rates of the default and of its rival by messages a call, where measured."""
    rivals = [row for row in rows if row["suite"] == "batch_sizes" and lead(row) is not None]
    newest = {
        (row["n_subscriptions"], row["batch_size"]): row
        for row in sorted(rivals, key=lambda row: str(row["run"]["started"]))
    }
    lines = [
        (f"{size:,}", f"{batch:,}", f"{row['default_messages_per_s']:,.0f}",
         f"{row['messages_per_s']:,.0f}", f"{lead(row):,.1f} x")
        for (size, batch), row in sorted(newest.items())
    ]  # fmt: skip
    if not lines:
        return []
    names = sorted({row["competitor"] for row in newest.values()})
    head = ("subscriptions", "messages a call", DEFAULT, ", ".join(names), "default is faster by")
    calls = [f"`{name}` got {headline[name]['n_messages']:,} messages in a call" for name in names
             if name in headline]  # fmt: skip
    above = f" Above, {', '.join(calls)}." if calls else ""
    return [BATCHES_TEXT.format(above=above), markdown(head, lines)]


def _targets(rows: list[Row]) -> list[str]:
    pieces = []
    for section, introduction in SECTIONS.items():
        lines = target_table(rows, section)
        pieces += [introduction, lines] if lines else []
    return pieces


def _suite_report(folder: Path, profile: str, suite: Suite, rows: list[Row]) -> list[str]:
    sizes = ", ".join(f"{size:,}" for size in sorted({row["n_subscriptions"] for row in rows}))
    pieces = [f"### {suite.name} ({sizes} subscriptions)"]
    rows = _in_order(rows, suite)
    for image in images_of(suite.name, suite.plot, rows) if suite.plot else []:
        path = folder / f"{profile}-{image.name}.png"
        draw(path, image)
        pieces.append(f"![{image.title}]({path.name})")
        if not suite.columns:
            pieces.append(points_table(image))
    if suite.columns:
        pieces.append(table(rows, suite.columns))
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


def _in_order(rows: list[Row], suite: Suite) -> list[Row]:
    """Return rows by size and workload, the fastest first where there is something to compare."""
    if suite.plot is not None and not suite.is_ranked:
        return rows
    names = dict.fromkeys([*WORKLOADS, *(row["workload"] for row in rows)])
    places = {name: place for place, name in enumerate(names)}
    return sorted(
        rows,
        key=lambda row: (
            row["n_subscriptions"],
            places[row["workload"]],
            row["n_threads"],
            row.get("n_shards", 0),
            -row.get("messages_per_s", 0.0) if suite.is_ranked else 0.0,
        ),
    )
