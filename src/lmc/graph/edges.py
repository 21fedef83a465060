"""The adjacency of a graph from the edges that a user gives, with their weights and features. Each error says what was
expected and what to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph.checks import as_tensor
from lmc.graph.csr import CSR, from_rows

REMEDY = "pass symmetrise=True (on the command line: --symmetrise) to repair this"
DIRECTED_REMEDY = "drop or merge them, e.g. with torch_geometric.utils.remove_self_loops and coalesce"


def checked_edges(
    edge_index: Tensor, n: int, *, symmetrise: bool = False, directed: bool = False, edge_weight: Any = None,
    edge_attr: Any = None,
) -> CSR:  # fmt: skip
    """A from edges [2, E] between ``n`` nodes: row i holds the edges that end in node i, sorted by where they begin.

    Its values are the edge weights, and its ``edge_data`` the edge features, where there are any.

    Args:
        symmetrise: add missing directions, merge duplicates and drop self-loops. A pair of nodes that is listed several
            times, in either direction, gets the mean of its weights and of its features.
        directed: an edge is a message from its source to its target alone.
    """
    if directed and symmetrise:
        raise GraphError("expected directed=True or symmetrise=True (got both): symmetrise makes a graph undirected")
    if n >= 2**31:
        raise GraphError(f"expected fewer than 2^31 nodes (got {n:,}): columns are int32")
    _check_numbers(edge_index, n)
    m = edge_index.shape[1]
    weight = None if edge_weight is None else _checked_data("edge_weight", as_tensor("edge_weight", edge_weight), m)
    attr = None if edge_attr is None else _checked_data("edge_attr", as_tensor("edge_attr", edge_attr), m)
    src, dst = edge_index.long()
    given = [None if data is None else data.to(src.device) for data in (weight, attr)]
    key, (weight, attr) = _repaired(src, dst, n, given) if symmetrise else _listed(src, dst, n, directed, given)
    adj = from_rows(key // n, key % n, weight, (n, n))
    return CSR(adj.indptr, adj.indices, weight, n, symmetric=not directed, edge_data=attr)


def mixed(key: Tensor, weight: Tensor | int = 0) -> Tensor:
    """A 64-bit hash of edges, by their keys row * n + column and their weights; two rounds of SplitMix64, without the
    last shift."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        key = (key ^ (key >> shift)) * factor + weight
    return key


def _check_numbers(edge_index: Tensor, n: int) -> None:
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise GraphError(
            f"expected edge_index of shape [2, E] (got {list(edge_index.shape)}): pass sources and targets as two "
            "rows; edge_index.T makes them of a list of edges"
        )
    if edge_index.shape[1] == 0:
        raise GraphError("expected at least one edge (got none): a graph without edges needs no graph network")
    if edge_index.is_floating_point() or edge_index.is_complex():
        raise GraphError(
            f"expected whole node numbers in edge_index (got {edge_index.dtype}): pass integers, e.g. torch.int64"
        )
    outside = (edge_index < 0) | (edge_index >= n)
    if bool(outside.any()):
        raise GraphError(
            f"expected edges between nodes in [0, {n}) (got node {int(edge_index[outside][0])}): number the nodes from "
            "0 as the rows of x, and give every node a row"
        )


def _checked_data(name: str, data: Tensor, m: int) -> Tensor:
    """Finite real numbers per edge: weights [m], or features [m, k]; whole numbers become float32."""
    if name == "edge_weight" and data.dim() == 2 and data.shape[1] == 1:
        data = data.squeeze(1)
    if name == "edge_attr" and data.dim() == 1:
        data = data.unsqueeze(1)
    shape = f"[{m}]" if name == "edge_weight" else f"[{m}, k]"
    if data.dim() != (1 if name == "edge_weight" else 2) or data.shape[0] != m or 0 in data.shape:
        raise GraphError(
            f"expected {name} of shape {shape}, one row per edge (got {list(data.shape)}): list them in the order of "
            "edge_index"
        )
    if data.is_complex():
        raise GraphError(f"expected real numbers in {name} (got {data.dtype}): pass their parts as two columns")
    data = data if data.is_floating_point() else data.to(torch.float32)
    finite = data.isfinite()
    if not bool(finite.all()):
        edge = int((~finite).nonzero()[0, 0])
        raise GraphError(f"expected finite {name} (got {data[edge].tolist()} at edge {edge}): replace or drop it")
    return data


def _repaired(src: Tensor, dst: Tensor, n: int, given: list[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    """Sorted keys of both directions of every edge, once, without self-loops; and the mean of what is ``given``."""
    between = src != dst
    listed = (torch.minimum(src, dst) * n + torch.maximum(src, dst))[between]
    pair = listed.unique()
    if pair.numel() == 0:
        raise GraphError(
            "expected at least one edge between two nodes (got self-loops only): add edges between different nodes"
        )

    def merged(data: Tensor | None) -> Tensor | None:
        if data is None:
            return None
        at = torch.searchsorted(pair, listed)
        sums = data.new_zeros(pair.numel(), *data.shape[1:]).index_add_(0, at, data[between])
        mean = sums / torch.bincount(at).view(-1, *[1] * (data.dim() - 1))
        return torch.cat([mean, mean])

    return _sorted(torch.cat([pair, pair % n * n + pair // n]), [merged(data) for data in given])


def _sorted(key: Tensor, given: list[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    key, order = key.sort()
    return key, [None if data is None else data[order] for data in given]


def _listed(
    src: Tensor, dst: Tensor, n: int, directed: bool, given: list[Tensor | None]
) -> tuple[Tensor, list[Tensor | None]]:
    """Sorted keys dst * n + src of edges without self-loops and duplicates, both directions listed unless ``directed``;
    and what is ``given``, in their order."""
    remedy = DIRECTED_REMEDY if directed else REMEDY
    loops = src == dst
    if bool(loops.any()):
        node = int(src[loops][0])
        raise GraphError(f"expected no self-loops (got ({node}, {node})): {remedy}")
    key, given = _sorted(dst * n + src, given)
    twice = key[1:] == key[:-1]
    if bool(twice.any()):
        k = int(key[1:][twice][0])
        raise GraphError(f"expected no duplicate edges (got ({k % n}, {k // n}) more than once): {remedy}")
    if not directed:
        _check_undirected(key, n, given[0])
    return key, given


def _check_undirected(key: Tensor, n: int, weight: Tensor | None) -> None:
    reverse, order = (key % n * n + key // n).sort()
    if not torch.equal(key, reverse):
        k = int(reverse[~torch.isin(reverse, key)][0])
        raise GraphError(
            f"expected an undirected graph with both directions listed (got ({k // n}, {k % n}) without "
            f"({k % n}, {k // n})): {REMEDY}, or pass directed=True (--directed)"
        )
    if weight is not None and not torch.equal(weight, weight[order]):
        entry = int((weight != weight[order]).nonzero()[0])
        k, back = int(key[entry]), float(weight[order][entry])
        raise GraphError(
            f"expected the same weight in both directions (got {float(weight[entry]):g} for ({k % n}, {k // n}) and "
            f"{back:g} for ({k // n}, {k % n})): pass directed=True (--directed), or symmetrise=True for their mean"
        )
