"""Small folders in the published raw formats of every named set, and the arrays that were written to them.

:func:`write` makes one; :func:`register` gives the sets small sizes, so that the counts of these folders agree.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from lmc.data import catalog, raw
from lmc.graph import SPLITS, Graph


@dataclass(frozen=True)
class Written:
    """What a raw folder contains: undirected edges [E, 2], features, targets and the nodes of each split."""

    edges: np.ndarray
    x: np.ndarray
    y: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def drawn(n: int = 24, features: int = 5, classes: int = 3, labels: bool = False, seed: int = 0) -> Written:
    """A ring of ``n`` nodes with chords, positive features, and a split into thirds."""
    rng = np.random.default_rng(seed)
    node = np.arange(n)
    pairs = np.concatenate(
        [np.stack([node, (node + 1) % n], 1), np.stack([node[: n // 2], node[: n // 2] + n // 2], 1)]
    )
    x = (rng.integers(0, 3, (n, features)) + (rng.random((n, features)) < 0.1)).astype(np.float32)
    x[:, 0] = 1 + node
    y = (rng.random((n, classes)) < 0.5).astype(np.int64) if labels else node % classes
    if labels:
        y[:2] = 1
    split = np.split(node, [n // 3, 2 * n // 3])
    return Written(np.unique(np.sort(pairs, 1), axis=0), x, y, *split)


def one_hot(y: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.int32)[y]


def planetoid(folder: Path, protocol: int = 2, gap: bool = False, g: Written | None = None) -> Written:
    """``ind.cora.*`` with test nodes in a shuffled order; with ``gap`` a number is missing there, as in citeseer."""
    g = g or drawn()
    if gap:
        last = len(g.x) - 1
        g = replace(g, edges=g.edges[(g.edges != last - 1).all(axis=1)], test=np.setdiff1d(g.test, [last - 1]))
        g.x[last - 1], g.y[last - 1] = 0, -1
    order = np.random.default_rng(1).permutation(g.test)
    known, y = int(g.test.min()), one_hot(g.y, int(g.y.max()) + 1)
    neighbours: dict[int, list[int]] = defaultdict(list)
    for u, v in g.edges.tolist():
        neighbours[u].append(v)
        neighbours[v].append(u)
    parts = {
        **{"x": sp.csr_matrix(g.x[g.train]), "allx": sp.csr_matrix(g.x[:known]), "tx": sp.csr_matrix(g.x[order])},
        **{"y": y[g.train], "ally": y[:known], "ty": y[order]},
        "graph": neighbours,
    }
    for part, value in parts.items():
        (folder / f"ind.cora.{part}").write_bytes(pickle.dumps(value, protocol))
    (folder / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in order))
    return g


def graphsaint(folder: Path) -> Written:
    g = drawn()
    both = np.concatenate([g.edges, g.edges[:, ::-1]])
    adj = sp.csr_matrix((np.ones(len(both), dtype=bool), both.T), shape=(24, 24))
    sp.save_npz(folder / "adj_full.npz", adj)
    np.save(folder / "feats.npy", g.x.astype(np.float64))
    (folder / "class_map.json").write_text(json.dumps({str(i): int(c) for i, c in enumerate(g.y)}))
    roles = {key: nodes.tolist() for key, nodes in (("tr", g.train), ("va", g.val), ("te", g.test))}
    (folder / "role.json").write_text(json.dumps(roles))
    return g


def links(edges: np.ndarray, nodes: list[dict[str, Any]]) -> str:
    pairs = [{"source": int(u), "target": int(v)} for u, v in edges]
    return json.dumps({"directed": False, "multigraph": False, "graph": {}, "nodes": nodes, "links": pairs})


def ppi(folder: Path) -> Written:
    """Three collections; edges between them are left out. Every node has a self-loop, as in the published files."""
    g = drawn(labels=True)
    inside = g.edges[g.edges[:, 0] // 8 == g.edges[:, 1] // 8]
    for k, split in enumerate(("train", "valid", "test")):
        nodes = slice(8 * k, 8 * k + 8)
        own = inside[inside[:, 0] // 8 == k] - 8 * k
        loops = np.stack([np.arange(8)] * 2, axis=1)
        (folder / f"{split}_graph.json").write_text(
            links(np.concatenate([own, own[:, ::-1], loops]), [{"id": i} for i in range(8)])
        )
        np.save(folder / f"{split}_feats.npy", g.x[nodes].astype(np.float64))
        np.save(folder / f"{split}_labels.npy", g.y[nodes])
    return replace(g, edges=inside)


def graphsage(folder: Path) -> Written:
    """One graph whose nodes have names, in another order than the features."""
    g = drawn(labels=True)
    order = np.random.default_rng(2).permutation(24)
    nodes = [{"id": f"n{i}", "val": bool(i in g.val), "test": bool(i in g.test)} for i in range(24)]
    (folder / "ppi-G.json").write_text(links(g.edges, nodes))
    (folder / "ppi-id_map.json").write_text(json.dumps({f"n{i}": int(row) for i, row in enumerate(order)}))
    (folder / "ppi-class_map.json").write_text(json.dumps({f"n{i}": row.tolist() for i, row in enumerate(g.y)}))
    feats = np.empty_like(g.x)
    feats[order] = g.x
    np.save(folder / "ppi-feats.npy", feats)
    return g


def ogb(folder: Path, scheme: str = "time") -> Written:
    g = drawn()
    (folder / "raw").mkdir()
    (folder / "split" / scheme).mkdir(parents=True)
    np.savetxt(folder / "raw" / "edge.csv.gz", g.edges, fmt="%d", delimiter=",")
    np.savetxt(folder / "raw" / "node-feat.csv.gz", g.x, fmt="%.6f", delimiter=",")
    np.savetxt(folder / "raw" / "node-label.csv.gz", g.y, fmt="%d")
    for key, nodes in (("train", g.train), ("valid", g.val), ("test", g.test)):
        np.savetxt(folder / "split" / scheme / f"{key}.csv.gz", nodes, fmt="%d")
    return g


def sse(folder: Path) -> Written:
    """Amazon of SSE and IGNN; node 23 has no neighbours of its own in the list, but appears in others'."""
    g = drawn(labels=True)
    rows: list[list[int]] = [[] for _ in range(24)]
    for u, v in g.edges.tolist():
        rows[u].append(v)
    (folder / "adj_list.txt").write_text("".join(" ".join(map(str, [len(row), *row])) + "\n" for row in rows))
    np.savetxt(folder / "label.txt", g.y, fmt="%d")
    np.savetxt(folder / "train_idx-0.06.txt", g.train, fmt="%d")
    held_out = np.concatenate([g.val, g.test])
    np.savetxt(folder / "test_idx.txt", held_out, fmt="%d")
    return replace(
        g, x=np.eye(24, dtype=np.float32), val=held_out[::10], test=np.delete(held_out, slice(None, None, 10))
    )


