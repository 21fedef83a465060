"""Small graphs, models and yardsticks that several suites share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.engine import Run
from lmc.graph import CSR, Aggregation, Batch, Graph, Precomputed, normalise
from lmc.graph.csr import from_rows
from lmc.losses import Loss
from lmc.methods import METHODS
from lmc.methods.protocol import EXACT_ON_ONE_PART
from lmc.models import APPNP, GAT, GCN, GCNII, GIN, PNA, SAGE, SIGN, Model, Pass

# Two squares joined by a bridge, with one diagonal and a hanging node: degrees from 1 to 4, so that no two
# normalisation weights agree by accident.
EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (3, 4), (4, 5), (5, 6), (6, 4), (6, 7)]
PARTS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 2])

CONVOLUTIONAL = {name: cls for name, cls in METHODS.items() if "layered" in cls.traits.trains}
RECURRENT = {name: cls for name, cls in METHODS.items() if "recurrent" in cls.traits.trains}
"""Methods by name, by the kind of model they train."""

Gradients = dict[str, Tensor]
M = TypeVar("M", bound=nn.Module)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices of 40 rows gain nothing from a second thread, and on a busy machine waiting for it takes seconds."""
    was = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(was)


def chance(seed: int = 0) -> torch.Generator:
    """A generator of the test's own."""
    return torch.Generator().manual_seed(seed)


def both_directions(edges: list[tuple[int, int]]) -> Tensor:
    """[2, 2E] from undirected edges."""
    one = torch.tensor(edges).t()
    return torch.cat([one, one.flip(0)], 1)


def sparse(dense: Tensor) -> CSR:
    """The non-zero entries of a dense matrix."""
    rows, cols = dense.nonzero(as_tuple=True)
    return from_rows(rows, cols, dense[rows, cols], (dense.shape[0], dense.shape[1]))


