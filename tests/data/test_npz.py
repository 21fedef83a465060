"""The .npz file format: round trips, damaged files and invalid arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmc.data
from helpers import SPECIAL_GRAPHS
from lmc.errors import DataError, GraphError, RunWarning
from lmc.graph import CSR, SPLITS, Graph


def assert_same(a: Graph, b: Graph) -> None:
    assert a.num_classes == b.num_classes
    for key in ("y", *SPLITS):
        assert torch.equal(getattr(a, key), getattr(b, key)), key
        assert getattr(a, key).dtype == getattr(b, key).dtype
    pairs = [(a.adj.indptr, b.adj.indptr), (a.adj.indices, b.adj.indices)]
    if isinstance(a.x, CSR):
        assert isinstance(b.x, CSR)
        assert a.x.shape == b.x.shape
        pairs += [(a.x.indptr, b.x.indptr), (a.x.indices, b.x.indices), (a.x.data, b.x.data)]
    else:
        assert isinstance(b.x, torch.Tensor)
        pairs += [(a.x, b.x)]
    assert all(torch.equal(p, q) and p.dtype == q.dtype for p, q in pairs)


def test_a_file_becomes_a_graph(file: Path) -> None:
    g = lmc.data.load(file)
    assert (g.name, g.num_nodes, g.num_edges, g.num_features, g.num_classes) == ("six", 6, 7, 2, 2)
    assert_same(g, lmc.data.load(str(file)))


def test_unknown_keys_are_named(file: Path, arrays: dict[str, np.ndarray]) -> None:
    known = lmc.data.load(file)
    np.savez(file, **arrays, edge_weights=np.ones(14), val_index=np.array([1]))
    with pytest.warns(RunWarning, match="ignored the keys edge_weights, val_index"):
        assert_same(known, lmc.data.load(file))


@pytest.mark.parametrize("features", ["dense", "sparse", "double"])
@pytest.mark.parametrize("labels", ["single", "multi", "one column"])
def test_a_written_graph_is_read_unchanged(file: Path, tmp_path: Path, features: str, labels: str) -> None:
    g = lmc.data.load(file)
    x: Any = g.x
    if features == "sparse":
        rows = g.x.to_sparse_csr()
        x = CSR(rows.crow_indices().int(), rows.col_indices().int(), rows.values(), 2)
    elif features == "double":
        x = g.x.double()
    y = {"single": g.y, "multi": torch.eye(3)[g.y], "one column": g.y.float()[:, None]}[labels]
    columns = {"single": 2, "multi": 3, "one column": 1}[labels]
    made = Graph(g.adj, x, y, g.train, g.val, g.test, columns, "made")
    path = lmc.data.save(made, tmp_path / "sub" / "made.npz")
    assert_same(made, lmc.data.load(path))
    assert [p.name for p in path.parent.iterdir()] == ["made.npz"], "no temporary file may remain"


def test_a_failed_write_keeps_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g, before = lmc.data.load(file), file.read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        lmc.data.save(g, file)
    assert file.read_bytes() == before
    assert list(file.parent.glob(".*")) == []


def test_another_suffix_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ending in \.npz"):
        lmc.data.save(lmc.data.load(file), tmp_path / "graph.pt")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file"):
        lmc.data.load(tmp_path / "none.npz")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"whole .npz file \(got .*, a folder\): pass the path of a file in it"):
        lmc.load(str(tmp_path))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_a_truncated_file_is_reported(file: Path, share: float) -> None:
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(DataError, match=r"six\.npz"):
        lmc.data.load(file)


def test_overwritten_bytes_are_reported(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[200:240] = bytes(40)
    file.write_bytes(content)
    with pytest.raises((DataError, GraphError), match=r"six\.npz"):
        lmc.data.load(file)


def test_a_text_file_is_reported(file: Path) -> None:
    file.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="no zip: it is cut off, or holds Python objects"):
        lmc.data.load(file)


def test_a_file_with_a_single_array_is_reported(file: Path) -> None:
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(DataError, match="single array"):
        lmc.data.load(file)


def test_pickled_objects_are_not_loaded(file: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(file, **{**arrays, "x": np.array([{"a": 1}] * 6, dtype=object)})
    with pytest.raises(DataError, match="Python objects"):
        lmc.data.load(file)


@pytest.mark.parametrize("key", ["edge_index", "x", "y", "train_idx"])
def test_a_missing_key_is_named(file: Path, arrays: dict[str, np.ndarray], key: str) -> None:
    del arrays[key]
    np.savez(file, **arrays)
    with pytest.raises(DataError, match=f"expected the keys {key}"):
        lmc.data.load(file)


@pytest.mark.parametrize("key", ["num_nodes", "num_classes", "undirected", "val_idx", "test_idx"])
def test_optional_keys_may_be_missing(file: Path, arrays: dict[str, np.ndarray], key: str) -> None:
    del arrays[key]
    np.savez(file, **arrays)
    assert lmc.data.load(file).num_classes == 2


ONE_WAY = np.array([[0, 1, 2], [1, 0, 3]])
BROKEN = [
    ({"edge_index": np.zeros((3, 4), int)}, r"shape \[2, E\]"),
    ({"edge_index": np.zeros((2, 0), int)}, "at least one edge"),
    ({"edge_index": np.ones((2, 4))}, "whole node numbers"),
    ({"edge_index": np.array([[0, 6], [6, 0]])}, "node 6"),
    ({"edge_index": np.array([[0, -1], [-1, 0]])}, "node -1"),
    ({"edge_index": np.array([[0, 1, 1], [1, 0, 1]])}, "no self-loops"),
    ({"edge_index": np.array([[0, 1, 0, 1], [1, 0, 1, 0]])}, "no duplicate edges"),
    ({"edge_index": ONE_WAY}, "both directions"),
    ({"x": np.zeros((5, 2))}, "one feature row per node"),
    ({"x": np.zeros(6)}, "one feature row per node"),
    ({"x": np.zeros((6, 0))}, "at least one feature column"),
    ({"x": np.full((6, 2), np.nan)}, "finite features"),
    ({"x": np.full((6, 2), "a")}, "numeric arrays"),
    ({"y": np.array([0, 0, 0, 1, 1, 2])}, r"classes in \[0, 2\)"),
    ({"y": np.array([-1, 0, 0, 1, 1, 1])}, "a class for every train node"),
    ({"y": np.array([0.5, 0, 0, 1, 1, 1])}, "whole class numbers"),
    ({"y": np.full((6, 2), 0.5)}, "0/1 matrix"),
    ({"y": np.zeros((6, 3))}, "2 label columns"),
    ({"y": np.zeros(5, int)}, "num_nodes = 6"),
    ({"num_nodes": np.int64(7)}, "num_nodes = 7"),
    ({"num_nodes": np.array([6, 6])}, "one whole number.*: write the file with lmc.save"),
    ({"num_classes": np.float64(2.5)}, "one whole number"),
    ({"train_idx": np.array([0, 6])}, "train nodes in"),
    ({"train_idx": np.array([], int)}, "at least one train node"),
    ({"train_idx": np.zeros((2, 2), int)}, "one-dimensional"),
    ({"train_idx": np.array([True, False])}, "mask of length 6"),
    ({"test_idx": np.array([0, 5])}, "disjoint splits"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN, ids=[m for _, m in BROKEN])
def test_invalid_arrays_are_refused(
    file: Path, arrays: dict[str, np.ndarray], change: dict[str, Any], message: str
) -> None:
    np.savez(file, **{**arrays, **change})
    with pytest.raises(GraphError, match=message) as raised:
        lmc.data.load(file)
    assert "six.npz" in str(raised.value), "the message names the file"


def test_symmetrise_repairs_edges(file: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(file, **{**arrays, "edge_index": np.array([[0, 0, 1, 4], [1, 1, 2, 4]])})
    assert lmc.data.load(file, symmetrise=True).num_edges == 2


SPARSE = {
    "x_indptr": np.arange(7),
    "x_indices": np.array([0, 1, 0, 1, 0, 1]),
    "x_data": np.ones(6, int),
    "x_shape": np.array([6, 2]),
}


def test_sparse_features_are_read(file: Path, arrays: dict[str, np.ndarray]) -> None:
    del arrays["x"]
    np.savez(file, **arrays, **SPARSE)
    x = lmc.data.load(file).x
    assert isinstance(x, CSR)
    assert x.dtype == torch.float32
    assert torch.equal(x.to_dense(), torch.eye(2).repeat(3, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_shape": np.array([6])}, "two numbers.*: copy or write"),
        ({"x_shape": np.array([5, 2])}, "x_indptr.*: copy or write"),
        ({"x_data": np.ones(5)}, "of one length.*: write the file with lmc.save"),
        ({"x_indptr": np.array([0, 2, 1, 3, 4, 5, 6])}, "to rise"),
        ({"x_indptr": np.array([0, 1, 2, 3, 4, 5, 5])}, "to rise.*: copy or write"),
        ({"x_indices": np.array([0, 1, 0, 1, 0, 2])}, r"x_indices in \[0, 2\).*: copy or write"),
        ({"x_data": np.full(6, np.inf)}, "finite"),
    ],
)
def test_invalid_sparse_features_are_refused(
    file: Path, arrays: dict[str, np.ndarray], change: dict[str, Any], message: str
) -> None:
    del arrays["x"]
    np.savez(file, **arrays, **{**SPARSE, **change})
    with pytest.raises(GraphError, match=message):
        lmc.data.load(file)


@pytest.mark.parametrize("name", SPECIAL_GRAPHS)
def test_weights_features_and_directions_are_read_unchanged(name: str, tmp_path: Path) -> None:
    made = SPECIAL_GRAPHS[name]()
    made = replace(made, adj=replace(made.adj, edge_data=torch.rand(made.adj.nnz, 2)))
    g = lmc.data.load(lmc.data.save(made, tmp_path / "made.npz"))
    assert_same(made, g)
    assert g.directed == made.directed
    assert (g.edge_weight is None) == (made.edge_weight is None)
    assert g.checksum == made.checksum


def test_a_file_says_whether_it_is_directed_and_the_caller_may_overrule_it(
    file: Path, arrays: dict[str, np.ndarray]
) -> None:
    source, target = arrays["edge_index"]
    one_way = arrays | {"edge_index": arrays["edge_index"][:, source < target]}
    np.savez(file, **one_way)
    with pytest.raises(GraphError, match=r"both directions listed.*--directed"):
        lmc.data.load(file)
    assert lmc.data.load(file, directed=True).num_edges == 7
    np.savez(file, **one_way | {"undirected": np.bool_(False)})
    assert lmc.data.load(file).directed
    assert not lmc.data.load(file, symmetrise=True).directed
    with pytest.raises(GraphError, match="both directions listed"):
        lmc.data.load(file, directed=False)
    np.savez(file, **one_way | {"undirected": np.array([1.0, 2.0])})
    with pytest.raises(GraphError, match=r"undirected as one boolean.*: write the file with lmc.save"):
        lmc.data.load(file)


def test_directed_is_not_an_option_of_names_and_graphs(file: Path) -> None:
    for source in ("tiny-like", lmc.data.load(file)):
        with pytest.raises(DataError, match="expected directed for files and PyG data only"):
            lmc.data.load(source, directed=True)
