"""How long a group of trainings takes: the time of a campaign is divided by it.

The time of an epoch is that of the lines of the folder where there are any, else one that was measured on an H200.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from experiments.paper.graphs import Graphs
from experiments.paper.item import pace_key
from experiments.paper.training import SEED_BATCH, TIME, Trained, Training, divided, due, preset_of
from lmc.data import lookalikes
from lmc.data.catalog import REAL
from lmc.data.lookalikes import LOOKALIKES
from lmc.grammar import split_spec
from lmc.methods import ClusterMethod

BIND = 0.5
"""Seconds until the first step of a method."""
STEP = {"gcn": 0.8e-3, "gcnii": 2.5e-3, "recgcn": 10e-3}
EVALUATION = {"gcn": 30e-3, "gcnii": 50e-3, "recgcn": 100e-3}
"""Seconds of a step and of an evaluation, by model."""
WIDE = {("gcnii", "ppi"): 2.5, ("recgcn", "amazon"): 2.4}
"""How many times as long a step takes with a wide model, or with a fixed point that takes many iterations."""
SAMPLED = {"graphsage": 15e-3, "vrgcn": 15e-3, "fastgcn": 15e-3, "ladies": 15e-3, "graphsaint": 15e-3, "sign": 2e-3}
"""Seconds of a step of the methods that sample nodes or need no graph."""
WHOLE = ("full", "ignn")


def nodes_of(graphs: Graphs, dataset: str) -> int:
    """The nodes of the graph of a data set, which is not loaded."""
    name, kind = graphs.source(dataset)
    if kind == "real":
        return REAL[dataset].nodes
    base, share = lookalikes.parse(name) or (name, None)
    return round(LOOKALIKES[base].nodes * (share or 1.0))


def steps(cell: Training, nodes: int) -> float:
    """The steps of an epoch of a method that draws clusters."""
    parts, clusters = divided(cell, cast(ClusterMethod, preset_of(cell.model, cell.dataset).method), nodes)
    return parts / clusters


def paces_of(records: Iterable[Trained]) -> dict[tuple[Any, ...], float]:
    """The seconds of an epoch of what was trained before, by what they depend on."""
    trained = [record for record in records if record.at and record.probe != TIME]
    return {pace_key(r, r.method): r.seconds[-1] / r.at[-1] for r in sorted(trained, key=lambda r: r.at[-1])}


def cost(cell: Training, graphs: Graphs, paces: Mapping[tuple[Any, ...], float]) -> float:
    """Seconds of a group, with ``paces`` where an epoch was measured before."""
    nodes = nodes_of(graphs, cell.dataset)
    evaluations = sum(due(k + 1, often=False) for k in range(cell.epochs)) * (cell.probe != TIME)
    return sum(
        BIND
        + cell.epochs * (paces.get(pace_key(cell, spec)) or epoch_seconds(cell, split_spec(spec)[0], nodes))
        + evaluations * EVALUATION[cell.model]
        for spec in cell.specs
    )


def level(wants: Sequence[float], seconds: float) -> float:
    """The most seconds of a group with which groups that want so long take ``seconds`` in all."""
    for k, want in enumerate(sorted(wants)):
        if want * (len(wants) - k) >= seconds:
            return seconds / (len(wants) - k)
        seconds -= want
    return max(wants) + seconds


def epoch_seconds(cell: Training, method: str, nodes: int) -> float:
    """Seconds of the steps of an epoch."""
    if method in SAMPLED:
        return SAMPLED[method] * (1 + nodes / 2 / SEED_BATCH)
    count = 2.0 if method in WHOLE else steps(cell, nodes)
    return count * STEP[cell.model] * WIDE.get((cell.model, cell.dataset), 1.0)
