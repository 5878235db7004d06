"""What a person sees of a running pipeline: a live table in a terminal, or a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from earshot.spark.stream import Status

LINE_S = 5.0
"""Seconds between the lines of a log."""


class View:
    """Shows what a pipeline is doing; this one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, status: Status, *, is_stopping: bool = False) -> None:
        """Show the state, as often as the caller likes."""

    def note(self, lines: Sequence[str]) -> None:
        """Show lines below the state, in place of those before, where there is a place for them."""


class Log(View):
    """Prints a line every few seconds, and one for each thing that happens rarely."""

    def __init__(self, every_s: float = LINE_S) -> None:
        self._every_s = every_s
        self._next = time.monotonic()
        self._merge_error: str | None = None
        self._is_stopping = False

    def show(self, status: Status, *, is_stopping: bool = False) -> None:
        """Print a line if it is time."""
        lines = []
        if status.merge_error not in (None, self._merge_error):
            lines.append(f"merging failed and will be tried again: {status.merge_error}")
        if is_stopping and not self._is_stopping:
            lines.append("stopping after this batch; once more to stop at once")
        self._merge_error, self._is_stopping = status.merge_error, is_stopping
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            lines.append("; ".join(f"{name} {value}" for name, value in facts_of(status).items()))
        for line in lines:
            print(f"earshot: {line}", file=sys.stderr, flush=True)


class Panel(View):
    """A table that is kept up to date in a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        # Output goes elsewhere and must not be caught on its way.
        self._live = Live(
            console=console or Console(stderr=True), auto_refresh=False, transient=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._notes: list[Text] = []

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, status: Status, *, is_stopping: bool = False) -> None:
        """Draw the table anew."""
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for name, value in facts_of(status).items():
            table.add_row(name, Text(value, style="bold"))
        if status.merge_error is not None:
            table.add_row("merge failed", Text(status.merge_error, style="red"))
        hint = "stopping after this batch; Ctrl-C to stop at once" if is_stopping else (
            "Ctrl-C to stop after the current batch"
        )  # fmt: skip
        self._live.update(Group(table, *self._notes, Text(hint, style="dim")), refresh=True)

    def note(self, lines: Sequence[str]) -> None:
        """Put lines below the table."""
        self._notes = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]


def view_for(*, is_quiet: bool, prints_output: bool = False) -> View:
    """Return the view that fits where the errors go.

    A table would be torn by updates that are printed to the same terminal.
    """
    if is_quiet:
        return View()
    is_torn = prints_output and sys.stdout.isatty()
    return Panel() if sys.stderr.isatty() and not is_torn else Log()


def facts_of(status: Status) -> dict[str, str]:
    """Return what there is to say about a state, by name."""
    lag = "unknown" if status.lag_s is None else f"{status.lag_s:,.1f} s"
    merging = " (merging)" if status.is_merging else ""
    return {
        "messages": f"{status.messages:,}  ({status.messages_per_s:,.0f}/s)",
        "updates": f"{status.updates:,}  ({status.updates_per_s:,.0f}/s)",
        "batch": f"{status.batch:,} took {status.batch_s * 1000:,.0f} ms, lag {lag}"
        if status.batch >= 0 else "waiting for the first",
        "index": f"version {status.version}: {status.n_subscriptions:,} subscriptions{merging}"
        if status.version else "not yet asked",
        "changes": f"{status.changes:,} taken in, {status.merges:,} merges",
        **({"positions": f"{status.positions:,}"} if status.positions else {}),
        "rejects": f"{status.rejects:,}",
    }  # fmt: skip
