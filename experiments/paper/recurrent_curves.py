"""Figures 7, 8 and 11: RecGCN on the small graphs, over epochs and over runtime."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, ClassVar

from matplotlib.figure import Figure

from experiments.paper.figure_6 import LOSS
from experiments.paper.groups import PLANETOID, SMALL_REC, by_title, small_rec
from experiments.paper.item import Item, Number, Results, accuracy, mean_along, mean_over_time, times
from experiments.paper.numbers import Comparison
from experiments.paper.plots import curves
from experiments.paper.training import Trained, Training

OTHERS = ("SSE", "Cluster-GCN", "GAS")


def mean_loss(record: Trained) -> float | None:
    """The mean of the training loss over the evaluations."""
    return fmean(record.loss) if record.loss else None


@dataclass(frozen=True, kw_only=True)
class RecurrentCurves(Item):
    """RecGCN on Cora, CiteSeer and PubMed over epochs."""

    partition: ClassVar[str]
    remark = (
        "The paper prints no numbers. Its claim: LMC4Rec converges like backward SGD, and faster than SSE, Cluster-GCN "
        "and GAS. The loss of Cluster-GCN is not judged: it is that of subgraphs without messages from outside."
    )

    def groups(self) -> dict[str, Training]:
        return by_title(PLANETOID, lambda dataset: small_rec(self, dataset, self.partition))

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        claims = [(name, "LMC4Rec", other) for name in groups for other in OTHERS]
        kinds: list[tuple[str, Number, dict[str, Any]]] = [
            ("test accuracy, %", accuracy, {}),
            ("test accuracy, %, mean along training", mean_along, {}),
            ("training loss, mean along training", mean_loss, LOSS),
        ]
        return [
            self.compare(
                what, groups, SMALL_REC, results, number, **options,
                # the loss of Cluster-GCN is that of subgraphs without messages from outside
                claims=[claim for claim in claims if claim[2] != "Cluster-GCN" or not options],
            )
            for what, number, options in kinds
        ]  # fmt: skip

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        return curves(self.title, self.groups(), Results(self.own(records)), "at", ("test", "loss"))


@dataclass(frozen=True, kw_only=True)
class Figure7(RecurrentCurves):
    """RecGCN on Cora, CiteSeer and PubMed over epochs, with random parts."""

    name, label, partition = "figure-7", "fig:convergence_random", "random"
    title = "RecGCN over epochs under random partitions"


@dataclass(frozen=True, kw_only=True)
class Figure8(RecurrentCurves):
    """RecGCN on Cora, CiteSeer and PubMed over epochs, with METIS parts."""

    name, label, partition = "figure-8", "fig:convergence_metis", "metis"
    title = "RecGCN over epochs under METIS partitions"


@dataclass(frozen=True, kw_only=True)
class Figure11(Item):
    """RecGCN on Cora, CiteSeer and PubMed over the runtime, with random and METIS parts."""

    name, label = "figure-11", "fig:convergence_random_runtime"
    title = "RecGCN over runtime under random and METIS partitions"
    timed = SMALL_REC
    remark = (
        "The paper prints no numbers. Its claims: over the runtime LMC4Rec is at least as good as GAS and Cluster-GCN, "
        "and SSE ends below it."
    )

    def groups(self) -> dict[str, Training]:
        made = {p: by_title(PLANETOID, partial(small_rec, self, partition=p)) for p in ("random", "metis")}
        return {f"{name}, {p}": group for p, groups in made.items() for name, group in groups.items()}

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        ends = {group: times(results, group, SMALL_REC) for group in groups.values()}
        return [
            self.compare(
                "mean of the test accuracy in % over the runtime that all methods have", groups, SMALL_REC, results,
                lambda record: mean_over_time(record, ends[self.of_record(record)]),
                claims=[(name, "LMC4Rec", other) for name in groups for other in ("GAS", "Cluster-GCN")],
            ),
            self.compare(
                "test accuracy, %", groups, SMALL_REC, results, accuracy,
                claims=[(name, "LMC4Rec", "SSE") for name in groups],
            ),
        ]  # fmt: skip

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        return curves(self.title, self.groups(), Results(self.own(records)), "seconds", ("test",))
