"""Figure 9: errors of the states H and the adjoints V of RecGCN."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from experiments.paper.groups import PLANETOID, SMALL_REC, by_title, small_rec
from experiments.paper.item import Item, Results
from experiments.paper.numbers import Comparison
from experiments.paper.plots import curves
from experiments.paper.training import Trained, Training

METHODS = SMALL_REC[1:]


@dataclass(frozen=True, kw_only=True)
class Figure9(Item):
    """Relative errors of node embeddings H and auxiliary variables V on the core rows, along training."""

    name, label = "figure-9", "fig:error_rec"
    title = "Errors of H and V of RecGCN under random and METIS partitions"
    remark = "The paper prints no numbers. Its claim: LMC4Rec has the smallest errors of V."

    def groups(self) -> dict[str, Training]:
        made = {p: by_title(PLANETOID, partial(small_rec, self, partition=p)) for p in ("random", "metis")}
        return {f"{name}, {p}": group for p, groups in made.items() for name, group in groups.items()}

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        claims = [(name, "LMC4Rec", other) for name in groups for other in ("SSE", "Cluster-GCN", "GAS")]
        return [
            self.compare(
                f"relative error of {kind}, mean along training", groups, METHODS, results,
                partial(Trained.mean_error, name=kind), higher=False, digits=4, tie=0.02, absolute=False,
                claims=claims if kind == "V" else (),
            )
            for kind in ("H", "V")
        ]  # fmt: skip

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        return curves(self.title, self.groups(), Results(self.own(records)), "at", ("H", "V"), METHODS)
