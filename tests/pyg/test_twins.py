"""Wrapped networks of PyG's APPNP and GCN2Conv agree with the native APPNP and GCNII in logits and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP as Propagation  # noqa: N811
from torch_geometric.nn import GCN2Conv

from helpers import parts_of, random_graph, scrambled, sweep, worst_error
from lmc.graph import Aggregation, gcn_norm
from lmc.methods import BackwardSGD, FullBatch, LMC4Conv, Method
from lmc.models import APPNP, GCNII, Model
from lmc.pyg import wrap

G = random_graph()


class Predict(nn.Module):
    """APPNP built from PyG's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.lin_in, self.lin_predict = nn.Linear(6, 7), nn.Linear(7, 4)
        self.propagation = Propagation(K=4, alpha=0.2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagation(self.lin_predict(self.lin_in(x).relu()), edge_index)


class Initial(nn.Module):
    """GCNII built from PyG's modules."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.lin_in, self.lin_out = nn.Linear(6, 7), nn.Linear(7, 4)
        self.convs = nn.ModuleList(GCN2Conv(7, 0.1, 0.5, l, shared_weights=shared) for l in (1, 2, 3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = h0 = self.lin_in(x).relu()
        for conv in self.convs:
            h = conv(h, h0, edge_index).relu()
        return self.lin_out(h)


def twins(name: str) -> tuple[nn.Module, Model, dict[str, tuple[str, bool]]]:
    """A PyG network, the native model with the same parameters, and for each parameter of the network the name in the
    model and whether it is transposed there."""
    if name == "appnp":
        theirs, ours = Predict(), APPNP(6, 7, 4, num_layers=4, alpha=0.2)
        names = {key: (key, False) for key in theirs.state_dict()}
    else:
        shared = name == "gcnii"
        theirs, ours = Initial(shared), GCNII(6, 7, 4, num_layers=3, alpha=0.1, theta=0.5, shared_weights=shared)
        names = {
            f"lin_{end}.{kind}": (f"lin_{end}.{kind}", False) for end in ("in", "out") for kind in ("weight", "bias")
        }
        for l in range(3):
            names[f"convs.{l}.weight1"] = f"layers.{l}.lin.weight", True
            if not shared:
                names[f"convs.{l}.weight2"] = f"layers.{l}.lin0.weight", True
    scrambled(theirs)
    state = theirs.state_dict()
    assert state.keys() == names.keys()
    ours.double().load_state_dict({b: state[a].t() if turned else state[a] for a, (b, turned) in names.items()})
    return theirs, ours, names


@pytest.mark.parametrize("name", ["appnp", "gcnii", "gcnii-two-matrices"])
def test_logits_agree(name: str) -> None:
    theirs, ours, _ = twins(name)
    assert isinstance(G.x, Tensor)
    edges = torch.stack([G.adj.indices.long(), G.adj.row_index()])
    P = Aggregation.exact(gcn_norm(G.adj, torch.float64))
    assert torch.allclose(theirs(G.x, edges), ours(G.x, P), rtol=0, atol=1e-12)
    assert torch.allclose(wrap(theirs)(G.x, P), ours(G.x, P), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["appnp", "gcnii", "gcnii-two-matrices"])
@pytest.mark.parametrize(
    "method",
    [FullBatch(), BackwardSGD(clusters_per_batch=1), LMC4Conv(alpha=0.0, clusters_per_batch=1)],
    ids=lambda m: m.traits.name,
)
def test_gradients_agree(name: str, method: Method) -> None:
    theirs, ours, names = twins(name)
    found = []
    for model in (wrap(theirs), ours):
        run = method.bind(G, model, parts_of(G))
        run.refresh()
        found.append(sweep(run))
    turned = {names[k.removeprefix("network.")]: v for k, v in found[0].items()}
    assert worst_error({b: v.t() if t else v for (b, t), v in turned.items()}, found[1]) < 1e-9
