"""Tables 7 and 8: the data sets and the hyper-parameters, which are compared with the registry and the presets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from experiments.paper.item import DATASETS, Item, Results
from experiments.paper.numbers import Comparison, Key, Value, Verdict, parse, transposed
from experiments.paper.training import Training, preset_of
from lmc import presets
from lmc.data.catalog import REAL
from lmc.methods import ClusterMethod

SIZES = parse("""
                Classes   Nodes     Edges
Cora            7         2708      5278
CiteSeer        6         3327      4552
PubMed          3         19717     44324
PPI             121       56944     793632
REDDIT          41        232965    11606919
AMAZON          58        334863    925872
Ogbn-arxiv      40        169343    1157799
FLICKR          7         89250     449878
Ogbn-products   47        2449029   61859076
""")
RATES = parse("""
                Dimensions   Partitions   Clusters   LR (METIS)   LR (random)
Cora            128          10           2          0.003        0.001
CiteSeer        128          10           2          0.01         0.001
PubMed          128          10           2          0.003        0.0003
PPI             1024         10           2          0.01         -
REDDIT          256          200          100        0.003        -
AMAZON          64           40           1          0.003        -
Ogbn-arxiv      256          80           10         0.003        -
Ogbn-products   256          1500         10         0.001        -
""")


@dataclass(frozen=True, kw_only=True)
class Settings(Item):
    """A table of settings: nothing is trained, and its numbers are to agree."""

    def groups(self) -> dict[str, Training]:
        return {}

    def verdict(self, comparisons: Sequence[Comparison]) -> Verdict:
        """A number that differs is a contradiction."""
        same: list[tuple[str, str, str]] = []
        differing: list[tuple[str, str, str]] = []
        for comparison in comparisons:
            for key, entry in comparison.paper.items():
                agrees = comparison.ours.get(key) == entry
                (same if agrees else differing).append((key[0], f"the paper's {key[1]}", f"another {key[1]}"))
        return Verdict(same, [], differing)


@dataclass(frozen=True, kw_only=True)
class Table7(Settings):
    """Sizes of the data sets: the registry's beside the paper's."""

    name, label = "table-7", "tab:datasets"
    title = "Statistics of the data sets"
    remark = "Ours are the sizes that the loader of the real files requires. A pair is one number here."

    def comparisons(self, results: Results) -> list[Comparison]:
        ours: dict[Key, Value] = {}
        for name, title in DATASETS.items():
            entry = REAL[name]
            sizes = {"Classes": entry.classes, "Nodes": entry.nodes, "Edges": entry.edges}
            ours |= {(title, kind): Value(float(size)) for kind, size in sizes.items()}
        rows = list(dict.fromkeys(row for _, row in SIZES))
        return [Comparison("sizes", rows, ["Classes", "Nodes", "Edges"], ours, transposed(SIZES), digits=0)]


@dataclass(frozen=True, kw_only=True)
class Table8(Settings):
    """Hyper-parameters of LMC4Rec: those of the presets beside the paper's."""

    name, label = "table-8", "tab:hyperparameters"
    title = "Hyper-parameters of LMC4Rec"
    remark = "Ours are those of the presets. A pair is one number here."

    def comparisons(self, results: Results) -> list[Comparison]:
        ours: dict[Key, Value] = {}
        for name, title in DATASETS.items():
            if f"lmc4rec/recgcn/{name}" not in presets.names():
                continue
            preset = preset_of("recgcn", name)
            method = cast(ClusterMethod, preset.method)
            found = {
                "Dimensions": preset.model_arguments["hidden"], "Partitions": method.num_parts,
                "Clusters": method.clusters_per_batch, "LR (METIS)": preset.fit_options["lr"],
            }  # fmt: skip
            if f"lmc4rec-random/recgcn/{name}" in presets.names():
                found["LR (random)"] = preset_of("recgcn", name, random=True).fit_options["lr"]
            ours |= {(title, kind): Value(float(value)) for kind, value in found.items()}
        columns = list(dict.fromkeys(column for column, _ in RATES))
        rows = list(dict.fromkeys(row for _, row in RATES))
        return [Comparison("settings", rows, columns, ours, transposed(RATES), digits=None)]
