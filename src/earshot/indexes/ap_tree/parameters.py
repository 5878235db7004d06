"""Options of an AP-Tree, of whichever kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidParameter
from earshot.indexes.ap_tree.kernels import nodes
from earshot.indexes.contract import Parameters

KeywordPartition = Literal["heuristic", "dp", "plain_dp"]
Priority = Literal["cost", "keyword", "space"]
KeywordOrder = Literal["frequent", "rare"]

_MOST_FANOUT = 4096


@dataclass(frozen=True)
class ApTreeParameters(Parameters):
    """Options of an AP-Tree.

    Attributes:
        fanout: Most cuts of a k-node and cells of an s-node, ``f`` in the paper.
        max_list: Length from which a list is split, ``theta_p``.
        keyword_partition: ``heuristic`` (HR) or ``dp``, the optimal one by dynamic programming.
            ``plain_dp`` finds that as the paper does, in time that grows with the square of the
            number of keywords: to compare with, not to use.
        priority: ``cost`` chooses by the cost model; ``keyword`` (KPriority) and ``space``
            (SPriority) always take the one where it gains anything.
        keyword_order: Which keywords come first: the ``rare`` ones, or the ``frequent`` ones as in
            the paper. Rare ones first made messages of 30 and 50 words 1.8 times as fast, and
            shorter ones 1.2 times.
        rebuilds: Whether subtrees are rebuilt where weights have drifted; not so in AP-Tree-NR.
        max_divergence: KL divergence beyond which they are, ``theta_KL``.
        min_share: Share of all clauses that a subtree must have to be rebuilt.
    """

    fanout: int = 200
    max_list: int = 40
    keyword_partition: KeywordPartition = "heuristic"
    priority: Priority = "cost"
    keyword_order: KeywordOrder = "rare"
    rebuilds: bool = True
    max_divergence: float = 0.001
    min_share: float = 0.001

    def __post_init__(self) -> None:
        for name, least, most in (("fanout", 2, _MOST_FANOUT), ("max_list", 4, 1 << 20)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidParameter(
                    f"{name} is {value!r}; expected a whole number, {least} to {most}"
                )
        for name, kind in (
            ("keyword_partition", KeywordPartition),
            ("priority", Priority),
            ("keyword_order", KeywordOrder),
        ):
            if (value := getattr(self, name)) not in get_args(kind):
                raise InvalidParameter(
                    f"{name} is {value!r}; expected one of {', '.join(get_args(kind))}"
                )
        if not isinstance(self.rebuilds, bool):
            raise InvalidParameter(f"rebuilds is {self.rebuilds!r}; expected True or False")
        for name, above in (("max_divergence", np.inf), ("min_share", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidParameter(f"{name} is {value!r}; expected a number")
            if not 0 < value <= above:
                raise InvalidParameter(
                    f"{name} is {value!r}; expected a number above 0"
                    + ("" if above == np.inf else f", up to {above:g}")
                )

    def rules(self) -> npt.NDArray[np.float64]:
        """Return the parameters as kernels read them."""
        rules = np.zeros(nodes.N_RULES)
        rules[nodes.FANOUT] = self.fanout
        rules[nodes.MOST_IN_LIST] = self.max_list
        rules[nodes.LEAST_DIVERGENCE] = self.max_divergence if self.rebuilds else np.inf
        rules[nodes.LEAST_SHARE] = self.min_share
        rules[nodes.PARTITION] = get_args(KeywordPartition).index(self.keyword_partition)
        rules[nodes.PRIORITY] = ("cost", "keyword", "space").index(self.priority)
        rules[nodes.IS_RARE_FIRST] = self.keyword_order == "rare"
        return rules
