"""The bias that is measured at the end of a comparison."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

import lmc
from lmc.bench import ComparedRun, compare
from lmc.diagnostics import bias
from lmc.methods import GAS, IMC, ClusterGCN, DropEdge, GraphSAGE, LMC4Conv, LMC4Rec, Method
from lmc.train import Settings

METHODS = {
    "cluster": ClusterGCN(4, 1),
    "lmc": LMC4Conv(4, 1),
    "imc": IMC(4, 1),
    "graphsage": GraphSAGE(batch_size=64),
    "gas:drop_edge=0.2": DropEdge(GAS(4, 1), 0.2),
    "lmc4rec": LMC4Rec(4, 1),
}


def last_bias(method: Method, folder: Path) -> tuple[float, float]:
    """The bias in the last record of a comparison, and that of the run after it."""
    g = lmc.load("tiny-like", scale=0.2)
    cls = lmc.models.RecGCN if isinstance(method, LMC4Rec) else lmc.models.GCN
    run = method.bind(g, cls(g.num_features, 8, g.num_classes), device="cpu")
    settings = Settings(epochs=3, eval_every=0, restore_best=False)
    records = [error for _, _, error in compare([ComparedRun("a", run, folder)], settings, error_every=2)]
    assert [error is None for error in records] == [True, False, True]
    assert records[1] is not None
    assert records[1].bias is not None, "epoch 2 is the last measurement: the next would come after the end"
    return records[1].bias, fmean(bias(run).values())


@pytest.mark.parametrize("label", METHODS)
def test_every_family_has_a_bias(label: str, tmp_path: Path) -> None:
    measured, after = last_bias(METHODS[label], tmp_path)
    assert 0 < measured < 2
    assert measured != after, "an epoch later it is another one"


@pytest.mark.parametrize("cls", [ClusterGCN, GAS, LMC4Conv, IMC])
def test_one_part_has_none(cls: type[Method], tmp_path: Path) -> None:
    assert last_bias(cls(1, 1), tmp_path)[0] < 1e-5  # type: ignore[call-arg]
