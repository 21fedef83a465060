"""GCN and RecGCN on the real small graphs: LMC against the full batch, a check of our own."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.paper.figure_10 import METHODS
from experiments.paper.groups import PLANETOID
from experiments.paper.item import DATASETS, Item, Results, accuracy
from experiments.paper.numbers import Comparison, Entry, Key, Value, Verdict
from experiments.paper.training import Training

FULL, LMC = "full batch", "LMC"
STEPS = 2000
"""Steps of RecGCN; LMC has 5 in an epoch."""
DIFFERENCE, DEVIATION, WITHIN = "LMC - full batch", "larger deviation", "within it"


@dataclass(frozen=True, kw_only=True)
class SmallGraphs(Item):
    """Accuracy of GCN and RecGCN on Cora, CiteSeer and PubMed under LMC and under the full batch."""

    name, label = "small-graphs", "not in the paper"
    title = "LMC against the full batch on Cora, CiteSeer and PubMed"
    remark = (
        "The verdict is yes where LMC is not below the full batch by more than the larger of the two deviations over "
        f"seeds, or 0.1 points. GCN: as in figure-10, 200 epochs. RecGCN: at most {STEPS} steps of either method; both "
        "end earlier when the validation accuracy does not grow any more."
    )

    def groups(self) -> dict[str, Training]:
        found = {}
        for dataset in PLANETOID:
            title = DATASETS[dataset]
            found[f"{title}, GCN"] = self.group(dataset, "gcn", METHODS)
            # full-batch RecGCN has one step in an epoch: its preset's number of epochs would be too few steps
            for method, spec, epochs in ((FULL, "full", STEPS), (LMC, "lmc4rec", STEPS // 5)):
                found[f"{title}, RecGCN, {method}"] = self.steps(dataset, spec, epochs)
        return found

    def steps(self, dataset: str, spec: str, epochs: int) -> Training:
        """RecGCN with one method for so many epochs, or ``--epochs`` where that is less."""
        return Training(dataset, "recgcn", spec, min(epochs, self.epochs or epochs))

    def comparisons(self, results: Results) -> list[Comparison]:
        groups, ours = self.groups(), {}
        settings = [f"{DATASETS[dataset]}, {model}" for model in ("GCN", "RecGCN") for dataset in PLANETOID]
        for setting in settings:
            for title, spec in ((FULL, "full"), (LMC, "lmc" if setting.endswith(" GCN") else "lmc4rec")):
                entry = results.entry(groups.get(setting) or groups[f"{setting}, {title}"], spec, accuracy)
                if entry is not None:
                    ours[setting, title] = entry
        shown = Comparison("test accuracy, %", settings, [FULL, LMC], ours)
        return [shown, Comparison("points", settings, [DIFFERENCE, DEVIATION, WITHIN], differences(shown))]

    def verdict(self, comparisons: Sequence[Comparison]) -> Verdict:
        found: dict[bool, list[tuple[str, str, str]]] = {True: [], False: []}
        for (setting, kind), entry in comparisons[-1].ours.items():
            if kind == WITHIN:
                found[entry != "no, below"].append((setting, LMC, FULL))
        return Verdict(found[True], [], found[False])


def differences(comparison: Comparison) -> dict[Key, Entry]:
    """LMC against the full batch in every setting: the difference, the larger deviation, and whether it is
    within that."""
    found: dict[Key, Entry] = {}
    for setting in comparison.settings:
        lmc, full = (comparison.ours.get((setting, method)) for method in (LMC, FULL))
        order = comparison.order(lmc, full)
        if order is not None and isinstance(lmc, Value) and isinstance(full, Value):
            found[setting, DIFFERENCE] = Value(lmc.mean - full.mean)
            found[setting, DEVIATION] = Value(max(lmc.deviation or 0.0, full.deviation or 0.0))
            found[setting, WITHIN] = {0: "yes", 1: "no, above", -1: "no, below"}[order]
    return found
