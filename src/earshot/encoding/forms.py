"""What a semantics takes of subscriptions and messages, said once and checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from earshot.encoding.columns import Columns, is_given

_MOVING = "moving subscribers; use Engine(Moving(...)), on the command line --moving"
_TAKEN_BY = {
    "expression": "boolean and ranked matching; give the words as keywords",
    "threshold": "ranked matching; use Engine(Ranking(...)), on the command line --rank",
    "k": "top-k over a window; use Engine(TopK(...)), on the command line --top-k",
    "alpha": "top-k over a window; use Engine(TopK(...)), on the command line --top-k",
    "dwell": _MOVING,
    "cooldown": _MOVING,
    "leaving": _MOVING,
}
"""Columns of subscriptions that only some semantics take, and which ones do."""

_MESSAGES_TAKEN_BY = {"end": _MOVING}
"""The same of messages."""


@dataclass(frozen=True)
class Form:
    """What a semantics takes."""

    noun: str  # what it is called in errors
    # Columns of subscriptions and messages, beyond those that every semantics takes.
    columns: frozenset[str]
    # Whether subscriptions and messages are at points and messages come with how often each word
    # occurs; else subscriptions have regions, messages points or boxes.
    is_point: bool = False
    # Whether words of messages join the vocabulary: subscriptions that come later look for them.
    keeps_words: bool = False
    # Whether subscriptions report positions, each with its time, and their regions follow.
    moves_by_position: bool = False


REGIONS = Form("boolean matching", frozenset({"expression"}))
"""Keywords or an expression, and a region."""


def refuse_columns(columns: Columns, form: Form) -> None:
    """Refuse subscriptions with a value in a column that the semantics does not take."""
    _refuse(columns, form, _TAKEN_BY)


def refuse_message_columns(columns: Columns, form: Form) -> None:
    """Refuse messages with a value in a column that the semantics does not take."""
    _refuse(columns, form, _MESSAGES_TAKEN_BY)


def _refuse(columns: Columns, form: Form, taken_by: Mapping[str, str]) -> None:
    for field, others in taken_by.items():
        array = columns.get(field)
        if array is not None and field not in form.columns:
            reason = f"is not for {form.noun} but for {others}, or leave it out"
            columns.problems.mark(is_given(array), field, reason)
