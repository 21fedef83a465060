"""What methods, diagnostics and the loop answer where they cannot do what is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import lmc
from helpers import parts_of, random_graph
from lmc.bench.compare import has_error
from lmc.diagnostics import messages_kept
from lmc.errors import ConfigError, GraphError
from lmc.graph import Graph
from lmc.methods import GAS, IMC, DropEdge, FullBatch, GraphSAINT
from lmc.models import GCN, SAGE


def without_edges() -> Graph:
    """A graph whose training nodes have no edge between them."""
    x, y, train = torch.rand(20, 6), torch.arange(20) % 4, torch.arange(20) < 10
    edges = torch.stack([torch.arange(10), torch.arange(10, 20)])
    return replace(Graph.from_edges(edges, x, y, train=train, test=~train, symmetrise=True), inductive=True)


@pytest.mark.parametrize("sampler", ["walk", "node"])
def test_graph_saint_trains_on_a_graph_without_edges(sampler: Any) -> None:
    g = without_edges()
    record = lmc.fit(g, GCN(6, 5, 4), GraphSAINT(sampler=sampler, size=8), epochs=1, device="cpu")
    assert np.isfinite(record.epochs[0].loss)


@pytest.mark.parametrize("sampler", ["walk", "node"])
@pytest.mark.parametrize("edges", [False, True])
def test_graph_saint_draws_every_node_of_a_matrix_without_diagonal(edges: bool, sampler: Any) -> None:
    """No row of P reads some nodes, whose losses count all the same."""
    path = torch.stack([torch.arange(9), torch.arange(1, 10)])  # no row reads the last node
    g = Graph.from_edges(path, torch.rand(10, 6), torch.arange(10) % 4, train=torch.arange(10), directed=True)
    g = g if edges else without_edges()
    run = GraphSAINT(sampler=sampler, size=8).bind(g, SAGE(6, 5, 4), device="cpu")
    drawn = torch.cat([batch.n_id for epoch in range(60) for batch in run.batches(epoch)])
    assert drawn.unique().numel() == run.graph.num_nodes


def test_graph_saint_refuses_to_draw_edges_where_there_are_none() -> None:
    with pytest.raises(ConfigError, match='use sampler="node"'):
        GraphSAINT(sampler="edge").bind(without_edges(), GCN(6, 5, 4), device="cpu")


@pytest.mark.parametrize(("given", "got"), [(lmc.train.Callback, "Callback, a class"), (3, "got list of int")])
def test_callbacks_are_functions_or_objects(given: Any, got: str) -> None:
    with pytest.raises(ConfigError, match=got):
        lmc.fit(random_graph(), GCN(6, 5, 4), GAS(4, 1), epochs=1, callbacks=[given], device="cpu")


@pytest.mark.parametrize("ridge", [0.0, float("inf"), 1e300])
def test_a_ridge_is_positive_and_not_endless(ridge: float) -> None:
    with pytest.raises(ConfigError, match="positive ridge"):
        IMC(ridge=ridge)


def test_stored_zeros_of_a_scipy_adjacency_are_no_edges() -> None:
    given = scipy.sparse.csr_array(np.ones((3, 3)))
    given.setdiag(0)
    g = Graph.from_edges(given, torch.eye(3), torch.tensor([0, 1, 2]), train=torch.tensor([0, 1]))
    assert g.adj.nnz == 6
    assert given.nnz == 9, "what was given is left alone"


def test_dense_and_sparse_features_in_one_file_are_refused(tmp_path: Any) -> None:
    path = tmp_path / "both.npz"
    g = random_graph(10)
    lmc.save(g, path)
    with np.load(path) as arrays:
        np.savez(path, **{name: arrays[name] for name in arrays.files}, x_data=np.ones(3, np.float32))
    with pytest.raises(GraphError, match="got x and x_data"):
        lmc.load(path)


def test_counting_messages_changes_nothing() -> None:
    g = random_graph(100)
    method = IMC(clusters_per_batch=1, sweep_every=1, basis="T")
    run = method.bind(g, GCN(6, 5, 4, norm="batch"), parts_of(g), device="cpu")
    for batch in run.batches():
        run.step(batch, torch.optim.SGD(run.parameters.values(), lr=0.1))
    before = {**run.state_dict(), **run.problem.model.state_dict()}
    before = {name: value.clone() for name, value in before.items()}
    messages_kept(run)
    after = {**run.state_dict(), **run.problem.model.state_dict()}
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_a_full_batch_without_some_edges_has_an_error() -> None:
    g = random_graph()
    run = DropEdge(FullBatch(), p=0.5).bind(g, GCN(6, 5, 4), device="cpu")
    assert has_error(run.schedule or run.method)
    assert not has_error(FullBatch())
