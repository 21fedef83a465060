"""Table 11: time of an epoch; and its footnote on fixed and stochastic subgraphs."""

from dataclasses import dataclass

from experiments.paper.groups import CONV, conv
from experiments.paper.item import DATASETS, Item, Results, accuracy
from experiments.paper.numbers import Comparison, Value, parse, transposed
from experiments.paper.training import Training

METHODS = ("cluster", "gas", "fm", "lmc")
PAPER = parse("""
                     Cluster-GCN   GAS    FM     LMC4Conv
Ogbn-arxiv & GCN     0.51          0.46   0.75   0.45
FLICKR & GCN         0.33          0.29   0.45   0.26
REDDIT & GCN         2.16          2.11   5.67   2.28
PPI & GCN            0.84          0.61   0.78   0.62
Ogbn-arxiv & GCNII   -             0.92   1.02   0.91
FLICKR & GCNII       -             1.32   1.44   1.33
REDDIT & GCNII       -             4.47   7.89   4.71
PPI & GCNII          -             4.61   5.38   4.77
""")


@dataclass(frozen=True, kw_only=True)
class Table11(Item):
    """Time of an epoch of Cluster-GCN, GAS, FM and LMC4Conv."""

    name, label = "table-11", "tab:epochtime"
    title = "Training time per epoch"
    timed = METHODS
    remark = "Median over epochs, without the first three. Two times are tied within 5 %."

    def groups(self) -> dict[str, Training]:
        return {f"{DATASETS[d]} & {model.upper()}": conv(self, d, model) for model in ("gcn", "gcnii") for d in CONV}

    def comparisons(self, results: Results) -> list[Comparison]:
        return [
            self.compare(
                "seconds per epoch", self.groups(), METHODS, results,
                lambda record: None if record.epoch_ms is None else record.epoch_ms / 1000,
                paper=transposed(PAPER), higher=False, digits=4, tie=0.05, absolute=False,
            )
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Subgraphs(Item):
    """Accuracy with subgraphs that are drawn in every epoch and with subgraphs that are fixed once."""

    name, label = "subgraphs", "sec:exp_epochtime, footnote"
    title = "Stochastic and fixed subgraphs on Ogbn-arxiv"
    remark = "The paper reports GAS alone; its other experiments here and in our presets fix the subgraphs once."

    def groups(self) -> dict[str, Training]:
        specs = ("gas:redraw=yes", "gas", "lmc:redraw=yes", "lmc")
        return {"Ogbn-arxiv & GCN": self.group("ogbn-arxiv", "gcn", specs)}

    def comparisons(self, results: Results) -> list[Comparison]:
        ((setting, group),) = self.groups().items()
        paper = {(setting, "GAS, stochastic"): Value(71.5), (setting, "GAS, fixed"): Value(71.1)}
        titles = ("GAS, stochastic", "GAS, fixed", "LMC4Conv, stochastic", "LMC4Conv, fixed")
        return [
            self.compare(
                "test accuracy, %", {setting: group}, group.specs, results, accuracy, titles=titles, paper=paper
            )
        ]
