"""Table 3: memory of a step, and the share of messages that are kept."""

from dataclasses import dataclass

from experiments.paper.groups import CONV
from experiments.paper.item import DATASETS, Item, Number, Results
from experiments.paper.numbers import Comparison, Entry, Key, parse, transposed
from experiments.paper.training import Training

METHODS = ("full", "cluster", "gas", "lmc")
MEMORY = parse("""
                      GD     Cluster-GCN   GAS    LMC4Conv
1, Ogbn-arxiv         681    177           178    207
1, FLICKR             411    138           168    177
1, REDDIT             2067   428           482    610
1, PPI                605    189           190    197
default, Ogbn-arxiv   681    424           452    557
default, FLICKR       411    310           375    376
default, REDDIT       2067   1193          1508   1829
default, PPI          605    212           214    267
""")
FORWARD = parse("""
                      GD    Cluster-GCN   GAS   LMC4Conv
1, Ogbn-arxiv         100   67            100   100
1, FLICKR             100   57            100   100
1, REDDIT             100   35            100   100
1, PPI                100   90            100   100
default, Ogbn-arxiv   100   83            100   100
default, FLICKR       100   77            100   100
default, REDDIT       100   65            100   100
default, PPI          100   91            100   100
""")
BACKWARD = FORWARD | {("GAS", row): entry for (column, row), entry in FORWARD.items() if column == "Cluster-GCN"}
"""GAS keeps in the backward pass what Cluster-GCN keeps."""


def in_percent(share: float | None) -> float | None:
    """A share in percent."""
    return None if share is None else 100 * share


KINDS: tuple[tuple[str, dict[Key, Entry], bool, Number], ...] = (
    ("memory of a step, MB", MEMORY, False, lambda r: None if r.step_bytes is None else r.step_bytes / 1e6),
    ("messages kept in the forward pass, %", FORWARD, True, lambda r: in_percent(r.forward)),
    ("messages kept in the backward pass, %", BACKWARD, True, lambda r: in_percent(r.backward)),
)


@dataclass(frozen=True, kw_only=True)
class Table3(Item):
    """Memory of a step of GCN and the share of messages kept, for one cluster in a batch and the preset's number."""

    name, label = "table-3", "tab:memory_consumption"
    title = "GPU memory and the proportion of reserved messages in forward and backward passes"
    remark = (
        "Ours is the peak of a step on the largest batch beyond what remains between steps; the paper counts all "
        "memory of the GPU, with histories on the host."
    )

    def groups(self) -> dict[str, Training]:
        return {
            f"{size}, {DATASETS[d]}": self.group(d, "gcn", METHODS, clusters=clusters, probe="memory", epochs=0)
            for size, clusters in (("1", 1), ("default", 0))
            for d in CONV
        }

    def comparisons(self, results: Results) -> list[Comparison]:
        return [
            self.compare(
                what, self.groups(), METHODS, results, number, paper=transposed(paper), higher=higher,
                digits=0 if higher else 1, tie=0.02, absolute=False,
            )
            for what, paper, higher, number in KINDS
        ]  # fmt: skip
