"""Graphs that are read in pieces: the edges and the dense features of an ``.npz`` go into memory-mapped files.

What is in memory is a few numbers per node, the targets and splits, sparse features, and one piece at a time.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmc.data import npz
from lmc.data.arrays import header, naming, read_npz
from lmc.errors import DataError, GraphError
from lmc.graph import CSR, Graph, MappedFiles
from lmc.graph.checks import checked_features
from lmc.graph.csr import CHUNK, entry_chunks, scattered
from lmc.graph.edges import DIRECTED_REMEDY, REMEDY, mixed

LARGE = ("edge_index", "x", "edge_weight", "edge_attr")
ONE_EDGE = np.array([[0, 1], [1, 0]])


def read(path: Path, *, name: str | None = None, directed: bool | None = None, task: str | None = None) -> Graph:
    """The graph that :func:`lmc.data.npz.read` returns, with its edges and dense features in memory-mapped files."""
    path, files = Path(path).expanduser(), MappedFiles()
    with naming(path, "a whole .npz file"), zipfile.ZipFile(path) as archive:
        large = {key: Member(archive, key, path) for key in LARGE if f"{key}.npy" in archive.namelist()}
        small = read_npz(path, {info.removesuffix(".npy") for info in archive.namelist()} - set(LARGE))
        if "edge_index" not in large:
            raise DataError(f"expected the key edge_index in {path} (got none): write the file with lmc.save")
        # targets, splits and sparse features are checked with one edge and one column instead of all of them
        stand_ins: dict[str, Any] = {"edge_index": ONE_EDGE}
        if "x" in large:
            stand_ins["x"] = np.broadcast_to(np.float32(0), (*large["x"].shape[:1], 1))
        graph = npz.graph_of(path, small | stand_ins, name=name, directed=directed, task=task)
        try:
            adj = _adjacency(large, graph.num_nodes, graph.directed, files)
            x = _features(large["x"], files) if "x" in large else graph.x
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from error
    return replace(graph, adj=adj, x=x)


class Member:
    """An array of an archive that is read in pieces."""

    def __init__(self, archive: zipfile.ZipFile, key: str, path: Path) -> None:
        self.archive, self.info, self.where = archive, archive.getinfo(f"{key}.npy"), f"{key} in {path}"
        with archive.open(self.info) as stream:
            self.shape, self.dtype, fortran = header(stream, self.info.file_size, self.where)
            self.start = stream.tell()
        if fortran and len(self.shape) > 1:
            raise DataError(f"expected rows one after the other (got columns) as {self.where}: write it with lmc.save")

    def pieces(self, first: int, count: int, step: int) -> Iterator[np.ndarray]:
        """``count`` numbers from number ``first`` on, in the order of the file, ``step`` at a time."""
        with self.archive.open(self.info) as stream:
            stream.seek(self.start + first * self.dtype.itemsize)
            for start in range(0, count, step):
                data = stream.read(min(step, count - start) * self.dtype.itemsize)
                yield np.frombuffer(data, dtype=self.dtype).astype(self.dtype.newbyteorder("="))

    def rows(self, step: int) -> Iterator[np.ndarray]:
        """All rows, ``step`` at a time."""
        width = prod(self.shape[1:])
        for piece in self.pieces(0, prod(self.shape), step * width):
            yield piece.reshape(-1, *self.shape[1:])


def _adjacency(large: dict[str, Member], n: int, directed: bool, files: MappedFiles) -> CSR:
    """A of the edges, whose columns are sorted, after the checks of :func:`lmc.graph.checked_edges`."""
    edges, data = _edge_members(large)
    m = edges.shape[1]

    def chunks() -> Iterator[tuple[Tensor, ...]]:
        given = zip(
            edges.pieces(0, m, CHUNK), edges.pieces(m, m, CHUNK), *(each.rows(CHUNK) for each in data), strict=True
        )
        for src, dst, *more in given:
            low, high = min(src.min(), dst.min()), max(src.max(), dst.max())
            if low < 0 or high >= n:
                raise GraphError(
                    f"expected edges between nodes in [0, {n}) (got node {low if low < 0 else high}): number the nodes "
                    "from 0 as the rows of x"
                )
            yield torch.from_numpy(dst.astype(np.int64)), *(torch.from_numpy(a) for a in (src, *more))

    adj = scattered(chunks, (n, n), files)
    _check_edges(adj, n, directed)
    return replace(adj, symmetric=not directed)


def _edge_members(large: dict[str, Member]) -> tuple[Member, list[Member]]:
    """The edges, and the weights and features of edges that there are, after a check of their shapes."""
    edges = large["edge_index"]
    if len(edges.shape) != 2 or edges.shape[0] != 2 or edges.shape[1] == 0 or edges.dtype.kind not in "iu":
        raise GraphError(
            f"expected edge_index [2, E] of whole numbers (got {list(edges.shape)}, {edges.dtype}): write the file "
            "with lmc.save"
        )
    m = edges.shape[1]
    data = [large[key] for key in ("edge_weight", "edge_attr") if key in large]
    for each in data:
        if each.shape[:1] != (m,) or each.dtype.kind != "f" or len(each.shape) > 2:
            raise GraphError(f"expected one row of floats per edge, {m} (got {list(each.shape)}) as {each.where}")
    if "edge_attr" in large and "edge_weight" not in large:
        raise GraphError("expected edge_weight beside edge_attr in a graph that is read in pieces (got none): load it")
    return edges, data


def _check_edges(adj: CSR, n: int, directed: bool) -> None:
    """Sort the columns of every row; refuse loops, duplicates and edges of an undirected graph in one direction."""
    difference, remedy = 0, DIRECTED_REMEDY if directed else REMEDY
    for row, at in entry_chunks(adj):
        key = _sort_columns(adj, row, at)
        twice = key[1:] == key[:-1]
        if bool(twice.any()) or bool((row == adj.indices[at]).any()):
            what = "duplicate edges" if bool(twice.any()) else "self-loops"
            raise GraphError(f"expected no {what} (got some): {remedy}")
        back = key % n * n + key // n
        weight = 0 if adj.values is None else adj.values[at].double().view(torch.int64)
        difference += int((_hash(key, weight) - _hash(back, weight)).sum())
    if not directed and difference % 2**64:
        raise GraphError(
            f"expected an undirected graph with both directions of every edge, and the same weight in both (got "
            f"others): {REMEDY}, or pass directed=True (--directed)"
        )


def _sort_columns(adj: CSR, row: Tensor, at: slice) -> Tensor:
    """Sort the entries ``at``, whose rows are given, by column; returns row * n + column of every entry."""
    key, order = (row * adj.num_cols + adj.indices[at]).sort()
    adj.indices[at] = (key % adj.num_cols).to(torch.int32)
    for data in (adj.values, adj.edge_data):
        if data is not None:
            data[at] = data[at][order]
    return key


def _hash(key: Tensor, weight: Tensor | int) -> Tensor:
    """A 64-bit hash of edges: equal sums over both directions mean, but for chance, that both have the same edges."""
    key = mixed(key, weight)
    return key ^ (key >> 31)


def _features(member: Member, files: MappedFiles) -> Tensor:
    """The dense features in a file, checked piece by piece."""
    x: Tensor | None = None
    start = 0
    for piece in member.rows(max(1, CHUNK // max(1, prod(member.shape[1:])))):
        rows = checked_features(piece, len(piece))
        assert isinstance(rows, Tensor)
        x = files.empty(member.shape, rows.dtype) if x is None else x
        x[start : start + len(rows)] = rows
        start += len(rows)
        files.release()
    assert x is not None
    return x
