"""Laws about places and sizes at their limits: touching, rounding, infinite, empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from earshot.checks.generate import Recipe, case_of, make_case
from earshot.checks.subjects import Subject
from earshot.model.arrays import take_messages

RECIPES: dict[str, Recipe] = {
    # Where most sides fall on the same few values, touching is still told from missing.
    "shared_coordinates": Recipe(
        seed=17, extent=(0, 0, 8, 8), grid=1.0, side=0.4, message_side=0.3
    ),
    # Regions from a hundredth of a message to a hundred times its size are found alike.
    "mixed_sizes": Recipe(seed=51, message_side=0.3, spread=3.0),
}


def check_touching_counts(subject: Subject) -> None:
    """Boundaries are closed: a shared edge or corner touches, a gap of one ulp does not."""
    low, high = 1.0, 2.0
    below, above = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
    sides = [(below, below), (below, low), (low, low), (1.5, 1.5), (high, high), (high, above),
             (above, above), (below, above), (0.0, below), (above, 3.0)]  # fmt: skip
    many: list[list[float]] = [[x[0], y[0], x[1], y[1]] for x in sides for y in sides]
    few: list[list[float]] = [[low, low, high, high], [low, low, low, low], [1, 1, 2, 1]]
    for boxes, asked in ((few, many), (many, few)):
        subject.assert_case(case_of([[1]] * len(boxes), boxes, [[1]] * len(asked), asked))


def check_zero_area_boxes(subject: Subject) -> None:
    """Regions that are points or lines are matched by messages that touch them."""
    grid = Recipe(seed=18, extent=(0, 0, 6, 6), grid=1.0)
    subject.assert_recipe(replace(grid, side=0.0, message_side=0.2))
    subject.assert_recipe(replace(grid, side=0.1, message_side=0.3))


def check_neighbouring_floats(subject: Subject) -> None:
    """Coordinates one ulp apart are different, wherever they lie."""
    for magnitude in (1.0, -7.3, 1e-300, 1e300, 179.99999999999997):
        steps = [magnitude]
        for _ in range(40):
            steps.append(float(np.nextafter(steps[-1], np.inf)))
        boxes = [[a, 0.0, b, 1.0] for a, b in zip(steps[:-3], steps[3:], strict=True)]
        asked = [[x, 0.5, x, 0.5] for x in steps]
        case = case_of([[1]] * len(boxes), boxes, [[1]] * len(asked), asked)
        subject.assert_case(case, subject.settings[:4])


def check_huge_coordinates(subject: Subject) -> None:
    """Coordinates near the largest float neither overflow nor lose an answer.

    An area beyond it counts as unbounded, where areas count.
    """
    for half in (8e307, 1e154):
        recipe = Recipe(seed=19, extent=(-half, -half, half, half), side=0.5, message_side=0.2)
        subject.assert_recipe(recipe, subject.settings[:4])


def check_tiny_coordinates(subject: Subject) -> None:
    """Coordinates that are subnormal numbers neither underflow nor lose an answer.

    An area below the smallest normal float counts as none, where areas count.
    """
    for side in (1e-320, 1e-154, 1e-150):
        recipe = Recipe(seed=20, extent=(0.0, 0.0, side, side), side=0.5, message_side=0.2)
        subject.assert_recipe(recipe, subject.settings[:4])


def check_mixed_magnitudes(subject: Subject) -> None:
    """One far-away region does not blur the near ones."""
    near = make_case(subject.scaled(Recipe(seed=21, extent=(0, 0, 1e-6, 1e-6))))
    boxes = near.clauses.boxes.copy()
    boxes[0] = 1e300, 1e300, 1e301, 1e301
    boxes[1] = -1e300, -1e300, -1e299, -1e299
    subject.assert_case(near._replace(clauses=near.clauses._replace(boxes=boxes)))


def check_infinite_boxes(subject: Subject) -> None:
    """Infinite sides reach every message, and infinite messages every region."""
    inf = np.inf
    sides = [(-inf, inf), (-inf, 0.0), (0.0, inf), (0.0, 0.0), (1.0, 2.0), (-inf, -inf), (inf, inf)]
    boxes = [[x[0], y[0], x[1], y[1]] for x in sides for y in sides]
    asked = [[1] if i % 2 else [1, 2] for i in range(len(boxes))]
    subject.assert_case(case_of([[1, 2]] * len(boxes), boxes, asked, boxes))
    subject.assert_recipe(Recipe(seed=22, unbounded=0.8, message_side=0.1))


def check_empty_index(subject: Subject) -> None:
    """An index of nothing delivers nothing, and takes subscriptions."""
    case, expected = subject.mixed()
    nothing = case_of([], [], [], [], space=case.space)._replace(weights=case.weights)
    for empty in (case.part(0, 0), nothing):
        index = subject.build(empty)
        assert index.n_subscriptions == 0
        assert subject.answers(index.match(case.messages)) == [{}] * len(expected)
        index.insert(case.clauses)
        subject.assert_live(index, case, expected, set(range(case.n_slots)))


def check_empty_batch(subject: Subject) -> None:
    """A batch of no messages has no answers, with one thread or many."""
    case, _ = subject.mixed()
    index = subject.build(case)
    nothing = take_messages(case.messages, np.empty(0, np.int64))
    for n_threads in (1, 3):
        found = index.match(nothing, n_threads=n_threads)
        assert found.offsets.tolist() == [0]
        assert len(found.subscriptions) == len(subject.answers(found)) == 0
