"""Table 2: epochs and runtime to the accuracy of the full batch."""

from dataclasses import dataclass
from functools import partial

from experiments.paper.groups import conv
from experiments.paper.item import DATASETS, Item, Results
from experiments.paper.numbers import Comparison, parse, transposed
from experiments.paper.training import Trained, Training

SETTINGS = [("ogbn-arxiv", "gcn"), ("flickr", "gcn"), ("reddit", "gcn"), ("ppi", "gcn"), ("ogbn-arxiv", "gcnii"),
            ("flickr", "gcnii")]  # fmt: skip
EPOCHS = parse("""
                     Cluster-GCN    GAS            LMC4Conv
Ogbn-arxiv & GCN     211.0+-75.6    176.0+-43.4    124.4+-34.2
FLICKR & GCN         379.2+-29.0    389.4+-21.2    334.2+-18.6
REDDIT & GCN         239.0+-26.2    372.4+-55.2    166.8+-20.9
PPI & GCN            428.0+-45.8    293.6+-11.9    290.2+-28.5
Ogbn-arxiv & GCNII   -              234.8+-30.2    197.4+-34.7
FLICKR & GCNII       -              352+-54        356+-64
""")
SECONDS = parse("""
                     Cluster-GCN    GAS            LMC4Conv
Ogbn-arxiv & GCN     108+-39        79+-20         55+-15
FLICKR & GCN         127+-10        117+-7         85+-5
REDDIT & GCN         516+-57        790+-114       381+-47
PPI & GCN            359+-38        179+-9         179+-18
Ogbn-arxiv & GCNII   -              218+-28        178+-31
FLICKR & GCNII       -              465+-71        475+-85
""")
METHODS = ("cluster", "gas", "lmc")


@dataclass(frozen=True, kw_only=True)
class Table2(Item):
    """Epochs and seconds until Cluster-GCN, GAS and LMC4Conv reach the accuracy of the full batch."""

    name, label = "table-2", "tab:memory"
    title = "Efficiency of Cluster-GCN, GAS and LMC4Conv"
    timed = METHODS
    remark = (
        'The target is the test accuracy of the full batch on the same seed at its best validation accuracy. "never": '
        "on at least one seed not within the epochs of this run."
    )

    def groups(self) -> dict[str, Training]:
        return {f"{DATASETS[d]} & {model.upper()}": conv(self, d, model) for d, model in SETTINGS}

    def comparisons(self, results: Results) -> list[Comparison]:
        groups = self.groups()

        def reached(record: Trained, which: int) -> float | None:
            full = {r.seed: r.chosen for r in results.of(self.of_record(record), "full")}
            target = full.get(record.seed)
            return None if target is None or not record.test else record.reaches(target)[which]

        return [
            self.compare(
                what, groups, METHODS, results, partial(reached, which=which),
                paper=transposed(paper), higher=False, digits=digits, tie=0.05, absolute=False,
            )
            for which, what, paper, digits in (
                (0, "epochs to the accuracy of the full batch", EPOCHS, 1),
                (1, "seconds to the accuracy of the full batch", SECONDS, 3),
            )
        ]  # fmt: skip
