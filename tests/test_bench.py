from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from earshot.bench import competitors, report, reporting, run, running
from earshot.bench.checksums import (
    AnswersDiffer,
    Pairs,
    check_agreement,
    checksum,
    prefix_lengths,
)
from earshot.bench.commands import main
from earshot.bench.competitors import IndexCompetitor, new_competitor
from earshot.bench.measuring import Contender, case_of, first_pass
from earshot.errors import InvalidFile, InvalidParameter
from earshot.indexes import INDEXES
from earshot.indexes.answers import Counters, Matches
from earshot.model.arrays import MessageArrays
from earshot.workloads.synthetic import find_workload

# Enough to compare; the indexes have tests of their own, and compiling them all takes long.
FEW = ["linear_scan", "spatial_first", "duckdb"]


def silent(_: str) -> None:
    pass


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Forgetful(IndexCompetitor):
    """Loses the last answer of every batch that has some."""

    def __init__(self) -> None:
        super().__init__(INDEXES["linear_scan"])
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
    assert set(INDEXES) < set(names)
    for name in names:
        competitor = new_competitor(name)
        assert competitor.name == name
        competitor.close()


def test_prefixes_end_with_all_messages() -> None:
    assert prefix_lengths(5) == [5]
    assert prefix_lengths(64) == [8, 64]
    assert prefix_lengths(100) == [8, 64, 100]


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
    monkeypatch.setattr("earshot.bench.suites.CHANGED_SHARE", 0.5)
    path = run(
        "smoke", n_subscriptions=3_000, n_messages=70, workloads=["headline", "short_range"],
        suites=["match", "churn", "threads"], competitors=FEW, results=tmp_path, say=silent,
    )  # fmt: skip
    rows = read(path)
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
    churned = [row for row in rows if row["suite"] == "churn"]
    assert len({row["checksum"] for row in churned}) == 1
    assert churned[0]["checksum"] != matched[0]["checksum"]
    assert {row["n_inserted"] for row in churned} == {1_500}
    assert {row["n_threads"] for row in rows if row["suite"] == "threads"} >= {1, 2}


@pytest.mark.parametrize("name", ["long_range", "region_mixed"])
def test_duckdb_agrees_where_its_query_differs(name: str) -> None:
    case = case_of(find_workload(name).scaled(3_000, 30))
    sums = set()
    for competitor in map(new_competitor, ("linear_scan", "duckdb")):
        competitor.build(case.clauses, case.space, case.n_tokens)
        answers = competitor.match(case.messages)
        sums.add(checksum(answers))
        competitor.close()
    assert len(sums) == 1
    assert sums != {0}


def test_a_wrong_competitor_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(competitors.RIVALS, "forgetful", f"{__name__}:Forgetful")
    with pytest.raises(AnswersDiffer, match="forgetful"):
        run(
            "smoke", n_subscriptions=3_000, n_messages=70, workloads=["headline"],
            suites=["match"], competitors=["linear_scan", "forgetful"], results=tmp_path,
            say=silent,
        )  # fmt: skip
    (path,) = tmp_path.glob("*.jsonl")
    assert read(path) == []


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        running._new_file(tmp_path, "smoke").close()
    assert len(list(tmp_path.glob("*-smoke*.jsonl"))) == 2


def test_text_and_real_data_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EARSHOT_DATA", raising=False)
    path = run(
        "smoke", n_subscriptions=500, n_messages=20, suites=["text", "real"],
        competitors=["linear_scan", "duckdb"], results=tmp_path, say=silent,
    )  # fmt: skip
    rows = read(path)
    assert {row["workload"] for row in rows if row["suite"] == "text"} == {"headline", "bundled"}
    real = [row for row in rows if row["suite"] == "real"]
    assert len({row["checksum"] for row in real}) == 1
    assert real[0]["answers_per_message"] > 1


def test_wrong_names_are_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="linear_scan"):
        run("smoke", competitors=["nosuch"], results=tmp_path)
    with pytest.raises(InvalidParameter, match="churn"):
        run("smoke", suites=["nosuch"], results=tmp_path)
    with pytest.raises(InvalidParameter, match="regular"):
        run("nosuch", results=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_report_has_tables_plots_and_the_readme_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--n-subscriptions", "300", "--n-messages", "10", "--results", str(tmp_path)]
    suites = ["--suites", "match", "growth", "--competitors", "linear_scan"]
    assert main(["run", *common, *suites, "--workloads", "headline"]) == 0
    readme = tmp_path / "README.md"
    readme.write_text(f"# T\n{reporting.BEGIN}\nold\n{reporting.END}\nlast\n")
    assert main(["report", "--results", str(tmp_path), "--readme", str(readme)]) == 0
    told = (tmp_path / "REPORT.md").read_text()
    assert "| headline | linear_scan |" in told
    assert "### growth (300 subscriptions)" in told
    for suite in ("match", "growth"):
        assert (tmp_path / f"smoke-{suite}.png").read_bytes().startswith(b"\x89PNG")
    text = readme.read_text()
    assert "old" not in text
    assert "| linear_scan |" in text
    assert text.endswith(f"{reporting.END}\nlast\n")
    assert main(["report", "--results", str(tmp_path / "none")]) == 1
    assert "holds no results" in capsys.readouterr().err


def test_the_newest_run_of_a_profile_is_reported(tmp_path: Path) -> None:
    for name, started in (("a", "2026-01-02"), ("b", "2026-01-01")):
        row = {"run": {"started": started, "profile": "smoke"}}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "empty.jsonl").write_text("")
    assert reporting.newest_files(tmp_path) == {"smoke": tmp_path / "a.jsonl"}


def test_a_readme_without_markers_is_refused(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing")
    with pytest.raises(InvalidFile, match="benchmark:begin"):
        reporting.update_readme(readme, "table")
    assert readme.read_text() == "nothing"


def test_report_refuses_broken_results(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{broken\n")
    with pytest.raises(InvalidFile, match="line 1"):
        report(tmp_path)
