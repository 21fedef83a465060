"""The frozen, validated graph that every method trains on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph import checks
from lmc.graph.checks import SPLITS
from lmc.graph.csr import CSR

Array = Tensor | np.ndarray
Nodes = Tensor | np.ndarray | Sequence[int]
"""A boolean mask, or node numbers."""


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph with features, targets and splits; several graphs are one disjoint union.

    Args:
        adj: the pattern of A, int32 CSR, symmetric, without self-loops and duplicates.
        x: features, dense float [n, d] or sparse :class:`CSR` with values.
        y: int64 classes [n] (-1 where unknown) or, multi-label, float targets [n, C].
        train, val, test: boolean masks [n].
        num_classes: number of classes, or of labels.
        name: for messages and records.

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

    @property
    def num_nodes(self) -> int:
        return self.adj.num_rows

    @property
    def num_edges(self) -> int:
        """Undirected edges."""
        return self.adj.nnz // 2

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def multi_label(self) -> bool:
        return self.y.dim() == 2

    @cached_property
    def num_labelled(self) -> int:
        """|V_L|, the number of labelled training nodes in the whole graph."""
        return int(self.train.sum())

    @property
    def device(self) -> torch.device:
        return self.adj.device

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the structure: two graphs with the same edges share their partitions."""
        digest = hashlib.sha256()
        for part in (self.adj.indptr, self.adj.indices):
            digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def checksum(self) -> str:
        """A hash of structure, features, targets and splits."""
        digest = hashlib.sha256(self.fingerprint.encode())
        features = (self.x.indptr, self.x.indices, self.x.data) if isinstance(self.x, CSR) else (self.x,)
        for part in (*features, self.y, self.train, self.val, self.test):
            digest.update(part.cpu().contiguous().view(-1).numpy().view(np.uint8))  # no copy: x may be large
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str, features: bool = True, structure: bool = True) -> Graph:
        """This graph with its arrays on ``device``; ``features`` and ``structure`` can be left where they are."""
        moved = {k: getattr(self, k).to(device) for k in ("y", *SPLITS)}
        if structure:
            moved["adj"] = self.adj.to(device)
        if features:
            moved["x"] = self.x.to(device)
        return replace(self, **moved)

    def permute(self, order: Tensor, x: Tensor | None = None) -> Graph:
        """The same graph with node ``order[i]`` as node ``i``; ``x`` are the features in that order, where known."""
        order = order.to(self.device)
        position = torch.empty_like(order)
        position[order] = torch.arange(order.numel(), device=order.device)
        rows = self.adj.select_rows(order)
        adj = CSR(rows.indptr, position[rows.indices].to(torch.int32), None, rows.num_cols, symmetric=True)
        features: Tensor | CSR | None = x
        if features is None:
            at = order.to(self.x.device)
            features = self.x.select_rows(at) if isinstance(self.x, CSR) else self.x[at]
        return replace(self, adj=adj, x=features, **{k: getattr(self, k)[order] for k in ("y", *SPLITS)})

    def __repr__(self) -> str:
        kind = "sparse" if isinstance(self.x, CSR) else "dense"
        sizes = "/".join(str(int(getattr(self, k).sum())) for k in SPLITS)
        targets = f"{self.num_classes} {'labels' if self.multi_label else 'classes'}, splits {sizes}"
        return (
            f"Graph({self.name!r}, {self.num_nodes:,} nodes, {self.num_edges:,} edges, "
            f"{self.num_features} {kind} features, {targets if self.num_classes else 'no targets'})"
        )

    @classmethod
    def from_edges(
        cls, edge_index: Array, x: Array | CSR, y: Array | None = None, *, train: Nodes | None = None,
        val: Nodes | None = None, test: Nodes | None = None, num_classes: int | None = None, name: str = "graph",
        symmetrise: bool = False,
    ) -> Graph:  # fmt: skip
        """Check the arrays and build the graph.

        Arrays are not copied where that can be avoided, so writing into ``x`` or ``y`` afterwards changes the graph.

        Args:
            edge_index: [2, E], both directions of every edge listed once, no self-loops.
            x: features [n, d], dense or :class:`CSR`.
            y: classes [n], -1 for unknown, or a 0/1 matrix [n, C] of labels. None: no target is known; such a graph
                has no splits, and serves :func:`lmc.predict`.
            train, val, test: boolean masks [n] or arrays of node numbers.
            num_classes: by default one more than the largest class, or the columns of ``y``.
            symmetrise: add missing directions, merge duplicates and drop self-loops instead of refusing such edges.
        """
        splits = dict(zip(SPLITS, (train, val, test), strict=True))
        if y is None:
            return cls._without_targets(edge_index, x, splits, num_classes, name, symmetrise)
        y = torch.as_tensor(y)
        n = y.shape[0] if y.dim() else 0
        features = checks.checked_features(x, n)
        targets, num_classes = checks.checked_targets(y, num_classes)
        masks = {k: checks.checked_mask(k, v, n) for k, v in splits.items()}
        checks.check_disjoint(masks)
        checks.check_labelled(targets, masks)
        adj = checks.checked_edges(torch.as_tensor(edge_index), n, symmetrise)
        return cls(adj, features, targets, **masks, num_classes=num_classes, name=name)

    @classmethod
    def _without_targets(
        cls, edge_index: Array, x: Array | CSR, splits: Mapping[str, Nodes | None], num_classes: int | None, name: str,
        symmetrise: bool,
    ) -> Graph:  # fmt: skip
        """A graph whose targets are all unknown."""
        given = [split for split, nodes in splits.items() if nodes is not None]
        if given:
            raise GraphError(f"expected targets y for the {given[0]} nodes (got none): pass y, or no splits")
        x = x if isinstance(x, CSR) else torch.as_tensor(x)
        n = x.shape[0] if len(x.shape) else 0
        features = checks.checked_features(x, n)
        adj = checks.checked_edges(torch.as_tensor(edge_index), n, symmetrise)
        unknown = torch.full((n,), -1, device=adj.device)
        masks = dict.fromkeys(SPLITS, unknown >= 0)
        return cls(adj, features, unknown, **masks, num_classes=num_classes or 0, name=name)
