"""Figure 6: what the compensations of the forward and of the backward pass improve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from experiments.paper.groups import SMALL_BATCH
from experiments.paper.item import Item, Number, Results, accuracy, mean_along
from experiments.paper.numbers import Comparison
from experiments.paper.plots import curves
from experiments.paper.training import Trained, Training

SHOWN = ("GAS", FORWARD := "C_f", BOTH := "C_f & C_b")
"""The methods of either group."""
CLAIMS = (
    ("small batches", BOTH, "GAS"), ("small batches", BOTH, FORWARD),
    ("large batches", BOTH, "GAS"), ("large batches", FORWARD, "GAS"),
)  # fmt: skip

LOSS = {"higher": False, "digits": 3, "tie": 0.02, "absolute": False}


def last_loss(record: Trained) -> float | None:
    """The training loss of the last epoch that was evaluated."""
    return record.loss[-1] if record.loss else None


@dataclass(frozen=True, kw_only=True)
class Figure6(Item):
    """Accuracy of GAS, of LMC4Conv with C_f alone, and of LMC4Conv, with 1 and with 40 of 80 clusters in a batch."""

    name, label = "figure-6", "fig:ablation"
    title = "The improvement of the compensations on Ogbn-arxiv"
    remark = (
        "The paper prints no numbers. Its claims: with small batches C_b improves on GAS and on C_f alone; with large "
        "batches C_f improves on GAS, and C_b slightly more. Rates: 1e-4 and 1e-2, as in the paper's ablations."
    )

    def groups(self) -> dict[str, Training]:
        small = ["gas:lr=1e-4", f"{SMALL_BATCH}:backward=no:lr=1e-4", f"{SMALL_BATCH}:lr=1e-4"]
        large = ["gas", "lmc:backward=no", "lmc"]
        return {
            "small batches": self.group("ogbn-arxiv", "gcn", small, clusters=1),
            "large batches": self.group("ogbn-arxiv", "gcn", large),
        }

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()
        kinds: list[tuple[str, Number, dict[str, Any]]] = [
            ("test accuracy, %", accuracy, {}),
            ("test accuracy, %, mean along training", mean_along, {}),
            ("training loss of the last epoch", last_loss, LOSS),
        ]
        made = []
        for what, number, options in kinds:
            ours = {
                (setting, title): entry
                for setting, group in groups.items()
                for title, spec in zip(SHOWN, group.specs, strict=True)
                if (entry := results.entry(group, spec, number)) is not None
            }
            made.append(Comparison(what, list(groups), SHOWN, ours, claims=CLAIMS, **options))
        return made

    def figure(self, records: Sequence[Trained]) -> Figure | None:
        groups = self.groups()
        names = {spec: title for group in groups.values() for title, spec in zip(SHOWN, group.specs, strict=True)}
        return curves(self.title, groups, Results(self.own(records)), "at", ("test", "loss"), names=names)
