from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_rows import measured, target_values, write_rows
from earshot.bench import competitors, report, run, running
from earshot.bench.checksums import (
    AnswersDiffer,
    Pairs,
    check_agreement,
    checksum,
    prefix_lengths,
)
from earshot.bench.commands import main
from earshot.bench.competitors import IndexCompetitor, new_competitor
from earshot.bench.context import Context, run_command
from earshot.bench.measuring import (
    Contender,
    Effort,
    case_of,
    first_pass,
    row_of,
    time_in_turns,
)
from earshot.bench.placement import Whole
from earshot.bench.profiles import PROFILES, find_profile
from earshot.bench.reporting import PAGE, page_text
from earshot.bench.results import RESULTS, merged_rows
from earshot.bench.suites import SUITES
from earshot.bench.targets import TARGETS, at_most, evaluate, target_table
from earshot.errors import EarshotError, InvalidFile, InvalidParameter
from earshot.indexes import STRUCTURES, index_type, structures_of
from earshot.indexes.answers import Counters, Matches
from earshot.model.arrays import MessageArrays
from earshot.workloads.synthetic import find_workload

ROOT = Path(__file__).resolve().parents[1]

# Enough to compare; the indexes have tests of their own, and compiling them all takes long.
FEW = ["linear_scan", "spatial_first", "duckdb", "duckdb_grid"]


class Forgetful(IndexCompetitor):
    """Loses the last answer of every batch that has some."""

    def __init__(self) -> None:
        super().__init__(index_type("linear_scan"))
        self.name = "forgetful"

    def match(self, messages: MessageArrays, n_threads: int = 1) -> Matches:
        found = super().match(messages, n_threads)
        n = max(0, len(found.subscriptions) - 1)
        return Matches(np.minimum(found.offsets, n), found.subscriptions[:n], found.counters)


def test_a_checksum_does_not_depend_on_order_or_batches() -> None:
    matches = Matches(np.array([0, 2, 2, 3]), np.array([7, 5, 5], np.int32), Counters(0, 0, 3))
    shuffled = Pairs(np.array([2, 0, 0]), np.array([5, 5, 7], np.int32))
    assert checksum(matches) == checksum(shuffled)
    first = checksum(Pairs(np.array([0, 0]), np.array([7, 5], np.int32)))
    rest = checksum(Pairs(np.array([0]), np.array([5], np.int32)), first_message=2)
    assert (first + rest) % 2**64 == checksum(matches)
    assert checksum(Pairs(np.array([0]), np.array([5], np.int32))) != rest


def test_competitors_are_compared_on_the_messages_that_they_share() -> None:
    check_agreement("w", {"slow": {8: 1}, "fast": {8: 1, 64: 2}})
    with pytest.raises(AnswersDiffer, match=r"'w'.*first 8 messages.*slow .*fast "):
        check_agreement("w", {"slow": {8: 1}, "fast": {8: 3, 64: 2}})


def test_every_index_competes_without_being_named_here() -> None:
    names = competitors.competitor_names()
    assert set(structures_of("boolean")) < set(names)
    for name in names:
        competitor = new_competitor(name)
        assert competitor.name == name
        competitor.close()


def test_a_new_structure_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = replace(STRUCTURES["linear_scan"], name="toy")
    monkeypatch.setitem(STRUCTURES, "toy", toy)
    rows, _ = measured(
        tmp_path, "match", n_subscriptions=300, n_messages=10, workloads=["headline"],
        competitors=["linear_scan", "toy"],
    )  # fmt: skip
    assert [row["competitor"] for row in rows] == ["linear_scan", "toy"]
    context = Context(find_profile("smoke"), competitors.competitor_names(), 1, None, print)
    assert "toy" in context.focus()
    assert "toy" in {trial.variant.name for trial in SUITES["ranking_alpha"].plan(context)}


def test_prefixes_end_with_all_messages() -> None:
    assert prefix_lengths(5) == [5]
    assert prefix_lengths(32) == [8, 32]
    assert prefix_lengths(100) == [8, 32, 100]


def test_a_slow_competitor_answers_fewer_messages() -> None:
    case = case_of(find_workload("headline").scaled(200, 100))
    hasty, patient = (Contender(new_competitor("linear_scan")) for _ in range(2))
    for contender, budget_s in ((hasty, 0.0), (patient, 60.0)):
        contender.competitor.build(case.clauses, case.space, case.n_tokens)
        first_pass(contender, case.messages, budget_s)
    assert hasty.n_messages == 8
    assert patient.n_messages == 100
    assert hasty.checksums[8] == patient.checksums[8]


