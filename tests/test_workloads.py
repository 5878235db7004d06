from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from earshot.errors import InvalidFile, InvalidInput, InvalidParameter
from earshot.model.arrays import EVERYWHERE_TOKEN, Int32s, Int64s
from earshot.workloads import datasets
from earshot.workloads.synthetic import (
    WORKLOADS,
    Workload,
    as_tables,
    find_workload,
    subscription_table,
)

SMALL = Workload(name="small", n_subscriptions=3_000, n_messages=500, n_words=5_000)


def rows_of(offsets: Int64s, values: Int32s) -> list[Int32s]:
    return [values[a:b] for a, b in pairwise(offsets)]


def test_subscriptions_have_the_numbers_that_were_asked_for() -> None:
    clauses = SMALL.subscriptions()
    lengths = np.diff(clauses.token_offsets)
    assert len(clauses.subscriptions) == 3_000
    assert set(lengths.tolist()) == {1, 2, 3, 4, 5}
    assert 2.8 < lengths.mean() < 3.2
    assert clauses.token_ids.min() >= 1
    assert clauses.token_ids.max() <= 5_000
    assert all(
        len(set(row.tolist())) == len(row)
        for row in rows_of(clauses.token_offsets, clauses.token_ids)
    )
    widths = clauses.boxes[:, 2:] - clauses.boxes[:, :2]
    np.testing.assert_allclose(widths.prod(axis=1), SMALL.region_area_min, rtol=1e-9)


@pytest.mark.parametrize("name", ["headline", "short_range", "long_point"])
def test_messages_have_distinct_tokens_within_the_limits(name: str) -> None:
    workload = find_workload(name).scaled(0, 300)
    messages = workload.messages()
    rows = rows_of(messages.token_offsets, messages.token_ids)
    assert len(rows) == 300
    for row in rows:
        assert len(set(row.tolist())) == len(row)
        assert np.count_nonzero(row == EVERYWHERE_TOKEN) == 1
        assert workload.tokens_min <= len(row) - 1 <= workload.tokens_max
    sides = messages.boxes[:, 2:] - messages.boxes[:, :2]
    np.testing.assert_allclose(sides.prod(axis=1), workload.message_area, atol=1e-15)


def test_the_headline_has_nine_tokens_on_average() -> None:
    messages = WORKLOADS["headline"].scaled(0, 4_000).messages()
    assert 8.9 < np.diff(messages.token_offsets).mean() - 1 < 9.1


def test_a_smaller_workload_is_the_beginning_of_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("earshot.workloads.synthetic.BLOCK_ROWS", 1_000)
    monkeypatch.setattr("earshot.workloads.synthetic.MESSAGE_BLOCK_ROWS", 100)
    whole, part = SMALL.subscriptions(), SMALL.subscriptions(900, 2_100)
    np.testing.assert_array_equal(whole.boxes[900:2_100], part.boxes)
    np.testing.assert_array_equal(np.arange(900, 2_100), part.subscriptions)
    first, last = whole.token_offsets[[900, 2_100]]
    np.testing.assert_array_equal(whole.token_ids[first:last], part.token_ids)
    np.testing.assert_array_equal(whole.token_offsets[900:2_101] - first, part.token_offsets)
    messages, few = SMALL.messages(), SMALL.scaled(n_messages=150).messages()
    np.testing.assert_array_equal(messages.boxes[:150], few.boxes)
    np.testing.assert_array_equal(messages.token_ids[: len(few.token_ids)], few.token_ids)


def test_the_seed_decides_everything() -> None:
    again, other = SMALL.subscriptions(), SMALL.scaled(seed=2).subscriptions()
    np.testing.assert_array_equal(again.boxes, SMALL.subscriptions().boxes)
    assert not np.array_equal(again.boxes, other.boxes)
    assert not np.array_equal(again.token_ids[:1_000], other.token_ids[:1_000])


def test_words_follow_zipf() -> None:
    workload = Workload(name="one", n_subscriptions=40_000, n_words=1_000, keywords_max=1)
    counts = np.bincount(workload.subscriptions().token_ids, minlength=1_001)
    harmonic = (1 / np.arange(1, 1_001)).sum()
    np.testing.assert_allclose(
        counts[1:6] / 40_000, 1 / np.arange(1, 6) / harmonic, rtol=0.1, atol=0.0
    )
    np.testing.assert_allclose(
        workload.frequencies()[1:] / 1e12, 1 / np.arange(1, 1_001) / harmonic, rtol=1e-6
    )