def random_sparse(num_rows: int, num_cols: int, seed: int = 0, density: float = 0.4) -> CSR:
    """A random float64 matrix with some empty rows and columns."""
    g = chance(seed)
    dense = torch.randn(num_rows, num_cols, generator=g, dtype=torch.float64)
    dense[torch.rand(num_rows, num_cols, generator=g) > density] = 0
    dense[num_rows // 2] = 0
    return sparse(dense)


def _targets(n: int, num_classes: int, multi_label: bool, g: torch.Generator) -> Tensor:
    if multi_label:
        return (torch.rand(n, num_classes, generator=g) < 0.4).float()
    return torch.randint(num_classes, (n,), generator=g)


def _features(n: int, width: int, is_sparse: bool, g: torch.Generator) -> Tensor | CSR:
    x = torch.randn(n, width, generator=g, dtype=torch.float64)
    if not is_sparse:
        return x
    return sparse(x * (torch.rand(n, width, generator=g) < 0.5))


def hand_graph(multi_label: bool = False, sparse_features: bool = False) -> Graph:
    """Eight nodes written by hand; five features, three classes."""
    g = chance(1)
    return Graph.from_edges(
        both_directions(EDGES),
        _features(8, 5, sparse_features, g),
        _targets(8, 3, multi_label, g),
        train=torch.tensor([0, 2, 3, 5, 6]),
        val=torch.tensor([1]),
        test=torch.tensor([4, 7]),
        num_classes=3,
        name="hand",
    )


def random_graph(n: int = 40, multi_label: bool = False, sparse_features: bool = False, seed: int = 0) -> Graph:
    """A ring (so that it is connected) with random chords; six features, four classes."""
    g = chance(seed)
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    chords = torch.randint(n, (2, n), generator=g)
    mask = torch.rand(n, generator=g)
    return Graph.from_edges(
        torch.cat([ring, chords], 1),
        _features(n, 6, sparse_features, g),
        _targets(n, 4, multi_label, g),
        train=mask < 0.6,
        val=(mask >= 0.6) & (mask < 0.8),
        test=mask >= 0.8,
        num_classes=4,
        name="random",
        symmetrise=True,
    )


def weighted_graph(n: int = 40, directed: bool = False, seed: int = 0, weighted: bool = True) -> Graph:
    """:func:`random_graph` with positive edge weights; directed, every edge keeps one direction, a few keep both, and
    some nodes have no edge into them."""
    base, g = random_graph(n, seed=seed), chance(seed + 5)
    row, col = base.adj.row_index(), base.adj.indices.long()
    weight = 0.2 + 2 * torch.rand(n, n, generator=g, dtype=torch.float64)
    keep = torch.rand(n, n, generator=g) < 0.5
    keep = (keep | ~keep.t()) & (torch.rand(n, generator=g) > 0.1)[:, None]
    chosen = keep[row, col] if directed else torch.ones_like(row, dtype=torch.bool)
    weight = (weight if directed else weight + weight.t())[row, col][chosen]
    splits = {split: getattr(base, split) for split in ("train", "val", "test")}
    edges = torch.stack([col, row])[:, chosen]
    return Graph.from_edges(
        edges, base.x, base.y, **splits, num_classes=4, directed=directed, edge_weight=weight if weighted else None
    )


SPECIAL_GRAPHS: dict[str, Callable[[], Graph]] = {
    "weighted": weighted_graph,
    "directed": partial(weighted_graph, directed=True, weighted=False),
    "directed-weighted": partial(weighted_graph, directed=True),
}
"""Graphs whose aggregation matrix has weights, or is not symmetric."""


GRAPHS: dict[str, Callable[..., Graph]] = {"hand": hand_graph, "random": random_graph}


def lonely_graph() -> Graph:
    """A star of six nodes, an edge, and two nodes without neighbours, one of them labelled; three features."""
    g = chance(4)
    edges = [(0, k) for k in range(1, 6)] + [(6, 7)]
    train = torch.tensor([0, 2, 6, 8])
    y = torch.randint(2, (10,), generator=g)
    return Graph.from_edges(
        both_directions(edges), _features(10, 3, False, g), y, train=train, val=[1, 9], test=[3], num_classes=2
    )


def parts_of(graph: Graph, num_parts: int = 4, seed: int = 0) -> Tensor:
    """Random parts, none empty."""
    return torch.randperm(graph.num_nodes, generator=chance(seed)) % num_parts


MODELS: dict[str, Callable[[Graph], Model]] = {
    # wider than the features, then narrower: both orders of P t W in one model
    "gcn": lambda g: GCN(g.num_features, 7, g.num_classes, num_layers=3),
    "gcn-layer-norm": lambda g: GCN(g.num_features, 7, g.num_classes, num_layers=3, norm="layer"),
    "gcn-residual": lambda g: GCN(g.num_features, 7, g.num_classes, num_layers=4, residual=True),
    "gcn-linear-in-out": lambda g: GCN(
        g.num_features, 7, g.num_classes, num_layers=2, norm="layer", residual=True, linear_in=True, linear_out=True
    ),
    "gcn-one-layer": lambda g: GCN(g.num_features, 7, g.num_classes, num_layers=1),
    "gcnii": lambda g: GCNII(g.num_features, 7, g.num_classes, num_layers=4),
    "gcnii-two-matrices": lambda g: GCNII(
        g.num_features, 7, g.num_classes, num_layers=3, shared_weights=False, norm="layer", residual=True
    ),
    "sign": lambda g: SIGN(g.num_features, 7, g.num_classes, num_layers=3, mlp_layers=2, norm="layer"),
}
"""Models whose rows are independent given their messages (no batch norm), by name."""

MORE_MODELS: dict[str, Callable[[Graph], Model]] = {
    "sage": lambda g: SAGE(g.num_features, 7, g.num_classes, num_layers=3),
    "sage-layer-norm": lambda g: SAGE(g.num_features, 5, g.num_classes, num_layers=2, norm="layer"),
    "gin": lambda g: GIN(g.num_features, 7, g.num_classes, num_layers=3, norm="layer"),
    "gin-eps": lambda g: GIN(g.num_features, 5, g.num_classes, num_layers=2, eps=0.3),
    "gat": lambda g: GAT(g.num_features, 6, g.num_classes, num_layers=3, heads=2),
    "gat-layer-norm": lambda g: GAT(g.num_features, 5, g.num_classes, num_layers=2, norm="layer"),
    "appnp": lambda g: APPNP(g.num_features, 7, g.num_classes, num_layers=4, alpha=0.2),
    "pna": lambda g: PNA(g.num_features, 8, g.num_classes, num_layers=3),
}
"""Models with other aggregations than GCN's."""


def accepts(method: str, model: str) -> bool:
    """Whether a method trains a model of :data:`MODELS`."""
    return method != "sign" or model == "sign"


def model_for(method: str, model: str = "gcn") -> str:
    """``model``, or one that the method accepts."""
    return model if accepts(method, model) else "sign"


DIVIDED = [name for name, cls in CONVOLUTIONAL.items() if EXACT_ON_ONE_PART in cls.traits.facts and name != "sign"]
"""Methods whose batches are parts of the graph: with one part they are the full gradient."""


def make(name: str, graph: Graph, seed: int = 3) -> Model:
    """A model of :data:`MODELS` or :data:`MORE_MODELS` in float64, every parameter off its initial value."""
    return scrambled((MODELS | MORE_MODELS)[name](graph), seed)


def scrambled(model: M, seed: int = 3) -> M:
    """In float64, and with noise on every parameter: zero biases and unit scales would hide mistakes."""
    g = chance(seed)
    model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model


def full_loss(graph: Graph, model: Model, logits: Tensor, loss: Loss | None = None) -> Tensor:
    """L = mean over labelled nodes, weighted where they have weights, written without the library."""
    if loss is not None:
        y = graph.y[graph.train]
        losses = loss(logits[graph.train], y.to(logits.dtype) if y.is_floating_point() else y)
        weight = torch.ones_like(losses) if graph.weight is None else graph.weight[graph.train].to(losses.dtype)
        return (weight * losses).sum() / weight.sum()
    if graph.multi_label:
        return F.binary_cross_entropy_with_logits(logits[graph.train], graph.y[graph.train].to(logits.dtype))
    return F.cross_entropy(logits[graph.train], graph.y[graph.train])


def full_gradient(graph: Graph, model: Model, loss: Loss | None = None) -> Gradients:
    """dL/dp by plain autograd through the plain forward pass, in the user's numbering."""
    dtype = next(model.parameters()).dtype
    P = Aggregation.exact(normalise(graph.adj, model.normalisation, dtype))
    was = {k: b.clone() for k, b in model.named_buffers()}
    model.train()
    value = full_loss(graph, model, model(graph.x.to(dtype=dtype), P, Pass(dropout=False)), loss)
    grads = torch.autograd.grad(value, list(model.parameters()))
    for k, b in model.named_buffers():
        b.copy_(was[k])
    return dict(zip(dict(model.named_parameters()), grads, strict=True))


def weights_of(batch: Batch, g: Graph) -> Tensor:
    """What a batch counts the loss of every node with."""
    weights = torch.zeros(g.num_nodes, dtype=torch.float64)
    weights[batch.n_id[: batch.num_core]] = 1.0 if batch.importance is None else batch.importance
    return weights * batch.weight


def through_operators(g: Graph, model: Model, batch: Batch, loss: Loss | None = None) -> Gradients:
    """The gradient of a batch of a method without tables: plain autograd through the matrices that it drew."""
    x = (g.x.to_dense() if isinstance(g.x, CSR) else g.x).double()
    if isinstance(batch.operators[0], Precomputed):
        x = normalise(g.adj, model.normalisation, torch.float64).to_dense() @ x
    logits = model(x[batch.n_id], batch.operators, Pass(dropout=False))
    nodes = batch.n_id[: batch.num_core]
    y, labelled = g.y[nodes], g.train[nodes].double()
    if loss is not None:
        losses = loss(logits, y.clamp_min(0))
    elif g.multi_label:
        losses = F.binary_cross_entropy_with_logits(logits, y.double(), reduction="none").mean(1)
    else:
        losses = F.cross_entropy(logits, y, reduction="none")
    w = torch.ones(g.num_nodes).double() if g.weight is None else g.weight.double()
    value = (losses * labelled * (weights_of(batch, g) * w)[nodes]).sum() / w[g.train].sum()
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(value, list(named.values())), strict=True))


def sweep(run: Run) -> Gradients:
    """The mean over one epoch's batches of the method's gradients; histories are updated on the way."""
    model = run.problem.model
    model.zero_grad()
    count = 0
    for batch in run.batches():
        run.accumulate(batch)
        count += 1
    grads = {k: p.grad.clone() / count for k, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return grads


def worst_error(got: Gradients, want: Gradients) -> float:
    """The largest relative error of any parameter: nothing hides behind a larger neighbour.

    A gradient that is zero in truth (a bias before batch norm) is rounding alone: it is measured by the whole.
    """
    assert got.keys() == want.keys()
    floor = 1e-4 * sum(float(w.square().sum()) for w in want.values()) ** 0.5
    return max(float((got[k] - w).norm()) / max(float(w.norm()), floor) for k, w in want.items())


def total_error(got: Gradients, want: Gradients) -> float:
    """The relative error of all parameters as one vector: not dominated by a small one."""
    assert got.keys() == want.keys()
    difference = sum(float((got[k] - want[k]).square().sum()) for k in want)
    return (difference / sum(float(want[k].square().sum()) for k in want)) ** 0.5