def test_a_smoke_run_writes_rows_that_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With time for all messages, however busy the machine is.
    smoke = PROFILES["smoke"]
    patient = replace(smoke, effort=smoke.effort._replace(budget_s=60.0))
    monkeypatch.setitem(PROFILES, "smoke", patient)
    rows, _ = measured(
        tmp_path, "threads", "match", n_subscriptions=3_000, n_messages=70,
        workloads=["headline", "short_range"], competitors=FEW,
    )  # fmt: skip
    matched = [row for row in rows if row["suite"] == "match"]
    assert {row["competitor"] for row in matched} == set(FEW)
    for name in ("headline", "short_range"):
        of_workload = [row for row in matched if row["workload"] == name]
        assert len({row["checksum"] for row in of_workload}) == 1
        assert of_workload[0]["answers_per_message"] > 0
    scan = next(row for row in matched if row["competitor"] == "linear_scan")
    assert scan["counters_per_message"]["candidates"] == 3_000
    assert scan["n_messages"] == 70
    assert scan["latency_us"]["p99"] >= scan["latency_us"]["p50"] > 0
    assert scan["messages_per_s"] >= scan["messages_per_s_mean"]
    assert scan["run"]["seed"] == 1
    assert scan["run"]["versions"]["numba"]
    threads = [row for row in rows if row["suite"] == "threads"]
    assert {row["n_threads"] for row in threads} >= {1, 2}
    assert {row["speedup"] for row in threads if row["n_threads"] == 1} == {1.0}
    assert {row["competitor"] for row in threads} == {"linear_scan", "spatial_first"}


def test_the_default_is_timed_on_the_messages_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("earshot.bench.measuring.default_structure", lambda _: "spatial_first")
    case = case_of(find_workload("headline").scaled(500, 100))
    default, other = (Contender(new_competitor(n)) for n in ("spatial_first", "linear_scan"))
    for contender, budget_s in ((default, 60.0), (other, 0.0)):
        contender.competitor.build(case.clauses, case.space, case.n_tokens)
        first_pass(contender, case.messages, budget_s)
    asked: list[tuple[str, int]] = []

    def timed(contender: Contender, messages: MessageArrays) -> float:
        asked.append((contender.name, contender.n_messages))
        return 2.0 if contender.name == "linear_scan" else 0.5

    monkeypatch.setattr("earshot.bench.measuring.timed_pass", timed)
    effort = Effort(budget_s=60.0, repetitions=2, n_latency=0)
    time_in_turns(case, [default, other], effort)
    assert asked == 2 * [("spatial_first", 100), ("linear_scan", 8), ("spatial_first", 8)]
    row = row_of(case, other)
    assert (row["messages_per_s"], row["default_messages_per_s"]) == (4.0, 16.0)
    assert "default_messages_per_s" not in row_of(case, default)
    asked.clear()
    other.elapsed_s.clear()
    time_in_turns(case, [other], effort._replace(budget_s=1.5))
    assert asked == [("linear_scan", 8)]  # two passes would take four seconds, three are allowed


def test_changes_are_measured_on_the_index_and_through_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("earshot.bench.churn.STAGE_SHARE", 0.2)
    rows, _ = measured(
        tmp_path, "churn", "command_line", n_subscriptions=2_000, n_messages=40,
        competitors=["linear_scan", "spatial_first"],
    )  # fmt: skip
    churned = [row for row in rows if row["suite"] == "churn"]
    kinds = [(row["competitor"], row["changes_per_call"]) for row in churned]
    names = ("linear_scan", "spatial_first", "engine")
    called = [(name, n) for name in names for n in (100, 1_000)]
    assert sorted(kinds) == sorted([*called, ("engine", 1)])
    (single,) = (row for row in churned if row["changes_per_call"] == 1)
    for call in ("publish_us", "subscribe_us", "unsubscribe_us"):
        assert 0 < single[call]["p50"] <= single[call]["p99"]
    indexed = [row for row in churned if row["competitor"] != "engine"]
    for per_call, n_pending in ((1_000, 401), (100, 801)):
        of_stage = [row for row in indexed if row["changes_per_call"] == per_call]
        assert {row["n_inserted"] for row in of_stage} == {n_pending}
        assert len({row["checksum"] for row in of_stage}) == 1
        assert all(row["slowdown"] > 0 for row in of_stage)
    assert len({row["checksum"] for row in indexed}) == 2
    assert all(row["changes_per_s"] > 0 for row in churned)
    (line,) = (row for row in rows if row["suite"] == "command_line")
    assert line["n_messages"] == 400
    assert line["answers_per_message"] > 0
    assert line["share_of_index_rate"] == pytest.approx(
        line["messages_per_s"] / line["index_alone_messages_per_s"]
    )


