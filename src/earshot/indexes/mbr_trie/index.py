"""``mbr_trie``, the MBRTrie of [CIKM15]: a trie of tokens with the MBR of what is below each node.

:mod:`earshot.indexes.mbr_trie.kernels.nodes` describes the trie. It takes changes in place
(:mod:`earshot.indexes.in_place`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar, Literal, NamedTuple, get_args

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
from earshot.model.arrays import ClauseArrays, Int32s, Int64s, take_clauses

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


class PathOrderedIndex(InPlaceIndex):
    """An index with a trie, whose clauses are stored in the trie's order.

    When a quarter of them has come or gone, all are put in order again and the index is built anew:
    ranges of numbers are exact again, MBRs get new box keys, and nodes their order in memory. That
    takes as long as building, once in so many changes.
    """

    counted: ClassVar[tuple[str, ...]]
    """What ``choices`` counts, in the order of the working memory's ``choices``."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.choices: dict[str, int] = dict.fromkeys(self.counted, 0)
        """How often each choice was made, in all matching so far."""
        self._counting = Lock()

    @property
    @abstractmethod
    def trie(self) -> MbrTrieArrays:
        """The trie."""

    @abstractmethod
    def _built(self, n_live: int, tokens: Int32s) -> Any:
        """Return arrays over the first clauses, which are in order, with labels of tokens."""

    @abstractmethod
    def _insert_some(self, trie: MbrTrieArrays, first: int, stop: int) -> None:
        """Insert clauses whose tokens have labels in this trie."""

    @classmethod
    def _arrange(cls, clauses: ClauseArrays, known: Int64s) -> ClauseArrays:
        rows = np.arange(len(clauses.subscriptions), dtype=np.int32)
        return take_clauses(clauses, _sort_paths(clauses, rows, label_tokens(known)).order)

    def _match_rows(self, messages: Any, start: int, stop: int, scratch: Any) -> Matches:
        found = super()._match_rows(messages, start, stop, scratch)
        with self._counting:
            for name, n in zip(self.counted, scratch.choices.tolist(), strict=False):
                self.choices[name] += n
        scratch.choices[:] = 0
        return found

    def _insert_rows(self, first: int, stop: int) -> None:
        trie = with_tokens_up_to(self.trie, self.n_tokens)
        # If an insertion failed before, its rows have no numbers.
        if is_worn(trie, stop - first) or trie.facts[N_ENTRIES] != first:
            self._renew(trie.tokens, stop)
        else:
            self._insert_some(trie, first, stop)

    def _renew(self, tokens: Int32s, n: int) -> None:
        """Put all clauses in order again, those of dead slots last, and build anew."""
        is_live = self.alive[self.clauses.subscriptions[:n]] != 0
        live, dead = (np.flatnonzero(each).astype(np.int32) for each in (is_live, ~is_live))
        order = _sort_paths(self.clauses, live, tokens).order
        self.clauses = take_clauses(self.clauses, np.concatenate([order, dead]))
        self._growing = self._rows_by_slot = None
        self.arrays = self._built(len(live), tokens)

    def _check_number(self, n_clauses: int) -> None:
        if n_clauses > _MOST_CLAUSES:
            raise InvalidInput(
                f"{n_clauses:,} clauses, removed ones included; this trie takes up to "
                f"{_MOST_CLAUSES:,}, so rebuild it, or use several shards"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_counting": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _counting=Lock())


class MbrTrie(PathOrderedIndex):
    """The MBRTrie; counters: nodes visited, clauses at nodes whose path the message has."""

    name = "mbr_trie"
    parameters_type = MbrTrieParameters
    parameters: MbrTrieParameters
    arrays_type = MbrTrieArrays
    scratch_type = MbrTrieScratch
    counted = PROBINGS[:2]  # nodes whose children were found by either probing

    @property
    def trie(self) -> MbrTrieArrays:
        """The trie."""
        trie: MbrTrieArrays = self.arrays
        return trie

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> MbrTrieArrays:
        n = len(given.clauses.subscriptions)
        return build_trie(given.clauses, n, label_tokens(given.known), given.parameters.probing)

    def _built(self, n_live: int, tokens: Int32s) -> MbrTrieArrays:
        return build_trie(self.clauses, n_live, tokens, self.parameters.probing)

    def _insert_some(self, trie: MbrTrieArrays, first: int, stop: int) -> None:
        self.arrays = insert_rows(trie, self.clauses, first, stop)

    def _remove_rows(self, rows: Int64s) -> None:
        remove_rows(self.arrays, self.clauses, rows)

    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        return trie_scratch_arrays(self.arrays)


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


def build_trie(clauses: ClauseArrays, n: int, tokens: Int32s, probing: Probing) -> MbrTrieArrays:
    """Build a trie of clauses.

    Args:
        clauses: All that are stored.
        n: How many of them, which are in the order of their paths, are to be in the trie.
        tokens: Tokens with their labels.
        probing: How children are found.
    """
    paths = _sort_paths(clauses, np.arange(n, dtype=np.int32), tokens)
    n_nodes, n_numbers = paths.n_nodes, len(clauses.subscriptions)
    facts = np.zeros(N_FACTS, np.int64)
    facts[N_NODES] = facts[N_BUILT] = n_nodes
    facts[N_NUMBERED] = facts[N_ENTRIES] = n_numbers
    facts[TOP_ROOM] = paths.nodes[ROOT, N_CHILDREN]
    facts[N_TOKENS_BELOW], facts[PROBING] = paths.n_below, PROBINGS.index(probing)
    trie = MbrTrieArrays(
        quantizer=quantizer_of(clauses.boxes[:n], "lonlat"),
        facts=facts,
        level_nodes=paths.level_nodes,
        tokens=paths.tokens,
        labels=paths.labels[:n_nodes].copy(),
        keys=np.full(n_nodes + BLOCK, DEAD_KEY),
        nodes=paths.nodes[:n_nodes].copy(),
        entry_keys=np.full(n_numbers + BLOCK, DEAD_KEY),
        has_more=np.zeros(n_numbers, np.uint8),
        heads=np.empty(0, np.int32),
        chains=np.empty(0, np.int32),
    )
    fill_keys(trie, clauses, n, paths.lengths)
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
        has_more=with_room(trie.has_more, n_entries),
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


def remove_rows(trie: MbrTrieArrays, clauses: ClauseArrays, rows: Int64s) -> None:
    """Remove clauses; those that an insertion that failed has left out are passed over."""
    rows = rows[rows < trie.facts[N_ENTRIES]]
    lengths = clauses.token_offsets[rows + 1] - clauses.token_offsets[rows]
    remove_clauses(trie, clauses, rows, int(lengths.max(initial=0)))
