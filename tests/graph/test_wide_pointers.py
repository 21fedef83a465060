"""Matrices with 2^31 entries or more have 64-bit row pointers, and nothing else about them differs.

A smaller limit replaces 2^31 where whole runs are compared. One test reads entries beyond 2^31 of sparse files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import lmc
from helpers import make, parts_of, random_graph
from lmc.errors import ConfigError, GraphError
from lmc.graph import CSR, Extractor, Graph, Shard, csr, normalise, spmm
from lmc.graph.csr import pointer_dtype, row_entries
from lmc.graph.edges import checked_edges
from lmc.partition import partition
from lmc.train.evaluate import evaluate_problem

LIMIT = 50
"""More than any row of the graphs here has entries, and fewer than the graphs have."""


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csr, "INT32_ENTRIES", LIMIT)


def rebuilt(g: Graph, directed: bool = False) -> Graph:
    """The same graph, or half of its edges in one direction only, built under the limit that holds now."""
    edges = torch.stack([g.adj.indices.long(), g.adj.row_index()])
    edges = edges[:, (edges[0] < edges[1]) | (edges.sum(0) % 2 == 0)] if directed else edges
    return Graph.from_edges(edges, g.x, g.y, train=g.train, val=g.val, test=g.test, directed=directed)


def trained(g: Graph, name: str, kind: str) -> list[Tensor]:
    """What an epoch and the exact evaluation give."""
    model = make(kind, g)
    method = lmc.methods.METHODS[name]() if name == "full" else lmc.methods.METHODS[name](clusters_per_batch=2)
    run = method.bind(g, model, None if name == "full" else parts_of(g, 6))
    run.refresh()
    for batch in run.batches():
        run.accumulate(batch)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [*gradients, *evaluate_problem(run.problem).values()]


def test_the_boundary_is_the_largest_int32() -> None:
    assert pointer_dtype(2**31 - 1) == torch.int32
    assert pointer_dtype(2**31) == torch.int64


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("name", ["full", "cluster", "gas", "lmc", "cmc"])
def test_a_run_on_wide_pointers_is_the_run_on_narrow_ones(
    name: str, kind: str, directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = rebuilt(random_graph(), directed)
    narrow = trained(g, name, kind)
    monkeypatch.setattr(csr, "INT32_ENTRIES", LIMIT)
    int64 = rebuilt(random_graph(), directed)
    assert (g.adj.indptr.dtype, int64.adj.indptr.dtype) == (torch.int32, torch.int64)
    for a, b in zip(narrow, trained(int64, name, kind), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_blocks_of_a_wide_matrix_have_narrow_pointers(small_limit: None) -> None:
    P = normalise(rebuilt(random_graph()).adj, "gcn", torch.float64)
    rows = torch.tensor([5, 0, 3])
    block, dense = Extractor(P).block(rows, torch.arange(P.num_cols)), P.to_dense()
    for piece, want in ((block, dense[rows]), (P.select_rows(rows), dense[rows]), (P.leading(3), dense[:3])):
        assert piece.indptr.dtype == torch.int32
        assert torch.equal(piece.to_dense(), want)
    few = P.filtered(P.row_index() == 2)
    assert few.indptr.dtype == torch.int32
    assert torch.equal(few.to_dense()[2], dense[2])


def test_a_product_is_divided_into_ranges_of_rows(small_limit: None) -> None:
    P = normalise(rebuilt(random_graph()).adj, "gcn", torch.float64)
    x = torch.randn(P.num_cols, 3, dtype=torch.float64)
    torch.testing.assert_close(spmm(P, x), P.to_dense() @ x)
    assert len(P.pieces()) > 2
    assert all(piece.nnz < LIMIT and piece.indptr.dtype == torch.int32 for _, piece in P.pieces())


def test_shards_of_a_wide_graph_are_those_of_a_narrow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, owners = parts_of(random_graph(), 8), torch.arange(8)
    shards = [Shard.cut(random_graph(), parts, owners, rank, 8) for rank in range(8)]
    monkeypatch.setattr(csr, "INT32_ENTRIES", 1 + max(shard.graph.adj.nnz for shard in shards))
    wide = rebuilt(random_graph())
    assert wide.adj.indptr.dtype == torch.int64
    for rank, want in enumerate(shards):
        found = Shard.cut(wide, parts, owners, rank, 8)
        assert found.graph.adj.indptr.dtype == torch.int32
        assert torch.equal(found.graph.adj.to_dense(), want.graph.adj.to_dense())
        assert torch.equal(found.ids, want.ids)


def test_self_loops_can_make_pointers_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    g = random_graph()
    monkeypatch.setattr(csr, "INT32_ENTRIES", g.adj.nnz + 1)
    P = normalise(rebuilt(g).adj, "gcn")
    assert (rebuilt(g).adj.indptr.dtype, P.indptr.dtype) == (torch.int32, torch.int64)


def test_entries_beyond_two_to_the_31_are_read(tmp_path: Path) -> None:
    first, n = 2**31 - 2, 6  # row 3 has the entries 2^31 - 2 .. 2^31 + 1, row 5 the two after them
    indptr = torch.tensor([0, 0, 0, first, first + 4, first + 4, first + 6])
    arrays = []
    for name, dtype, numbers in (("indices", torch.int32, [0, 1, 4, 5, 2, 3]), ("values", torch.float32, range(1, 7))):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate((first + 6) * 4)  # a sparse file: only the pages that are written take space
        arrays.append(torch.from_file(str(path), shared=True, size=first + 6, dtype=dtype))
        arrays[-1][first:] = torch.tensor(list(numbers), dtype=dtype)
    P = CSR(indptr, arrays[0], arrays[1], n)
    rows = torch.tensor([5, 3])
    positions, starts = row_entries(P, rows)
    assert positions.tolist() == [first + 4, first + 5, first, first + 1, first + 2, first + 3]
    assert (starts.dtype, starts.tolist()) == (torch.int32, [0, 2, 6])
    want = [[0, 0, 5, 6, 0, 0], [1, 2, 0, 0, 3, 4]]
    assert Extractor(P).block(rows, torch.arange(n)).to_dense().tolist() == want
    assert Extractor(P).halo(rows).tolist() == [0, 1, 2, 4]


def test_what_stays_bounded_by_int32_is_refused(small_limit: None) -> None:
    with pytest.raises(GraphError, match=r"fewer than 2\^31 nodes \(got 2,147,483,648\)"):
        checked_edges(torch.tensor([[0], [1]]), 2**31)
    with pytest.raises(ConfigError, match=r"fewer than 2\^31 entries for method='metis' .*label-propagation"):
        partition(rebuilt(random_graph()), 3, cache=False)
    assert partition(rebuilt(random_graph()), 3, "label-propagation", cache=False).unique().numel() == 3
