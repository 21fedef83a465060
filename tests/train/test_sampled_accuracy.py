"""Every method learns what full batch learns, on real graphs."""

from __future__ import annotations

import dataclasses
import sys
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest

import lmc
from lmc.graph import CSR
from lmc.methods import (
    CMC,
    GAS,
    IMC,
    LADIES,
    METHODS,
    SIGN,
    TOP,
    VRGCN,
    BackwardSGD,
    ClusterGCN,
    DropEdge,
    FastGCN,
    FullBatch,
    GraphFM,
    GraphFMIB,
    GraphSAGE,
    GraphSAINT,
    LMC4Conv,
    Method,
    ShaDow,
)

# the graphs have 60 to 160 training nodes: an epoch is then a few steps, as with GraphSAINT's subgraphs
FEW = {"batch_size": 40}
ENTRIES: dict[str, Method] = {
    "graphsage": GraphSAGE(**FEW),
    "vrgcn": VRGCN(**FEW),
    "fm-ib": GraphFMIB(**FEW),
    "fastgcn": FastGCN(**FEW),
    "ladies": LADIES(**FEW),
    "graphsaint-walk": GraphSAINT("walk"),
    "graphsaint-edge": GraphSAINT("edge"),
    "graphsaint-node": GraphSAINT("node"),
    "shadow": ShaDow(**FEW),
    "sign": SIGN(),
    "dropedge": DropEdge(p=0.2),
    "dropedge-gas": DropEdge(GAS(10, 5), p=0.2),
    "cluster": ClusterGCN(10, 5),
    "gas": GAS(10, 5),
    "fm": GraphFM(10, 5),
    "lmc": LMC4Conv(10, 5),
    "cmc": CMC(10, 5),
    "imc": IMC(10, 5),
    "top": TOP(10, 5),
    "backward-sgd": BackwardSGD(10, 5),
}
DEEP = ("gas", "fm", "lmc")
"""Trained with GCNII too, as in the paper's first table."""


def test_every_method_has_an_entry() -> None:
    """A method that is added to the library has to show that it learns."""
    entered = {method.traits.name for method in ENTRIES.values()} - {DropEdge.traits.name} | {FullBatch.traits.name}
    assert entered == {name for name, method in METHODS.items() if "layered" in method.traits.trains}


@cache
def graph_of(path: Path) -> lmc.Graph:
    """Photo's features are one third full: dense ones are several times as fast."""
    g = lmc.load(path)
    return dataclasses.replace(g, x=g.x.to_dense()) if path.stem == "amazon_photo" and isinstance(g.x, CSR) else g


def accuracy(path: Path, method: Method, kind: str, epochs: int, seed: int, eval_every: int = 4) -> float:
    """Test accuracy at the best validation epoch of a model with the usual settings of each graph."""
    g = graph_of(path)
    shape = (g.num_features, 64 if path.stem == "amazon_photo" or kind == "gcnii" else 16, g.num_classes)
    layers = 4 if kind == "gcnii" else 2
    if path.stem == "amazon_photo":
        model = KINDS[kind](*shape, num_layers=layers, dropout=0.5, norm="layer", seed=seed)
    else:
        model = KINDS[kind](*shape, num_layers=layers, dropout=0.5, input_dropout=True, seed=seed)
    record = lmc.fit(
        g, model, method, epochs=epochs, lr=0.01, weight_decay=5e-4, seed=seed, device="cpu", eval_every=eval_every
    )
    assert record.test is not None
    return record.test


KINDS = {"gcn": lmc.models.GCN, "gcnii": lmc.models.GCNII, "sign": lmc.models.SIGN}


@cache
def full_batch(path: Path, kind: str, epochs: int, seed: int, eval_every: int = 4) -> float:
    return accuracy(path, FullBatch(), kind, epochs, seed, eval_every)


@pytest.mark.data
@pytest.mark.parametrize("name", ENTRIES)
def test_one_seed_on_cora(data_dir: Path, name: str) -> None:
    path, kind = data_dir / "cora.npz", "sign" if name == "sign" else "gcn"
    assert accuracy(path, ENTRIES[name], kind, 40, 0) > full_batch(path, kind, 60, 0) - 0.03


SLOWER = {"graphsaint-edge", "graphsaint-node", "dropedge-gas"}
"""Variants of a method that has an entry; on the larger graph only the slow tests train them."""
EPOCHS = {"vrgcn": 30, "fastgcn": 30, "graphsaint-walk": 40, "sign": 15, "dropedge": 60}
"""Epochs, chosen by the steps of an epoch and the variance of the method; 20 where batches grow from seeds, else 40."""


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in SLOWER])
def test_one_seed_on_photo(data_dir: Path, name: str) -> None:
    path, kind, method = data_dir / "amazon_photo.npz", "sign" if name == "sign" else "gcn", ENTRIES[name]
    epochs = EPOCHS.get(name, 20 if hasattr(method, "batch_size") else 40)
    full = full_batch(path, kind, 15 if kind == "sign" else 50, 0, 25)
    assert accuracy(path, method, kind, epochs, 0, max(epochs // 2, 15)) > full - 0.03


def entered(name: str) -> tuple[str, Method]:
    """The model and the method of an entry such as "gas-gcnii"."""
    kind = "sign" if name == "sign" else "gcnii" if name.endswith("-gcnii") else "gcn"
    return kind, ENTRIES[name.removesuffix("-gcnii")]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", [*ENTRIES, *[f"{name}-gcnii" for name in DEEP]])
@pytest.mark.parametrize("graph", ["cora", "citeseer", "pubmed", "amazon_photo"])
def test_within_three_points_of_full_batch(
    data_dir: Path, graph: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (kind, method) = data_dir / f"{graph}.npz", entered(name)
    full = [full_batch(path, kind, 150, seed) for seed in range(5)]
    ours = [accuracy(path, method, kind, 100, seed) for seed in range(5)]
    with capsys.disabled():
        scores = [f"{100 * mean(each):.2f} +- {100 * stdev(each):.2f}" for each in (full, ours)]
        sys.stdout.write(f"\n{graph}, {kind}: full batch {scores[0]}, {name} {scores[1]} (5 seeds)\n")
    assert mean(ours) > mean(full) - 0.03
