"""Wrapped networks of PyG convolutions: compared with PyG itself and with the native models, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    APPNP,
    ChebConv,
    GATConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GraphConv,
    GraphNorm,
    PairNorm,
    ResGatedGraphConv,
    SAGEConv,
    SGConv,
    SimpleConv,
    TAGConv,
    TransformerConv,
    global_mean_pool,
    models,
)
from torch_geometric.utils import degree, dropout_edge

import lmc
from helpers import Gradients, chance, full_loss, parts_of, random_graph, scrambled, sweep, total_error, worst_error
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import CMC, GAS, IMC, BackwardSGD, ClusterGCN, FullBatch, GraphFM, LMC4Conv, Method
from lmc.models import GAT, GCN, SAGE, Model
from lmc.pyg import wrap
from lmc.pyg.wrap import WrappedNetwork

G = random_graph()
DEGREES = torch.bincount(G.adj.degrees().long())


class Residual(nn.Module):
    """A user's own network: raw parameters, a skip connection, layer norm, two kinds of convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 7)
        self.conv1, self.conv2 = GCNConv(7, 7), SAGEConv(7, 7, aggr="sum")
        self.norm = nn.LayerNorm(7)
        self.scale = nn.Parameter(torch.rand(7))
        self.decode = nn.Linear(7, 4)
        self.unused = nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.encode(x).relu()
        h = h + F.prelu(self.norm(self.conv1(h, edge_index)), self.scale.abs())
        h = self.scale * h + self.conv2(h, edge_index).tanh()
        h += self.scale
        return F.linear(h, weight=self.decode.weight, bias=self.decode.bias)


class Positions(nn.Module):
    """A network with parameters that are combined with constants, which do not depend on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(6, 8), GCNConv(8, 4)
        self.table, self.mix = nn.Embedding(4, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        places = self.mix(self.table(torch.arange(4))) * torch.linspace(1, 2, 2, dtype=x.dtype)
        h = self.conv1(x, edge_index).view(-1, 4, 2) + places
        return self.conv2(h.tanh().flatten(1), edge_index)


class TwoConvolutions(nn.Module):
    """Two convolutions with a ReLU between them; ``forward`` takes a Data."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, data: Any) -> Tensor:
        return self.two(self.one(data.x, data.edge_index).relu(), data.edge_index)


class InPlace(nn.Module):
    """Results of ``propagate`` are changed in place, by GCN2Conv itself and after a convolution without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 7), nn.Linear(7, 4)
        self.one, self.two, self.three = GCN2Conv(7, 0.1, 0.5, 1), SimpleConv("mean"), GCN2Conv(7, 0.1, 0.5, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h0 = self.encode(x).relu()
        h = self.two(self.one(h0, h0, edge_index).relu(), edge_index).tanh_()
        return self.decode(self.three(h, h0, edge_index).relu_())


class RawTwice(nn.Module):
    """Two convolutions that both read the features: the second does not depend on a state."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.mix = SAGEConv(6, 5), SAGEConv(6, 5, aggr="sum"), GCNConv(5, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.mix((self.one(x, edge_index) + self.two(x, edge_index)).tanh(), edge_index)


