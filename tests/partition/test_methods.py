"""Partitioners: valid parts, balance, quality, seeds and error messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import lmc
import lmc.data
from lmc.errors import ConfigError, GraphError
from lmc.graph import Graph, csr
from lmc.partition import METHODS, check_parts, dispatch, partition, partitioners, quality
from lmc.partition.partitioners import fill_empty


@pytest.fixture(params=list(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("num_parts", [1, 2, 7, 40])
def test_every_node_has_a_part_and_every_part_a_node(graph: Graph, method: str, num_parts: int) -> None:
    parts = partition(graph, num_parts, method, cache=False)
    assert parts.dtype == torch.int64
    check_parts(parts, graph.num_nodes, num_parts)
    assert quality(graph, parts).balance <= (1.6 if method == "metis-work" else 1.3)


def test_work_is_more_even_than_with_equal_nodes(graph: Graph) -> None:
    """The work of a part: 1 + 4 deg / mean deg, summed over its nodes."""
    degree = graph.adj.degrees().double()
    work = 1 + 4 * degree / degree.mean()
    largest = {}
    for name in ("metis", "metis-work"):
        of_parts = torch.zeros(10, dtype=torch.float64).index_add_(0, partition(graph, 10, name, cache=False), work)
        largest[name] = float(of_parts.max() / of_parts.mean())
    assert largest["metis-work"] < 1.05 < largest["metis"]


@pytest.mark.parametrize("num_parts", [500, 1499, 1500])
def test_parts_of_a_few_nodes_are_not_empty(graph: Graph, method: str, num_parts: int) -> None:
    check_parts(partition(graph, num_parts, method, cache=False), graph.num_nodes, num_parts)


def test_same_seed_same_parts(graph: Graph, method: str) -> None:
    a, b, c = (partition(graph, 8, method, seed=seed, cache=False) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize("installed", [True, False])
def test_auto_is_metis_unless_the_graph_is_large_and_kaminpar_installed(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    metis, fast = (partition(graph, 8, name, cache=False) for name in ("metis", "kaminpar-fast"))
    assert torch.equal(partition(graph, 8, cache=False), metis)
    assert lmc.methods.CMC().partition == "auto"
    monkeypatch.setattr(dispatch, "LARGE", graph.adj.nnz)
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda _: object() if installed else None)
    assert torch.equal(partition(graph, 8, cache=False), fast if installed else metis)


def test_thinned_edges_are_symmetric_and_nodes_of_few_edges_keep_them(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioners, "NEIGHBOURS", 2)
    adj, degree = graph.adj, graph.adj.degrees()
    kept = partitioners.thinned(adj)
    dense = kept.to_dense()
    assert torch.equal(dense, dense.t())
    assert bool((dense <= adj.to_dense()).all())
    assert torch.equal(kept.degrees()[degree <= 2], degree[degree <= 2])
    least = torch.minimum(degree[adj.row_index()], degree[adj.indices.long()])
    assert kept.nnz == pytest.approx(float((2 / least.clamp(2, 8)).sum()), rel=0.05)
    monkeypatch.setattr(csr, "CHUNK", 1000)
    assert torch.equal(partitioners.thinned(adj).indices, kept.indices)


def test_the_global_generator_is_not_used(graph: Graph, method: str) -> None:
    before = torch.random.get_rng_state()
    partition(graph, 8, method, cache=False)
    assert torch.equal(before, torch.random.get_rng_state())


def test_metis_is_better_than_label_propagation_and_that_than_random(graph: Graph) -> None:
    kept = {m: quality(graph, partition(graph, 10, m, cache=False)).kept for m in METHODS}
    assert kept["random"] == pytest.approx(0.1, abs=0.03)
    assert kept["label-propagation"] > kept["random"] + 0.3
    assert kept["metis"] > kept["label-propagation"]
    assert min(kept["kaminpar"], kept["kaminpar-fast"]) >= kept["metis"] - 0.02


def test_label_propagation_on_many_nodes() -> None:
    g = lmc.data.load("arxiv-like@0.1")
    figures = quality(g, partition(g, 20, "label-propagation", cache=False))
    assert figures.balance <= 1.3
    assert figures.kept > 0.3


@pytest.mark.data
def test_label_propagation_on_a_real_graph(data_dir: Path) -> None:
    g = lmc.data.load("pubmed", data_dir=data_dir)
    figures = quality(g, partition(g, 10, "label-propagation", cache=False))
    assert figures.balance <= 1.3
    assert figures.kept > 0.6


def test_random_parts_are_even(graph: Graph) -> None:
    size = torch.bincount(partition(graph, 7, "random"))
    assert int(size.max() - size.min()) <= 1


def test_more_parts_than_nodes_are_refused(graph: Graph, method: str) -> None:
    with pytest.raises(GraphError, match=r"at most one part per node, 1500 \(got num_parts=1501\)"):
        partition(graph, 1501, method)


@pytest.mark.parametrize("num_parts", [0, -3, 2.0, True, "4"])
def test_an_invalid_number_of_parts_is_refused(graph: Graph, num_parts: int) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        partition(graph, num_parts)


def test_an_unknown_method_is_refused(graph: Graph) -> None:
    known = "auto, metis, metis-work, kaminpar, kaminpar-fast, random, label-propagation, stream"
    with pytest.raises(ConfigError, match=rf"{known} \(got 'spectral'\)"):
        partition(graph, 4, "spectral")


@pytest.mark.parametrize(
    ("method", "package", "instead"), [("metis", "pymetis", "label-propagation"), ("kaminpar", "kaminpar", "metis")]
)
def test_a_missing_package_is_reported(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, method: str, package: str, instead: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"pip install {package}, or use method='{instead}'"):
        partition(graph, 4, method, cache=False)


def test_empty_parts_are_filled() -> None:
    before = torch.tensor([0, 0, 0, 3, 3, 1])
    parts = fill_empty(before, 5)
    assert torch.bincount(parts, minlength=5).tolist() == [1, 1, 1, 2, 1]
    assert int((parts != before).sum()) == 2


def test_isolated_nodes_get_a_part(method: str) -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    splits = {"train": torch.tensor([0]), "val": torch.tensor([1]), "test": torch.tensor([2])}
    g = Graph.from_edges(edges, torch.ones(9, 1), torch.zeros(9, dtype=torch.int64), **splits)
    check_parts(partition(g, 3, method, cache=False), 9, 3)
