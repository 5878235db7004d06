"""Scores by hand: [TKDE15] section 6, and what the paper leaves open."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from earshot.checks.engine_oracle import RankedOracle
from earshot.checks.generate import ragged
from earshot.checks.ranked_oracle import boxes_around, spatial_score
from earshot.errors import InvalidParameter
from earshot.kernels.scoring import (
    ScoringArrays,
    build_scoring,
    clause_score,
    delivered_score,
    message_area,
    overlap_area,
    slot_score,
    spatial_share,
    textual_share,
)
from earshot.model.arrays import ClauseArrays, ShapeArrays, Space, box_clauses
from earshot.model.messages import Message
from earshot.model.ranking import (
    SCORE_TOLERANCE,
    Ranking,
    check_threshold,
    idf_weights,
)
from earshot.model.regions import (
    Circle,
    Everywhere,
    Place,
    Point,
    Polygon,
    Rectangle,
    Region,
    boxes,
)
from earshot.model.subscriptions import Subscription

INF = math.inf


def clauses_of(
    *rows: tuple[list[int], list[float]], slots: list[int] | None = None
) -> ClauseArrays:
    return box_clauses(*ragged([tokens for tokens, _ in rows]), [box for _, box in rows], slots)


def scoring_of(
    clauses: ClauseArrays, alpha: float = 0.5, threshold: float = 0.6, weights: Any = None
) -> ScoringArrays:
    given = np.ones(10) if weights is None else np.array(weights, np.float64)
    return build_scoring(clauses, given, 1.0, alpha, threshold)


def marks_of(*tokens: int) -> Any:
    marks = np.zeros(10, np.uint8)
    marks[[0, *tokens]] = 1
    return marks


def box_of(*sides: float) -> Any:
    return np.array(sides, np.float64)


# ---- options ------------------------------------------------------------------------------------


def test_ranking_takes_what_is_in_range() -> None:
    assert Ranking() == Ranking(0.5, 0.6)
    given: list[Any] = [0, 1, 0.25, np.float64(0.5), np.int64(1)]
    for alpha in given:
        assert Ranking(alpha=alpha).alpha == float(alpha)
        assert type(Ranking(alpha=alpha).alpha) is float
    assert check_threshold(1, "here") == 1.0
    assert check_threshold(1e-300, "here") == 1e-300


@pytest.mark.parametrize(
    "value", [-0.1, 1.1, math.nan, INF, True, False, np.True_, "0.5", None, [0.5], 1j]
)
def test_ranking_refuses_other_values_and_names_the_range(value: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"alpha is .*; expected a number from 0 to 1"):
        Ranking(alpha=value)
    with pytest.raises(InvalidParameter, match=r"threshold is .*; expected .* at most 1"):
        Ranking(threshold=value)
    with pytest.raises(InvalidParameter, match="row 7 is"):
        check_threshold(value, "row 7")


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="greater than 0"):
        Ranking(threshold=0)


# ---- weights ------------------------------------------------------------------------------------


def test_weights_fall_with_frequency() -> None:
    def rounded(weight: float) -> float:
        return round(weight * 2**16) / 2**16

    weights, later = idf_weights(np.array([9, 9, 4, 0]))
    assert weights.tolist() == [1.0, 1.0, rounded(math.log(2) + 1), rounded(math.log(10) + 1)]
    assert later == rounded(math.log(10) + 1)
    weights, later = idf_weights(np.zeros(3, np.int64))
    assert weights.tolist() == [1.0, rounded(math.log(2) + 1), rounded(math.log(2) + 1)]
    assert later == rounded(math.log(2) + 1)
    assert idf_weights(np.empty(0, np.int64))[1] == rounded(math.log(2) + 1)


# ---- text ---------------------------------------------------------------------------------------


def test_textual_score_is_the_share_of_the_weight() -> None:
    # [TKDE15] psi_t: the weight of the common tokens over that of all of the subscription's.
    clauses = clauses_of(([1, 2, 3], [0, 0, 1, 1]), ([0], [0, 0, 1, 1]), ([1, ~4], [0, 0, 1, 1]))
    scoring = scoring_of(clauses, weights=[1, 5, 3, 2, 1])
    assert scoring.totals.tolist() == [10.0, 1.0, 5.0]
    assert textual_share(scoring, clauses, 0, marks_of(1, 3)) == 0.7
    assert textual_share(scoring, clauses, 0, marks_of(1, 2, 3, 4)) == 1.0
    assert textual_share(scoring, clauses, 0, marks_of()) == 0.0
    assert textual_share(scoring, clauses, 1, marks_of()) == 1.0
    assert textual_share(scoring, clauses, 2, marks_of(1)) == 1.0
    assert textual_share(scoring, clauses, 2, marks_of(1, 4)) == -1.0


# ---- place --------------------------------------------------------------------------------------

REGION = [0.0, 0.0, 4.0, 2.0]


@pytest.mark.parametrize(
    ("region", "message", "share"),
    [
        (REGION, [1, 1, 1, 1], 1.0),  # a point inside
        (REGION, [4, 2, 4, 2], 1.0),  # a point on the corner
        (REGION, [5, 2, 5, 2], 0.0),
        (REGION, [-1, 1, 9, 1], 1.0),  # a line has no area: it touches or not
        (REGION, [-1, 3, 9, 3], 0.0),
        (REGION, [2, 0, 6, 1], 0.25),
        (REGION, [-9, -9, 9, 9], 1.0),
        (REGION, [4, 0, 6, 2], 0.0),  # a shared side covers nothing
        (REGION, [1, 0.5, 1.5, 1], 0.25 / 8),
        ([1, 1, 1, 1], [0, 0, 2, 2], 1.0),  # a region without area
        ([1, 0, 1, 9], [0, 0, 1, 1], 1.0),
        ([1, 0, 1, 9], [2, 0, 3, 1], 0.0),
        ([-INF, -INF, INF, INF], [0, 0, 1, 1], 1.0),  # a region without bounds
        ([0, 0, INF, 1], [2, 0, 3, 1], 1.0),
        ([0, 0, INF, 1], [-2, 0, -1, 1], 0.0),
        ([-1e200, -1e200, 1e200, 1e200], [0, 0, 1, 1], 1.0),  # an area beyond the largest float
        ([0, 0, 1e-200, 1e-200], [0, 0, 1e-201, 1], 1.0),  # an area below the smallest
        (REGION, [0, 0, 1e-200, 1e-200], 1.0),
        (REGION, [-INF, 0, 2, INF], 0.5),
        (REGION, [-INF, 1, INF, 1], 1.0),
    ],
)
def test_spatial_score(region: list[float], message: list[float], share: float) -> None:
    clauses = clauses_of(([1], region))
    scoring = scoring_of(clauses)
    box = box_of(*message)
    assert spatial_share(scoring, clauses, 0, False, box, message_area(box)) == share
    if all(map(math.isfinite, region)):
        assert spatial_score(Rectangle(*region), Rectangle(*message), "planar") == share


def test_overlaps_of_a_message_across_the_antimeridian_add_up() -> None:
    clauses = clauses_of(
        ([1], [-180, 0, 180, 10]), ([1], [170, 0, 180, 10]), ([1], [-10, 0, 10, 9])
    )
    scoring = scoring_of(clauses)
    box = box_of(175, 5, -170, 20)
    assert message_area(box) == 5 * 15 + 10 * 15
    assert overlap_area(clauses.boxes, 0, box) == 15 * 5
    shares = [spatial_share(scoring, clauses, c, True, box, message_area(box)) for c in range(3)]
    assert shares == [15 * 5 / 3600, 0.25, 0.0]
    line = box_of(175, 5, -170, 5)
    assert message_area(line) == 0.0
    shares = [spatial_share(scoring, clauses, c, True, line, 0.0) for c in range(3)]
    assert shares == [1.0, 1.0, 0.0]


def test_a_shape_is_measured_by_its_box_where_it_touches() -> None:
    circle = ShapeArrays(
        np.array([[0.0, 0.0, 1.0]]), np.zeros(2, np.int64), np.zeros(1, np.int64), np.empty((0, 2))
    )
    clauses = clauses_of(([1], [-1, -1, 1, 1]))._replace(
        shape_rows=np.zeros(1, np.int32), shapes=circle
    )
    scoring = scoring_of(clauses)
    for sides, share in (([0, 0, 1, 1], 0.25), ([0.8, 0.8, 1, 1], 0.0), ([0, 0.5, 1, 2], 0.125)):
        box = box_of(*sides)
        assert spatial_share(scoring, clauses, 0, False, box, message_area(box)) == share


# ---- scores -------------------------------------------------------------------------------------


def test_score_is_the_weighted_sum() -> None:
    # [TKDE15] eq. 3 with alpha 0.3: a quarter of the region, 7 of 10 of the weight.
    clauses = clauses_of(([1, 2, 3], REGION))
    box = box_of(2, 0, 6, 1)
    for alpha, score in ((0.3, 0.3 * 0.25 + 0.7 * 0.7), (0.0, 0.7), (1.0, 0.25)):
        scoring = scoring_of(clauses, alpha, weights=[1, 5, 3, 2])
        found = clause_score(scoring, clauses, 0, marks_of(1, 3), False, box, message_area(box))
        assert found == pytest.approx(score, abs=1e-15)


def test_pieces_are_one_region_and_alternatives_are_not() -> None:
    west, east = [170.0, 0, 180, 10], [-180.0, 0, -150, 10]
    clauses = clauses_of(
        ([1, 2], west), ([1, 3], west), ([1, 2], east), ([4], west), slots=[0, 0, 0, 1]
    )
    scoring = scoring_of(clauses, alpha=0.5)
    assert scoring.areas.tolist() == [400.0, 100.0, 400.0, 100.0]
    assert scoring.is_compound.tolist() == [1, 1, 1, 0]
    assert scoring.piece_starts.tolist() == [0, 3, 4]
    assert scoring.piece_rows.tolist() == [0, ~2, 1, 3]
    box = box_of(175, 0, -170, 10)
    area = message_area(box)
    # {1, 2}: 150 of 400 and all of the text; {1, 3}: 50 of 100 and half of it.
    assert slot_score(scoring, clauses, 0, marks_of(1, 2), True, box, area) == 0.5 * 0.375 + 0.5
    assert slot_score(scoring, clauses, 0, marks_of(3), True, box, area) == 0.5 * 0.5 + 0.25
    assert slot_score(scoring, clauses, 0, marks_of(), True, box, area) == 0.25


def test_all_alternatives_may_be_out() -> None:
    clauses = clauses_of(([1, ~3], REGION), ([2, ~3], REGION), slots=[0, 0])
    scoring = scoring_of(clauses)
    box = box_of(1, 1, 1, 1)
    assert slot_score(scoring, clauses, 0, marks_of(1, 2, 3), False, box, 0.0) == -1.0
    assert slot_score(scoring, clauses, 0, marks_of(2), False, box, 0.0) == 1.0


def test_a_slot_is_delivered_once_per_message() -> None:
    clauses = clauses_of(([1], REGION), ([2], REGION), ([1, 2, 3, 4], REGION), slots=[0, 0, 1])
    scoring = scoring_of(clauses, alpha=0.0, threshold=0.5)
    box, last_seen = box_of(1, 1, 1, 1), np.zeros(2, np.int64)

    def delivered(c: int, slot: int, serial: int) -> float:
        score: float = delivered_score(
            scoring, clauses, c, slot, marks_of(1), False, box, 0.0, last_seen, serial
        )
        return score

    assert [delivered(0, 0, 1), delivered(1, 0, 1)] == [1.0, -1.0]
    assert [delivered(1, 0, 2), delivered(0, 0, 2)] == [1.0, -1.0]
    assert delivered(2, 1, 2) == -1.0  # a quarter is less than a half


def test_own_thresholds_become_cuts() -> None:
    clauses = clauses_of(([1], REGION), ([1], REGION))._replace(thresholds=np.array([np.nan, 0.9]))
    cuts = scoring_of(clauses, threshold=0.25).cuts
    assert cuts.tolist() == [0.25 - SCORE_TOLERANCE, 0.9 - SCORE_TOLERANCE]


# ---- the oracle of subscriptions ----------------------------------------------------------------


def test_oracle_by_hand() -> None:
    truth = RankedOracle(Ranking(0.5, 0.6), "planar")
    truth.weights = {"fire": 3.0, "smoke": 2.0, "forest": 5.0, "drill": 1.0}
    words, square = ("fire", "smoke", "forest"), Rectangle(*REGION)
    truth.subscribe(
        Subscription("all", words, region=square),
        Subscription("low", words, region=square, threshold=0.4),
        Subscription("calm", expression="fire and not drill or smoke"),
        Subscription("place", region=Circle(1, 1, 1)),
    )

    def match(text: str, place: Place) -> dict[Any, Any]:
        return {line[1]: line[3] for line in truth.publish(Message("m", text, place=place))}

    assert match("fire smoke", Point(1, 1)) == {"all": 0.75, "low": 0.75, "calm": 1.0, "place": 1.0}
    assert match("smoke drill", Point(4, 2)) == {"low": 0.6, "calm": 1.0, "all": 0.6}
    assert match("drill fire", Rectangle(2, 0, 6, 1)) == {}
    truth.move("low", Rectangle(8, 8, 9, 9))
    truth.unsubscribe("all")
    assert set(match("fire smoke", Point(1, 1))) == {"calm", "place"}
    with pytest.raises(ValueError, match="already"):
        truth.subscribe(Subscription("low", ["fire"]))


def test_oracle_measures_what_crosses_the_antimeridian() -> None:
    region = Rectangle(170, 0, -150, 10)
    assert spatial_score(region, Rectangle(175, 0, -170, 10), "lonlat") == 0.375
    assert spatial_score(region, Point(-180, 5), "lonlat") == 1.0
    assert spatial_score(Rectangle(170, 0, 180, 10), Point(-180, 5), "lonlat") == 1.0
    assert spatial_score(Rectangle(170, 0, 180, 10), Rectangle(-180, 0, -170, 9), "lonlat") == 0.0
    square = Polygon([[(0, 0), (4, 0), (4, 2), (0, 2)]])
    assert spatial_score(square, Rectangle(2, 0, 6, 1), "lonlat") == 0.25


WORLD = [-180.0, -179.0, -90.0, -1.5, 0.0, 45.5, 179.0, 180.0]
island = [(178, -1), (180, -1), (180, 1), (178, 1)]
other = [(-180, -1), (-179, 0), (-180, 1)]
third = [(-150, -1), (-140, 0), (-150, 1)]


@pytest.mark.parametrize("space", ["lonlat", "planar"])
@pytest.mark.parametrize(
    "regions",
    [
        [Circle(x, y, r) for x in WORLD for y in (-90, -89, 0, 60, 90) for r in (0, 5, 1e5, 9e6)],
        [Rectangle(a, -1, b, 1) for a in WORLD for b in WORLD if a <= b],
        [
            Polygon([island]),
            Polygon([island, other]),
            Polygon([island, other, third]),
            Everywhere(),
        ],
    ],
    ids=["circles", "rectangles", "polygons"],
)
def test_oracle_and_production_measure_alike(regions: list[Region], space: Space) -> None:
    """The boxes are computed twice; a box without width has no area, and may be left out."""
    for region in regions:
        found, expected = boxes_around(region, space), boxes(region, space)
        wide = [box for box in expected if box[0] < box[2]] or expected[:1]
        assert len(found) == len(wide)
        for box, other_box in zip(sorted(found), sorted(wide), strict=True):
            assert box == pytest.approx(other_box, rel=1e-15, abs=1e-13), region
