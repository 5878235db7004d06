"""The laws of indexes: one small ``check_*`` function each, the same for every structure.

A new structure proves itself with::

    subject = subject_of(MyIndex)
    for check in laws_for(subject):
        check(subject)

Each check raises ``AssertionError`` when its law is broken. Answers are compared with the oracle
of the subject's semantics, which shares no code with the indexes. Laws stand in files by theme;
those that need a capability say so (:func:`earshot.checks.subjects.needs`).
"""

from __future__ import annotations

from earshot.checks.laws import answers, bad_input, batches, changes, limits, saving, scores
from earshot.checks.subjects import Law, Subject, concerns

THEMES = (answers, limits, scores, batches, bad_input, changes, saving)

LAWS: list[Law] = [
    law for theme in THEMES for name, law in vars(theme).items() if name.startswith("check_")
]
"""Every law, by theme, in the order in which they are written."""


def laws_for(subject: Subject) -> list[Law]:
    """Return the laws that a subject must obey."""
    return [law for law in LAWS if concerns(law, subject)]
