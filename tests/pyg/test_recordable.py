"""Which wrapped networks are recorded as CUDA graphs, and that replaying one gives the same results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, models

from helpers import parts_of, random_graph
from lmc.methods import CMC, GAS, ClusterGCN, FullBatch, GraphFM, LMC4Conv, Method
from lmc.models import GAT, GCN, RecGCN
from lmc.pyg import wrap


class Own(nn.Module):
    """A user's own network, whose forward might do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


NETWORKS: dict[str, Any] = {
    "gcn": lambda: models.GCN(6, 7, 3, 4, dropout=0.5),
    "gcn-batch": lambda: models.GCN(6, 7, 3, 4, dropout=0.5, norm="BatchNorm"),
    "gcn-layer-jk": lambda: models.GCN(6, 7, 2, 4, norm="LayerNorm", norm_kwargs={"mode": "node"}, jk="cat"),
    "sage": lambda: models.GraphSAGE(6, 7, 2, 4, dropout=0.2),
    "gin": lambda: models.GIN(6, 7, 2, 4, norm="BatchNorm"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_known_modules_are_recorded(name: str) -> None:
    assert wrap(NETWORKS[name]()).recordable


def hooked() -> nn.Module:
    network = models.GCN(6, 7, 2, 4)
    network.convs[0].register_forward_hook(lambda *_: None)
    return network


NOT_RECORDABLE: dict[str, Any] = {
    "a user's own network": Own,
    "hook": hooked,
    "activation function": lambda: models.GCN(6, 7, 2, 4, act=lambda x: x.relu()),
    "batch norm without momentum": lambda: models.GCN(6, 7, 2, 4, norm="BatchNorm", norm_kwargs={"momentum": None}),
    "lstm": lambda: models.GCN(6, 7, 2, 4, jk="lstm"),
    "attention": lambda: models.GAT(6, 7, 2, 4),
    "maximum": lambda: models.EdgeCNN(6, 7, 2, 4),
}


@pytest.mark.parametrize("case", NOT_RECORDABLE)
def test_networks_that_may_change_between_passes_are_not_recorded(case: str) -> None:
    assert not wrap(NOT_RECORDABLE[case]()).recordable


def test_native_models_are_recorded_unless_they_solve_a_fixed_point() -> None:
    assert GCN(6, 7, 4).recordable
    assert GAT(6, 8, 4).recordable
    assert not RecGCN(6, 7, 4).recordable


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "method",
    [FullBatch(), *[m(clusters_per_batch=2) for m in (ClusterGCN, GAS, GraphFM, LMC4Conv, CMC)]],
    ids=lambda m: m.traits.name,
)
def test_replayed_steps_of_a_wrapped_network_equal_eager_steps(name: str, method: Method) -> None:
    g = random_graph()
    network, seen = NETWORKS[name]().double(), []
    for recorded in (False, True):
        model = wrap(copy.deepcopy(network))
        run = method.bind(g, model, parts=None if isinstance(method, FullBatch) else parts_of(g), device="cuda")
        assert run.pipeline.recorder is not None
        if not recorded:
            run.pipeline.recorder = None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(5):  # eager, recorded, replayed
            for batch in run.batches():
                optimizer.zero_grad()
                losses.append(run.accumulate(batch).loss)
                optimizer.step()
        seen.append((torch.stack(losses), [t.data() for t in run.named_tables().values()], list(model.buffers())))
    assert torch.allclose(seen[0][0], seen[1][0], rtol=0, atol=1e-9)
    for a, b in zip(seen[0][1] + seen[0][2], seen[1][1] + seen[1][2], strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)
