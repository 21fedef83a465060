"""Readers of the published raw formats, on small graphs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import lmc.data
from lmc.errors import DataError, GraphError
from lmc.graph import CSR


@pytest.fixture
def ogb(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """An unpacked OGB set: one-way edges, classes in a column."""
    folder = tmp_path / "sets" / "ogbn_arxiv"
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / "time").mkdir(parents=True)
    np.savetxt(folder / "raw" / "edge.csv.gz", arrays["edge_index"][:, ::2].T, fmt="%d", delimiter=",")
    np.savetxt(folder / "raw" / "node-feat.csv.gz", arrays["x"], delimiter=",")
    np.savetxt(folder / "raw" / "node-label.csv.gz", arrays["y"], fmt="%d")
    for key, split in (("train", "train"), ("valid", "val"), ("test", "test")):
        np.savetxt(folder / "split" / "time" / f"{key}.csv.gz", arrays[f"{split}_idx"], fmt="%d")
    return folder


def test_an_ogb_folder_becomes_a_graph(ogb: Path, arrays: dict[str, np.ndarray]) -> None:
    g = lmc.data.load("ogbn-arxiv", data_dir=ogb.parent)
    assert (g.name, g.num_nodes, g.num_edges, g.num_classes) == ("ogbn-arxiv", 6, 7, 2)
    assert torch.equal(g.x, torch.from_numpy(arrays["x"]))
    assert g.val.nonzero().squeeze(1).tolist() == arrays["val_idx"].tolist()


def test_a_file_is_preferred_to_a_raw_folder(ogb: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(ogb.parent / "ogbn-arxiv.npz", **{**arrays, "x": np.zeros((6, 3))})
    assert lmc.data.load("ogbn-arxiv", data_dir=ogb.parent).num_features == 3


def test_a_missing_ogb_file_is_named(ogb: Path) -> None:
    (ogb / "raw" / "node-feat.csv.gz").unlink()
    with pytest.raises(DataError, match=r"node-feat\.csv\.gz.*unpack"):
        lmc.data.load("ogbn-arxiv", data_dir=ogb.parent)


def test_a_damaged_ogb_file_is_named(ogb: Path) -> None:
    path = ogb / "raw" / "edge.csv.gz"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match=r"edge\.csv\.gz"):
        lmc.data.load("ogbn-arxiv", data_dir=ogb.parent)


def test_two_ogb_split_schemes_are_refused(ogb: Path) -> None:
    (ogb / "split" / "random").mkdir()
    with pytest.raises(DataError, match="keep one scheme"):
        lmc.data.load("ogbn-arxiv", data_dir=ogb.parent)


def test_an_invalid_ogb_graph_names_its_folder(ogb: Path) -> None:
    np.savetxt(ogb / "raw" / "edge.csv.gz", np.array([[0, 9]]), fmt="%d", delimiter=",")
    with pytest.raises(GraphError, match=r"ogbn_arxiv.*node 9"):
        lmc.data.load("ogbn-arxiv", data_dir=ogb.parent)


@pytest.fixture
def amazon(tmp_path: Path) -> Path:
    folder = tmp_path / "sets" / "amazon"
    folder.mkdir(parents=True)
    # a ring of 24 nodes, each listing its two neighbours
    lines = [f"2 {(i - 1) % 24} {(i + 1) % 24}" for i in range(24)]
    (folder / "adj_list.txt").write_text("\n".join(lines) + "\n")
    np.savetxt(folder / "label.txt", np.eye(24, 3, dtype=int), fmt="%d")
    np.savetxt(folder / "train_idx-0.06.txt", np.array([0, 1]), fmt="%d")
    np.savetxt(folder / "test_idx.txt", np.arange(2, 22), fmt="%d")
    return folder


def test_an_amazon_folder_becomes_a_graph(amazon: Path) -> None:
    g = lmc.data.load("amazon", data_dir=amazon.parent)
    assert (g.num_nodes, g.num_edges, g.num_classes, g.multi_label) == (24, 24, 3, True)
    assert isinstance(g.x, CSR)
    assert torch.equal(g.x.to_dense(), torch.eye(24))
    assert g.val.nonzero().squeeze(1).tolist() == [2, 12]
    assert int(g.test.sum()) == 18


def test_a_damaged_amazon_file_is_named(amazon: Path) -> None:
    (amazon / "adj_list.txt").write_text("2 x y\n")
    with pytest.raises(DataError, match=r"adj_list\.txt"):
        lmc.data.load("amazon", data_dir=amazon.parent)


def test_a_flickr_folder_becomes_a_graph(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    raw = tmp_path / "sets" / "flickr" / "raw"
    raw.mkdir(parents=True)
    row, col = arrays["edge_index"]
    adj = sp.csr_array((np.ones(row.size), (row, col)), shape=(6, 6))
    np.savez(raw / "adj_full.npz", data=adj.data, indices=adj.indices, indptr=adj.indptr, shape=adj.shape)
    np.save(raw / "feats.npy", arrays["x"])
    (raw / "class_map.json").write_text(json.dumps({str(i): int(c) for i, c in enumerate(arrays["y"])}))
    roles = {key: arrays[f"{split}_idx"].tolist() for key, split in (("tr", "train"), ("va", "val"), ("te", "test"))}
    (raw / "role.json").write_text(json.dumps(roles))
    g = lmc.data.load("flickr", data_dir=tmp_path / "sets")
    assert (g.name, g.num_nodes, g.num_edges, g.num_classes) == ("flickr", 6, 7, 2)


def test_damaged_flickr_files_are_reported(tmp_path: Path) -> None:
    raw = tmp_path / "sets" / "flickr" / "raw"
    raw.mkdir(parents=True)
    for name in ("adj_full.npz", "feats.npy", "class_map.json", "role.json"):
        (raw / name).write_text("no")
    with pytest.raises(DataError, match="raw files of flickr"):
        lmc.data.load("flickr", data_dir=tmp_path / "sets")


def test_a_reddit_folder_becomes_a_graph(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    raw = tmp_path / "sets" / "reddit" / "raw"
    raw.mkdir(parents=True)
    role = np.array([1, 2, 3, 1, 2, 3])  # train, val, test
    np.savez(raw / "reddit_data.npz", feature=arrays["x"], label=arrays["y"], node_types=role)
    row, col = arrays["edge_index"]
    sp.save_npz(raw / "reddit_graph.npz", sp.coo_matrix((np.ones(row.size), (row, col)), shape=(6, 6)))
    g = lmc.data.load("reddit", data_dir=tmp_path / "sets")
    assert (g.num_nodes, g.num_edges) == (6, 7)
    assert g.train.nonzero().squeeze(1).tolist() == [0, 3]


def test_a_ppi_folder_becomes_one_disjoint_union(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Two training graphs, one validation graph and one test graph become one union of four."""
    raw = tmp_path / "sets" / "ppi" / "raw"
    raw.mkdir(parents=True)
    for split, graphs in (("train", 2), ("valid", 1), ("test", 1)):
        n = 6 * graphs
        edges = np.concatenate([arrays["edge_index"] + 6 * k for k in range(graphs)], axis=1)
        links = [{"source": int(u), "target": int(v)} for u, v in edges.T]
        nodes = [{"id": i} for i in range(n)]
        content = {"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "links": links}
        (raw / f"{split}_graph.json").write_text(json.dumps(content))
        np.save(raw / f"{split}_feats.npy", np.tile(arrays["x"], (graphs, 1)))
        np.save(raw / f"{split}_labels.npy", np.eye(6, 3)[np.arange(n) % 6])
        np.save(raw / f"{split}_graph_id.npy", 1 + np.arange(n) // 6)
    g = lmc.data.load("ppi", data_dir=tmp_path / "sets")
    assert (g.num_nodes, g.num_edges, g.num_classes, g.multi_label) == (24, 28, 3, True)
    assert [int(m.sum()) for m in (g.train, g.val, g.test)] == [12, 6, 6]