def snap(folder: Path) -> Written:
    """Amazon of SNAP: node numbers have gaps, communities are lists of members, the smallest of which are no labels."""
    g = drawn(labels=True)
    order = np.argsort(-g.y.sum(axis=0), kind="stable")
    lines = [" ".join(str(3 * i + 1) for i in np.flatnonzero(column)) for column in g.y.T] + ["1 4"]
    with gzip.open(folder / "com-amazon.ungraph.txt.gz", "wt") as file:
        file.write("# Undirected graph\n" + "".join(f"{3 * u + 1}\t{3 * v + 1}\n" for u, v in g.edges))
    with gzip.open(folder / "com-amazon.all.dedup.cmty.txt.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    return replace(g, x=np.eye(24, dtype=np.float32), y=g.y[:, order])


def benchmark(folder: Path, file: str = "ms_academic_phy.npz") -> Written:
    """gnn-benchmark, with the names of nodes as Python objects, as in the published files. They are not read."""
    g = drawn(180)
    split = raw.per_class_split(g.y)
    g = replace(g, **{key: np.flatnonzero(mask) for key, mask in split.items()})
    adj = sp.csr_matrix((np.ones(len(g.edges)), g.edges.T), shape=(180, 180))
    attr = sp.csr_matrix(g.x)
    arrays: dict[str, Any] = {"labels": g.y, "idx_to_node": np.array({"a": 1}, dtype=object)}
    for key, matrix in (("adj", adj), ("attr", attr)):
        arrays |= {f"{key}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(folder / file, **arrays)
    return g


MAKERS: dict[str, tuple[str, Callable[[Path], Written]]] = {
    "planetoid": ("cora", planetoid),
    "planetoid with a gap": ("cora", lambda folder: planetoid(folder, gap=True)),
    "graphsaint flickr": ("flickr", graphsaint),
    "graphsaint reddit": ("reddit", graphsaint),
    "ppi": ("ppi", ppi),
    "graphsage": ("ppi", graphsage),
    "ogb arxiv": ("ogbn-arxiv", ogb),
    "ogb products": ("ogbn-products", lambda folder: ogb(folder, "sales_ranking")),
    "sse": ("amazon", sse),
    "snap": ("amazon", snap),
    "gnn-benchmark": ("coauthor-physics", benchmark),
}
"""By the form of publication: the set that it is written for, and the function that writes it into a folder."""


def small(name: str, g: Written) -> catalog.Named:
    """The entry of the set ``name`` with the sizes of ``g``."""
    classes = g.y.shape[1] if g.y.ndim == 2 else int(g.y.max()) + 1
    sizes = {"nodes": len(g.x), "edges": len(g.edges), "features": g.x.shape[1], "classes": classes}
    return replace(catalog.REAL[name], **sizes)


def register(name: str, g: Written, monkeypatch: pytest.MonkeyPatch) -> catalog.Named:
    """Give the set ``name`` the sizes of ``g`` for the time of a test."""
    monkeypatch.setitem(catalog.REAL, name, small(name, g))
    return catalog.REAL[name]


def write(
    form: str, parent: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None = None
) -> tuple[str, Path, Written]:
    """A folder of the given form in ``parent``: the name of its set, the folder, and what was written."""
    name, make = MAKERS[form]
    place = parent / (folder or name)
    place.mkdir(parents=True)
    g = make(place)
    register(name, g, monkeypatch)
    return name, place, g


def assert_read(graph: Graph, g: Written, x: np.ndarray, splits: bool = True) -> None:
    """``graph`` has exactly the written edges, targets and splits, and the features ``x``."""
    found = np.stack([graph.adj.row_index().numpy(), graph.adj.indices.numpy()], axis=1)
    assert np.array_equal(found[found[:, 0] < found[:, 1]], g.edges)
    assert np.array_equal(graph.y.numpy(), g.y)
    features: Any = graph.x
    np.testing.assert_allclose(features.to_dense().numpy(), x, rtol=1e-6, atol=1e-6)
    for split in SPLITS if splits else ():
        assert np.array_equal(getattr(graph, split).numpy().nonzero()[0], getattr(g, split)), split