def test_the_command_line_must_find_what_the_index_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetting(arguments: list[str]) -> dict[str, Any]:
        facts = run_command(arguments)
        return {**facts, "n_updates": facts.get("n_updates", 0) - 1}

    monkeypatch.setattr("earshot.bench.matching.run_command", forgetting)
    with pytest.raises(AnswersDiffer, match="earshot match"):
        measured(tmp_path, "command_line", n_subscriptions=1_000, n_messages=20)
    with pytest.raises(EarshotError, match="is not a saved index"):
        run_command(["index", "info", str(tmp_path)])


@pytest.mark.parametrize("name", ["long_range", "region_mixed"])
def test_duckdb_agrees_where_its_query_differs(name: str) -> None:
    case = case_of(find_workload(name).scaled(3_000, 30))
    sums = set()
    for competitor in map(new_competitor, ("linear_scan", "duckdb", "duckdb_grid")):
        competitor.build(case.clauses, case.space, case.n_tokens)
        answers = competitor.match(case.messages)
        sums.add(checksum(answers))
        competitor.close()
    assert len(sums) == 1
    assert sums != {0}


def test_a_wrong_competitor_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(competitors.RIVALS, "forgetful", f"{__name__}:Forgetful")
    with pytest.raises(AnswersDiffer, match="forgetful"):
        measured(
            tmp_path, "match", n_subscriptions=3_000, n_messages=70, workloads=["headline"],
            competitors=["linear_scan", "forgetful"],
        )  # fmt: skip
    (path,) = tmp_path.glob("*.jsonl")
    assert path.read_text() == ""


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        running._new_file(tmp_path, "smoke").close()
    assert len(list(tmp_path.glob("*-smoke*.jsonl"))) == 2


def test_text_and_real_data_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EARSHOT_DATA", raising=False)
    rows, _ = measured(
        tmp_path, "text", "real", n_subscriptions=500, n_messages=20,
        competitors=["linear_scan", "duckdb"],
    )  # fmt: skip
    assert {row["workload"] for row in rows if row["suite"] == "text"} == {"headline", "bundled"}
    real = [row for row in rows if row["suite"] == "real"]
    assert len({row["checksum"] for row in real}) == 1
    assert real[0]["answers_per_message"] > 1


def test_shards_give_the_answers_of_one_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EARSHOT_DATA", raising=False)
    sizes = {"n_subscriptions": 1_500, "n_messages": 30}
    rows, _ = measured(tmp_path, "placement", **sizes, competitors=[])
    assert [row["competitor"] for row in rows] == ["plan", "keyword_hash", "kd_tree"]
    assert {(row["workload"], row["n_shards"], row["n_messages"]) for row in rows} == {
        ("headline", 8, 300)
    }
    assert len({row["checksum"] for row in rows}) == 1
    for row in rows:
        assert row["balance_of_candidates"] >= 1
        assert 0 < row["shards_per_message"] <= 8
    whole = Whole(candidates=1, answers=-1, elapsed_s=1.0, checksum=0)
    monkeypatch.setattr("earshot.bench.placement.measure_whole", lambda *_, **__: whole)
    with pytest.raises(AnswersDiffer, match="8 shards by plan"):
        measured(tmp_path, "placement", **sizes, competitors=[])


def test_spark_suites_are_skipped_without_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("earshot.bench.suites.find_spec", lambda _: None)
    rows, heard = measured(tmp_path, "spark_stream", competitors=[])
    assert rows == []
    assert "skipped, PySpark is not installed" in heard[0]