EXACT: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: models.GCN(6, 7, 3, 4),
    "gcn-cached": lambda: models.GCN(6, 7, 2, 4, cached=True),
    "gcn-improved": lambda: models.GCN(6, 7, 2, 4, improved=True),
    "gcn-jk-cat": lambda: models.GCN(6, 7, 3, 4, jk="cat", norm="LayerNorm", norm_kwargs={"mode": "node"}),
    "gcn-jk-lstm": lambda: models.GCN(6, 4, 2, 4, jk="lstm"),
    "sage": lambda: models.GraphSAGE(6, 7, 3, 4),
    "gin": lambda: models.GIN(6, 7, 3, 4, train_eps=True),
    "gat": lambda: models.GAT(6, 8, 3, 4, heads=2),
    "gatv2": lambda: models.GAT(6, 8, 2, 4, heads=2, v2=True),
    "residual": Residual,
    "positions": Positions,
    "raw-twice": RawTwice,
    "in-place": InPlace,
    "two-kinds": lambda: TwoConvolutions(GraphConv(6, 7), GCNConv(7, 4)),
    "transformer": lambda: TwoConvolutions(TransformerConv(6, 7), SAGEConv(7, 4)),
    "cheb": lambda: TwoConvolutions(ChebConv(6, 7, 3), GATConv(7, 4)),
    "appnp": lambda: TwoConvolutions(TAGConv(6, 4), APPNP(3, 0.2)),
    "sg": lambda: TwoConvolutions(SGConv(6, 7, 2, cached=True), GATv2Conv(7, 4, add_self_loops=False)),
}
INEXACT: dict[str, Callable[[], nn.Module]] = {
    "pna": lambda: models.PNA(
        6, 8, 2, 4, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=DEGREES
    ),
    "edge-cnn": lambda: models.EdgeCNN(6, 7, 2, 4),
    "sage-max": lambda: models.GraphSAGE(6, 7, 2, 4, aggr="max"),
    "gated": lambda: TwoConvolutions(ResGatedGraphConv(6, 7), ResGatedGraphConv(7, 4)),
}
BATCH_NORM: dict[str, Callable[[], nn.Module]] = {
    "gcn-batch-norm": lambda: models.GCN(6, 7, 3, 4, norm="BatchNorm", dropout=0.5),
    "sage-batch-norm": lambda: models.GraphSAGE(6, 7, 2, 4, norm="BatchNorm", jk="max"),
}
ALL = EXACT | INEXACT
LINEAR = [name for name in EXACT if name not in ("gat", "gatv2", "transformer", "cheb", "sg")]


