"""Table 4: accuracy of GCN and GCNII under small batch sizes."""

from dataclasses import dataclass

from experiments.paper.groups import BATCH_SIZES, SMALL_BATCH
from experiments.paper.item import Item, Results, accuracy
from experiments.paper.numbers import Comparison, Value, parse
from experiments.paper.training import Training
from experiments.study import Rates
from lmc.cli.lists import parse_numbers

PAPER = parse("""
           GCN, 1   GCN, 2   GCN, 5   GCN, 10   GCNII, 1   GCNII, 2   GCNII, 5   GCNII, 10
GAS        70.56    71.11    71.99    71.60     71.34      72.25      72.23      72.82
LMC4Conv   71.65    71.89    71.84    72.14     72.11      72.55      72.87      72.80
""")
METHODS = {"GAS": "gas", "LMC4Conv": SMALL_BATCH}


@dataclass(frozen=True, kw_only=True)
class Table4(Item):
    """Accuracy of GAS and LMC4Conv on Ogbn-arxiv with 1, 2, 5 and 10 clusters in a batch."""

    name, label = "table-4", "tab:batchsize_conv"
    title = "Performance under different batch sizes on Ogbn-arxiv"
    remark = f"The best of the learning rates, as in the paper; LMC4Conv is {SMALL_BATCH}."

    lrs: Rates = "1e-2,1e-3"

    def groups(self) -> dict[str, Training]:
        specs = [f"{method}:lr={lr:g}" for method in METHODS.values() for lr in parse_numbers(self.lrs, "--lrs")]
        return {
            f"{model.upper()}, {size}": self.group("ogbn-arxiv", model, specs, clusters=size)
            for model in ("gcn", "gcnii")
            for size in BATCH_SIZES
        }

    def comparisons(self, results: Results) -> list[Comparison]:
        ours = {}
        for setting, group in self.groups().items():
            for title, method in METHODS.items():
                rates = [
                    results.entry(group, spec, accuracy) for spec in group.specs if spec.startswith(f"{method}:lr")
                ]
                values = [entry for entry in rates if isinstance(entry, Value)]
                if values:
                    ours[setting, title] = max(values, key=lambda value: value.mean)
        return [Comparison("test accuracy, %", list(self.groups()), list(METHODS), ours, PAPER)]
