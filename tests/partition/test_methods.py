"""Partitioners: valid parts, balance, quality, seeds and error messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import lmc.data
from lmc.errors import ConfigError, GraphError
from lmc.graph import Graph
from lmc.partition import METHODS, check_parts, partition, quality
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


def test_same_seed_same_parts(graph: Graph, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "kaminpar-fast":  # it reads the number of threads, and promises this for one of them
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    a, b, c = (partition(graph, 8, method, seed=seed, cache=False) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_fast_kaminpar_uses_all_threads_and_its_parts_are_stored(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import kaminpar

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    solver, threads = kaminpar.KaMinPar, []

    def counted(num_threads: int, context: kaminpar.Context) -> kaminpar.KaMinPar:
        threads.append(num_threads)
        return solver(num_threads, context)

    monkeypatch.setattr(kaminpar, "KaMinPar", counted)
    first, second = (partition(graph, 8, "kaminpar-fast") for _ in range(2))
    assert threads == [2]
    assert torch.equal(first, second)


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
    known = "metis, metis-work, kaminpar, kaminpar-fast, random, label-propagation, stream"
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
