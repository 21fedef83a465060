"""Graphs from PyG objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_torch_csc_tensor

import lmc.data
from lmc.errors import DataError, GraphError
from lmc.graph import CSR


@pytest.fixture
def data(arrays: dict[str, np.ndarray]) -> Data:
    made = Data(
        x=torch.from_numpy(arrays["x"]),
        edge_index=torch.from_numpy(arrays["edge_index"]).long(),
        y=torch.from_numpy(arrays["y"]),
    )
    for split in ("train", "val", "test"):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[torch.from_numpy(arrays[f"{split}_idx"])] = True
        made[f"{split}_mask"] = mask
    return made


class Several(InMemoryDataset):
    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(graphs)


def test_a_data_becomes_a_graph(data: Data) -> None:
    g = lmc.data.load(data)
    assert (g.num_nodes, g.num_edges, g.num_classes) == (6, 7, 2)
    assert torch.equal(g.train, data.train_mask)


def test_a_graph_is_returned_unchanged(data: Data) -> None:
    g = lmc.data.load(data)
    assert lmc.data.load(g) is g


def test_the_first_of_several_splits_is_used(data: Data) -> None:
    for split in ("train", "val", "test"):
        mask = data[f"{split}_mask"]
        data[f"{split}_mask"] = torch.stack([mask, torch.ones_like(mask)], dim=1)
    assert int(lmc.data.load(data).train.sum()) == 2


def test_a_label_matrix_is_multi_label(data: Data) -> None:
    data.y = torch.eye(4)[data.y]
    data.y[0, 2:] = 1  # with one label per row the task would be ambiguous
    g = lmc.data.load(data)
    assert g.multi_label
    assert g.num_classes == 4


def test_a_column_of_classes_is_not_multi_label(data: Data) -> None:
    data.y = data.y[:, None]
    assert not lmc.data.load(data).multi_label


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_features_become_a_csr(data: Data, layout: str) -> None:
    dense = data.x
    data.x = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    x = lmc.data.load(data).x
    assert isinstance(x, CSR)
    assert torch.equal(x.to_dense(), dense)


@pytest.mark.parametrize("key", ["x", "y", "edge_index", "train_mask"])
def test_a_missing_attribute_is_named(data: Data, key: str) -> None:
    data[key] = None
    with pytest.raises(GraphError, match=rf"expected data\.{key}.*set it"):
        lmc.data.load(data)


def test_one_way_edges_are_refused_or_symmetrised(data: Data) -> None:
    data.edge_index = data.edge_index[:, ::2]
    with pytest.raises(GraphError, match="both directions"):
        lmc.data.load(data)
    assert lmc.data.load(data, symmetrise=True).num_edges == 7


def test_a_dataset_of_one_graph_is_that_graph(data: Data) -> None:
    assert lmc.data.load(Several([data])).num_nodes == 6


def test_a_dataset_of_several_graphs_is_their_disjoint_union(data: Data) -> None:
    g = lmc.data.load(Several([data, data, data]))
    assert (g.num_nodes, g.num_edges) == (18, 21)
    block = torch.arange(18) // 6
    assert torch.equal(block[g.adj.row_index()], block[g.adj.indices])
    assert torch.equal(g.y, data.y.repeat(3))


def test_collections_of_graphs_become_splits(data: Data) -> None:
    bare = Data(x=data.x, y=data.y, edge_index=data.edge_index)
    with pytest.raises(GraphError, match="from_splits"):
        lmc.data.load(Several([bare, bare]))
    g = lmc.data.from_splits(Several([bare, bare]), [bare], [bare])
    assert g.train.tolist() == [True] * 12 + [False] * 12
    assert g.val.nonzero().squeeze(1).tolist() == list(range(12, 18))
    assert "train_mask" not in bare, "the caller's data is not changed"


@pytest.mark.parametrize("thing", [7, None, ["cora"], HeteroData()])
def test_other_objects_are_refused(thing: Any) -> None:
    with pytest.raises(DataError, match="expected a name, a path"):
        lmc.data.load(thing)


def test_features_must_be_a_tensor(data: Data) -> None:
    data.x = [[1.0]] * 6
    with pytest.raises(GraphError, match="torch tensor"):
        lmc.data.load(data)


def test_edge_weights_features_and_directions_are_kept(data: Data) -> None:
    data.edge_weight = data.edge_index.sum(0).double()
    data.edge_attr = torch.stack([data.edge_index[0], data.edge_index[1]], 1).float()
    g = lmc.data.load(data)
    source, target = g.adj.indices.long(), g.adj.row_index()
    assert not g.directed
    assert torch.equal(g.edge_weight, (source + target).double())
    assert torch.equal(g.edge_attr, torch.stack([source, target], 1).float())
    one_way = data.edge_subgraph(data.edge_index[0] < data.edge_index[1])
    with pytest.raises(GraphError, match=r"both directions listed.*directed=True"):
        lmc.data.load(one_way)
    directed = lmc.data.load(one_way, directed=True)
    assert directed.directed
    assert bool((directed.adj.indices < directed.adj.row_index()).all())
    assert directed.num_edges == g.num_edges


def test_a_union_keeps_the_weights_of_its_graphs(data: Data) -> None:
    data.edge_weight = data.edge_index.sum(0).double()
    g = lmc.data.load(Several([data, data]))
    assert g.edge_weight is not None
    assert torch.equal(g.edge_weight[: data.num_edges], g.edge_weight[data.num_edges :])


def test_types_of_edges_are_not_dropped(data: Data) -> None:
    data.edge_type = torch.zeros(data.num_edges, dtype=torch.int64)
    with pytest.raises(GraphError, match=r"expected edges of one type \(got data.edge_type\)"):
        lmc.data.load(data)


ADJACENCIES: dict[str, Callable[[Data], Data]] = {
    "csr": ToSparseTensor(),
    "coo": ToSparseTensor(layout=torch.sparse_coo),
    "csc": lambda data: _with_adj_t(data, to_torch_csc_tensor),
    "without attr": ToSparseTensor(attr=None),
}


def _with_adj_t(data: Data, convert: Callable[..., torch.Tensor]) -> Data:
    weight = data.edge_weight
    data.adj_t = convert(data.edge_index.flip(0), weight, size=6)
    data.edge_index = data.edge_weight = None
    return data


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("form", ADJACENCIES)
def test_the_edges_of_adj_t_are_those_of_edge_index(data: Data, form: str, weighted: bool, directed: bool) -> None:
    if weighted:
        data.edge_weight = (1 + data.edge_index.sum(0)).double()
    if directed:
        data = data.edge_subgraph((data.edge_index[0] < data.edge_index[1]) | (data.edge_index[0] == 5))
    if form != "csc":
        data.edge_attr = torch.stack([data.edge_index[0], data.edge_index[1]], 1).float()
    want = lmc.data.load(data, directed=directed)
    converted = ADJACENCIES[form](data.clone())
    assert "edge_index" not in converted
    got = lmc.data.load(converted, directed=directed)
    assert got.checksum == want.checksum
    assert torch.equal(got.edge_index, want.edge_index)


def test_graphs_with_adj_t_become_a_union(data: Data) -> None:
    data.edge_weight = data.edge_index.sum(0).double()
    sparse = ToSparseTensor()(data.clone())
    assert lmc.data.load(Several([sparse, sparse])).checksum == lmc.data.load(Several([data, data])).checksum


@pytest.mark.parametrize(("adj_t", "got"), [(torch.ones(6, 6), "a dense one"), ([], "list")])
def test_another_adj_t_is_refused(data: Data, adj_t: Any, got: str) -> None:
    data.edge_index, data.adj_t = None, adj_t
    with pytest.raises(GraphError, match=rf"data.adj_t as a sparse torch tensor \(got {got}\): set data.edge_index"):
        lmc.data.load(data)
