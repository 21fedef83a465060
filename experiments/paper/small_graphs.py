"""GCN and RecGCN on the real small graphs: LMC against the full batch, a check of our own."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.paper.groups import PLANETOID
from experiments.paper.item import DATASETS, Item, Results, accuracy
from experiments.paper.numbers import Comparison, Verdict
from experiments.paper.training import Training

FULL, LMC = "full batch", "LMC"


@dataclass(frozen=True, kw_only=True)
class SmallGraphs(Item):
    """Accuracy of GCN and RecGCN on Cora, CiteSeer and PubMed under LMC and under the full batch."""

    name, label = "small-graphs", "not in the paper"
    title = "LMC against the full batch on Cora, CiteSeer and PubMed"
    remark = (
        "The verdict is yes where LMC is not below the full batch by more than the deviation over seeds. GCN: as in "
        "figure-10, 200 epochs. RecGCN: 150 steps of either method."
    )

    def groups(self) -> dict[str, Training]:
        found = {}
        for dataset in PLANETOID:
            found[f"{DATASETS[dataset]}, GCN"] = self.group(dataset, "gcn", ("full", "lmc"))
            found[f"{DATASETS[dataset]}, RecGCN, {FULL}"] = self.group(dataset, "recgcn", ("full",), epochs=150)
            found[f"{DATASETS[dataset]}, RecGCN, {LMC}"] = self.group(dataset, "recgcn", ("lmc4rec",), epochs=30)
        return found

    def cells(self) -> list[Training]:
        """PubMed, which takes the longest, comes last."""
        return sorted(super().cells(), key=lambda cell: (cell.dataset == "pubmed", cell.seed, cell.model))

    def comparisons(self, results: Results) -> list[Comparison]:
        groups, ours = self.groups(), {}
        settings = [f"{DATASETS[dataset]}, {model}" for model in ("GCN", "RecGCN") for dataset in PLANETOID]
        for setting in settings:
            for title, spec in ((FULL, "full"), (LMC, "lmc" if setting.endswith(" GCN") else "lmc4rec")):
                entry = results.entry(groups.get(setting) or groups[f"{setting}, {title}"], spec, accuracy)
                if entry is not None:
                    ours[setting, title] = entry
        return [Comparison("test accuracy, %", settings, [FULL, LMC], ours)]

    def verdict(self, comparisons: Sequence[Comparison]) -> Verdict:
        found: dict[bool, list[tuple[str, str, str]]] = {True: [], False: []}
        for comparison in comparisons:
            for setting in comparison.settings:
                order = comparison.order(comparison.ours.get((setting, LMC)), comparison.ours.get((setting, FULL)))
                if order is not None:
                    found[order >= 0].append((setting, LMC, FULL))
        return Verdict(found[True], [], found[False])
