"""Engines of every semantics, over every structure, obey the laws of engines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import earshot.encoding.regions
from earshot import Moving, Ranking, TopK
from earshot.checks import engine_laws
from earshot.checks.engine_laws import EngineLaw, EngineSubject, engine_laws_for
from earshot.indexes import structures_of
from earshot.semantics.moving import STRUCTURES as MOVING_STRUCTURES
from earshot.semantics.topk import DISSEMINATIONS, REEVALUATIONS

RANKING = Ranking(0.5, 0.4)
SECONDS = timedelta(seconds=6)
TOPK_STRUCTURES = [f"{one}+{other}" for one in DISSEMINATIONS for other in REEVALUATIONS]
SUBJECTS = [
    *(EngineSubject(None, name) for name in structures_of("boolean")),
    *(EngineSubject(RANKING, name) for name in structures_of("ranked")),
    *(EngineSubject(TopK(9, 2, 0.5, 5e5), name) for name in TOPK_STRUCTURES),
    *(EngineSubject(TopK(SECONDS, 2, 0.5, 5e5), name) for name in TOPK_STRUCTURES[:3]),
    *(EngineSubject(Moving(timedelta(seconds=3)), name) for name in MOVING_STRUCTURES),
]


def id_of(subject: EngineSubject) -> str:
    is_timed = isinstance(subject.settings, TopK) and subject.settings.window == SECONDS
    return f"{subject}-timed" if is_timed else str(subject)


@pytest.mark.parametrize(
    ("subject", "law"),
    [
        pytest.param(subject, law, id=f"{id_of(subject)}:{law.__name__}")
        for subject in SUBJECTS
        for law in engine_laws_for(subject)
    ],
)
def test_law(subject: EngineSubject, law: EngineLaw) -> None:
    law(subject)


def test_every_law_is_some_subjects() -> None:
    checks = {name for name in vars(engine_laws) if name.startswith("check_")}
    assert checks == {law.__name__ for each in SUBJECTS for law in engine_laws_for(each)}


def test_laws_find_regions_that_are_measured_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle measures for itself: a wrong box of production is a wrong score."""
    whole: Any = vars(earshot.encoding.regions)["circle_boxes"]

    def wider(*arguments: Any) -> Any:
        rows, boxes = whole(*arguments)
        return rows, boxes + np.array([0.0, 0.0, 1e-6, 0.0])

    subject = EngineSubject(RANKING, "linear_scan")
    engine_laws.check_equals_the_oracle(subject)
    monkeypatch.setattr(earshot.encoding.regions, "circle_boxes", wider)
    with pytest.raises(AssertionError):
        engine_laws.check_equals_the_oracle(subject)