@pytest.fixture(autouse=True)
def without_the_comparison_of_bind(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """These tests compare gradients themselves; one test makes the comparison of ``bind`` for every network."""
    if "comparison_of_bind" not in request.node.name:
        monkeypatch.setattr(WrappedNetwork, "check_on", lambda self, graph: None)


def build(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return scrambled((ALL | BATCH_NORM)[name]())


def edge_index(g: Graph) -> Tensor:
    return torch.stack([g.adj.indices.long(), g.adj.row_index()])


def plain(network: nn.Module, g: Graph) -> Tensor:
    """The network's own forward pass, without this library."""
    from torch_geometric.data import Data

    x = g.x.to_dense() if not isinstance(g.x, Tensor) else g.x
    return (
        network(Data(x=x, edge_index=edge_index(g)))
        if isinstance(network, TwoConvolutions)
        else network(x, edge_index(g))
    )


def pyg_gradient(network: nn.Module, g: Graph) -> Gradients:
    """The gradient of the loss by PyG and autograd alone, without dropout."""
    network = copy.deepcopy(network).train()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "cached"):
            module.cached = False
    names, parameters = zip(*network.named_parameters(), strict=True)
    grads = torch.autograd.grad(full_loss(g, network, plain(network, g)), parameters, materialize_grads=True)  # type: ignore[arg-type]
    return {f"network.{k}": v for k, v in zip(names, grads, strict=True)}


def swept(method: Method, g: Graph, model: Model) -> Gradients:
    """The mean gradient of the second epoch from exact histories: the first epoch must have kept them exact."""
    run = method.bind(g, model, parts_of(g))
    run.refresh()
    sweep(run)
    return sweep(run)


@pytest.mark.parametrize("sparse_features", [False, True])
@pytest.mark.parametrize("name", [*ALL, *BATCH_NORM])
def test_full_batch_gives_the_gradient_of_pyg(name: str, sparse_features: bool) -> None:
    g = random_graph(sparse_features=sparse_features)
    network = build(name)
    want = pyg_gradient(network, g)
    run = FullBatch().bind(g, wrap(network))
    assert worst_error(run.gradient(next(run.batches())), want) < 1e-11


@pytest.mark.parametrize("name", [*ALL, *BATCH_NORM])
def test_backward_sgd_gives_the_gradient_of_pyg_over_an_epoch(name: str) -> None:
    network = build(name)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert worst_error(swept(BackwardSGD(clusters_per_batch=1), G, wrap(network)), pyg_gradient(network, G)) < 1e-10


@pytest.mark.parametrize("name", [*ALL, *BATCH_NORM])
def test_every_network_passes_the_comparison_of_bind(name: str) -> None:
    wrap(build(name)).check_on(G)


@pytest.mark.parametrize("first_layer", ["complete", "pruned"])
@pytest.mark.parametrize("name", EXACT)
def test_lmc_with_exact_histories_is_exact(name: str, first_layer: str) -> None:
    network = build(name)
    method = LMC4Conv(alpha=0.0, clusters_per_batch=1, first_layer=first_layer)
    model = wrap(network)
    assert model.exact
    assert worst_error(swept(method, G, model), pyg_gradient(network, G)) < 1e-9


@pytest.mark.parametrize("name", LINEAR)
def test_cmc_with_adjoints_is_exact_at_fixed_parameters(name: str) -> None:
    network = build(name)
    assert (
        worst_error(swept(CMC(clusters_per_batch=1, adjoints=True), G, wrap(network)), pyg_gradient(network, G)) < 1e-9
    )


@pytest.mark.parametrize("name", [*INEXACT, "gat"])
def test_cmc_refuses_convolutions_that_are_not_linear(name: str) -> None:
    model = wrap(build(name))
    assert not model.linear
    assert model.exact is (name == "gat")
    use = "LMC4Conv or GAS" if name == "gat" else "GAS"
    for method in (CMC(), IMC()):
        with pytest.raises(ConfigError, match=f"linear aggregation .*; use {use}$"):
            method.bind(G, model, parts_of(G))


@pytest.mark.parametrize("method", [GAS, GraphFM, ClusterGCN, LMC4Conv], ids=lambda m: m.traits.name)
@pytest.mark.parametrize("name", ALL)
def test_every_method_gives_the_gradient_of_pyg_on_one_part(method: Any, name: str) -> None:
    network = build(name)
    run = method().bind(G, wrap(network), torch.zeros(40, dtype=torch.int64))
    run.refresh()
    assert worst_error(sweep(run), pyg_gradient(network, G)) < 1e-11


def gradient_on_subgraphs(network: nn.Module, g: Graph, parts: Tensor) -> Gradients:
    """The gradient of the mean loss if PyG sees the parts as separate graphs: no edge between them."""
    source, target = edge_index(g)
    inside = parts[source] == parts[target]
    cut = Graph.from_edges(
        edge_index(g)[:, inside], g.x, g.y, train=g.train, val=g.val, test=g.test, num_classes=g.num_classes
    )
    assert 0 < cut.num_edges < g.num_edges
    return pyg_gradient(network, cut)


@pytest.mark.parametrize("name", ALL)
def test_cluster_gcn_gives_the_gradient_of_pyg_on_the_subgraphs(name: str) -> None:
    network = build(name)
    got = swept(ClusterGCN(clusters_per_batch=1), G, wrap(network))
    assert worst_error(got, gradient_on_subgraphs(network, G, parts_of(G))) < 1e-11


@pytest.mark.parametrize("name", ALL)
def test_exact_histories_make_the_forward_pass_of_gas_exact(name: str) -> None:
    network = build(name)
    run = GAS(clusters_per_batch=1).bind(G, wrap(network), parts_of(G))
    run.refresh()
    for _ in range(2):
        losses = [float(run.accumulate(batch).loss) for batch in run.batches()]
        want = float(full_loss(G, network, plain(network, G)).detach())  # type: ignore[arg-type]
        assert sum(losses) / len(losses) == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("name", ALL)
def test_gradient_errors_are_ordered_as_the_methods_promise(name: str) -> None:
    """ClusterGCN drops messages in both directions, GAS and GraphFM only adjoints, LMC4Conv approximates these too."""
    network = build(name)
    want, model = pyg_gradient(network, G), wrap(network)
    cluster, gas, fm, lmc4conv = (
        total_error(swept(method(clusters_per_batch=1), G, model), want)
        for method in (ClusterGCN, GAS, GraphFM, LMC4Conv)
    )
    assert 0.1 < gas < cluster / 1.4
    assert fm == pytest.approx(gas, rel=0.5)
    # the Jacobian of a halo row is exact for these networks, and only the convex combination is not
    assert 1e-3 < lmc4conv < (0.8 if name in EXACT else 0.9) * gas


@pytest.mark.parametrize(
    ("network", "own"),
    [
        (lambda L: models.GCN(6, 7, L, 4), lambda L: GCN(6, 7, 4, num_layers=L)),
        (lambda L: models.GraphSAGE(6, 7, L, 4), lambda L: SAGE(6, 7, 4, num_layers=L)),
        (lambda L: models.GAT(6, 8, L, 4, heads=2, act="elu"), lambda L: GAT(6, 8, 4, num_layers=L, heads=2)),
    ],
    ids=["gcn", "sage", "gat"],
)
@pytest.mark.parametrize(
    "method",
    [
        FullBatch(),
        *[m(clusters_per_batch=1) for m in (BackwardSGD, ClusterGCN, GAS, GraphFM)],
        LMC4Conv(alpha=0.0, clusters_per_batch=1),
    ],
    ids=lambda m: m.traits.name,
)
def test_wrapped_networks_give_the_gradients_of_native_models(network: Any, own: Any, method: Method) -> None:
    # SAGE under GraphFM: the native states, which take the momentum step, also contain the node's own part. This makes
    # no difference in layer 1, which reads the features, or in the last layer, whose halo rows are not read. So two
    # layers agree and three do not.
    L = 2 if method.traits.name == "fm" and isinstance(own(2), SAGE) else 3
    # at fixed parameters, because the two store their states at different places, before and after the weights
    theirs, ours = scrambled(network(L)), own(L).double()
    names = {
        "lin.weight": "lin.weight", "bias": "lin.bias", "lin_l.weight": "lin.weight", "lin_l.bias": "lin.bias",
        "lin_r.weight": "lin_own.weight", "att_src": "attention.src", "att_dst": "attention.dst",
    }  # fmt: skip
    if isinstance(ours, GAT):
        names["bias"] = "activation.bias.bias"
    pairs = {}
    for key in theirs.state_dict():
        _, l, rest = key.split(".", 2)
        pairs[f"network.{key}"] = f"layers.{l}.{names[rest]}"
    state = {b: theirs.state_dict()[a.removeprefix("network.")] for a, b in pairs.items()}
    ours.load_state_dict({k: v.view_as(ours.state_dict()[k]) for k, v in state.items()})
    a, b = swept(method, G, wrap(theirs)), swept(method, G, ours)
    reshaped = {pairs[k]: v.view_as(b[pairs[k]]) for k, v in a.items()}
    assert worst_error(reshaped, b) < 1e-9


def test_training_restores_every_attribute_of_the_network() -> None:
    network = models.GCN(6, 7, 2, 4, norm="BatchNorm", dropout=0.5, cached=True)
    before, attributes = copy.deepcopy(network.state_dict()), [set(vars(c)) for c in network.convs]
    rng = torch.get_rng_state()
    model = wrap(network)
    run = LMC4Conv(clusters_per_batch=1).bind(random_graph(), model, parts_of(G))
    run.refresh()
    for batch in run.batches():
        run.gradient(batch)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert [set(vars(c)) for c in network.convs] == attributes
    assert all(c.cached and c._cached_edge_index is None and c.normalize for c in network.convs)
    assert torch.equal(torch.get_rng_state(), rng)
    assert network.training


def test_dropout_draws_from_the_generator_of_the_run() -> None:
    rng = torch.get_rng_state()
    grads = []
    for seed in (5, 5, 6):
        run = LMC4Conv(clusters_per_batch=1).bind(G, wrap(build("gcn-batch-norm")), parts_of(G), seed=seed)
        run.refresh()
        grads.append(sweep(run))
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(grads[0][k], grads[1][k]) for k in grads[0])
    assert total_error(grads[0], grads[2]) > 1e-2


