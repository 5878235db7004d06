"""``mbr_trie``, the MBRTrie of [CIKM15]: a trie of tokens with the MBR of what is below each node.

:mod:`earshot.indexes.mbr_trie.kernels.nodes` describes the trie. It takes changes in place
(:mod:`earshot.indexes.in_place`) and is built anew, as it stands, when a quarter of it has come or
gone since: MBRs then get new box keys, clauses new numbers, and nodes their order in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidInput, InvalidParameter
from earshot.indexes.answers import Matches
from earshot.indexes.contract import BuildInput, Parameters
from earshot.indexes.in_place import InPlaceIndex
from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.indexes.mbr_trie.kernels.changes import insert_clauses, remove_clauses
from earshot.indexes.mbr_trie.kernels.match import MbrTrieScratch
from earshot.indexes.mbr_trie.kernels.nodes import (
    LABEL,
    N_BUILT,
    N_CHILDREN,
    N_DEAD,
    N_ENTRIES,
    N_FACTS,
    N_LEVELS,
    N_NODES,
    N_NUMBERED,
    N_TOKENS_BELOW,
    PROBING,
    ROOT,
    TOP_NODE,
    TOP_ROOM,
    MbrTrieArrays,
    build_nodes,
    fill_keys,
    fill_paths,
)
from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.box_keys import BLOCK, DEAD_KEY, build_keys
from earshot.kernels.growing import resized, with_room
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import ClauseArrays, Int32s, Int64s

Probing = Literal["token_set", "trie", "cost"]
"""How the children of a node that a message has are found.

``token_set``: each child is looked up in the message (ProbeTokenSet). ``trie``: each token of the
message is looked up among the children (ProbeTrie). ``cost``: whichever is less work at this node.
"""

PROBINGS: tuple[Probing, ...] = get_args(Probing)

RENEWED_SHARE = 4
"""One in so many clauses comes or goes before a trie is built anew."""
_LEAST_CHANGES = 256
_MOST_CLAUSES = (1 << 31) - 1


@dataclass(frozen=True)
class MbrTrieParameters(Parameters):
    """Options of the trie.

    Attributes:
        probing: ``token_set``, ``trie`` or ``cost``; see :data:`Probing`.
    """

    probing: Probing = "cost"

    def __post_init__(self) -> None:
        check_probing(self.probing)


def check_probing(probing: object) -> None:
    """Refuse a probing that there is not."""
    if probing not in PROBINGS:
        raise InvalidParameter(f"probing is {probing!r}; expected one of {', '.join(PROBINGS)}")


class MbrTrie(InPlaceIndex):
    """The MBRTrie; counters: nodes visited, clauses at nodes whose path the message has."""

    name = "mbr_trie"
    parameters_type = MbrTrieParameters
    arrays_type = MbrTrieArrays
    scratch_type = MbrTrieScratch

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.choices: dict[str, int] = dict.fromkeys(PROBINGS[:2], 0)
        """Nodes whose children were found by either probing, in all matching so far."""
        self._counting = Lock()

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> MbrTrieArrays:
        rows = np.arange(len(given.clauses.subscriptions), dtype=np.int32)
        tokens = label_tokens(given.known)
        return build_trie(given.clauses, rows, tokens, PROBINGS.index(given.parameters.probing))

    def _match_rows(self, messages: Any, start: int, stop: int, scratch: Any) -> Matches:
        found = super()._match_rows(messages, start, stop, scratch)
        with self._counting:
            for name, n in zip(self.choices, scratch.choices.tolist(), strict=False):
                self.choices[name] += n
        scratch.choices[:] = 0
        return found

    def _insert_rows(self, first: int, stop: int) -> None:
        trie = self.arrays = with_tokens_up_to(self.arrays, self.n_tokens)
        if is_worn(trie, stop - first):
            live = np.flatnonzero(self.alive[self.clauses.subscriptions[:stop]]).astype(np.int32)
            self.arrays = build_trie(self.clauses, live, trie.tokens, int(trie.facts[PROBING]))
            return
        self.arrays = insert_rows(trie, self.clauses, first, stop)

    def _remove_rows(self, rows: Int64s) -> None:
        remove_rows(self.arrays, self.clauses, rows)

    def _check_number(self, n_clauses: int) -> None:
        if n_clauses > _MOST_CLAUSES:
            raise InvalidInput(
                f"{n_clauses:,} clauses, removed ones included; this trie takes up to "
                f"{_MOST_CLAUSES:,}, so rebuild it, or use several shards"
            )

    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        return trie_scratch_arrays(self.arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in super().__getstate__().items() if name != "_counting"
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counting = Lock()


def trie_scratch_arrays(trie: MbrTrieArrays) -> dict[str, tuple[int, npt.DTypeLike]]:
    """Return least length and type of each array of the working memory that a trie needs."""
    n_tokens = len(trie.tokens)
    return {
        "serial": (1, np.int64),
        "labels": (n_tokens + 256, np.int32),
        "codes": (2 * n_tokens, np.int64),
        "places": (n_tokens, np.int32),
        "signature": (SIGNATURE_WORDS, np.uint64),
        "stack": (2 * int(trie.facts[N_NODES]) + 2, np.int32),
        "choices": (2, np.int64),
    }


def label_tokens(frequencies: Int64s) -> Int32s:
    """Return the label of each token, the most frequent one's 0, and no children of the root."""
    tokens = np.empty((len(frequencies), 2), np.int32)
    order = np.argsort(-frequencies, kind="stable")
    tokens[order, LABEL] = np.arange(len(order), dtype=np.int32)
    tokens[:, TOP_NODE] = -1
    return tokens


