"""Figure 10: GCN on the small graphs over runtime."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from experiments.paper.groups import PLANETOID, by_title
from experiments.paper.item import Item, Results, accuracy, mean_over_time, times
from experiments.paper.numbers import Comparison
from experiments.paper.plots import curves
from experiments.paper.training import Trained, Training

METHODS = ("full", "gas", "lmc")


@dataclass(frozen=True, kw_only=True)
class Figure10(Item):
    """Accuracy of GCN on Cora, CiteSeer and PubMed over the runtime."""

    name, label = "figure-10", "fig:runtime_small"
    title = "GCN on Cora, CiteSeer and PubMed over runtime"
    timed = METHODS
    remark = (
        "The paper prints neither numbers nor settings. Here: a GCN of 2 layers of width 16, dropout 0.5, weight decay "
        "5e-4, 40 parts with 10 in a batch. Its claims: LMC4Conv is faster than GAS, and GD is faster than both."
    )

    def groups(self) -> dict[str, Training]:
        return by_title(PLANETOID, lambda dataset: self.group(dataset, "gcn", METHODS))

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        ends = {group: times(results, group, METHODS) for group in groups.values()}
        pairs = (("GD", "GAS"), ("GD", "LMC4Conv"), ("LMC4Conv", "GAS"))
        return [
            self.compare(
                "mean of the test accuracy in % over the runtime that all methods have", groups, METHODS, results,
                lambda record: mean_over_time(record, ends[self.of_record(record)]),
                claims=[(name, *pair) for name in groups for pair in pairs],
            ),
            self.compare("test accuracy, %", groups, METHODS, results, accuracy),
        ]  # fmt: skip

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        return curves(self.title, self.groups(), Results(self.own(records)), "seconds", ("test",))
