"""Wrapped networks on graphs with edge weights, edge features and directions: they compute what plain PyG computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv, GCNConv, GINEConv, GraphConv, TransformerConv
from torch_geometric.nn import models as pyg
from torch_geometric.utils import subgraph

import lmc
from helpers import chance, full_loss, parts_of, sweep, weighted_graph, worst_error
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import CMC, GAS, BackwardSGD, ClusterGCN, FullBatch, GraphFM, GraphSAGE, LMC4Conv
from lmc.testing import check_model

K = 3


class Two(nn.Module):
    """Two convolutions with an ELU between them, which read weights and features where they take them."""

    def __init__(self, first: nn.Module, second: nn.Module, argument: str) -> None:
        super().__init__()
        self.first, self.second, self.argument = first, second, argument

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Any = None, edge_attr: Any = None) -> Tensor:
        given = {self.argument: edge_attr if self.argument == "edge_attr" else edge_weight}
        return self.second(self.first(x, edge_index, **given).relu(), edge_index, **given)


class OfData(nn.Module):
    """A network that takes a Data, and reads weights in one convolution and features in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(6, 7), GATv2Conv(7, 4, edge_dim=K)

    def forward(self, data: Data) -> Tensor:
        h = self.first(data.x, data.edge_index, data.edge_weight).relu()
        return self.second(h, data.edge_index, data.edge_attr)


def mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, out))


NETWORKS: dict[str, Any] = {
    "gcn": lambda: pyg.GCN(6, 7, num_layers=2, out_channels=4),
    "graphconv": lambda: Two(GraphConv(6, 7), GraphConv(7, 4), "edge_weight"),
    "graphconv-max": lambda: Two(GraphConv(6, 7, aggr="max"), GraphConv(7, 4), "edge_weight"),
    "gatv2": lambda: Two(GATv2Conv(6, 3, heads=2, edge_dim=K), GATv2Conv(6, 4, edge_dim=K), "edge_attr"),
    "gine": lambda: Two(GINEConv(mlp(6, 7), edge_dim=K), GINEConv(mlp(7, 4), edge_dim=K), "edge_attr"),
    "transformer": lambda: Two(
        TransformerConv(6, 7, edge_dim=K), TransformerConv(7, 4, heads=2, concat=False, edge_dim=K), "edge_attr"
    ),
    "data": OfData,
}
WEIGHTED, ATTRIBUTED = {"gcn", "graphconv", "graphconv-max", "data"}, {"gatv2", "gine", "transformer", "data"}


def case(name: str, directed: bool = True) -> tuple[Graph, lmc.models.Model]:
    torch.manual_seed(0)
    g = weighted_graph(directed=directed, weighted=name in WEIGHTED)
    if name in ATTRIBUTED:
        attr = torch.randn(g.adj.nnz, K, generator=chance(7), dtype=torch.float64)
        g = replace(g, adj=replace(g.adj, edge_data=attr))
    return g, lmc.wrap(NETWORKS[name]().double())


def plain_logits(g: Graph, model: lmc.models.Model) -> Tensor:
    """The network's own pass, by plain PyG."""
    edges, network = torch.stack([g.adj.indices.long(), g.adj.row_index()]), model.network
    assert isinstance(network, nn.Module)
    if isinstance(network, OfData):
        return network(Data(x=g.x, edge_index=edges, edge_weight=g.edge_weight, edge_attr=g.edge_attr))
    return network(g.x, edges, edge_weight=g.edge_weight, edge_attr=g.edge_attr)


