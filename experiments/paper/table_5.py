"""Table 5: epochs, runtime and memory of RecGCN on the large graphs."""

from dataclasses import dataclass

from experiments.paper.groups import LARGE_REC, by_title, large_rec
from experiments.paper.item import Item, Results
from experiments.paper.numbers import Comparison, parse, transposed
from experiments.paper.training import Trained, Training

METHODS = ("cluster", "gas", "lmc4rec")
TARGETS = {"ppi": 0.985, "reddit": 0.96, "amazon": 0.87, "ogbn-arxiv": 0.72, "ogbn-products": 0.77}
"""The paper's targets, for the real graphs."""
EPOCHS = parse("""
                Cluster-GCN   GAS     LMC4Rec
PPI             1000          353     301
REDDIT          1000          119     102
AMAZON          1000          607     485
Ogbn-arxiv      1000          353     332
Ogbn-products   1000          319     270
""")
SECONDS = parse("""
                Cluster-GCN   GAS     LMC4Rec
PPI             36020         13873   13245
REDDIT          5487          1138    999
AMAZON          6662          5291    4414
Ogbn-arxiv      3865          2148    2035
Ogbn-products   30018         18560   16450
""")
MEMORY = parse("""
                Cluster-GCN   GAS     LMC4Rec
PPI             1999          3517    4103
REDDIT          5159          7347    8009
AMAZON          1925          1947    1955
Ogbn-arxiv      1865          3453    3453
Ogbn-products   2345          8151    8295
""")


@dataclass(frozen=True, kw_only=True)
class Table5(Item):
    """Epochs and seconds until RecGCN reaches an accuracy, and the memory of a step."""

    name, label = "table-5", "tab:runtime"
    title = "Efficiency of RecGCN with Cluster-GCN, GAS and LMC4Rec"
    timed = METHODS
    remark = (
        "Targets on real graphs: 98.5, 96, 87, 72 and 77 %, as in the paper, where 1000 epochs of Cluster-GCN mean "
        "never. On lookalikes: 0.1 points below the lower of the best accuracies of GAS and LMC4Rec."
    )

    def groups(self) -> dict[str, Training]:
        return by_title(LARGE_REC, lambda dataset: large_rec(self, dataset))

    def target(self, record: Trained, results: Results) -> float | None:
        """The accuracy to reach on the graph and the seed of a record."""
        if record.graph.endswith("real"):
            return TARGETS[record.dataset]
        rivals = [r for m in ("gas", "lmc4rec") for r in results.of(self.of_record(record), m) if r.seed == record.seed]
        best = [max(r.test) for r in rivals if r.test]
        return min(best) - 0.001 if best else None

    def comparisons(self, results: Results) -> list[Comparison]:
        def reached(record: Trained, which: int) -> float | None:
            target = self.target(record, results)
            return None if target is None or not record.test else record.reaches(target)[which]

        def memory(record: Trained) -> float | None:
            return None if record.step_bytes is None else record.step_bytes / 1e6

        kinds = (
            ("epochs to the target", EPOCHS, 1, lambda record: reached(record, 0)),
            ("seconds to the target", SECONDS, 2, lambda record: reached(record, 1)),
            ("memory of a step, MB", MEMORY, 1, memory),
        )
        return [
            self.compare(
                what, self.groups(), METHODS, results, number, paper=transposed(paper), higher=False, digits=digits,
                tie=0.05, absolute=False,
            )
            for what, paper, digits, number in kinds
        ]  # fmt: skip