def test_wrong_names_are_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="linear_scan"):
        run("smoke", competitors=["nosuch"], results=tmp_path)
    with pytest.raises(InvalidParameter, match="churn"):
        run("smoke", suites=["nosuch"], results=tmp_path)
    with pytest.raises(InvalidParameter, match="regular"):
        run("nosuch", results=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_report_has_tables_plots_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--n-subscriptions", "300", "--n-messages", "10", "--results", str(tmp_path)]
    suites = ["--suites", "match", "growth", "many", "--competitors", "linear_scan"]
    assert main(["run", *common, *suites, "--workloads", "headline"]) == 0
    page = tmp_path / "docs" / "page.md"
    assert main(["report", "--results", str(tmp_path), "--page", str(page)]) == 0
    told = (tmp_path / "REPORT.md").read_text()
    assert "| headline | linear_scan |" in told
    assert "### growth (300 subscriptions)" in told
    assert "most GB while building" in told
    for suite in ("match", "growth"):
        assert (tmp_path / f"smoke-{suite}.png").read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text == page_text(tmp_path)
    assert "| linear_scan |" in text
    assert "## Targets" in text
    assert main(["report", "--results", str(tmp_path / "none")]) == 1
    assert "holds no results" in capsys.readouterr().err


def told(suite: str, competitor: str, **fields: Any) -> dict[str, Any]:
    run_facts = {"started": fields.pop("started", "2026-01-01"), "profile": "regular"}
    basics = {"workload": "headline", "n_subscriptions": 1_000, "n_threads": 1, "n_messages": 8}
    return {"suite": suite, "competitor": competitor, **basics, **fields, "run": run_facts}


def test_the_newest_row_of_each_kind_is_reported(tmp_path: Path) -> None:
    rows = {
        "a": [told("match", "duckdb", started="2026-01-02", messages_per_s=2.0)],
        "b": [
            told("match", "duckdb", messages_per_s=1.0),
            told("match", "linear_scan", messages_per_s=3.0),
            told("match", "duckdb", n_subscriptions=5, messages_per_s=4.0),
            told("churn", "engine", changes_per_call=100),
            told("churn", "engine", changes_per_call=1_000),
        ],
        "empty": [],
    }
    for name, lines in rows.items():
        write_rows(tmp_path / f"{name}.jsonl", lines)
    merged = merged_rows(tmp_path)
    assert list(merged) == ["regular"]
    assert sorted(row.get("messages_per_s", 0.0) for row in merged["regular"]) == [0, 0, 2, 3, 4]
    assert {row["file"] for row in merged["regular"]} == {"a.jsonl", "b.jsonl"}


def test_targets_are_told_at_the_largest_size() -> None:
    rows = [
        told("match", "duckdb", messages_per_s=10.0, default_messages_per_s=50.0),
        told("match", "duckdb", n_subscriptions=9_000, messages_per_s=10.0,
             default_messages_per_s=400.0),
        told("match", "linear_scan", messages_per_s=10.0, default_messages_per_s=90.0),
        told("match", "spatial_first", messages_per_s=10.0, default_messages_per_s=5.0),
        told("match", "keyword_first", workload="keywords_2", messages_per_s=10.0,
             default_messages_per_s=20.0),
        told("growth", "block_trie", messages_per_s=100.0, answers_per_message=10.0),
        told("growth", "block_trie", n_subscriptions=9_000, messages_per_s=20.0,
             answers_per_message=40.0),
        told("threads", "block_trie", speedup=1.0),
        told("threads", "block_trie", n_threads=2, speedup=1.9),
        told("churn", "block_trie", changes_per_call=1_000, changes_per_s=7e5, slowdown=1.02),
        told("churn", "engine", changes_per_call=100, changes_per_s=2e5),
        told("spark_batch", "earshot_lists", share_of_engine=0.4, over_spark_sql=31.0),
        told("spark_stream", "earshot", messages_per_s=3e4, small_batch_p50_ms=601.0),
        told("placement", "plan", workload="nsw", n_shards=8, candidates_to_whole=1.2),
        told("placement", "plan", workload="nsw", n_shards=64, candidates_to_whole=1.9),
    ]  # fmt: skip
    assert target_values(rows) == {
        "rate over `duckdb`": 40.0,
        "rate over the best other index: headline": 0.5,
        "rate over the best other index: keywords": 2.0,
        "growth of the cost over growth of the answers": 1.25,
        "two threads over one": 1.9,
        "changes to the index, 1,000 a call": 7e5,
        "changes through the engine, 100 a call": 2e5,
        "cost of matching with 1 % in flux": 1.02,
        "batch on Spark over the engine alone": 0.4,
        "batch on Spark over Spark SQL": 31.0,
        "stream on Spark": 3e4,
        "small batch of a stream": 601.0,
        "8 shards, nsw: candidates over one index": 1.2,
    }
    text = target_table(rows, "index")
    assert "| rate over the best other index: headline | ≥ 0.95 x | 0.50 x | **no** |" in text
    assert "| rate over the best other index: keywords | ≥ 0.95 x | 2.00 x | yes |" in text
    target = next(each for each in TARGETS if each.name == "open")._replace(
        wish=at_most(0.5, 3, " s")
    )
    assert (found := evaluate(target, [told("match", "block_trie", open_s=0.4)])) is not None
    assert target.is_met(found.value)
    assert not target.is_met(0.6)


def test_the_page_tells_of_the_committed_results() -> None:
    committed = (ROOT / PAGE).read_text(encoding="utf-8")
    assert committed == page_text(ROOT / RESULTS), "run: earshot bench report"


def test_only_the_committed_results_make_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("earshot.bench.commands.report", lambda *_, page: given.append(page))
    for arguments in ([], ["--results", str(tmp_path)], ["--page", "x.md"]):
        assert main(["report", *arguments]) == 0
    assert given == [PAGE, None, Path("x.md")]


def test_report_refuses_broken_results(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{broken\n")
    with pytest.raises(InvalidFile, match="line 1"):
        report(tmp_path)
    write_rows(tmp_path / "x.jsonl", [told("churn", "engine")])
    with pytest.raises(InvalidFile, match="no results of the suite 'match'"):
        page_text(tmp_path)
