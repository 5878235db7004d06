"""The index structures: one folder each, one entry in :data:`STRUCTURES` each.

An index is a structure built over subscriptions, for one semantics: ``boolean``
(:class:`~earshot.indexes.contract.Index`) or ``ranked``
(:class:`~earshot.indexes.ranked_contract.RankedIndex`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

from earshot.errors import InvalidParameter, SavedIndexError
from earshot.indexes.block_lists.index import BlockLists
from earshot.indexes.block_trie.index import BlockTrie
from earshot.indexes.contract import Index
from earshot.indexes.keyword_first.index import KeywordFirst, RankedKeywordFirst
from earshot.indexes.linear_scan.index import LinearScan, RankedLinearScan
from earshot.indexes.ranked_contract import RankedIndex
from earshot.indexes.rtree.variants import (
    IrTree,
    RankedIrTree,
    RankedRtPlusPlusTree,
    RankedRtPlusTree,
    RankedRtTree,
    RtPlusPlusTree,
    RtPlusTree,
    RtTree,
)
from earshot.indexes.spatial_first.index import RankedSpatialFirst, SpatialFirst
from earshot.storage import Saved

SEMANTICS = (Index.semantics, RankedIndex.semantics)


@dataclass(frozen=True)
class Structure:
    """An index structure, and what the documents and the command line say about it.

    Attributes:
        name: Name in Python, on the command line, in pipelines and in saved indexes.
        boolean: The structure for boolean matching, if it has that form.
        ranked: The structure for ranked matching, if it has that form.
        summary: What it is.
        paper: Where it comes from; keys are those of ``docs/papers.md``.
        use: When to choose it.
    """

    name: str
    boolean: type[Index] | None
    ranked: type[RankedIndex] | None
    summary: str
    paper: str
    use: str

    def form(self, semantics: str) -> type[Index] | None:
        """Return the structure's type for a semantics, None if it has none."""
        if semantics not in SEMANTICS:
            raise InvalidParameter(
                f"no index has the semantics {semantics!r}; expected one of {', '.join(SEMANTICS)}"
            )
        return self.ranked if semantics == RankedIndex.semantics else self.boolean


# The first structure that has a form for a semantics is the default of that semantics.
# fmt: off
STRUCTURES: dict[str, Structure] = {structure.name: structure for structure in (
    Structure(
        "block_trie", BlockTrie, None,
        "trie of rarest-first keywords over lists of 64-bit box keys",
        "our own; builds on KDD13, CIKM15, VLDBJ15",
        "the default for boolean matching; always, unless you compare",
    ),
    Structure(
        "block_lists", None, BlockLists,
        "lists of the keywords that a score needs, over 64-bit box keys",
        "our own; builds on TKDE15",
        "the default for ranked matching; always, unless you compare",
    ),
    Structure(
        "keyword_first", KeywordFirst, RankedKeywordFirst,
        "inverted lists; regions are checked afterwards",
        "baseline of KDD13 and TKDE15",
        "to compare; few subscriptions per keyword",
    ),
    Structure(
        "spatial_first", SpatialFirst, RankedSpatialFirst,
        "packed R-tree; keywords are checked afterwards",
        "baseline of KDD13 and TKDE15",
        "to compare; small regions that hardly overlap",
    ),
    Structure(
        "linear_scan", LinearScan, RankedLinearScan,
        "none: every subscription is checked",
        "none",
        "to compare; a few hundred subscriptions",
    ),
    Structure(
        "rt_tree", RtTree, RankedRtTree,
        "R-tree whose nodes know all keywords below them; changes in place",
        "KDD13, TKDE15",
        "to compare",
    ),
    Structure(
        "rt_plus_tree", RtPlusTree, RankedRtPlusTree,
        "the same with one representative keyword per subscription, or the few that a score needs",
        "KDD13, TKDE15",
        "to compare",
    ),
    Structure(
        "rt_plus_plus_tree", RtPlusPlusTree, RankedRtPlusPlusTree,
        "the same with another keyword of each subscription on each level",
        "KDD13, TKDE15",
        "to compare",
    ),
    Structure(
        "ir_tree", IrTree, RankedIrTree,
        "R-tree with an inverted file in each node; changes in place",
        "rival of KDD13 and TKDE15",
        "to compare",
    ),
)}
# fmt: on
"""Every structure by its name; a new one needs an entry here and nothing else."""


@overload
def structures_of(semantics: Literal["ranked"]) -> dict[str, type[RankedIndex]]: ...
@overload
def structures_of(semantics: str) -> dict[str, type[Index]]: ...
def structures_of(semantics: str) -> dict[str, type[Index]] | dict[str, type[RankedIndex]]:
    """Return the structures that have a form for a semantics, by name, the default first."""
    forms = ((name, structure.form(semantics)) for name, structure in STRUCTURES.items())
    return {name: form for name, form in forms if form is not None}


def default_structure(semantics: str) -> str:
    """Return the name of the structure that is used where none is asked for."""
    return next(iter(structures_of(semantics)))


@overload
def index_type(name: str, semantics: Literal["ranked"]) -> type[RankedIndex]: ...
@overload
def index_type(name: str, semantics: str = ...) -> type[Index]: ...
def index_type(name: str, semantics: str = Index.semantics) -> type[Index]:
    """Return the structure of that name, in its form for a semantics."""
    known = structures_of(semantics)
    if name not in known:
        raise InvalidParameter(
            f"no {semantics} structure is called {name!r}; expected one of {', '.join(known)}"
        )
    return known[name]


def open_index(directory: str | Path | Saved) -> Index:
    """Open a saved index of any structure and semantics, by memory-mapping its arrays."""
    saved = Saved.open(directory)
    semantics, name = (str(saved.facts.get(fact)) for fact in ("semantics", "structure"))
    if semantics not in SEMANTICS or name not in structures_of(semantics):
        raise SavedIndexError(
            f"{saved.where} holds a {semantics} index of structure {name!r}, which this Earshot "
            f"does not know; expected one of {', '.join(STRUCTURES)}"
        )
    return index_type(name, semantics).open(saved)