def test_halo_rows_do_not_change_running_statistics() -> None:
    network = build("gcn-batch-norm")
    run = LMC4Conv(clusters_per_batch=1).bind(G, wrap(network), parts_of(G))
    batch = next(run.batches())
    run.refresh()
    seen: list[Tensor] = []
    own = nn.BatchNorm1d.forward
    nn.BatchNorm1d.forward = lambda self, x: seen.append(x.detach().clone()) or own(self, x)  # type: ignore[method-assign, func-returns-value]
    try:
        run.accumulate(batch)
    finally:
        nn.BatchNorm1d.forward = own  # type: ignore[method-assign]
    norm = network.norms[0].module
    assert batch.num_halo > 0
    assert seen[0].shape[0] == batch.num_core + batch.num_halo
    torch.testing.assert_close(norm.running_mean, 0.1 * seen[0][: batch.num_core].mean(0))


def test_fit_evaluate_and_resume(tmp_path: Path) -> None:
    def fit(epochs: int, folder: str, resume: bool = False) -> lmc.RunRecord:
        network = wrap(build("sage-batch-norm").float())
        method = LMC4Conv(num_parts=4, clusters_per_batch=1)
        return lmc.fit(G, network, method, epochs, device="cpu", run_dir=tmp_path / folder, resume=resume)

    whole = fit(4, "a")
    fit(2, "b")
    parts = fit(4, "b", resume=True)
    assert [e.loss for e in whole.epochs] == [e.loss for e in parts.epochs]
    assert whole.config["model"]["name"] == "wrap(GraphSAGE)"
    other = wrap(models.GCN(6, 7, 2, 4))
    with pytest.raises(lmc.errors.CheckpointError):
        lmc.fit(
            G, other, LMC4Conv(num_parts=4, clusters_per_batch=1), 5, run_dir=tmp_path / "b", resume=True, device="cpu"
        )


