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
        if status.merge_error != self._merge_error:
            self._merge_error = status.merge_error
            if status.merge_error is not None:
                self._print(f"merging failed and will be tried again: {status.merge_error}")
        if is_stopping and not self._is_stopping:
            self._is_stopping = True
            self._print("stopping after this batch; once more to stop at once")
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            self._print(line_of(status))

    def _print(self, line: str) -> None:
        print(f"earshot: {line}", file=sys.stderr, flush=True)


class Panel(View):
    """A table that is kept up to date in a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(stderr=True) if console is None else console
        # Output goes elsewhere and must not be caught on its way.
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True,
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
        for name, value in rows_of(status):
            style = "red" if name == "merge failed" else "bold"
            table.add_row(name, Text(value, style=style))
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


def rows_of(status: Status) -> list[tuple[str, str]]:
    """Return what there is to say about a state, with names."""
    lag = "unknown" if status.lag_s is None else f"{status.lag_s:,.1f} s"
    merging = " (merging)" if status.is_merging else ""
    rows = [
        ("messages", f"{status.messages:,}  ({status.messages_per_s:,.0f}/s)"),
        ("updates", f"{status.updates:,}  ({status.updates_per_s:,.0f}/s)"),
        ("batch", f"{status.batch:,} took {status.batch_s * 1000:,.0f} ms, lag {lag}"
         if status.batch >= 0 else "waiting for the first"),
        ("index", f"version {status.version}: {status.n_subscriptions:,} subscriptions{merging}"
         if status.version else "not yet asked"),
        ("changes", f"{status.changes:,} taken in, {status.merges:,} merges"),
        ("rejects", f"{status.rejects:,}"),
    ]  # fmt: skip
    if status.merge_error is not None:
        rows.append(("merge failed", status.merge_error))
    return rows


def line_of(status: Status) -> str:
    """Return a state as one line of a log."""
    if status.batch < 0:
        return f"no batch of messages yet, {status.changes:,} changes taken in"
    lag = "" if status.lag_s is None else f", lag {status.lag_s:,.1f} s"
    merging = ", merging" if status.is_merging else ""
    return (
        f"{status.messages:,} messages ({status.messages_per_s:,.0f}/s), {status.updates:,} "
        f"updates ({status.updates_per_s:,.0f}/s), batch {status.batch} in "
        f"{status.batch_s * 1000:,.0f} ms{lag}, version {status.version} with "
        f"{status.n_subscriptions:,} subscriptions, {status.changes:,} changes, "
        f"{status.rejects:,} rejects{merging}"
    )
