"""What the inspection of a network finds: code that torch's function mode does not see, and code that depends on the
mode, on the scale of the rows or on their number."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCNConv, GPSConv, MessagePassing, SAGEConv, models

from helpers import full_loss, parts_of, random_graph, scrambled, sweep, worst_error
from lmc.errors import ConfigError, NotComparedWarning
from lmc.graph import Graph
from lmc.methods import BackwardSGD, FullBatch
from lmc.pyg import wrap
from lmc.pyg.inspection import sample_of


@torch.jit.script
def scripted(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w)


class Product(torch.autograd.Function):
    """x @ w with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] @ w.t(), x.t() @ grads[0]


class Cube(torch.autograd.Function):
    """A row-wise function without parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grads[0]


class Between(nn.Module):
    """Two convolutions with a given function between them."""

    def __init__(
        self, body: Callable[..., Tensor], extra: nn.Module | None = None, conv: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv or SAGEConv(6, 5), GCNConv(5, 4)
        self.w, self.extra, self.body = nn.Parameter(torch.rand(5, 5)), extra, body

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.body(self, self.conv1(x, edge_index)), edge_index)


class Messages(MessagePassing):
    """A convolution with a given message, and weights after the sum."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(aggr="sum")
        self.lin, self.function = nn.Linear(6, 5), function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.propagate(edge_index, x=x))

    def message(self, x_j: Tensor) -> Tensor:
        return self.function(x_j)


class ScriptedMessages(MessagePassing):
    """A convolution whose message hides its weights in a scripted function."""

    def __init__(self) -> None:
        super().__init__(aggr="sum")
        self.in_channels, self.w = 6, nn.Parameter(torch.rand(6, 5))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return scripted(x_j, self.w)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))


HIDDEN: dict[str, Callable[[], nn.Module]] = {
    "torch.jit.script": lambda: Between(lambda m, h: scripted(h, m.w)),
    "torch.jit.trace": lambda: Between(lambda m, h: m.extra(h), torch.jit.trace(nn.Linear(5, 5), torch.rand(2, 5))),
    "torch.vmap": lambda: Between(lambda m, h: torch.vmap(lambda row: row @ m.w)(h)),
    "autograd.Function": lambda: Between(lambda m, h: Product.apply(h, m.w)),
    "autograd.Function in training": lambda: Between(lambda m, h: Product.apply(h, m.w) if m.training else h @ m.w),
    "messages": lambda: Between(lambda m, h: h.tanh(), conv=ScriptedMessages()),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace", "ignore:The .grad attribute")
@pytest.mark.parametrize("case", HIDDEN)
def test_code_that_hides_its_parameters_is_refused(case: str) -> None:
    with pytest.raises(ConfigError, match=r"from core rows \(got that of halo rows too, for (w|extra|conv1)"):
        wrap(HIDDEN[case]())


def centred(h: Tensor) -> Tensor:
    return h - h.mean(0)


DEPENDENT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "checkpointing": (lambda: Between(lambda m, h: checkpoint(m.extra, h, use_reentrant=False), mlp()), "autograd can"),
    "training mode": (lambda: Between(lambda m, h: centred(h) if m.training else h), "61 nodes in training mode"),
    "many rows": (lambda: Between(lambda m, h: centred(h) if h.shape[0] > 20 else h), "row-wise code after conv1"),
    "chunks of many rows": (
        lambda: Between(lambda m, h: torch.cat([part @ m.w for part in h.split(16)])),
        "one row per node",
    ),
    "large rows": (lambda: Between(lambda m, h: centred(h) if h.abs().max() > 20 else h), "row-wise code after conv1"),
    "batch norm of the evaluated rows": (
        lambda: Between(lambda m, h: m.extra(h), nn.BatchNorm1d(5, track_running_stats=False)),
        "row-wise code after conv1",
    ),
    "messages that read all edges": (
        lambda: Between(lambda m, h: h.tanh(), conv=Messages(lambda x_j: centred(x_j).tanh())),
        "sums over neighbours from conv1",
    ),
    "order of the neighbours": (lambda: models.GraphSAGE(6, 7, 2, 4, aggr="lstm"), "their order may not matter"),
    "attention between nodes": (
        lambda: Between(lambda m, h: m.extra(h, torch.empty(2, 0, dtype=torch.int64)), GPSConv(5, None, heads=1)),
        "mix nodes",
    ),
}


@pytest.mark.parametrize("case", DEPENDENT)
def test_code_that_depends_on_mode_scale_or_other_rows_is_refused(case: str) -> None:
    make, reason = DEPENDENT[case]
    with pytest.raises(ConfigError, match=reason) as refusal:
        wrap(make())
    assert "\n" not in str(refusal.value)


def noisy(m: Any, h: Tensor) -> Tensor:
    """Row-wise code with chance of several kinds in training mode."""
    if not m.training:
        return h @ m.w
    h = F.rrelu(F.alpha_dropout(h + 0.1 * torch.randn_like(h), 0.2, True), training=True)
    if random.random() < 0.5 or bool(torch.rand(()) < 0.5):
        h = h + h @ m.w
    return h * torch.bernoulli(torch.full((h.shape[0], 1), 0.5, dtype=h.dtype))


