"""Table 14 and Figure 13: accuracy of RecGCN on the large graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from experiments.paper.groups import LARGE_REC, REC, by_title, large_rec
from experiments.paper.item import Item, Results, accuracy, mean_over_time, times
from experiments.paper.numbers import Comparison, parse
from experiments.paper.plots import curves
from experiments.paper.training import Trained, Training

PAPER = parse("""
              PPI     REDDIT   AMAZON   Ogbn-arxiv   Ogbn-products
SSE           83.60   -        85.08    -            -
IGNN          97.56   94.95    85.31    70.88        OOM
GD            OOM     96.35    86.61    68.43        OOM
GraphSAINT    61.14   96.60    43.53    70.93        OOM
Cluster-GCN   97.37   94.49    85.69    69.23        76.32
GAS           98.88   96.44    88.34    71.92        77.32
LMC4Rec       98.99   96.58    88.84    72.64        77.73
""")
CURVES = ("cluster", "gas", "lmc4rec")


@dataclass(frozen=True, kw_only=True)
class Table14(Item):
    """Accuracy of RecGCN on the large graphs with all methods."""

    name, label = "table-14", "tab:largegraph_appen"
    title = "Performance of RecGCN on large graphs"

    def groups(self) -> dict[str, Training]:
        return by_title(LARGE_REC, lambda dataset: large_rec(self, dataset))

    def comparisons(self, results: Results) -> list[Comparison]:
        what = "test accuracy, % (micro-F1 on PPI and AMAZON)"
        return [self.compare(what, self.groups(), REC, results, accuracy, paper=PAPER, methods_first=True)]


@dataclass(frozen=True, kw_only=True)
class Figure13(Item):
    """Accuracy of RecGCN over the runtime on the large graphs without AMAZON."""

    name, label = "figure-13", "fig:large"
    title = "RecGCN over runtime on large graphs"
    timed = CURVES
    remark = "The paper prints no numbers. Its claim: LMC4Rec is comparable with GAS, and above Cluster-GCN."

    def groups(self) -> dict[str, Training]:
        return by_title([d for d in LARGE_REC if d != "amazon"], lambda dataset: large_rec(self, dataset))

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        ends = {group: times(results, group, CURVES) for group in groups.values()}
        return [
            self.compare(
                "mean of the test accuracy in % over the runtime that all methods have", groups, CURVES, results,
                lambda record: mean_over_time(record, ends[self.of_record(record)]),
                claims=[(name, "LMC4Rec", "Cluster-GCN") for name in groups],
            )
        ]  # fmt: skip

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        return curves(self.title, self.groups(), Results(self.own(records)), "seconds", ("test",), CURVES)
