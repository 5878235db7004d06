"""Ranked indexes: one structure per file, all under :class:`RankedIndex`."""

from __future__ import annotations

from pathlib import Path

from earshot import storage
from earshot.errors import InvalidParameter, SavedIndexError
from earshot.indexes.block_lists.index import BlockLists
from earshot.indexes.keyword_first.ranked import RankedKeywordFirst
from earshot.indexes.linear_scan.ranked import RankedLinearScan
from earshot.indexes.ranked_contract import RankedIndex, RankedParameters
from earshot.indexes.rtree.ranked import (
    RankedIrTree,
    RankedRtPlusPlusTree,
    RankedRtPlusTree,
    RankedRtTree,
)
from earshot.indexes.spatial_first.ranked import RankedSpatialFirst

__all__ = [
    "RANKED_DEFAULT",
    "RANKED_INDEXES",
    "RankedIndex",
    "RankedParameters",
    "open_ranked_index",
    "ranked_index_type",
]

RANKED_INDEXES: dict[str, type[RankedIndex]] = {
    BlockLists.name: BlockLists,
    RankedKeywordFirst.name: RankedKeywordFirst,
    RankedSpatialFirst.name: RankedSpatialFirst,
    RankedLinearScan.name: RankedLinearScan,
    RankedRtTree.name: RankedRtTree,
    RankedRtPlusTree.name: RankedRtPlusTree,
    RankedRtPlusPlusTree.name: RankedRtPlusPlusTree,
    RankedIrTree.name: RankedIrTree,
}
"""Every ranked structure by its name; a new one needs a line here and nothing else."""

RANKED_DEFAULT = BlockLists.name
"""Name of the ranked structure that is used where none is asked for."""


def ranked_index_type(name: str) -> type[RankedIndex]:
    """Return the ranked structure of that name."""
    try:
        return RANKED_INDEXES[name]
    except KeyError:
        raise InvalidParameter(
            f"no ranked index is called {name!r}; expected one of "
            f"{', '.join(sorted(RANKED_INDEXES))}"
        ) from None


def open_ranked_index(directory: str | Path) -> RankedIndex:
    """Open a saved ranked index of any structure, by memory-mapping its arrays."""
    facts = storage.read_facts(directory)
    name = facts.get("index")
    if facts.get("semantics") != RankedIndex.semantics or name not in RANKED_INDEXES:
        raise SavedIndexError(
            f"{directory} holds a {facts.get('semantics', 'boolean')} index {name!r}; expected a "
            f"ranked one of {', '.join(sorted(RANKED_INDEXES))}"
        )
    return RANKED_INDEXES[name].open(directory)
