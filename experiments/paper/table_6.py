"""Table 6 and Figure 12: RecGCN under small batch sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from experiments.paper.groups import BATCH_SIZES, rec_batch
from experiments.paper.item import DATASETS, Item, Results, accuracy, mean_over_time, times
from experiments.paper.numbers import Comparison, parse
from experiments.paper.plots import curves
from experiments.paper.training import Trained, Training

METHODS = ("gas", "lmc4rec")
PAPER = parse("""
          AMAZON, 1  AMAZON, 2  AMAZON, 5  AMAZON, 10  Ogbn-arxiv, 1  Ogbn-arxiv, 2  Ogbn-arxiv, 5  Ogbn-arxiv, 10
GAS       83.04      84.90      87.48      87.34       72.28          72.10          72.19          71.92
LMC4Rec   87.03      87.35      87.71      87.83       72.52          72.12          72.38          72.64
""")


@dataclass(frozen=True, kw_only=True)
class Table6(Item):
    """Accuracy of RecGCN with GAS and LMC4Rec for 1, 2, 5 and 10 clusters in a batch."""

    name, label = "table-6", "tab:batchsize_rec"
    title = "Performance of RecGCN under different batch sizes"

    def groups(self) -> dict[str, Training]:
        pairs = [(dataset, size) for dataset in ("amazon", "ogbn-arxiv") for size in BATCH_SIZES]
        return {f"{DATASETS[dataset]}, {size}": rec_batch(self, dataset, size) for dataset, size in pairs}

    def comparisons(self, results: Results) -> list[Comparison]:
        return [self.compare("test accuracy, %", self.groups(), METHODS, results, accuracy, paper=PAPER)]


@dataclass(frozen=True, kw_only=True)
class Figure12(Item):
    """Accuracy of RecGCN on AMAZON over the runtime, with 1 and 10 clusters in a batch."""

    name, label = "figure-12", "fig:bacthsize"
    title = "RecGCN on AMAZON over runtime for batch sizes 1 and 10"
    timed = METHODS
    remark = "The paper prints no numbers. Its claim: LMC4Rec is about twice as fast as GAS at batch size 1."

    def groups(self) -> dict[str, Training]:
        return {f"batch size {size}": rec_batch(self, "amazon", size) for size in (1, 10)}

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        ends = {group: times(results, group, METHODS) for group in groups.values()}
        return [
            self.compare(
                "mean of the test accuracy in % over the runtime that both methods have", groups, METHODS, results,
                lambda record: mean_over_time(record, ends[self.of_record(record)]),
                claims=[("batch size 1", "LMC4Rec", "GAS")],
            )
        ]  # fmt: skip

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        return curves(self.title, self.groups(), Results(self.own(records)), "seconds", ("test",))
