"""The boolean expressions of [VLDBJ15] as a workload."""

from __future__ import annotations

from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pytest

from earshot.errors import InvalidParameter
from earshot.workloads.expressions import normal_form, spoken
from earshot.workloads.synthetic import Workload, find_workload, subscription_table


def _holds(words: set[int], n: int, first: int, is_or: tuple[bool, ...]) -> bool:
    parts = [[i in words for i in range(first)], [i in words for i in range(first, n)]]
    one, other, whole = is_or
    left = any(parts[0]) if one else all(parts[0])
    right = any(parts[1]) if other else all(parts[1])
    return left or right if whole else left and right


@pytest.mark.parametrize("n", [3, 4, 5])
def test_normal_form_means_the_same(n: int) -> None:
    subsets = list(chain.from_iterable(combinations(range(n), k) for k in range(n + 1)))
    for first in range(1, n):
        for is_or in product((False, True), repeat=3):
            clauses = normal_form(n, first, *is_or)
            for words in map(set, subsets):
                found = any(set(clause) <= words for clause in clauses)
                assert found == _holds(words, n, first, is_or)


def test_the_papers_example() -> None:
    assert normal_form(4, 2, True, False, False) == [[0, 2, 3], [1, 2, 3]]
    words = ["w1", "w2", "w3", "w4"]
    assert spoken(words, 2, np.array([True, False, False])) == "(w1 or w2) and (w3 and w4)"


def test_rows_do_not_depend_on_the_others() -> None:
    workload = find_workload("ap_tweets_expressed").scaled(3_000, 0)
    all_rows, some = workload.subscriptions(), workload.subscriptions(1_000, 1_100)
    chosen = (all_rows.subscriptions >= 1_000) & (all_rows.subscriptions < 1_100)
    assert all_rows.subscriptions[chosen].tolist() == some.subscriptions.tolist()
    assert np.diff(all_rows.token_offsets)[chosen].tolist() == np.diff(some.token_offsets).tolist()
    table = subscription_table(workload, 0, 5)
    assert table.num_rows == 5
    assert all(" or " in said or " and " in said for said in table["expression"].to_pylist())


def test_drift_changes_words_with_time() -> None:
    workload = find_workload("ap_tweets_drifting").scaled(70_000, 2_000)
    parts: list[Any] = [workload.subscriptions(at, at + 1_000) for at in (0, 69_000)]
    heard = set(workload.messages().token_ids.tolist())
    shares = [float(np.isin(part.token_ids, list(heard)).mean()) for part in parts]
    assert shares[1] > shares[0] + 0.05


def test_too_few_keywords_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="keywords_min >= 3"):
        Workload(name="wrong", is_expressed=True)