@pytest.mark.parametrize("name", ["gcn-jk-cat", "gat", "pna", "residual"])
def test_evaluation_agrees_with_the_network_itself(name: str) -> None:
    network = build(name)
    right = plain(network.eval(), G).argmax(1) == G.y
    want = {split: float(right[getattr(G, split)].double().mean()) for split in ("train", "val", "test")}
    for max_elements in (2**28, 100):
        assert lmc.evaluate(wrap(network), G, max_elements=max_elements) == pytest.approx(want)


class Body(nn.Module):
    """One convolution, called by a given function."""

    def __init__(
        self, body: Callable[..., Tensor], extra: nn.Module | None = None, conv: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv, self.body, self.extra = conv or GCNConv(6, 4), body, extra

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.body(self, x, edge_index)


class RequiresMore(nn.Module):
    """A network whose ``forward`` requires arguments besides the features and the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 4)

    def forward(self, x: Tensor, edge_index: Tensor, temperature: float, *, other: int, third: int = 0) -> Tensor:
        return self.conv(x, edge_index) / temperature


def pooled(m: Body, x: Tensor, e: Tensor) -> Tensor:
    return global_mean_pool(m.conv(x, e), torch.zeros(x.shape[0], dtype=torch.int64))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "no convolution": (lambda: nn.Sequential(nn.Linear(6, 4)), "network of PyG convolutions"),
    "pooling": (lambda: Body(pooled), "one row of logits per node"),
    "mean of all nodes": (lambda: Body(lambda m, x, e: (h := m.conv(x, e)) - h.mean(0)), "row-wise code after"),
    "mean of all nodes before": (lambda: Body(lambda m, x, e: m.conv(x - x.mean(0), e)), "row-wise code before"),
    "graph norm": (lambda: Body(lambda m, x, e: m.extra(m.conv(x, e)), GraphNorm(4)), "row-wise code after"),
    "pair norm": (lambda: Body(lambda m, x, e: m.conv(m.extra(x), e), PairNorm()), "row-wise code before"),
    "layer norm of the graph": (lambda: models.GCN(6, 7, 2, 4, norm="LayerNorm"), 'mode="node"'),
    "dropped edges": (
        lambda: Body(lambda m, x, e: m.conv(x, dropout_edge(e, 0.5, training=m.training)[0])),
        "edges it is given",
    ),
    "degrees": (
        lambda: Body(lambda m, x, e: m.conv(x * degree(e[1], x.shape[0]).view(-1, 1), e)),
        "row-wise code before",
    ),
    "edges between conv": (
        lambda: Body(lambda m, x, e: m.conv(x, e) * degree(e[1], x.shape[0]).view(-1, 1)),
        "after the last",
    ),
    "edges of its own": (
        lambda: Body(lambda m, x, e: m.conv(x, e[:, :0].flip(0)), conv=GCNConv(6, 4)),
        "edges it is given",
    ),
    "other flow": (lambda: Body(lambda m, x, e: m.conv(x, e), conv=GCNConv(6, 4, flow="target_to_source")), "flow"),
    "columns first": (lambda: Body(lambda m, x, e: (m.extra.weight @ m.conv(x, e).t()).t(), nn.Linear(4, 4)), "x @ W"),
    "rows folded": (
        lambda: Body(lambda m, x, e: m.extra(m.conv(x, e).view(-1, 2)).view(-1, 4), nn.Linear(2, 2)),
        "one row per node",
    ),
    "no width": (lambda: Body(lambda m, x, e: m.conv(x, e), conv=SimpleConv("mean")), "pass in_width"),
    "another width": (lambda: models.EdgeCNN(6, 7, 2, 4).convs[0], "pass in_width if 12 is not the width"),
    "required arguments": (lambda: RequiresMore(), r"required arguments temperature, other too"),
    "compiled part": (
        lambda: Body(lambda m, x, e: m.extra(m.conv(x, e)), torch.compile(nn.Linear(4, 4))),
        "not compiled",
    ),
    "compiled function": (
        lambda: Body(lambda m, x, e: torch.compile(torch.tanh)(m.conv(x, e))),
        "wrap the network without",
    ),
    "tuple": (lambda: Body(lambda m, x, e: (m.conv(x, e), x)), r"a tuple of 2\): name the entry .* output=0"),
    "dict": (lambda: Body(lambda m, x, e: {"z": m.conv(x, e)}), r"a dict of 1\): name the entry .* output='z'"),
    "one number per node": (lambda: Body(lambda m, x, e: m.conv(x, e)[:, 0]), r"return \[n, 1\] instead of \[n\]"),
    "sparse adjacency": (
        lambda: Body(
            lambda m, x, e: m.conv(x, torch.sparse_coo_tensor(e, torch.ones(e.shape[1]).to(x), (x.shape[0],) * 2))
        ),
        "expected an edge_index",
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant", "ignore:Converting sparse")
@pytest.mark.parametrize("case", REFUSED)
def test_networks_that_cannot_be_cut_are_refused_with_a_reason(case: str) -> None:
    make, reason = REFUSED[case]
    with pytest.raises(ConfigError, match=reason):
        wrap(make())


def test_neighbours_chosen_from_the_features_are_refused() -> None:
    def nearest(m: Body, x: Tensor, e: Tensor) -> Tensor:
        return m.conv(x, torch.stack([torch.cdist(x, x).fill_diagonal_(9).argmin(1), torch.arange(x.shape[0])]))

    with pytest.raises(ConfigError, match="edges it is given"):
        wrap(Body(nearest))


def test_a_module_has_to_be_wrapped_and_a_model_stays_as_it_is() -> None:
    with pytest.raises(ConfigError, match=r"lmc\.wrap"):
        FullBatch().bind(G, models.GCN(6, 7, 2, 4))  # type: ignore[arg-type]
    own = GCN(6, 7, 4)
    assert wrap(own) is own


def lazy(width: int | tuple[int, int] = -1) -> nn.Module:
    return Body(lambda m, x, e: m.extra(m.conv(x, e)), nn.LazyBatchNorm1d(), SAGEConv(width, 4))


@pytest.mark.parametrize("width", [-1, (-1, -1)])
def test_lazy_modules_are_initialised_with_the_width_of_the_graph(width: Any) -> None:
    model = wrap(lazy(width)).double()
    with pytest.raises(ConfigError, match=r"pass in_width to lmc\.wrap, or bind"):
        _ = model.in_width
    run = FullBatch().bind(G, model, device="cpu")
    assert model.network.conv.lin_l.weight.shape == (4, 6)
    assert int(model.network.extra.num_batches_tracked) == 0
    assert worst_error(run.gradient(next(run.batches())), pyg_gradient(model.network, G)) < 1e-11


def test_lazy_modules_are_initialised_with_a_given_width() -> None:
    model = wrap(lazy(), in_width=6)
    assert (model.in_width, model.out_width) == (6, 4)
    assert model.network.conv.lin_l.weight.shape == (4, 6)
    with pytest.raises(ConfigError, match="6 inputs"):
        FullBatch().bind(G, wrap(lazy(), in_width=5))


@pytest.mark.parametrize("output", [1, "logits"])
def test_one_entry_of_the_result_is_trained(output: Any) -> None:
    def body(m: Body, x: Tensor, e: Tensor) -> Any:
        h = m.conv(x, e)
        return (x, m.extra(h)) if output == 1 else {"features": x, "logits": m.extra(h)}

    network = Body(body, nn.Linear(4, 4)).double()
    model = wrap(network, output=output)
    run = BackwardSGD(clusters_per_batch=1).bind(G, model, parts_of(G), device="cpu")
    run.refresh()
    plain_network = Body(lambda m, x, e: m.extra(m.conv(x, e)), network.extra, network.conv)
    assert worst_error(sweep(run), pyg_gradient(plain_network, G)) < 1e-10
    torch.testing.assert_close(model(G.x, edge_index(G)), plain(plain_network, G))
    for wrong in (2, "other"):
        with pytest.raises(ConfigError, match=f"expected an entry {wrong!r}"):
            wrap(network, output=wrong)


@pytest.mark.parametrize("jk", ["cat", "max", "lstm"])
def test_jumping_knowledge_with_norms_by_row(jk: str) -> None:
    network = scrambled(models.GCN(6, 6, 2, 4, jk=jk, norm="layer_norm", norm_kwargs={"mode": "node"}))
    assert (
        worst_error(swept(LMC4Conv(alpha=0.0, clusters_per_batch=1), G, wrap(network)), pyg_gradient(network, G)) < 1e-9
    )


def test_wrapping_keeps_the_dtype_of_the_network() -> None:
    network = models.GCN(6, 7, 2, 4)
    x = torch.randn(40, 6, generator=chance(0))
    model = wrap(network)
    torch.testing.assert_close(model(x, edge_index(G)), network(x, edge_index(G)))
    assert next(model.parameters()).dtype == torch.float32
