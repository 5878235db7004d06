"""What a semantics takes of subscriptions and messages, said once and checked in one place."""

from __future__ import annotations

from dataclasses import dataclass

from earshot.encoding.columns import Columns, is_given

_TAKEN_BY = {
    "expression": "boolean and ranked matching; give the words as keywords",
    "threshold": "ranked matching; use Engine(Ranking(...)), on the command line --rank",
    "k": "top-k over a window; use Engine(TopK(...)), on the command line --top-k",
    "alpha": "top-k over a window; use Engine(TopK(...)), on the command line --top-k",
}
"""Columns of subscriptions that only some semantics take, and which ones do."""


@dataclass(frozen=True)
class Form:
    """What a semantics takes."""

    noun: str  # what it is called in errors
    columns: frozenset[str]  # of subscriptions, beyond those that every semantics takes
    # Whether subscriptions and messages are at points and messages come with how often each word
    # occurs; else subscriptions have regions, messages points or boxes.
    is_point: bool = False


REGIONS = Form("boolean matching", frozenset({"expression"}))
"""Keywords or an expression, and a region."""


def refuse_columns(columns: Columns, form: Form) -> None:
    """Refuse rows with a value in a column that the semantics does not take."""
    for field, others in _TAKEN_BY.items():
        array = columns.get(field)
        if array is not None and field not in form.columns:
            reason = f"is not for {form.noun} but for {others}, or leave it out"
            columns.problems.mark(is_given(array), field, reason)
