from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import bench_rows
from bench_rows import FACTS, Rows, images_of_suite, target_values, write_rows
from earshot.bench import context, operations, points, report, reporting, suites
from earshot.bench.checksums import AnswersDiffer
from earshot.bench.competitors import IndexCompetitor
from earshot.bench.plots import Image, draw, points_table
from earshot.bench.points import GROUPS, POINTS, TOKEN_ORDERS, Variant
from earshot.bench.profiles import PROFILES
from earshot.bench.results import shared_costs
from earshot.bench.suites import SUITES
from earshot.bench.targets import target_table
from earshot.errors import InvalidParameter
from earshot.indexes import STRUCTURES
from earshot.indexes.answers import Matches
from earshot.indexes.contract import Index, Parameters
from earshot.indexes.linear_scan.index import LinearScan, RankedLinearScan
from earshot.model.arrays import ClauseArrays, MessageArrays
from earshot.workloads import synthetic

FIGURES = [suite.name for suite in SUITES.values() if suite.plot and not suite.columns]
TREES = ("rt_tree", "rt_plus_tree", "rt_plus_plus_tree")
STAND_INS = (*TREES, "ir_tree", "keyword_first", "spatial_first", "block_trie")


@dataclass(frozen=True)
class OrderedParameters(Parameters):
    """A choice that makes no difference to a scan."""

    token_order: str = "local"

    def __post_init__(self) -> None:
        if self.token_order not in TOKEN_ORDERS:
            raise InvalidParameter(f"token_order is {self.token_order!r}")


class OrderedScan(LinearScan):
    """Stands for a tree: real ones take long to compile, and have tests of their own."""

    parameters_type = OrderedParameters


