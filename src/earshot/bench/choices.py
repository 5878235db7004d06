"""The suite ``cikm15_choices``: which way LFilter takes, and how often that was the right one.

Each message of a point is answered by either way and by the one that the cost model chooses, so
often in one call that the call itself does not count, the ways in turns. A choice is right if it
took the way that was faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from earshot.bench.checksums import check_agreement, checksum
from earshot.bench.context import Context
from earshot.bench.measuring import CPU, cpu_s
from earshot.bench.points import Point, Trial, indexes_and_cases
from earshot.bench.results import Row, basics
from earshot.indexes.lfilter.index import LFilter
from earshot.model.arrays import MessageArrays, take_messages

REPEATS = 16
"""Times that a message is answered in one call."""
TURNS = 3

WAYS = ("trie", "quadtree")


def measure(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield a row for each point of each data set."""
    for index, point, case in indexes_and_cases(context, trials):
        assert isinstance(index, LFilter)
        n = min(context.profile.figures.n_judged, len(case.messages.boxes))
        yield {
            **basics(case.name, index.name, case.n_subscriptions, n),
            **_judged(index, take_messages(case.messages, np.arange(n)), point),
        }


def _judged(index: LFilter, messages: MessageArrays, point: Point) -> Row:
    indexes = {way: index.forced(filter_step=way) for way in WAYS} | {"chosen": index.forced()}
    sums = {way: {0: checksum(each.match(messages))} for way, each in indexes.items()}
    check_agreement(f"{point.group}, {point.n_tokens} tokens, ways", sums)
    n = len(messages.boxes)
    times_s = {way: np.full(n, np.inf) for way in indexes}
    by_trie = np.zeros(n, np.bool_)
    for row in range(n):
        again = take_messages(messages, np.full(REPEATS, row))
        for _ in range(TURNS):
            for way, each in indexes.items():
                spent_s = cpu_s(each.match, again) / REPEATS
                times_s[way][row] = min(times_s[way][row], spent_s)
        before = indexes["chosen"].choices["trie"]
        indexes["chosen"].match(take_messages(messages, np.array([row])))
        by_trie[row] = indexes["chosen"].choices["trie"] > before
    is_trie_best = times_s["trie"] <= times_s["quadtree"]
    best_s = np.minimum(times_s["trie"], times_s["quadtree"])
    taken_s = np.where(by_trie, times_s["trie"], times_s["quadtree"])
    counts = indexes["quadtree"].choices
    return {
        "message_tokens": point.n_tokens,
        "clock": CPU,
        "by_trie": float(by_trie.mean()),
        "right": float((by_trie == is_trie_best).mean()),
        "time_over_best": float(taken_s.sum() / best_s.sum()),
        **{f"{way}_us": float(1e6 * spent_s.mean()) for way, spent_s in times_s.items()},
        **{f"{what}_pruned": _share(counts, what) for what in ("lists", "nodes")},
    }


def _share(counts: dict[str, int], what: str) -> float:
    """Return the share of lists, or of parts of them, that were pruned on the quadtree's way."""
    pruned, verified = (counts[f"{what}_{how}"] for how in ("pruned", "verified"))
    return pruned / max(pruned + verified, 1)