def plain_gradient(g: Graph, model: lmc.models.Model) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    loss = full_loss(g, model, plain_logits(g, model))
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()), materialize_grads=True), strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_graph_is_plain_pyg(name: str) -> None:
    g, model = case(name)
    want = plain_gradient(g, model)
    for method in (FullBatch(), LMC4Conv(), ClusterGCN()):
        run = method.bind(g, model, torch.zeros(g.num_nodes, dtype=torch.int64))
        assert worst_error(sweep(run), want) < 1e-10, method
    torch.testing.assert_close(lmc.predict(model, g), plain_logits(g, model).detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_batches_give_the_gradient_of_plain_pyg(name: str) -> None:
    g, model = case(name, directed=name != "gatv2")  # one of them undirected
    want = plain_gradient(g, model)
    assert model.exact == (name not in {"graphconv-max", "gine"})
    assert worst_error(sweep(BackwardSGD(clusters_per_batch=1).bind(g, model, parts_of(g))), want) < 1e-9
    exact = [LMC4Conv(alpha=0.0, clusters_per_batch=1)] if model.exact else []
    for method in (*exact, *([CMC(clusters_per_batch=1, adjoints=True)] if model.linear else [])):
        run = method.bind(g, model, parts_of(g))
        run.refresh()
        assert worst_error(sweep(run), want) < 1e-9, method


@pytest.mark.parametrize("name", ["graphconv-max", "gine", "data"])
def test_core_rows_read_all_of_their_edges(name: str) -> None:
    """With exact histories the loss of every batch is that of plain PyG, whatever happens to the adjoints."""
    g, model = case(name)
    want = full_loss(g, model, plain_logits(g, model)).item()
    for method in (
        GAS(clusters_per_batch=1),
        LMC4Conv(alpha=0.0, clusters_per_batch=1),
        GraphFM(clusters_per_batch=1, momentum=0),
    ):
        run = method.bind(g, model, parts_of(g))
        run.refresh()
        losses = [float(run.accumulate(batch).loss) for batch in run.batches()]
        assert sum(losses) / len(losses) == pytest.approx(want, rel=1e-9)
    model.zero_grad()


@pytest.mark.parametrize("name", ["gcn", "gatv2", "data"])
def test_cluster_gcn_is_plain_pyg_on_the_subgraph(name: str) -> None:
    g, model = case(name)
    run = ClusterGCN(clusters_per_batch=2).bind(g, model, parts_of(g))
    batch = next(run.batches())
    nodes, edges = batch.n_id, torch.stack([g.adj.indices.long(), g.adj.row_index()])
    kept, _, mask = subgraph(nodes, edges, relabel_nodes=False, num_nodes=g.num_nodes, return_edge_mask=True)
    position = torch.full((g.num_nodes,), -1)
    position[nodes] = torch.arange(nodes.numel())
    weight = None if g.edge_weight is None else g.edge_weight[mask]
    attr = None if g.edge_attr is None else g.edge_attr[mask]
    x, network = g.x[nodes], model.network
    given = {"edge_index": position[kept], "edge_weight": weight, "edge_attr": attr}
    logits = network(Data(x=x, **given)) if isinstance(network, OfData) else network(x, **given)  # type: ignore[operator]
    train = g.train[nodes]
    loss = (
        nn.functional.cross_entropy(logits[train], g.y[nodes][train], reduction="sum") * batch.weight / g.num_labelled
    )
    named = dict(model.named_parameters())
    want = dict(zip(named, torch.autograd.grad(loss, list(named.values()), materialize_grads=True), strict=True))
    assert worst_error(run.gradient(batch), want) < 1e-10


def test_a_batch_holds_the_weights_and_features_of_its_edges() -> None:
    g, model = case("data")
    batch = next(LMC4Conv(clusters_per_batch=1).bind(g, model, parts_of(g)).batches())
    data = batch.to_data()
    source, target = data.n_id[data.edge_index]
    A = g.adj.to_dense()
    assert torch.equal(data.edge_weight, A[target, source])
    number = torch.zeros(40, 40, dtype=torch.int64)
    number[g.adj.row_index(), g.adj.indices.long()] = torch.arange(g.adj.nnz)
    assert torch.equal(data.edge_attr, g.edge_attr[number[target, source]])  # type: ignore[index]


def test_check_model_gives_a_network_the_edge_data_that_it_reads() -> None:
    report = check_model(OfData())
    assert report.ok, str(report)
    assert report["exact with exact histories"].holds, str(report)


class Encoded(nn.Module):
    """Edge features that a Linear transforms before the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.conv = nn.Linear(K, 6), GINEConv(mlp(6, 4))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv(x, edge_index, self.encode(edge_attr))


class Required(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GINEConv(mlp(6, 4), edge_dim=K)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_attr)


def test_what_cannot_be_passed_on_is_refused() -> None:
    weighted, _ = case("gcn")
    attributed, gine = case("gine")
    plain = weighted_graph(weighted=False)
    with pytest.raises(ConfigError, match=r"reads edge_weight .*would ignore it"):  # takes it, and leaves it unread
        FullBatch().bind(weighted, lmc.wrap(pyg.GraphSAGE(6, 7, num_layers=2, out_channels=4)))
    with pytest.raises(ConfigError, match="reads edge_attr"):
        FullBatch().bind(attributed, lmc.models.GCN(6, 7, 4))
    with pytest.raises(ConfigError, match=r"without edge_attr for GraphSAGE.*LMC4Conv"):
        GraphSAGE().bind(attributed, gine)
    with pytest.raises(ConfigError, match=r"without edge_weight for GraphSAGE.*LMC4Conv"):
        GraphSAGE().bind(weighted, lmc.wrap(NETWORKS["graphconv-max"]().double()))
    wider = replace(attributed, adj=replace(attributed.adj, edge_data=torch.ones(attributed.adj.nnz, K + 1)))
    with pytest.raises(ConfigError, match=r"edge_attr \[E, 3\] for WrappedNetwork \(got \[106, 4\]\)"):
        FullBatch().bind(wider, gine)
    with pytest.raises(ConfigError, match=r"pass edge_dim to lmc\.wrap"):
        lmc.wrap(Encoded(), 6)
    with pytest.raises(ConfigError, match="edge_attr as it was given"):
        lmc.wrap(Encoded(), 6, edge_dim=K)
    with pytest.raises(ConfigError, match="expected a graph with edge_attr"):
        FullBatch().bind(plain, lmc.wrap(Required().double()))
    zeros = replace(weighted, adj=replace(weighted.adj, values=weighted.adj.data * 0))
    with pytest.raises(ConfigError, match="edge weights other than 0 where messages are not summed"):
        FullBatch().bind(zeros, lmc.wrap(NETWORKS["graphconv-max"]().double()))