def with_tokens_up_to(trie: MbrTrieArrays, n: int) -> MbrTrieArrays:
    """Return the trie with labels for later tokens; a later one is rarer than all before."""
    n_before = len(trie.tokens)
    if n <= n_before:
        return trie
    tokens = with_room(trie.tokens, n, -1)
    tokens[n_before:, LABEL] = np.arange(n_before, len(tokens), dtype=np.int32)
    return trie._replace(tokens=tokens)


class _Paths(NamedTuple):
    """Clauses in the order of their paths, and the nodes that these make."""

    order: Int32s  # the rows
    lengths: Int32s  # (n_clauses,) of each clause's path; 0 for clauses that are not among them
    tokens: Int32s  # with the children of the root
    labels: Int32s  # (> n_nodes,)
    nodes: Int32s  # (> n_nodes, 4)
    level_nodes: Int64s
    n_nodes: int
    n_below: int


def _sort_paths(clauses: ClauseArrays, rows: Int32s, tokens: Int32s) -> _Paths:
    paths = np.empty(len(clauses.token_ids), np.int32)
    lengths = np.zeros(len(clauses.subscriptions), np.int32)
    tokens, order, level_nodes = tokens.copy(), rows.copy(), np.zeros(N_LEVELS, np.int64)
    tokens[:, TOP_NODE] = -1
    n_below = int(fill_paths(clauses, tokens, rows, paths, lengths))
    labels, nodes = np.empty(n_below + 1, np.int32), np.empty((n_below + 1, 4), np.int32)
    tokens_of = np.empty(len(tokens), np.int32)
    tokens_of[tokens[:, LABEL]] = np.arange(len(tokens), dtype=np.int32)
    n_nodes = build_nodes(
        order, clauses.token_offsets, paths, lengths, tokens_of, tokens, labels, nodes, level_nodes
    )
    return _Paths(order, lengths, tokens, labels, nodes, level_nodes, int(n_nodes), n_below)


def in_path_order(clauses: ClauseArrays, rows: Int32s, tokens: Int32s) -> Int32s:
    """Return rows of clauses in the order of their paths."""
    return _sort_paths(clauses, rows, tokens).order


