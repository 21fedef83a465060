"""PyG ``Data`` and data sets become a :class:`lmc.Graph`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph import CSR, SPLITS, Graph
from lmc.graph.csr import from_rows


def from_data(
    data: Any, *, name: str = "graph", symmetrise: bool = False, directed: bool | None = None, task: str | None = None
) -> Graph:
    """The graph in a PyG ``Data`` with x, y, edge_index and train_mask; val_mask and test_mask are optional, and
    ``data.node_weight`` [n] is the weight of each loss.

    With ``test_mask`` alone it is a graph for evaluations, and without ``y`` and masks one for predictions. Of masks
    with several splits, [n, k], the first is used. ``data.edge_weight`` and ``data.edge_attr`` are those of the graph.
    Without ``edge_index``, edges and their weights are those of ``data.adj_t``. ``task`` and ``directed`` replace those
    of ``data.lmc``, which :meth:`lmc.Graph.to_data` writes.
    """
    needed = {"edge_index": "edges [2, E]", "x": "features [n, d]", "y": "targets [n] or [n, C]"}
    if all(getattr(data, key, None) is None for key in ("y", *(f"{split}_mask" for split in SPLITS))):
        needed.pop("y")
    if getattr(data, "adj_t", None) is not None:
        needed.pop("edge_index")
    for key, meaning in needed.items():
        if getattr(data, key, None) is None:
            other = "; lmc.Graph.from_edges makes a graph without features, by x=None" if key == "x" else ""
            raise GraphError(f"expected data.{key}, the {meaning} (got none): set it before loading{other}")
    if getattr(data, "edge_type", None) is not None:
        raise GraphError(
            "expected edges of one type (got data.edge_type): encode the types as data.edge_attr, which wrapped "
            "networks read, or delete them"
        )
    told = getattr(data, "lmc", {})
    given: dict[str, Any] = {split: _mask(data, split) for split in SPLITS if "y" in needed}
    given |= {"name": name, "symmetrise": symmetrise, "weight": getattr(data, "node_weight", None)}
    given |= {"task": task or told.get("task"), "num_classes": None if task else told.get("num_classes")}
    given |= {"directed": told.get("directed", False) and not symmetrise if directed is None else directed}
    edges, weight = _edges(data)
    given |= {"edge_weight": weight, "edge_attr": getattr(data, "edge_attr", None)}
    given |= {"inductive": told.get("inductive", False)}
    graph = Graph.from_edges(edges, _features(data.x), getattr(data, "y", None), **given)
    return replace(graph, metric=told.get("metric", ""))


def from_dataset(
    dataset: Sequence[Any], *, name: str = "graph", symmetrise: bool = False,
    directed: bool | None = None, task: str | None = None,
) -> Graph:  # fmt: skip
    """The graph of a PyG data set; several graphs, each with its masks, become one disjoint union."""
    if len(dataset) == 0:
        raise GraphError("expected a data set with at least one graph (got an empty one): add graphs to it")
    if len(dataset) == 1:
        return from_data(dataset[0], name=name, symmetrise=symmetrise, directed=directed, task=task)
    from torch_geometric.data import Batch  # imported here: PyG takes long to load

    union = Batch.from_data_list([dataset[i] for i in range(len(dataset))])
    if "lmc" in union:  # the lists of what was said of every graph
        del union["lmc"]
    return from_data(union, name=name, symmetrise=symmetrise, directed=directed, task=task)


def from_splits(
    train: Iterable[Any], val: Iterable[Any], test: Iterable[Any], *, name: str = "graph", symmetrise: bool = False,
    directed: bool | None = None, task: str | None = None,
) -> Graph:  # fmt: skip
    """The disjoint union of three collections of graphs; the collection of a node is its split (PPI).

    The union is inductive: training sees the graphs of ``train`` alone.
    """
    marked = []
    for split, graphs in zip(SPLITS, (train, val, test), strict=True):
        for data in graphs:
            data = data.clone()
            for key in SPLITS:
                data[f"{key}_mask"] = torch.full((data.num_nodes,), key == split)
            marked.append(data)
    union = from_dataset(marked, name=name, symmetrise=symmetrise, directed=directed, task=task)
    return replace(union, inductive=True)


def _mask(data: Any, split: str) -> Tensor | None:
    mask = getattr(data, f"{split}_mask", None)
    if mask is None:
        alone = getattr(data, "test_mask", None) is not None and getattr(data, "val_mask", None) is None
        if split != "train" or alone:
            return None
        raise GraphError(
            "expected data.train_mask, a boolean per node (got none): set it, or draw one with "
            "torch_geometric.transforms.RandomNodeSplit; for predictions alone delete data.y; for graphs that belong "
            "to one split as a whole use lmc.data.from_splits(train, val, test)"
        )
    mask = mask[:, 0] if mask.dim() == 2 else mask
    return mask.bool() if mask.dtype == torch.uint8 else mask  # the dtype of masks in older versions of torch


def _edges(data: Any) -> tuple[Any, Any]:
    """Edges [2, E] and their weights. In ``adj_t``, the transposed adjacency, a row is the target of its edges, and
    values that are all 1 are no weights."""
    edges, weight = getattr(data, "edge_index", None), getattr(data, "edge_weight", None)
    if edges is not None:
        return edges, weight
    if not isinstance(data.adj_t, Tensor) or data.adj_t.layout == torch.strided:
        got = "a dense one" if isinstance(data.adj_t, Tensor) else type(data.adj_t).__name__
        raise GraphError(
            f"expected data.adj_t as a sparse torch tensor (got {got}): set data.edge_index, or convert a SparseTensor "
            "by adj_t.to_torch_sparse_csr_tensor()"
        )
    entries = data.adj_t.to_sparse_coo().coalesce()
    values = entries.values()
    return entries.indices().flip(0), weight if bool((values == 1).all()) else values


def _features(x: Any) -> Tensor | CSR:
    if not isinstance(x, Tensor):
        raise GraphError(f"expected data.x as a torch tensor (got {type(x).__name__}): convert it first")
    return x if x.layout == torch.strided else as_csr(x)


def as_csr(x: Tensor) -> CSR:
    """A dense or sparse matrix as a :class:`CSR`."""
    entries = x.to_sparse_coo().coalesce()  # by rows, and without the warning of torch's own CSR
    rows, cols = entries.indices()
    values = entries.values()
    values = values if values.is_floating_point() else values.float()
    return from_rows(rows, cols, values, (x.shape[0], x.shape[1]))
