"""Tables 12 and 13: the choice of beta = alpha score(x)."""

from dataclasses import dataclass
from typing import ClassVar

from experiments.paper.item import Item, Results, accuracy
from experiments.paper.numbers import Comparison, Entry, Key, parse, transposed
from experiments.paper.training import Training

ALPHAS = parse("""
     0.0     0.2     0.4     0.6     0.8     1.0
1    71.34   71.39   71.65   71.31   70.86   70.57
40   69.85   69.12   69.89   69.61   69.82   71.44
""")
SCORES = parse("""
     2x-x^2   1       x^2     x       sin
1    71.35    70.84   71.32   71.30   71.13
40   67.59    71.44   69.91   70.03   70.32
""")

SIZES = {"1": 1, "40": 0}
"""Clusters in a batch by the paper's batch size; 0: the preset's, half of the parts."""


@dataclass(frozen=True, kw_only=True)
class Ablation(Item):
    """Accuracy of LMC4Conv for several values of one option, with 1 and with 40 of 80 clusters in a batch."""

    option: ClassVar[str]
    others: ClassVar[tuple[str, str]]
    """The other option at its best value, by batch size."""
    paper: ClassVar[dict[Key, Entry]]

    def groups(self) -> dict[str, Training]:
        values = list(dict.fromkeys(column for column, _ in self.paper))
        return {
            size: self.group(
                "ogbn-arxiv", "gcn", [f"lmc:{self.option}={v}:{other}:lr={lr}" for v in values], clusters=clusters
            )
            for (size, clusters), other, lr in zip(SIZES.items(), self.others, ("1e-4", "1e-2"), strict=True)
        }

    def comparisons(self, results: Results) -> list[Comparison]:
        values = list(dict.fromkeys(column for column, _ in self.paper))
        ours, groups = {}, self.groups()
        for size, group in groups.items():
            for value, spec in zip(values, group.specs, strict=True):
                entry = results.entry(group, spec, accuracy)
                if entry is not None:
                    ours[size, value] = entry
        what = f"test accuracy, %, by {self.option} and batch size"
        return [Comparison(what, list(groups), values, ours, transposed(self.paper))]


@dataclass(frozen=True, kw_only=True)
class Table12(Ablation):
    """Accuracy of LMC4Conv by alpha, with 1 and with 40 of 80 clusters in a batch."""

    name, label = "table-12", "tab:ablation_alpha"
    title = "Prediction performance under different alpha on Ogbn-arxiv"
    option, others, paper = "alpha", ("score=2x-x^2", "score=1"), ALPHAS


@dataclass(frozen=True, kw_only=True)
class Table13(Ablation):
    """Accuracy of LMC4Conv by score, with 1 and with 40 of 80 clusters in a batch."""

    name, label = "table-13", "tab:ablation_score"
    title = "Prediction performance under different scores on Ogbn-arxiv"
    option, others, paper = "score", ("alpha=0.4", "alpha=1.0"), SCORES
