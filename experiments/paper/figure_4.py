"""Figure 4: accuracy and loss over runtime."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from experiments.paper.groups import CONV, METHODS, by_title, conv
from experiments.paper.item import Item, Results, loss_after, mean_over_time, times
from experiments.paper.numbers import Comparison
from experiments.paper.plots import curves
from experiments.paper.training import Trained, Training


@dataclass(frozen=True, kw_only=True)
class Figure4(Item):
    """Test accuracy and training loss of GCN over the runtime."""

    name, label = "figure-4", "fig:runtime"
    title = "Test accuracy and training loss over runtime"
    timed = METHODS["gcn"]
    remark = (
        "The paper prints no numbers. Its claim: LMC4Conv is faster than GAS, Cluster-GCN and FM on every graph. The "
        "loss of Cluster-GCN is not judged: it is that of subgraphs without messages from outside."
    )

    def groups(self) -> dict[str, Training]:
        return by_title(CONV, lambda dataset: conv(self, dataset, "gcn"))

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        ends = {group: times(results, group, METHODS["gcn"][1:]) for group in groups.values()}
        return [
            self.compare(
                "mean of the test accuracy in % over the runtime that all mini-batch methods have",
                groups, METHODS["gcn"], results,
                lambda record: mean_over_time(record, ends[self.of_record(record)]),
                claims=[(name, "LMC4Conv", other) for name in groups for other in ("GAS", "Cluster-GCN", "FM")],
            ),
            self.compare(
                "training loss at the end of that runtime", groups, METHODS["gcn"], results,
                lambda record: loss_after(record, ends[self.of_record(record)]),
                claims=[(name, "LMC4Conv", other) for name in groups for other in ("GAS", "FM")],
                higher=False, digits=3, tie=0.02, absolute=False,
            ),
        ]  # fmt: skip

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        return curves(self.title, self.groups(), Results(self.own(records)), "seconds", ("loss", "test"))