def build_trie(
    clauses: ClauseArrays, rows: Int32s, tokens: Int32s, probing: int, n_numbers: int | None = None
) -> MbrTrieArrays:
    """Build a trie of clauses.

    Args:
        clauses: All that are stored.
        rows: Those that are to be in the trie.
        tokens: Tokens with their labels.
        probing: Its number among :data:`PROBINGS`.
        n_numbers: Numbers to hand out, if more than there are rows; the last ones stay unused.
    """
    paths = _sort_paths(clauses, rows, tokens)
    n_nodes, n_rows = paths.n_nodes, len(rows)
    n_numbers = n_rows if n_numbers is None else n_numbers
    facts = np.zeros(N_FACTS, np.int64)
    facts[N_NODES] = facts[N_BUILT] = n_nodes
    facts[N_NUMBERED] = facts[N_ENTRIES] = n_numbers
    facts[TOP_ROOM] = paths.nodes[ROOT, N_CHILDREN]
    facts[N_TOKENS_BELOW], facts[PROBING] = paths.n_below, probing
    boxes = clauses.boxes if n_rows == len(clauses.boxes) else clauses.boxes[rows]
    trie = MbrTrieArrays(
        quantizer=quantizer_of(boxes, "lonlat"),
        facts=facts,
        level_nodes=paths.level_nodes,
        tokens=paths.tokens,
        labels=paths.labels[:n_nodes].copy(),
        keys=np.full(n_nodes + BLOCK, DEAD_KEY),
        nodes=paths.nodes[:n_nodes].copy(),
        entry_keys=np.full(n_numbers + BLOCK, DEAD_KEY),
        entry_rows=np.zeros(n_numbers, np.int32),
        heads=np.empty(0, np.int32),
        chains=np.empty(0, np.int32),
    )
    row_keys = np.empty(len(clauses.subscriptions), np.uint64)
    build_keys(trie.quantizer, clauses.boxes, 0, row_keys)
    fill_keys(trie, clauses, paths.order, paths.lengths, row_keys)
    return trie


def is_worn(trie: MbrTrieArrays, n_more: int) -> bool:
    """Whether so much has come and gone, with so many more to come, that it is time to renew."""
    facts = trie.facts
    n_changes = facts[N_ENTRIES] - facts[N_NUMBERED] + facts[N_DEAD] + n_more
    return bool(n_changes > max(_LEAST_CHANGES, facts[N_NUMBERED] // RENEWED_SHARE))


def insert_rows(trie: MbrTrieArrays, clauses: ClauseArrays, first: int, stop: int) -> MbrTrieArrays:
    """Insert clauses ``first`` to ``stop``; return the trie, whose arrays may be larger ones."""
    n_entries, n_numbered = int(trie.facts[N_ENTRIES]) + stop - first, int(trie.facts[N_NUMBERED])
    trie = trie._replace(
        entry_keys=with_room(trie.entry_keys, n_entries + BLOCK, DEAD_KEY),
        entry_rows=with_room(trie.entry_rows, n_entries),
        heads=with_room(trie.heads, len(trie.labels), -1),
        chains=with_room(trie.chains, n_entries - n_numbered, -1),
    )
    row_keys = np.empty(stop - first, np.uint64)
    build_keys(trie.quantizer, clauses.boxes, first, row_keys)
    n_longest = int(np.diff(clauses.token_offsets[first : stop + 1]).max(initial=0))
    n_done = 0

    def insert() -> int:
        nonlocal n_done
        done, why = insert_clauses(
            trie, clauses, row_keys[n_done:], first + n_done, stop, n_longest
        )
        n_done = int(done) - first
        return int(why)

    def make_room(_: int) -> None:
        nonlocal trie
        n = len(trie.labels) + len(trie.labels) // 4 + 1024
        trie = trie._replace(
            labels=resized(trie.labels, n),
            keys=resized(trie.keys, n + BLOCK, DEAD_KEY),
            nodes=resized(trie.nodes, n),
            heads=resized(trie.heads, max(n, len(trie.heads)), -1),
        )

    run_until_done(insert, make_room)
    return trie


def remove_rows(trie: MbrTrieArrays, clauses: ClauseArrays, rows: Int64s) -> Int64s:
    """Remove clauses; return the number that each had, -1 for one that was not in."""
    lengths = clauses.token_offsets[rows + 1] - clauses.token_offsets[rows]
    numbers = np.empty(len(rows), np.int64)
    remove_clauses(trie, clauses, rows, int(lengths.max(initial=0)), numbers)
    return numbers
