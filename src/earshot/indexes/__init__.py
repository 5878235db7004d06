"""Boolean indexes: one structure per file, all under :class:`~earshot.indexes.contract.Index`."""

from __future__ import annotations

from pathlib import Path

from earshot import storage
from earshot.errors import InvalidParameter, SavedIndexError
from earshot.indexes.block_trie.index import BlockTrie
from earshot.indexes.contract import Index
from earshot.indexes.keyword_first.index import KeywordFirst
from earshot.indexes.linear_scan.index import LinearScan
from earshot.indexes.rtree.ir_tree import IrTree
from earshot.indexes.rtree.rt_plus_plus_tree import RtPlusPlusTree
from earshot.indexes.rtree.rt_plus_tree import RtPlusTree
from earshot.indexes.rtree.rt_tree import RtTree
from earshot.indexes.spatial_first.index import SpatialFirst

INDEXES: dict[str, type[Index]] = {
    BlockTrie.name: BlockTrie,
    KeywordFirst.name: KeywordFirst,
    SpatialFirst.name: SpatialFirst,
    LinearScan.name: LinearScan,
    RtTree.name: RtTree,
    RtPlusTree.name: RtPlusTree,
    RtPlusPlusTree.name: RtPlusPlusTree,
    IrTree.name: IrTree,
}
"""Every structure by its name; a new one needs a line here and nothing else."""

DEFAULT_INDEX = BlockTrie.name
"""Name of the structure that is used where none is asked for."""


def index_type(name: str) -> type[Index]:
    """Return the structure of that name."""
    try:
        return INDEXES[name]
    except KeyError:
        raise InvalidParameter(
            f"no index is called {name!r}; expected one of {', '.join(sorted(INDEXES))}"
        ) from None


def open_index(directory: str | Path) -> Index:
    """Open a saved index of any structure, by memory-mapping its arrays."""
    name = storage.read_facts(directory).get("index")
    if name not in INDEXES:
        raise SavedIndexError(
            f"{directory} holds an index {name!r}, which this Earshot does not know; "
            f"expected one of {', '.join(sorted(INDEXES))}"
        )
    return INDEXES[name].open(directory)
