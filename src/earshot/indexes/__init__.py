"""The index structures: one folder each, one entry in :data:`STRUCTURES` each.

An index is a structure built over subscriptions, for one semantics: ``boolean``
(:class:`~earshot.indexes.contract.Index`) or ``ranked``
(:class:`~earshot.indexes.ranked_contract.RankedIndex`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from earshot.errors import InvalidParameter, SavedIndexError
from earshot.indexes.contract import Index
from earshot.indexes.ranked_contract import RankedIndex
from earshot.registry import Registry
from earshot.storage import Saved

SEMANTICS = (Index.semantics, RankedIndex.semantics)


@dataclass(frozen=True)
class Structure:
    """An index structure, and what the documents and the command line say about it.

    Attributes:
        name: Name in Python, on the command line, in pipelines and in saved indexes.
        boolean: The structure for boolean matching, if it has that form: the type, or where it is.
        ranked: The same for ranked matching.
        summary: What it is.
        paper: Where it comes from; keys are those of ``docs/papers.md``.
        use: When to choose it.
    """

    name: str
    boolean: type[Index] | str | None
    ranked: type[RankedIndex] | str | None
    summary: str
    paper: str
    use: str


_RTREES = "earshot.indexes.rtree.variants"

# The first structure that has a form for a semantics is the default of that semantics.
# fmt: off
STRUCTURES: dict[str, Structure] = {structure.name: structure for structure in (
    Structure(
        "block_trie", "earshot.indexes.block_trie.index.BlockTrie", None,
        "trie of rarest-first keywords over lists of 64-bit box keys",
        "our own; builds on KDD13, CIKM15, VLDBJ15",
        "always, unless you compare structures",
    ),
    Structure(
        "block_lists", None, "earshot.indexes.block_lists.index.BlockLists",
        "lists of the keywords that a score needs, over 64-bit box keys",
        "our own; builds on TKDE15",
        "always, unless you compare structures",
    ),
    Structure(
        "keyword_first",
        "earshot.indexes.keyword_first.index.KeywordFirst",
        "earshot.indexes.keyword_first.index.RankedKeywordFirst",
        "inverted lists; regions are checked afterwards",
        "baseline of KDD13 and TKDE15",
        "to compare; few subscriptions per keyword",
    ),
    Structure(
        "spatial_first",
        "earshot.indexes.spatial_first.index.SpatialFirst",
        "earshot.indexes.spatial_first.index.RankedSpatialFirst",
        "packed R-tree; keywords are checked afterwards",
        "baseline of KDD13 and TKDE15",
        "to compare; small regions that hardly overlap",
    ),
    Structure(
        "linear_scan",
        "earshot.indexes.linear_scan.index.LinearScan",
        "earshot.indexes.linear_scan.index.RankedLinearScan",
        "no structure: every subscription is checked",
        "none",
        "to compare; a few hundred subscriptions",
    ),
    Structure(
        "rt_tree", f"{_RTREES}.RtTree", f"{_RTREES}.RankedRtTree",
        "R-tree whose nodes know all keywords below them; changes in place",
        "KDD13, TKDE15",
        "to compare",
    ),
    Structure(
        "rt_plus_tree", f"{_RTREES}.RtPlusTree", f"{_RTREES}.RankedRtPlusTree",
        "R-tree whose nodes know one keyword of each subscription, or the few that a score needs; "
        "changes in place",
        "KDD13, TKDE15",
        "to compare",
    ),
    Structure(
        "rt_plus_plus_tree", f"{_RTREES}.RtPlusPlusTree", f"{_RTREES}.RankedRtPlusPlusTree",
        "R-tree whose nodes know another keyword of each subscription on each level; "
        "changes in place",
        "KDD13, TKDE15",
        "to compare",
    ),
    Structure(
        "ir_tree", f"{_RTREES}.IrTree", f"{_RTREES}.RankedIrTree",
        "R-tree with an inverted file in each node; changes in place",
        "rival of KDD13 and TKDE15",
        "to compare",
    ),
    Structure(
        "mbr_trie", "earshot.indexes.mbr_trie.index.MbrTrie", None,
        "trie of rarest-first keywords with a bounding box at each node; changes in place",
        "CIKM15",
        "to compare; short messages with large regions",
    ),
    Structure(
        "pt_quadtree", "earshot.indexes.pt_quadtree.index.PtQuadtree", None,
        "quadtree whose nodes know a pivotal keyword of each subscription; changes in place",
        "CIKM15",
        "to compare",
    ),
    Structure(
        "lfilter", "earshot.indexes.lfilter.index.LFilter", None,
        "MBR-trie and PT-quadtree; a cost model chooses one for each message; changes in place",
        "CIKM15",
        "to compare",
    ),
    Structure(
        "iq_tree", "earshot.indexes.iq_tree.index.IqTree", None,
        "quadtree cells chosen by a cost model, lists of rarest keywords in them",
        "rival of VLDBJ15",
        "to compare",
    ),
    Structure(
        "rq_tree", "earshot.indexes.rq_tree.index.RqTree", None,
        "lists of rarest keywords, each with a quadtree",
        "rival of VLDBJ15",
        "to compare",
    ),
    Structure(
        "ap_tree", "earshot.indexes.ap_tree.index.ApTree", None,
        "tree that divides by keyword or by place, as a cost model finds cheaper",
        "VLDBJ15",
        "to compare",
    ),
    Structure(
        "trie_quadtree", "earshot.indexes.trie_quadtree.index.TrieQuadtree", None,
        "trie of frequent-first keywords, with a quadtree for each set of them",
        "rival of VLDBJ15",
        "to compare",
    ),
)}
# fmt: on
"""Every structure by its name; a new one needs an entry here and nothing else."""


@overload
def structures_of(semantics: Literal["ranked"]) -> Registry[type[RankedIndex]]: ...
@overload
def structures_of(semantics: str) -> Registry[type[Index]]: ...
def structures_of(semantics: str) -> Registry[Any]:
    """Return the structures that have a form for a semantics, by name, the default first."""
    if semantics not in SEMANTICS:
        raise InvalidParameter(
            f"no index has the semantics {semantics!r}; expected one of {', '.join(SEMANTICS)}"
        )
    forms = ((name, getattr(structure, semantics)) for name, structure in STRUCTURES.items())
    return Registry({name: form for name, form in forms if form is not None})


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
