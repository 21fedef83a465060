"""Quality measures and checks of partitions, on hand-written graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lmc.errors import GraphError
from lmc.graph import Graph
from lmc.partition import Quality, check_parts, partition, quality


@pytest.fixture
def six() -> Graph:
    """Two triangles joined by the edge 2 - 3."""
    edges = torch.tensor([[0, 0, 1, 3, 3, 4, 2], [1, 2, 2, 4, 5, 5, 3]])
    splits = {"train": torch.tensor([0]), "val": torch.tensor([1]), "test": torch.tensor([2])}
    return Graph.from_edges(edges, torch.ones(6, 1), torch.zeros(6, dtype=torch.int64), **splits, symmetrise=True)


def test_quality_of_two_triangles(six: Graph) -> None:
    figures = quality(six, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert (figures.num_parts, figures.balance) == (2, 1.0)
    assert figures.edge_cut == pytest.approx(1 / 7)
    assert figures.kept == pytest.approx(6 / 7)
    assert figures.halo_ratio == pytest.approx(1 / 3)


def test_metis_finds_the_triangles(six: Graph) -> None:
    parts = partition(six, 2, cache=False)
    assert quality(six, parts).edge_cut == pytest.approx(1 / 7)


def test_quality_of_uneven_parts(six: Graph) -> None:
    figures = quality(six, torch.tensor([0, 0, 0, 0, 0, 1]))
    assert figures.edge_cut == pytest.approx(2 / 7)
    assert figures.balance == pytest.approx(5 / 3)
    assert figures.halo_ratio == pytest.approx((1 / 5 + 2 / 1) / 2)


def test_quality_of_one_part(six: Graph) -> None:
    assert quality(six, torch.zeros(6, dtype=torch.int64)) == Quality(1, 0.0, 1.0, 0.0, 1.0)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_quality_agrees_with_the_definition(graph: Graph, directed: bool, in_order: bool) -> None:
    parts = partition(graph, 6, "random").clamp(max=4)  # the last is twice as large
    parts = parts.sort().values if in_order else parts
    if directed:
        adj = graph.adj.filtered(torch.rand(graph.adj.nnz, generator=torch.Generator().manual_seed(0)) < 0.6)
        graph = replace(graph, adj=adj)
    dense = graph.adj.to_dense().bool()
    ratios = []
    for b in range(5):
        core = parts == b
        halo = (dense | dense.t())[core].any(0) & ~core
        ratios.append(float(halo.sum() / core.sum()))
    figures = quality(graph, parts)
    assert figures.halo_ratio == pytest.approx(sum(ratios) / 5, rel=1e-5)
    assert figures.edge_cut == float((dense & (parts.unsqueeze(1) != parts)).sum()) / graph.adj.nnz
    assert figures.balance == float(torch.bincount(parts).max()) * 5 / graph.num_nodes


@pytest.mark.parametrize(
    "parts", [[0, 1, 1], np.array([0, 1, 1], np.int32), torch.tensor([0, 1, 1], dtype=torch.uint8)]
)
def test_parts_may_be_lists_arrays_or_tensors(parts: Any) -> None:
    checked = check_parts(parts, 3, 2)
    assert checked.dtype == torch.int64
    assert checked.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("parts", "num_parts", "message"),
    [
        ([0, 1], None, r"one part per node, \[3\]"),
        ([[0, 1, 1]], None, r"one part per node"),
        ([0.0, 1.0, 1.0], None, "whole part numbers"),
        ([True, False, True], None, "whole part numbers"),
        ([-1, 0, 1], None, "numbered from 0"),
        ([0, 2, 2], None, "part 1 empty"),
        ([1, 1, 1], None, "part 0 empty"),
        ([0, 0, 0], 2, "part 1 empty"),
        ([0, 1, 2], 2, r"parts in \[0, 2\) \(got part 2\)"),
        ([0, 1, 10**12], None, "more parts than nodes"),
    ],
)
def test_invalid_parts_are_refused(parts: Any, num_parts: int | None, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_parts(parts, 3, num_parts)
