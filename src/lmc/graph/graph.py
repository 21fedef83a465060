"""The frozen, validated graph that every method trains on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph import checks
from lmc.graph.checks import SPLITS
from lmc.graph.csr import CSR, identity, is_one_hot
from lmc.graph.edges import checked_edges
from lmc.graph.mapped import MappedFiles
from lmc.graph.submatrices import induced, permuted

if TYPE_CHECKING:
    from torch_geometric.data import Data

HASHED = 2**22
"""Numbers of an array that are hashed at a time."""
Array = Tensor | np.ndarray
Nodes = Tensor | np.ndarray | Sequence[int]
"""A boolean mask, or node numbers."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with features, targets and splits; several graphs are one disjoint union.

    Args:
        adj: A as CSR, without self-loops and duplicates: row i holds the edges that end in node i. Its values are
            the edge weights and its ``edge_data`` the edge features, None where there are none. It is ``symmetric``
            unless the graph is directed.
        x: features, dense float [n, d] or sparse :class:`CSR` with values; the identity if there are none.
        y: int64 classes [n] (-1 where unknown), labels float [n, C], or the targets of a regression, float [n] or
            [n, k]; both are NaN where unknown.
        train, val, test: boolean masks [n], which may be empty; training needs nodes in ``train``.
        num_classes: number of classes, of labels, or of regression targets: the outputs of a model.
        name: for messages and records.
        task: "classes", "labels" or "regression"; by default labels where ``y`` is a matrix, else classes.
        weight: factors on the losses of nodes [n], or None: all are 1.
        inductive: whether training sees the training nodes and the edges between them alone (:attr:`training_graph`).
            Evaluation and predictions read the whole graph.
        metric: the name of the metric that scores the graph; by default that of the task.
        n_id: the numbers [n] of the nodes in the graph that this one was cut out of, or None: it was not.

    :meth:`from_edges` builds a graph from arrays and checks them. The constructor does not check its arguments.
    """

    adj: CSR
    x: Tensor | CSR
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    num_classes: int
    name: str = "graph"
    task: str = ""
    weight: Tensor | None = None
    inductive: bool = False
    metric: str = ""
    n_id: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.task:
            object.__setattr__(self, "task", "labels" if self.y.dim() == 2 else "classes")

    @property
    def num_nodes(self) -> int:
        return self.adj.num_rows

    @property
    def num_edges(self) -> int:
        """Edges; both directions of an undirected edge are one."""
        return self.adj.nnz if self.directed else self.adj.nnz // 2

    @property
    def directed(self) -> bool:
        """Whether an edge is a message from its source to its target alone."""
        return not self.adj.symmetric

    @property
    def edge_index(self) -> Tensor:
        """Source and target of every edge, int64 [2, E], in the order of ``edge_weight``, as PyG has it."""
        return torch.stack([self.adj.indices.long(), self.adj.row_index()])

    @property
    def edge_weight(self) -> Tensor | None:
        """Edge weights [E], in the order of ``adj``."""
        return self.adj.values

    @property
    def edge_attr(self) -> Tensor | None:
        """Edge features [E, k], in the order of ``adj``."""
        return self.adj.edge_data

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def multi_label(self) -> bool:
        return self.task == "labels"

    @property
    def train_mask(self) -> Tensor:
        """The name PyG uses for ``train``."""
        return self.train

    @property
    def val_mask(self) -> Tensor:
        """The name PyG uses for ``val``."""
        return self.val

    @property
    def test_mask(self) -> Tensor:
        """The name PyG uses for ``test``."""
        return self.test

    @cached_property
    def num_labelled(self) -> int:
        """|V_L|, the number of labelled training nodes in the whole graph."""
        return int(self.train.sum())

    @cached_property
    def total_weight(self) -> float:
        """What the sum of all losses is divided by: the weights of the labelled training nodes, or their number."""
        return float(self.num_labelled if self.weight is None else self.weight[self.train].double().sum())

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have nodes."""
        return tuple(split for split in SPLITS if bool(getattr(self, split).any()))

    @property
    def device(self) -> torch.device:
        return self.adj.device

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the structure: two graphs with the same edges share their partitions, whatever their weights."""
        digest = hashlib.sha256()
        for part in (self.adj.indptr, self.adj.indices):
            _digest(digest, part, self.adj)
        return digest.hexdigest()[:16]

    @cached_property
    def checksum(self) -> str:
        """A hash of structure, edge weights and features, features, targets and splits."""
        digest = hashlib.sha256(self.fingerprint.encode() + (b"directed" if self.directed else b""))
        features = (self.x.indptr, self.x.indices, self.x.data) if isinstance(self.x, CSR) else (self.x,)
        if self.task == "regression":  # the others show in y
            digest.update(self.task.encode())
        edges = [part for part in (self.edge_weight, self.edge_attr) if part is not None]
        for part in (*features, *(getattr(self, field) for field in node_fields(self)), *edges):
            _digest(digest, part, self.adj)
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str, features: bool = True, structure: bool = True) -> Graph:
        """This graph with its arrays on ``device``; ``features`` and ``structure`` can be left where they are."""
        moved = {k: getattr(self, k).to(device) for k in node_fields(self)}
        if structure:
            moved["adj"] = self.adj.to(device)
        if features:
            moved["x"] = self.x.to(device)
        return replace(self, **moved)

    def to_data(self) -> Data:
        """This graph as a PyG ``Data`` with ``x edge_index``, which shares its arrays; :func:`lmc.load` reads it back.

        Where the graph has them, it has ``y``, the masks of the splits that have nodes, ``edge_weight edge_attr
        node_weight`` and ``n_id``. Sparse features are a sparse tensor. ``data.lmc`` holds what the arrays do not say,
        such as the task, the number of classes, and whether the graph is directed.
        """
        from torch_geometric.data import Data  # imported here: PyG takes long to load

        x = self.x.as_torch() if isinstance(self.x, CSR) else self.x
        facts = ("task", "num_classes", "directed", "inductive", "metric")
        told = {fact: value for fact in facts if (value := getattr(self, fact))}
        given = {"y": self.y if self.splits else None, "node_weight": self.weight, "n_id": self.n_id}
        given |= {"edge_weight": self.edge_weight, "edge_attr": self.edge_attr}
        given |= {f"{split}_mask": getattr(self, split) for split in self.splits}
        given = {key: value for key, value in given.items() if value is not None}
        return Data(x=x, edge_index=self.edge_index, lmc=told, **given)

    def permute(self, order: Tensor, x: Tensor | None = None, files: MappedFiles | None = None) -> Graph:
        """The same graph with node ``order[i]`` as node ``i``.

        Args:
            x: the features in that order, where known.
            files: where the edges are to lie in files.
        """
        order = order.to(self.device)
        return replace(self, adj=permuted(self.adj, order, files), **_rows_of(self, order, x))

    @property
    def training_graph(self) -> Graph:
        """The graph that training sees: this one, or if it is ``inductive`` the subgraph induced on the training nodes.

        As in the protocol of GraphSAGE and GraphSAINT, nothing of other nodes is left: neither features nor edges, and
        degrees count the edges between training nodes alone. ``n_id`` holds the numbers of its nodes in this graph.
        """
        if not self.inductive or bool(self.train.all()):
            return self
        nodes = self.train.nonzero().squeeze(1)
        local = torch.full((self.num_nodes,), -1, dtype=torch.int32, device=self.device)
        local[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=self.device)
        rows = _rows_of(self, nodes) | {"n_id": nodes}
        return replace(self, adj=induced(self.adj, nodes, local), inductive=False, **rows)

    def __repr__(self) -> str:
        kind = "sparse" if isinstance(self.x, CSR) else "dense"
        read = "no features" if without_features(self) else f"{self.num_features} {kind} features"
        edges = ("directed " if self.directed else "") + ("edges" if self.edge_weight is None else "weighted edges")
        sizes = "/".join(str(int(getattr(self, k).sum())) for k in SPLITS)
        kinds = {"classes": "classes", "labels": "labels", "regression": "regression targets"}
        weighted = "" if self.weight is None else ", weighted"
        targets = f"{self.num_classes} {kinds[self.task]}, splits {sizes}{weighted}"
        seen = ", inductive" if self.inductive else ""
        return (
            f"Graph({self.name!r}, {self.num_nodes:,} nodes, {self.num_edges:,} {edges}, "
            f"{read}, {targets if self.num_classes else 'no targets'}{seen})"
        )

    @classmethod
    def from_edges(
        cls, edge_index: Array, x: Array | CSR | None, y: Array | None = None, *, train: Nodes | None = None,
        val: Nodes | None = None, test: Nodes | None = None, num_classes: int | None = None, name: str = "graph",
        symmetrise: bool = False, directed: bool = False, edge_weight: Array | None = None,
        edge_attr: Array | None = None, task: str | None = None, weight: Array | None = None, inductive: bool = False,
    ) -> Graph:  # fmt: skip
        """Check the arrays and build the graph.

        Arrays are not copied where that can be avoided, so writing into ``x`` or ``y`` afterwards changes the graph.

        Args:
            edge_index: [2, E] as [source, target], no self-loops, no duplicates; both directions of every edge, unless
                the graph is ``directed``. Or a scipy adjacency of zeros and ones.
            x: features [n, d], dense, a scipy matrix or :class:`CSR`. None: nodes have no features; models read the
                identity, and learn one row per node.
            y: classes [n], -1 for unknown; a 0/1 matrix [n, C] of labels, or regression targets [n] or [n, k], NaN for
                unknown. None: no target is known; such a graph has no splits, and serves :func:`lmc.predict`.
            train, val, test: boolean masks [n] or arrays of node numbers; ``val`` and ``test`` may be None, and so may
                ``train`` where ``test`` alone is given, for :func:`lmc.evaluate`.
            num_classes: by default one more than the largest class, or the columns of ``y``.
            symmetrise: add missing directions, merge duplicates and drop self-loops instead of refusing such edges. A
                pair that is listed several times, in either direction, gets the mean of its weights and features.
            directed: messages go from the source of an edge to its target alone.
            edge_weight: [E], the same in both directions of an undirected edge. Aggregation matrices are normalised
                with it as PyG's ``gcn_norm`` does; self-loops that a model adds have the weight 1.
            edge_attr: [E, k], features of the edges, for wrapped networks whose ``forward`` takes ``edge_attr``.
            task: "classes", "labels" (several per node) or "regression". None: refused where ``y`` is ambiguous, such
                as whole numbers as floats or one-hot rows.
            weight: factors on the losses of nodes [n], at least 0. The loss is the weighted mean over training nodes.
            inductive: training sees the training nodes and the edges between them alone.
        """
        checks.check_options(num_classes, name, symmetrise, directed, task, inductive)
        splits = dict(zip(SPLITS, (train, val, test), strict=True))
        edges = partial(
            checked_edges, checks.as_edges(edge_index), symmetrise=symmetrise, directed=directed,
            edge_weight=edge_weight, edge_attr=edge_attr,
        )  # fmt: skip
        if y is None:
            return _without_targets(edges, x, splits, num_classes, name, task)
        y = checks.as_tensor("y", y)
        n = y.shape[0] if y.dim() else 0
        features = identity(n, y.device) if x is None else checks.checked_features(x, n)
        targets, num_classes, task = checks.checked_targets(y, num_classes, task)
        masks: dict[str, Any] = checks.checked_splits(splits, n)
        checks.check_labelled(targets, masks)
        adj = edges(n)
        factors = None if weight is None else checks.checked_weight(checks.as_tensor("weight", weight), masks["train"])
        given: dict[str, Any] = {"num_classes": num_classes, "name": name, "task": task, "inductive": inductive}
        return cls(adj, features, targets, **masks, **given, weight=factors)


def node_fields(graph: Graph) -> tuple[str, ...]:
    """The fields with one entry per node, without features and edges."""
    return ("y", *SPLITS, *(field for field in ("weight", "n_id") if getattr(graph, field) is not None))


def without_features(graph: Graph) -> bool:
    """Whether every node has one feature, which is 1 and its own, as rows of the identity."""
    return isinstance(graph.x, CSR) and is_one_hot(graph.x)


def _rows_of(graph: Graph, nodes: Tensor, x: Tensor | CSR | None = None) -> dict[str, Any]:
    """The fields of these nodes; ``x`` are their features, where known."""
    if x is None:
        at = nodes.to(graph.x.device)
        x = graph.x.select_rows(at) if isinstance(graph.x, CSR) else graph.x.index_select(0, at)
    return {"x": x} | {field: getattr(graph, field)[nodes] for field in node_fields(graph)}


def _digest(digest: Any, part: Tensor, adj: CSR) -> None:
    """Add the bytes of an array, without a copy of it and with few mapped pages (in the files of ``adj``)."""
    for piece in part.contiguous().view(-1).split(HASHED):
        digest.update(piece.cpu().numpy().view(np.uint8))
        adj.release()


def _without_targets(
    edges: Callable[[int], CSR], x: Array | CSR | None, splits: Mapping[str, Nodes | None],
    num_classes: int | None, name: str, task: str | None,
) -> Graph:  # fmt: skip
    given = [split for split, nodes in splits.items() if nodes is not None]
    if given:
        raise GraphError(f"expected targets y for the {given[0]} nodes (got none): pass y, or no splits")
    checks.check_task(task)
    x = checks.as_features(x)
    n = x.shape[0] if len(x.shape) else 0
    features = checks.checked_features(x, n)
    adj = edges(n)
    unknown = torch.full((n,), -1, device=adj.device)
    masks: dict[str, Any] = dict.fromkeys(SPLITS, unknown >= 0)
    return Graph(adj, features, unknown, **masks, num_classes=num_classes or 0, name=name, task=task or "")