ACCEPTED: dict[str, Callable[[], nn.Module]] = {
    "chance": lambda: Between(noisy),
    "function without parameters": lambda: Between(lambda m, h: Cube.apply(h.tanh()) @ m.w),
    "vmap without parameters": lambda: Between(lambda m, h: torch.vmap(torch.sin)(h) @ m.w),
    "functional call": lambda: Between(
        lambda m, h: torch.func.functional_call(m.extra, dict(m.extra.named_parameters()), h), nn.Linear(5, 5)
    ),
    "weight norm": lambda: Between(lambda m, h: m.extra(h), weight_norm(nn.Linear(5, 5))),
    "spectral norm": lambda: Between(lambda m, h: m.extra(h), spectral_norm(nn.Linear(5, 5))),
    "gated rows": lambda: Between(lambda m, h: torch.where(h[:, :1] > 0, h @ m.w, h)),
    "recurrent cell": lambda: Between(lambda m, h: m.extra(h, h), nn.GRUCell(5, 5)),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_row_wise_code_is_accepted(case: str) -> None:
    network = ACCEPTED[case]()
    state = {k: v.clone() for k, v in network.state_dict().items()}
    before = random.getstate(), torch.get_rng_state()
    assert wrap(network).num_layers == 2
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert all(torch.equal(v, state[k]) for k, v in network.state_dict().items())


def test_messages_that_depend_on_their_range_are_not_a_sparse_product() -> None:
    network = scrambled(Between(lambda m, h: h.tanh(), conv=Messages(lambda x_j: x_j.clamp(-5, 5))))
    g = random_graph()
    g.x.mul_(10)  # type: ignore[union-attr]
    model = wrap(network)
    assert [spec.linear for spec in model.specs] == [False, True]
    run = BackwardSGD(clusters_per_batch=1).bind(g, model, parts_of(g), device="cpu")
    run.refresh()
    loss = full_loss(g, network, network(g.x, torch.stack([g.adj.indices.long(), g.adj.row_index()])))  # type: ignore[arg-type]
    names, parameters = zip(*model.named_parameters(), strict=True)
    want = torch.autograd.grad(loss, parameters, materialize_grads=True)
    assert worst_error(sweep(run), dict(zip(names, want, strict=True))) < 1e-10


class FirstInTraining(nn.Module):
    """A function of the features in training mode alone, before a convolution that aggregates them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1, self.conv2, self.function = SAGEConv(6, 5), GCNConv(5, 4), function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.function(x) if self.training else x
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def test_features_that_change_in_training_mode_are_not_aggregated_once() -> None:
    assert wrap(FirstInTraining(lambda x: x)).aggregates_features
    assert not wrap(FirstInTraining(lambda x: x + torch.randn_like(x))).aggregates_features
    assert not wrap(FirstInTraining(lambda x: 2 * x)).aggregates_features


def large_graph() -> Graph:
    g = random_graph(120)
    g.x.mul_(1e5)  # type: ignore[union-attr]
    return g


ON_THE_GRAPH: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "hidden parameters of many rows": (
        lambda: Between(lambda m, h: Product.apply(h, m.w) if h.shape[0] > 100 else h @ m.w),
        "from core rows .* 120 nodes in training mode",
    ),
    "many rows": (lambda: Between(lambda m, h: centred(h) if h.shape[0] > 100 else h), "row-wise code after conv1"),
    "range of messages": (
        lambda: Between(lambda m, h: h.tanh(), conv=Messages(lambda x_j: x_j.clamp(-1e4, 1e4))),
        "conv1 to be the sum over neighbours that it was in the inspection",
    ),
    "range of rows": (
        lambda: Between(lambda m, h: centred(h) if h.abs().max() > 1e4 else h),
        "row-wise code after conv1",
    ),
}


@pytest.mark.parametrize("case", ON_THE_GRAPH)
def test_what_a_network_does_on_the_users_own_graph_alone_is_refused_by_bind(case: str) -> None:
    make, reason = ON_THE_GRAPH[case]
    model = wrap(make())
    with pytest.raises(ConfigError, match=reason):
        BackwardSGD(num_parts=2).bind(large_graph(), model, device="cpu")


def test_bind_compares_some_nodes_of_a_large_graph_and_leaves_the_network_as_it_is() -> None:
    g = random_graph(400, sparse_features=True)
    sample = sample_of(g, 128)
    assert 32 < sample.num_nodes <= 128
    assert sample.edges.shape[1] > sample.num_nodes
    dense = g.x.to_dense()  # type: ignore[union-attr]
    assert all(bool((dense == row).all(1).any()) for row in sample.x)
    network = models.GCN(6, 7, 2, 4, norm="BatchNorm", dropout=0.5)
    state, rng = {k: v.clone() for k, v in network.state_dict().items()}, torch.get_rng_state()
    wrap(network).check_on(g)
    assert all(torch.equal(v, state[k]) for k, v in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("aggr", ["max", "median"])
def test_equal_rows_under_a_maximum_or_median_are_no_reason_to_refuse(aggr: str, value: float) -> None:
    g = random_graph()
    g.x.fill_(value)  # type: ignore[union-attr]
    wrap(models.GraphSAGE(6, 7, 2, 4, aggr=aggr)).check_on(g)


def test_bind_says_so_where_it_does_not_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrap(models.GCN(6, 7, 2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FullBatch().bind(random_graph(), model, device="cpu")
    monkeypatch.setattr(sys.modules["lmc.pyg.wrap"], "MAX_CHECKED_PRODUCTS", 100)
    with pytest.warns(NotComparedWarning, match="with 81 parameters was not compared with plain autograd"):
        FullBatch().bind(random_graph(), model, device="cpu")