def test_places_gather_in_cities_inside_the_unit_square() -> None:
    places = SMALL.scaled(n_messages=4_000).messages().boxes[:, :2]
    assert places.min() >= 0
    assert places.max() <= 1
    cells = np.bincount((places * 20).astype(int) @ np.array([20, 1]), minlength=400)
    assert cells.max() > 8 * cells.mean()
    assert np.count_nonzero(cells) > 300  # the background lies everywhere


def test_mixed_regions_are_log_uniform() -> None:
    boxes = WORKLOADS["region_mixed"].scaled(20_000, 0).subscriptions().boxes
    exponents = np.log10((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))
    assert -8.01 < exponents.min() < -7.9
    assert -1.1 < exponents.max() < -0.99
    assert -4.6 < np.median(exponents) < -4.4


def test_an_empty_workload_is_empty() -> None:
    nothing = SMALL.scaled(0, 0)
    assert len(nothing.subscriptions().boxes) == 0
    assert nothing.messages().token_offsets.tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"keywords_min": 0}, "keywords_min"),
        ({"tokens_mean": 30.0}, "tokens_mean"),
        ({"region_area_min": 0.5, "region_area_max": 0.1}, "region_area_min"),
        ({"n_words": 10}, "n_words"),
        ({"message_area": float("nan")}, "message_area"),
        ({"locality": 1.5}, "locality"),
        ({"locality": -0.1}, "locality"),
        ({"side_ratio": 0.5}, "side_ratio"),
        ({"side_ratio": float("inf")}, "side_ratio"),
    ],
)
def test_what_cannot_be_generated_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        Workload(name="wrong", **changes)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match="headline"):
        find_workload("nosuch")
    with pytest.raises(InvalidParameter, match="pleiades"):
        datasets.read_messages("nosuch")


def test_tables_say_what_the_arrays_say() -> None:
    workload = SMALL.scaled(50, 40)
    clauses, batch = workload.subscriptions(), workload.messages()
    subscriptions, messages = as_tables(workload)
    words = [[f"w{t}" for t in row] for row in rows_of(clauses.token_offsets, clauses.token_ids)]
    assert subscriptions["keywords"].to_pylist() == words
    assert subscriptions["max_y"].to_pylist() == clauses.boxes[:, 3].tolist()
    spoken = [row.split() for row in messages["text"].to_pylist()]
    tokens = rows_of(batch.token_offsets, batch.token_ids)
    assert spoken == [[f"w{t}" for t in row if t != EVERYWHERE_TOKEN] for row in tokens]
    assert messages["y"].to_pylist() == batch.boxes[:, 1].tolist()
    assert subscriptions["id"].to_pylist() == list(range(50))
    assert messages["id"].type == pa.int64()


def test_a_table_of_some_subscriptions_is_a_part_of_all() -> None:
    whole, part = subscription_table(SMALL), subscription_table(SMALL, 900, 1_200)
    assert part.equals(whole.slice(900, 300))
    assert subscription_table(SMALL, 0, 0).schema == whole.schema


def test_range_messages_have_boxes_in_their_table() -> None:
    _, messages = as_tables(find_workload("short_range").scaled(1, 5))
    assert messages.column_names == ["id", "text", "min_x", "min_y", "max_x", "max_y"]


# ---- real data -----------------------------------------------------------------------------


def test_the_bundled_sample_is_whole() -> None:
    messages = datasets.bundled_messages()
    assert messages.column_names == ["id", "time", "kind", "text", "x", "y"]
    assert messages.num_rows == 6_000
    assert len(pc.unique(messages["id"])) == 6_000
    assert all(messages[name].null_count == 0 for name in messages.column_names)
    assert pc.min(messages["x"]).as_py() > 140
    assert pc.max(messages["y"]).as_py() < -28


