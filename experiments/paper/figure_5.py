"""Figure 5: errors of mini-batch gradients relative to the full gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from experiments.paper.groups import by_title
from experiments.paper.item import Item, Results
from experiments.paper.numbers import Comparison
from experiments.paper.plots import curves
from experiments.paper.training import Trained, Training

DATASETS = ("ogbn-arxiv", "flickr", "reddit")
METHODS = ("backward-sgd", "cluster", "gas", "lmc")


@dataclass(frozen=True, kw_only=True)
class Figure5(Item):
    """Relative errors of mini-batch gradients by layer along training, against the full gradient."""

    name, label = "figure-5", "fig:error_conv"
    title = "Errors of mini-batch gradients of GCN, relative to the full gradient"
    remark = (
        "Dropout is 0, as in the paper, which prints no numbers. Its claim: LMC4Conv has the smallest error. Backward "
        "SGD is the part of the error that is due to the choice of the batch alone."
    )

    def groups(self) -> dict[str, Training]:
        return by_title(DATASETS, lambda d: self.group(d, "gcn", METHODS, dropout=0.0, probe="gradient", epochs=60))

    def layers(self) -> list[str]:
        """The layers of the deepest of the models."""
        return ["layer 1", "layer 2", "layer 3"]

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        found = []
        for layer in self.layers():
            made = self.compare(
                f"relative error of the gradient, {layer}, mean along training", groups, METHODS, results,
                partial(Trained.mean_error, name=layer), higher=False, digits=3, tie=0.02, absolute=False,
                claims=[(name, "LMC4Conv", other) for name in groups for other in ("GAS", "Cluster-GCN")],
            )  # fmt: skip
            if made.ours:
                found.append(made)
        return found

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        return curves(self.title, self.groups(), Results(self.own(records)), "at", self.layers()[:2])
