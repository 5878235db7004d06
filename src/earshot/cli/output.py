"""What commands print: facts as JSON or as lines, progress, sentences about what is going on."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earshot.jobs import Progress


def show(arguments: argparse.Namespace, facts: dict[str, Any], lines: Sequence[str]) -> None:
    """Print facts as one JSON object, or lines for a person; beside updates, as an error is."""
    print(
        json.dumps(facts, default=str) if arguments.json else "\n".join(lines),
        file=sys.stderr if _writes_rows(arguments) else sys.stdout,
    )


def _writes_rows(arguments: argparse.Namespace) -> bool:
    """Whether standard output is taken."""
    return "-" in (getattr(arguments, name, None) for name in ("out", "results", "rejects"))


def show_facts(arguments: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Print facts as one JSON object, or one line each."""
    show(arguments, facts, [
        f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}"
        for name, value in facts.items()
    ])  # fmt: skip


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def against(summary: Any) -> str:
    """Return what a job matched with what."""
    messages = counted(summary.n_messages, "message")
    return f"{messages} against {counted(summary.n_subscriptions, 'subscription')}"


def rejected(n_rows: int, rejects: Any) -> list[str]:
    """Return where rejected rows are, if there are any."""
    return [f"{counted(n_rows, 'row')} rejected, see {rejects}"] if n_rows else []


def sayer(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return what says what is going on, unless it should be quiet."""

    def say(line: str) -> None:
        if not arguments.quiet:
            print(f"earshot: {line}", file=sys.stderr, flush=True)

    return say


@contextmanager
def progress_bar(arguments: argparse.Namespace, label: str) -> Iterator[Progress | None]:
    """Show a progress bar on the terminal's error output, where there is one."""
    is_wanted = not (arguments.quiet or arguments.json or _writes_rows(arguments))
    if not is_wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[rate]}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, rate="")
        started = time.perf_counter()

        def advance(n_rows: int) -> None:
            bar.advance(task, n_rows)
            done = bar.tasks[0].completed
            bar.update(task, rate=f"{done / (time.perf_counter() - started):,.0f} rows/s")

        yield advance