def test_drawn_subscriptions_match_the_message_they_were_drawn_from() -> None:
    messages = datasets.bundled_messages().slice(0, 300)
    drawn = datasets.draw_subscriptions(messages, 400, seed=3)
    texts = [text.lower() for text in messages["text"].to_pylist()]
    places = list(zip(messages["x"].to_pylist(), messages["y"].to_pylist(), strict=True))
    for row in drawn.to_pylist():
        assert 1 <= len(set(row["keywords"])) == len(row["keywords"]) <= 5
        assert any(
            row["min_x"] <= x <= row["max_x"]
            and row["min_y"] <= y <= row["max_y"]
            and all(word in text for word in row["keywords"])
            for text, (x, y) in zip(texts, places, strict=True)
        )


def test_drawing_is_seeded_and_spans_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "DRAW_BLOCK_ROWS", 16)
    messages = datasets.bundled_messages().slice(0, 100)
    drawn = datasets.draw_subscriptions(messages, 50, keywords_min=2, keywords_max=2)
    assert pc.unique(pc.list_value_length(drawn["keywords"])).to_pylist() == [2]
    assert drawn.equals(datasets.draw_subscriptions(messages, 50, keywords_min=2, keywords_max=2))
    assert not drawn.equals(
        datasets.draw_subscriptions(messages, 50, seed=2, keywords_min=2, keywords_max=2)
    )


def test_wordless_messages_are_never_picked() -> None:
    messages = pa.table(
        {"text": ["--", "Ünïcode, नमस्ते!", ""], "x": [0.0, 10.0, 0.0], "y": [0.0, 50.0, 0.0]}
    )
    drawn = datasets.draw_subscriptions(messages, 30)
    words = {word for row in drawn["keywords"].to_pylist() for word in row}
    assert words == {"ünïcode", "नमस्ते"}
    with pytest.raises(InvalidInput, match="has a word"):
        datasets.draw_subscriptions(messages.slice(0, 1), 1)
    assert datasets.draw_subscriptions(messages, 0).num_rows == 0


def test_regions_end_at_the_limits_of_the_earth() -> None:
    messages = pa.table({"text": ["a", "b"], "x": [-180.0, 180.0], "y": [-90.0, 90.0]})
    drawn = datasets.draw_subscriptions(
        messages, 40, region_area_min=0.01, region_area_max=0.01
    ).to_pylist()
    sides = {(row["min_x"], row["min_y"], row["max_x"], row["max_y"]) for row in drawn}
    assert sides == {(-180.0, -90.0, -162.0, -81.0), (162.0, 81.0, 180.0, 90.0)}


def test_datasets_are_read_from_the_directory_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = {
        "id": ["a", "b"], "time": [0, 1], "lon": [1.0, 2.0], "lat": [3.0, 4.0],
        "kind": ["x", "y"], "text": ["one", "two"],
    }  # fmt: skip
    pq.write_table(pa.table(reports), tmp_path / "pleiades_places.parquet")
    (tmp_path / "boston_311.parquet").write_bytes(b"PAR1 not")
    monkeypatch.setenv("EARSHOT_DATA", str(tmp_path))
    assert datasets.available_datasets() == ["boston", "pleiades"]
    points = datasets.read_messages("pleiades")
    assert points.column_names == ["id", "time", "kind", "text", "x", "y"]
    assert points["x"].to_pylist() == [1.0, 2.0]
    with pytest.raises(InvalidFile, match="boston_311"):
        datasets.read_messages("boston")


def test_geonames_put_all_names_into_the_text(tmp_path: Path) -> None:
    places = {
        "geonameid": [7], "name": ["Wien"], "lat": [48.2], "lon": [16.4], "country": ["AT"],
        "population": [2], "alternate_names": ["Vienna,Вена"],
    }  # fmt: skip
    pq.write_table(pa.table(places), tmp_path / "geonames_cities500.parquet")
    (row,) = datasets.read_messages("geonames", tmp_path).to_pylist()
    assert row == {"id": "7", "kind": "AT", "text": "Wien Vienna Вена", "x": 16.4, "y": 48.2}


def test_a_missing_data_directory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EARSHOT_DATA", raising=False)
    with pytest.raises(InvalidParameter, match="EARSHOT_DATA"):
        datasets.read_messages("nsw")
    with pytest.raises(InvalidParameter, match="does not exist"):
        datasets.read_messages("nsw", tmp_path / "nowhere")
