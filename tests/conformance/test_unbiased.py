"""Facts about the mean of many draws: sampled aggregations, layer by layer, and whole gradients."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from helpers import chance, full_gradient, make, parts_of, random_graph, weighted_graph
from lmc.engine import Run
from lmc.graph import Aggregation
from lmc.methods import METHODS, VRGCN, GraphSAINT, Method
from lmc.sampling import generator


def claim(fact: str) -> list[str]:
    return [name for name, cls in METHODS.items() if fact in cls.traits.facts]


def sampling(name: str, **more: object) -> Method:
    """The method with small samples; LADIES without its normalisation, which is what the fact is claimed for.

    GraphSAINT's coefficients are estimates themselves, which stay as they are for a whole run: many subgraphs drawn in
    advance make them good ones. At the default coverage their mean over runs is right, which
    tests/reference/test_reference_graph_saint.py checks against the exact chances of its samplers.
    """
    wanted = {"batch_size": 8, "fanouts": 2, "layer_size": 6, "normalise": False, "coverage": 800} | more
    known = {f.name for f in dataclasses.fields(METHODS[name])}
    return METHODS[name](**{k: v for k, v in wanted.items() if k in known})


class Means:
    """Mean and standard error of rows that come now and then."""

    def __init__(self, n: int, width: int) -> None:
        self.sum, self.squares = (torch.zeros(n, width, dtype=torch.float64) for _ in range(2))
        self.count = torch.zeros(n, 1, dtype=torch.float64)

    def add(self, rows: Tensor, values: Tensor) -> None:
        self.sum[rows] += values
        self.squares[rows] += values.square()
        self.count[rows] += 1

    def worst(self, exact: Tensor) -> float:
        """The largest distance from ``exact`` in standard errors, over rows that came at least 50 times."""
        often = self.count[:, 0] >= 50
        assert int(often.sum()) > 10
        count = self.count[often]
        mean = self.sum[often] / count
        error = ((self.squares[often] / count - mean.square()).clamp(min=0) / count).sqrt()
        return float(((mean - exact[often]).abs() / (error + 1e-12)).max())


def disturbed(run: Run) -> None:
    """Histories of anything: a control variate has the right mean whatever they hold."""
    g = chance(11)
    for table in run.named_tables().values():
        table.data().normal_(generator=g)


@pytest.mark.parametrize(
    ("name", "directed"), [*((name, False) for name in claim("unbiased aggregation")), ("graphsage", True)]
)
def test_every_layer_aggregates_without_bias(name: str, directed: bool) -> None:
    g = weighted_graph(directed=True) if directed else random_graph()
    run = sampling(name, first_layer="sampled").bind(g, make("gcn", g), parts_of(g), seed=2)
    disturbed(run)
    x = torch.randn(g.num_nodes, 7, generator=chance(1), dtype=torch.float64)
    exact = run.problem.P.to_dense() @ x
    means = [Means(g.num_nodes, 7) for _ in range(3)]
    for epoch in range(100):
        for batch in run.batches(epoch):
            for l in (1, 2, 3):
                P = run.method.operator(run.method_step(batch, keep=False, dropout=False), l)
                rows = batch.ext[: P.num_outputs]
                means[l - 1].add(rows, P(x[batch.ext[: P.num_inputs]]))
    assert max(m.worst(exact) for m in means) < 4


def test_the_check_sees_a_bias() -> None:
    # LADIES with its normalisation is biased: the same measurement must say so
    g = random_graph()
    run = sampling("ladies", normalise=True).bind(g, make("gcn", g), seed=2)
    x = torch.randn(g.num_nodes, 7, generator=chance(1), dtype=torch.float64)
    means = Means(g.num_nodes, 7)
    for epoch in range(100):
        for batch in run.batches(epoch):
            P = batch.operators[1]
            means.add(batch.ext[: P.num_outputs], P(x[batch.ext[: P.num_inputs]]))
    assert means.worst(run.problem.P.to_dense() @ x) > 6


@pytest.mark.parametrize("sampler", ["walk", "edge", "node"])
def test_saint_weighs_losses_and_messages_without_bias(sampler: str) -> None:
    """Over the very subgraphs that the coefficients were counted on, with C + 1 in the place of a count C of them, the
    means are exact: (N + 1) / (C + 1) estimates one over a chance, N / C would be too large."""
    g = random_graph()
    method = GraphSAINT(sampler, coverage=60)
    run = method.bind(g, make("gcn", g), seed=4)
    known, P = run.source.prepared, run.problem.P.to_dense()
    n = g.num_nodes
    losses, met, N = torch.zeros(n, dtype=torch.float64), 0, 0
    sums, pairs = torch.zeros(2, n, n, dtype=torch.float64)
    times = torch.zeros(n, 1, dtype=torch.float64)
    while met < 60 * n:
        nodes = known.sampler(generator(torch.device("cpu"), 4, "in advance", N))
        losses[nodes] += known.importance[nodes]
        sums[nodes[:, None], nodes[None, :]] += known.blocks.block(nodes, nodes).to_dense()
        times[nodes] += 1
        pairs[nodes[:, None], nodes[None, :]] += 1
        met, N = met + nodes.numel(), N + 1
    assert bool((times > 0).all())
    losses *= (times / (times + 1)).squeeze(1).reciprocal()
    torch.testing.assert_close(losses / (N + 1), torch.ones(n, dtype=torch.float64))
    seen = sums > 0
    assert float(seen.double().sum()) > 0.8 * float((P > 0).sum())
    torch.testing.assert_close((sums * (pairs + 1) / pairs / (times + 1))[seen], P[seen])


@pytest.mark.parametrize("model", ["gcn", "gcn-linear-in-out"])
@pytest.mark.parametrize("name", claim("unbiased with exact histories"))
def test_gradients_have_the_full_gradient_as_mean(name: str, model: str) -> None:
    g = random_graph()
    module = make(model, g)
    run = sampling(name).bind(g, module, seed=3)
    run.refresh()
    want = full_gradient(g, module)
    directions = {k: torch.randn(4, *w.shape, generator=chance(9), dtype=w.dtype) for k, w in want.items()}
    samples = []
    for epoch in range(100):
        grads = [run.gradient(batch) for batch in run.batches(epoch)]
        mean = {k: sum(grad[k] for grad in grads) / len(grads) for k in want}
        samples.append(torch.cat([(directions[k] * mean[k]).flatten(1).sum(1) for k in want]))
    drawn = torch.stack(samples)
    exact = torch.cat([(directions[k] * want[k]).flatten(1).sum(1) for k in want])
    error = drawn.std(0) / len(samples) ** 0.5
    assert float(((drawn.mean(0) - exact).abs() / (error + 1e-12)).max()) < 4
    assert float(drawn.std(0).max()) > 1e-3, "nothing was sampled: this test could not fail"


def test_dropout_noise_keeps_its_variance() -> None:
    """Of m = noise(t - mean) + ...: the sum of squares of a sampled row is that of P's row, in the mean."""
    g = random_graph()
    run = VRGCN(batch_size=8, fanouts=1, first_layer="sampled").bind(g, make("gcn", g), seed=3)
    P = run.problem.P.to_dense()
    means = Means(g.num_nodes, 1)
    for epoch in range(100):
        for batch in run.batches(epoch):
            operator = batch.operators[-1]
            assert isinstance(operator, Aggregation)
            rows = operator.noise(torch.eye(operator.num_inputs, dtype=torch.float64))
            own = torch.arange(batch.num_core)
            torch.testing.assert_close(rows[own, own], P[batch.core, batch.core])
            means.add(batch.core, rows.square().sum(1, keepdim=True))
    assert means.worst(P.square().sum(1, keepdim=True)) < 4
