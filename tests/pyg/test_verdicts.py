"""What ``lmc.wrap`` makes of common PyG networks is what the table of the documentation says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models

from lmc.errors import ConfigError
from lmc.pyg import wrap

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bring-your-own-model.md"
Make = Callable[[], nn.Module]


class Stacked(nn.Module):
    """Convolutions one after the other, with a ReLU between them."""

    def __init__(self, *convolutions: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convolutions)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).relu()
        return self.convs[-1](x, edge_index)


class WithInput(nn.Module):
    """GCN2Conv, which reads the encoded features in every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.conv = nn.Linear(6, 4), pyg.GCN2Conv(4, 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.encode(x)
        return self.conv(h, h, edge_index)


def two(conv: Callable[..., nn.Module], *args: object) -> Make:
    return lambda: Stacked(conv(6, 8, *args), conv(8, 4, *args))


def inner(conv: Callable[..., nn.Module], *args: object) -> Make:
    return lambda: Stacked(pyg.GCNConv(6, 4), conv(*args), pyg.GCNConv(4, 4))


def sage(aggr: str | list[str]) -> Make:
    return lambda: models.GraphSAGE(6, 8, 2, 4, aggr=aggr)


def gcn(norm: str | None = None, jk: str | None = None, **norm_kwargs: object) -> Make:
    return lambda: models.GCN(6, 8, 2, 4, norm=norm, norm_kwargs=norm_kwargs, jk=jk)


DEGREES = torch.tensor([0, 5, 10, 5])
PNA = {"aggregators": ["mean", "std"], "scalers": ["identity", "amplification"], "deg": DEGREES}
ROWS: dict[str, list[Make]] = {
    "GCN, also cached": [gcn(), lambda: models.GCN(6, 8, 2, 4, cached=True)],
    "GraphSAGE with mean or sum": [sage("mean"), sage("sum")],
    "GIN, also with batch norm": [lambda: models.GIN(6, 8, 2, 4, norm="BatchNorm")],
    "GraphConv, TAGConv, SGConv, SSGConv": [
        two(pyg.GraphConv), two(pyg.TAGConv), two(pyg.SGConv, 2), two(pyg.SSGConv, 0.1, 2),
    ],
    "ChebConv, ClusterGCNConv, MixHopConv": [
        two(pyg.ChebConv, 3), two(pyg.ClusterGCNConv), lambda: Stacked(pyg.MixHopConv(6, 4), pyg.GCNConv(12, 4)),
    ],
    "APPNP, GCN2Conv, LGConv": [inner(pyg.APPNP, 3, 0.1), WithInput, inner(pyg.LGConv)],
    "GatedGraphConv, AntiSymmetricConv": [inner(pyg.GatedGraphConv, 4, 2), inner(pyg.AntiSymmetricConv, 4)],
    "any of these with JumpingKnowledge": [gcn(jk="cat"), gcn(jk="max"), gcn("layer_norm", "lstm", mode="node")],
    'BatchNorm, DiffGroupNorm, LayerNorm with mode="node"': [
        gcn("BatchNorm"), gcn("DiffGroupNorm", groups=2), gcn("layer_norm", mode="node"),
    ],
    "GAT, GATv2, SuperGATConv": [
        lambda: models.GAT(6, 8, 2, 4, heads=2), lambda: models.GAT(6, 8, 2, 4, v2=True), two(pyg.SuperGATConv),
    ],
    "TransformerConv": [two(pyg.TransformerConv)],
    "GraphSAGE with max, median, softmax or a list": [
        sage("max"), sage("median"), sage("softmax"), sage(["mean", "max"]),
    ],
    "PNA, EdgeCNN, GENConv, FiLMConv": [
        lambda: models.PNA(6, 8, 2, 4, **PNA), lambda: models.EdgeCNN(6, 8, 2, 4), two(pyg.GENConv), two(pyg.FiLMConv),
    ],
    "ResGatedGraphConv, GeneralConv, FeaStConv": [
        two(pyg.ResGatedGraphConv), two(pyg.GeneralConv), two(pyg.FeaStConv),
    ],
    "LEConv, AGNNConv": [two(pyg.LEConv), inner(pyg.AGNNConv)],
    "GraphSAGE with lstm": [sage("lstm")],
    "ARMAConv, MFConv, HypergraphConv": [two(pyg.ARMAConv), two(pyg.MFConv), two(pyg.HypergraphConv)],
    "GraphNorm, PairNorm, InstanceNorm, LayerNorm": [
        gcn("GraphNorm"), gcn("PairNorm"), gcn("InstanceNorm"), gcn("layer_norm"),
    ],
    "GPSConv, GraphUNet, LINKX, PMLP": [
        inner(pyg.GPSConv, 4, pyg.GCNConv(4, 4)), lambda: models.GraphUNet(6, 8, 4, 2),
        lambda: models.LINKX(12, 6, 8, 4, 2), lambda: models.PMLP(6, 8, 4, 2),
    ],
}  # fmt: skip
TABLE = dict(re.findall(r"^\| ([^|]+) \| (product|softmax|edges|refused) \|$", PAGE.read_text(), flags=re.MULTILINE))


def verdict(network: nn.Module) -> str:
    try:
        model = wrap(network)
    except ConfigError as reason:
        return "refused" if "\n" not in str(reason) else "refused in several lines"
    return "product" if model.linear else "softmax" if model.exact else "edges"


def test_the_table_has_these_rows() -> None:
    assert TABLE.keys() == ROWS.keys()


@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize("row", ROWS)
def test_the_verdict_is_that_of_the_table(row: str) -> None:
    assert {verdict(make()) for make in ROWS[row]} == {TABLE[row]}
