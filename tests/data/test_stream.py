"""Graphs that are read in pieces are the graphs that are loaded, array by array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmc
from helpers import SPECIAL_GRAPHS, random_graph
from lmc.data import stream
from lmc.errors import DataError, GraphError, LmcError
from lmc.graph import CSR, Graph, csr

GRAPHS = {"random": random_graph, "sparse": lambda: random_graph(sparse_features=True), **SPECIAL_GRAPHS}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK", 17)
    monkeypatch.setattr(csr, "CHUNK", 23)


def saved(path: Path, graph: Graph, **changed: Any) -> Path:
    """The file of ``graph`` with other arrays."""
    lmc.save(graph, path)
    with np.load(path) as archive:
        arrays = dict(archive) | changed
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("order", ["sorted", "shuffled", "compressed"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_mapped_graph_is_the_loaded_graph(name: str, order: str, tmp_path: Path) -> None:
    graph, path = GRAPHS[name](), tmp_path / "graph.npz"
    lmc.save(graph, path)
    if order != "sorted":
        with np.load(path) as archive:
            arrays = dict(archive)
        by = np.random.default_rng(0).permutation(arrays["edge_index"].shape[1])
        for key in ("edge_index", "edge_weight", "edge_attr"):
            if key in arrays:
                arrays[key] = arrays[key][..., by].copy() if key == "edge_index" else arrays[key][by]
        (np.savez_compressed if order == "compressed" else np.savez)(path, **arrays)
    loaded, mapped = lmc.load(path), lmc.load(path, mapped=True)
    assert mapped.adj.files is not None
    assert loaded.checksum == mapped.checksum
    assert repr(loaded) == repr(mapped)
    for key in ("indptr", "indices", "values", "edge_data"):
        a, b = getattr(loaded.adj, key), getattr(mapped.adj, key)
        assert a is b is None or torch.equal(a, b)
    assert isinstance(mapped.x, CSR) or torch.equal(loaded.x, mapped.x)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"edge_index": np.array([[0, 1, 2, 2], [1, 0, 3, 2]])}, "no self-loops"),
    ({"edge_index": np.array([[0, 1, 1], [1, 0, 0]])}, "no duplicate edges"),
    ({"edge_index": np.array([[0, 1, 2], [1, 0, 3]])}, "both directions of every edge"),
    ({"edge_index": np.array([[0, 1], [1, 0]]), "edge_weight": np.array([1.0, 2.0])}, "the same weight in both"),
    ({"edge_index": np.array([[0, 99], [99, 0]])}, r"nodes in \[0, 40\) \(got node 99\)"),
    ({"edge_index": np.array([[0.0, 1.0], [1.0, 0.0]])}, "whole numbers"),
    ({"edge_index": np.array([[0, 1], [1, 0]]), "edge_weight": np.ones(3)}, "one row of floats per edge"),
    ({"x": np.full((40, 6), np.nan)}, "finite features"),
    ({"x": np.asfortranarray(np.ones((40, 6)))}, "rows one after the other"),
    ({"y": np.zeros(3, dtype=np.int64)}, "num_nodes = 40"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_loading_refuses_is_refused_in_pieces(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "graph.npz", random_graph(), **changed)
    with pytest.raises(LmcError, match=message) as found:
        lmc.load(path, mapped=True)
    assert str(path) in str(found.value)
    assert "\n" not in str(found.value)
    assert isinstance(found.value, GraphError | DataError)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "graph.npz", random_graph())
    content = bytearray(path.read_bytes())
    content[200] ^= 255  # in the edges, whose checksum no longer fits
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"expected a whole \.npz file"):
        lmc.load(path, mapped=True)