def stand_in(name: str, base: type[Index] = OrderedScan) -> type[Index]:
    return type(name, (base,), {"name": name})


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Put the registry back as it was, in its order, which taking entries out changes."""
    before = dict(STRUCTURES)
    yield
    STRUCTURES.clear()
    STRUCTURES.update(before)


def register(name: str, **forms: type[Index] | None) -> None:
    """Put another type in a structure's place."""
    STRUCTURES[name] = replace(STRUCTURES[name], **forms)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans in the place of all indexes, few ranked settings, small blocks of messages."""
    for name in STAND_INS:
        register(name, boolean=stand_in(name))
    for name in STRUCTURES:
        is_ranked = name in ("linear_scan", "block_lists", "rt_tree")
        register(name, ranked=RankedLinearScan if is_ranked else None)
    monkeypatch.setattr(suites, "ALPHAS", (0.1, 0.5))
    monkeypatch.setattr(suites, "THRESHOLDS", (0.6, 0.9))
    monkeypatch.setattr(synthetic, "MESSAGE_BLOCK_ROWS", 64)
    monkeypatch.setattr(synthetic, "BLOCK_ROWS", 1_024)


def measured(tmp_path: Path, *suites: str, **options: Any) -> tuple[Rows, list[str]]:
    options = {"n_subscriptions": 600, "n_messages": 16} | options
    return bench_rows.measured(tmp_path, *suites, **options)


def kinds(rows: list[dict[str, Any]], *names: str) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in names) for row in rows}


def test_each_index_is_built_once_and_measured_at_every_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[str, int]] = []
    build = IndexCompetitor.build

    def counting(self: IndexCompetitor, clauses: Any, space: Any, n_tokens: int) -> None:
        built.append((f"{self.name} {vars(self.parameters)}", len(clauses.subscriptions)))
        build(self, clauses, space, n_tokens)

    monkeypatch.setattr(IndexCompetitor, "build", counting)
    monkeypatch.setattr(context, "compile_seconds", lambda *_: 0.0)
    monkeypatch.setattr(operations, "warm_up_changes", lambda *_: None)
    names = ("token_orders", "rt_trees", "rt_rivals", "rt_updates", "rt_growth")
    rows, _ = measured(tmp_path, *names, n_subscriptions=1_200)
    by_suite = {suite: [row for row in rows if row["suite"] == suite] for suite in names}
    assert {suite: len(of_suite) for suite, of_suite in by_suite.items()} == {
        "token_orders": 2 * 4 * 16,
        "rt_trees": 3 * 16,
        "rt_rivals": 2 * 5 * 16,
        "rt_updates": 4 * 16,
        "rt_growth": 2 * 16,
    }
    # Eight orders, rt_tree, four rivals; five on the other data; the smaller size.
    assert len(built) == 8 + 1 + 4 + 5 + 1
    # The default parameters of a stand-in are those of the order that was asked for.
    assert sorted(set(built)) == sorted(
        [
            *((f"{tree} {{'token_order': '{order}'}}", 1_200)
              for tree in TREES[1:] for order in TOKEN_ORDERS),
            *((f"{name} {{'token_order': 'local'}}", 1_200)
              for name in ("rt_tree", "ir_tree", "keyword_first", "spatial_first", "block_trie")),
            ("rt_plus_plus_tree {'token_order': 'local'}", 1_000),
        ]
    )  # fmt: skip
    assert kinds(by_suite["token_orders"], "competitor", "token_order") == {
        (tree, order) for tree in TREES[1:] for order in TOKEN_ORDERS
    }
    expected = {(f"tweets_{point.group}", point.n_tokens) for point in POINTS}
    assert kinds(by_suite["rt_trees"], "workload", "message_tokens") == expected
    assert {row["n_subscriptions"] for row in by_suite["rt_growth"]} == {1_000, 1_200}
    for row in by_suite["rt_trees"]:
        assert row["counters_per_message"]["candidates"] == 1_200
        assert row["prefixes"]["8"]["candidates"] == 1_200
        assert row["prefixes"]["8"]["ms"] > 0
        assert row["index_bytes_per_subscription"] > 0
    for point in expected:
        of_point = [r for r in rows if "prefixes" in r and r["n_subscriptions"] == 1_200
                    and (r["workload"], r["message_tokens"]) == point]  # fmt: skip
        assert len({row["checksums"]["8"] for row in of_point}) == 1
    assert sum(row["answers_per_message"] for row in by_suite["rt_trees"]) > 0


def test_what_is_not_there_is_left_out_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del STRUCTURES["rt_plus_tree"]
    rows, heard = measured(
        tmp_path, "rt_trees", "ranking_alpha", competitors=["rt_tree"], n_subscriptions=100
    )
    assert {row["competitor"] for row in rows if row["suite"] == "rt_trees"} == {"rt_tree"}
    told = "\n".join(heard)
    assert "rt_plus_tree local left out, there is no index of that name" in told
    assert "rt_plus_plus_tree local left out, it is not among the competitors" in told
    for name in ("block_lists", "rt_tree"):
        register(name, ranked=None)
    rows, heard = measured(tmp_path, "ranking_threshold")
    assert rows == []
    assert "skipped" in heard[0]


class Forgetful(OrderedScan):
    """Loses an answer."""

    def match(self, messages: MessageArrays, *, n_threads: int = 1) -> Matches:
        found = super().match(messages, n_threads=n_threads)
        n = max(0, len(found.subscriptions) - 1)
        return found._replace(
            offsets=np.minimum(found.offsets, n), subscriptions=found.subscriptions[:n]
        )


class Clinging(OrderedScan):
    """Keeps what is removed."""

    def remove(self, slots: npt.ArrayLike) -> None:
        pass


class Misplacing(OrderedScan):
    """Puts new subscriptions where nobody is."""

    def insert(self, clauses: ClauseArrays) -> None:
        super().insert(clauses._replace(boxes=clauses.boxes + 1e6))


def test_a_wrong_tree_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register("rt_plus_tree", boolean=stand_in("rt_plus_tree", Forgetful))
    with pytest.raises(AnswersDiffer, match=r"tweets_.*tokens.*rt_plus_tree local"):
        measured(tmp_path, "rt_trees")


@pytest.mark.parametrize("wrong", [Clinging, Misplacing])
def test_updates_are_compared_with_the_other_trees_and_with_a_fresh_index(
    wrong: type[Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register("rt_tree", boolean=stand_in("rt_tree", wrong))
    common: dict[str, Any] = {"n_subscriptions": 160, "n_messages": 16}
    # With large regions, a few changes are seen.
    for group in GROUPS:
        name = f"tweets_{group}"
        workload = replace(synthetic.WORKLOADS[name], n_words=2_000, region_area_max=1.0,
                           region_area_min=0.5)  # fmt: skip
        monkeypatch.setitem(synthetic.WORKLOADS, name, workload)
    monkeypatch.setattr(points, "CHANGED", (Variant("rt_tree"), Variant("block_trie")))
    with pytest.raises(AnswersDiffer, match="operations"):
        measured(tmp_path, "rt_updates", **common)
    # One index alone disagrees with nobody, but with the subscriptions that are left.
    monkeypatch.setattr(points, "CHANGED", (Variant("rt_tree"),))
    with pytest.raises(AnswersDiffer, match=r"after all operations.* rt_tree .*fresh index"):
        measured(tmp_path, "rt_updates", **common)


def test_operations_come_in_the_papers_shares(tmp_path: Path) -> None:
    rows, _ = measured(tmp_path, "rt_updates")
    assert kinds(rows, "competitor") == {(name,) for name in (*TREES, "block_trie")}
    for row in rows:
        assert row["n_operations"] == 100
        assert row["n_messages"] == 80
        assert row["operations_per_s"] > 0
        assert row["insert_us"] > 0
        assert row["remove_us"] > 0
    for point in POINTS:
        of_point = [row for row in rows if row["message_tokens"] == point.n_tokens
                    and row["workload"].endswith(point.group)]  # fmt: skip
        assert len({row["checksum"] for row in of_point}) == 1


def test_a_stage_that_ends_early_still_makes_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "OPERATIONS_PER_LOOK", 10)
    smoke = PROFILES["smoke"]
    hasty = replace(smoke, figures=replace(smoke.figures, operations_budget_s=0.0))
    monkeypatch.setitem(PROFILES, "smoke", hasty)
    rows, _ = measured(tmp_path, "rt_updates")  # compared with a fresh index at the end
    assert {row["n_operations"] for row in rows} == {10}


def test_ranked_indexes_are_measured_in_all_groups(tmp_path: Path) -> None:
    rows, _ = measured(tmp_path, "ranking_alpha", "ranking_threshold")
    by_alpha = [row for row in rows if row["suite"] == "ranking_alpha"]
    assert kinds(by_alpha, "competitor", "alpha", "threshold") == {
        (name, alpha, 0.6) for name in ("block_lists", "rt_tree") for alpha in (0.1, 0.5)
    }
    by_threshold = [row for row in rows if row["suite"] == "ranking_threshold"]
    assert kinds(by_threshold, "alpha", "threshold") == {(0.5, 0.6), (0.5, 0.9)}
    assert kinds(rows, "workload") == {(f"tweets_{group}",) for group in GROUPS}

    def answers(alpha: float, threshold: float) -> float:
        return sum(float(row["answers_per_message"]) for row in rows
                   if (row["alpha"], row["threshold"]) == (alpha, threshold))  # fmt: skip

    assert answers(0.1, 0.6) > 0
    assert answers(0.5, 0.9) < answers(0.5, 0.6)
    # A setting of both suites is measured once.
    shared = [row for row in rows if (row["alpha"], row["threshold"]) == (0.5, 0.6)]
    assert len({json.dumps(row["elapsed_s"]) for row in shared}) == len(shared) / 2


def told(suite: str, name: str, order: str | None = None, **fields: Any) -> dict[str, Any]:
    work = {"nodes": 1.0, "candidates": 10.0, "ms": 1.0} | fields.pop("work", {})
    basics = {
        "workload": "tweets_short_point", "message_tokens": 6, "n_subscriptions": 1_000,
        "n_threads": 1, "n_messages": 8, "messages_per_s": 1_000.0, "checksum": "a",
        "answers_per_message": 1.0, "prefixes": {"8": work}, "checksums": {"8": "a"},
    }  # fmt: skip
    run_facts = FACTS | {"started": fields.pop("started", "2026-01-01")}
    return {**basics, "suite": suite, "competitor": name, "token_order": order, **fields,
            "run": run_facts}  # fmt: skip


def test_a_report_shows_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def drawing(path: Path, image: Image) -> None:
        drawn.append(path.name)
        if image.name == "rt_trees":  # one is enough, a second each
            draw(path, image)

    monkeypatch.setattr(reporting, "draw", drawing)
    rows = [
        told(suite, tree, "local", workload=f"{data}_{group}", alpha=0.5, threshold=0.6,
             message_tokens=n_tokens, n_subscriptions=size, operations_per_s=50.0)
        for suite in FIGURES
        for tree in TREES[1:]
        for data in ("tweets", "usa")
        for group in GROUPS
        for n_tokens in (6, 20)
        for size in (500, 1_000)
    ]  # fmt: skip
    write_rows(tmp_path / "some.jsonl", rows)
    written = report(tmp_path).read_text()
    assert sorted(drawn) == sorted(
        f"regular-{name}.png"
        for name in (
            "token_orders-rt_plus_tree", "token_orders-rt_plus_plus_tree", "rt_trees",
            "rt_rivals-tweets", "rt_rivals-usa", "rt_growth", "rt_updates", "ranking_alpha",
            "ranking_threshold", "cikm15_growth",
            *(f"cikm15_{figure}-{data}" for figure in ("probing", "parts", "rivals")
              for data in ("tweets", "usa")),
        )
    )  # fmt: skip
    assert all(f"({image})" in written for image in drawn)
    assert (tmp_path / "regular-rt_trees.png").read_bytes().startswith(b"\x89PNG")
    assert "| short point: ms per message | 6 | 20 | answers |" in written
    assert "| long range: operations/s | 6 | 20 | answers |" in written
    assert "| candidates of `rt_plus_plus_tree` over `rt_plus_tree` | ≤ 1.000 x |" in written


def test_targets_tell_the_worst_point() -> None:
    rows = [
        told("rt_trees", "rt_tree", work={"candidates": 100.0}),
        told("rt_trees", "rt_plus_tree", "local", work={"candidates": 50.0},
             index_bytes_per_subscription=80.0),
        told("rt_trees", "rt_plus_plus_tree", "local", work={"candidates": 20.0}),
        told("rt_trees", "rt_plus_tree", "local", message_tokens=20, work={"candidates": 50.0}),
        told("rt_trees", "rt_plus_plus_tree", "local", message_tokens=20,
             work={"candidates": 60.0}, messages_per_s=400.0),
        told("rt_trees", "rt_plus_plus_tree", "local", workload="tweets_long_point",
             messages_per_s=1.0),
        # An older run, and a smaller size, do not count.
        told("rt_trees", "rt_tree", started="2025-01-01", work={"candidates": 1.0}),
        told("rt_trees", "rt_tree", n_subscriptions=10, work={"candidates": 1.0}),
        told("token_orders", "rt_plus_tree", "local", work={"candidates": 9.0}),
        told("token_orders", "rt_plus_tree", "idf", work={"candidates": 10.0}),
        told("token_orders", "rt_plus_tree", "df", work={"candidates": 90.0}),
        told("token_orders", "rt_plus_plus_tree", "local", work={"nodes": 5.0}),
        told("token_orders", "rt_plus_plus_tree", "random", work={"nodes": 2.0}),
        told("ranking_alpha", "block_lists", alpha=0.1, threshold=0.6),
        told("ranking_alpha", "rt_tree", alpha=0.1, threshold=0.6, messages_per_s=250.0),
        told("ranking_threshold", "block_lists", alpha=0.5, threshold=0.9, n_messages=32,
             checksum="b", work={"ms": 4.0}),
        told("ranking_threshold", "rt_tree", alpha=0.5, threshold=0.9, work={"ms": 2.0}),
    ]  # fmt: skip
    assert target_values(rows) == {
        "candidates of `rt_plus_tree` over `rt_tree`": 0.5,
        "candidates of `rt_plus_plus_tree` over `rt_plus_tree`": pytest.approx(1.2),
        "order local over the best other, `rt_plus_tree`: candidates": pytest.approx(0.9),
        "order local over the best other, `rt_plus_plus_tree`: nodes + candidates": pytest.approx(
            1.25
        ),
        "short message, `rt_plus_plus_tree`": pytest.approx(2.5),
        "size at 10 M, `rt_plus_tree`": pytest.approx(0.8),
        # On the messages that both answered, not on those of each.
        "ranked default over the best other: short point": pytest.approx(0.5),
    }
    text = target_table(rows, "figures")
    assert "≤ 2.000 ms | 2.500 ms | **no** | 1,000 | tweets_short_point, 20 tokens |" in text
    assert "| size at 10 M, `rt_plus_tree` | ≤ 0.79 GB | 0.80 GB | **no** |" in text
    assert target_table([told("match", "rt_tree")], "figures") == ""


def test_work_is_compared_on_the_same_messages_only() -> None:
    few, many = {"ms": 8}, {"ms": 32}
    short = told("rt_trees", "a", prefixes={"8": few}, checksums={"8": "x"})
    long = told("rt_trees", "b", prefixes={"8": few, "32": many}, checksums={"8": "x", "32": "y"})
    assert shared_costs(short, long) == (few, few)
    assert shared_costs(long, long) == (many, many)
    other = told("rt_trees", "c", prefixes={"8": few}, checksums={"8": "of another seed"})
    assert shared_costs(short, other) is None
    assert shared_costs(short, other, same_answers=False) == (few, few)


def test_figures_show_the_largest_size_except_growth() -> None:
    rows = [told("rt_trees", "rt_tree", n_subscriptions=size) for size in (500, 1_000)]
    (image,) = images_of_suite("rt_trees", rows)
    assert [row["n_subscriptions"] for row in image.rows] == [1_000]
    (image,) = images_of_suite("rt_growth", rows)
    assert "| 6 tokens | 1 | 1 |" in points_table(image)


def test_every_figure_belongs_to_a_suite_and_to_the_smoke_profile() -> None:
    assert PROFILES["smoke"].by_name == ()
    for profile in PROFILES.values():
        for beginning in (*profile.by_name, *profile.without):
            assert any(name.startswith(beginning) for name in SUITES)
        assert not any(name.startswith(("tweets_", "usa_")) for name in profile.workloads)
