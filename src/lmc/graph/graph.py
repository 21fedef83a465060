"""The frozen, validated graph every method trains on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph.csr import CSR, from_rows

SPLITS = ("train", "val", "test")


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

    Use :meth:`from_edges` for arrays of your own: it checks them. The constructor trusts its caller.
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
        """|V_L|, the GLOBAL count of labelled training nodes."""
        return int(self.train.sum())

    @property
    def device(self) -> torch.device:
        return self.adj.device

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the structure alone; two graphs with the same edges share their partitions."""
        digest = hashlib.sha256()
        for part in (self.adj.indptr, self.adj.indices):
            digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def checksum(self) -> str:
        """A hash of all the graph holds: structure, features, targets and splits."""
        digest = hashlib.sha256(self.fingerprint.encode())
        features = (self.x.indptr, self.x.indices, self.x.data) if isinstance(self.x, CSR) else (self.x,)
        for part in (*features, self.y, self.train, self.val, self.test):
            digest.update(part.cpu().contiguous().view(-1).numpy().view(np.uint8))  # no copy: it may be large
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str, features: bool = True, structure: bool = True) -> Graph:
        """This graph with every array on ``device``; without ``features``, or ``structure``, that stays where it is."""
        arrays = {k: getattr(self, k).to(device) for k in ("y", *SPLITS)}
        arrays["adj"] = self.adj.to(device) if structure else self.adj
        return Graph(
            **arrays, x=self.x.to(device) if features else self.x, num_classes=self.num_classes, name=self.name
        )

    def permute(self, order: Tensor, x: Tensor | None = None) -> Graph:
        """The same graph with node ``order[i]`` as node ``i``; ``x`` are the features in that order, where the caller
        has them."""
        order = order.to(self.device)
        position = torch.empty_like(order)
        position[order] = torch.arange(order.numel(), device=order.device)
        rows = self.adj.select_rows(order)
        adj = CSR(rows.indptr, position[rows.indices].to(torch.int32), None, rows.num_cols, symmetric=True)
        features: Tensor | CSR | None = x
        if features is None:
            there = order.to(self.x.device)
            features = self.x.select_rows(there) if isinstance(self.x, CSR) else self.x[there]
        masks = {k: getattr(self, k)[order] for k in SPLITS}
        return Graph(adj, features, self.y[order], **masks, num_classes=self.num_classes, name=self.name)

    def __repr__(self) -> str:
        kind = "sparse" if isinstance(self.x, CSR) else "dense"
        sizes = "/".join(str(int(getattr(self, k).sum())) for k in SPLITS)
        return (
            f"Graph({self.name!r}, {self.num_nodes:,} nodes, {self.num_edges:,} edges, "
            f"{self.num_features} {kind} features, {self.num_classes} "
            f"{'labels' if self.multi_label else 'classes'}, splits {sizes})"
        )

    @classmethod
    def from_edges(
        cls,
        edge_index: Tensor | np.ndarray,
        x: Tensor | np.ndarray | CSR,
        y: Tensor | np.ndarray,
        *,
        train: Tensor | np.ndarray | Sequence[int],
        val: Tensor | np.ndarray | Sequence[int],
        test: Tensor | np.ndarray | Sequence[int],
        num_classes: int | None = None,
        name: str = "graph",
        symmetrise: bool = False,
    ) -> Graph:
        """Check the arrays and build the graph; nothing that is passed in is changed, or copied where it need not be:
        write into ``x`` or ``y`` afterwards, and the graph has changed too.

        Args:
            edge_index: [2, E], both directions of every edge listed once, no self-loops.
            x: features [n, d], dense or :class:`CSR`.
            y: classes [n], -1 for unknown, or a 0/1 matrix [n, C] of labels.
            train, val, test: boolean masks [n] or arrays of node numbers.
            num_classes: by default one more than the largest class, or the columns of ``y``.
            symmetrise: repair the edges instead of refusing them: add the missing directions, merge duplicates
                and drop self-loops.
        """
        y = torch.as_tensor(y)
        n = y.shape[0] if y.dim() else 0
        features = _checked_features(x, n)
        targets, num_classes = _checked_targets(y, num_classes)
        masks = {k: _checked_mask(k, torch.as_tensor(v), n) for k, v in zip(SPLITS, (train, val, test), strict=True)}
        _check_disjoint(masks)
        _check_labelled(targets, masks)
        adj = _checked_edges(torch.as_tensor(edge_index), n, symmetrise)
        return cls(adj, features, targets, **masks, num_classes=num_classes, name=name)


def _checked_features(x: Tensor | np.ndarray | CSR, n: int) -> Tensor | CSR:
    if isinstance(x, CSR):
        _check_csr(x)
    else:
        x = torch.as_tensor(x)
    if len(x.shape) != 2 or x.shape[0] != n:
        raise GraphError(f"expected one feature row a node, [{n}, d] (got x of shape {list(x.shape)})")
    if x.shape[1] == 0:
        raise GraphError("expected at least one feature column (got x with none)")
    values = x.data if isinstance(x, CSR) else x
    if values.is_complex():
        raise GraphError("expected real features (got complex ones): pass their parts as two columns")
    if values.is_floating_point():
        finite = values.isfinite()
        if not bool(finite.all()):
            bad = (~finite).nonzero()[0]
            row = int(x.row_index()[bad[0]]) if isinstance(x, CSR) else int(bad[0])
            raise GraphError(
                f"expected finite features (got {int((~finite).sum())} NaN or infinite values, the first in row "
                f"{row}): replace or drop them before loading"
            )
        return x
    return x.to(dtype=torch.float32)


def _check_csr(x: CSR) -> None:
    """Row pointers and columns of sparse features; the products do not check them."""
    entries, steps = x.indices.numel(), x.indptr.diff()
    if x.data.shape != x.indices.shape:
        raise GraphError(f"expected one value for each of {entries} sparse entries (got {list(x.data.shape)})")
    if int(x.indptr[0]) != 0 or int(x.indptr[-1]) != entries or bool((steps < 0).any()):
        raise GraphError(f"expected row pointers that rise from 0 to {entries} in sparse features (got others)")
    if entries and not (int(x.indices.min()) >= 0 and int(x.indices.max()) < x.num_cols):
        raise GraphError(
            f"expected feature columns in [0, {x.num_cols}) (got {int(x.indices.min())} to {int(x.indices.max())})"
        )


def _checked_targets(y: Tensor, num_classes: int | None) -> tuple[Tensor, int]:
    if y.dim() == 2 and y.shape[1] == 1 and not y.is_floating_point():
        y = y.squeeze(1)
    if y.dim() == 1:
        if y.is_floating_point() and not bool((y == y.round()).all()):
            raise GraphError("expected whole class numbers in y (got fractions): pass int64 classes")
        y = y.long()
        known = int(y.max()) + 1 if y.numel() else 0
        num_classes = known if num_classes is None else num_classes
        outside = (y < -1) | (y >= num_classes)
        if bool(outside.any()):
            node = int(outside.nonzero()[0])
            raise GraphError(
                f"expected classes in [0, {num_classes}), or -1 for unknown (got y[{node}] = {int(y[node])})"
            )
        if num_classes < 1:
            raise GraphError("expected at least one known class (got none in y)")
        return y, num_classes
    if y.dim() == 2:
        if num_classes is not None and num_classes != y.shape[1]:
            raise GraphError(f"expected {num_classes} label columns (got y of shape {list(y.shape)})")
        if not bool(((y == 0) | (y == 1)).all()):
            raise GraphError("expected a 0/1 matrix of labels in y (got other values)")
        return y.to(torch.float32), y.shape[1]
    raise GraphError(f"expected y of shape [n] or [n, C] (got {list(y.shape)})")


def _checked_mask(split: str, chosen: Tensor, n: int) -> Tensor:
    if chosen.dim() != 1:
        raise GraphError(f"expected {split} as a mask or node numbers, one-dimensional (got {list(chosen.shape)})")
    if chosen.dtype == torch.bool:
        if chosen.numel() != n:
            raise GraphError(f"expected a {split} mask of length {n} (got {chosen.numel()})")
        mask = chosen
    elif chosen.is_floating_point():
        raise GraphError(f"expected {split} as a boolean mask or whole node numbers (got {chosen.dtype})")
    else:
        outside = (chosen < 0) | (chosen >= n)
        if bool(outside.any()):
            raise GraphError(f"expected {split} nodes in [0, {n}) (got {int(chosen[outside][0])})")
        mask = torch.zeros(n, dtype=torch.bool, device=chosen.device)
        mask[chosen.long()] = True
    if not bool(mask.any()):
        raise GraphError(f"expected at least one {split} node (got an empty split)")
    return mask


def _check_disjoint(masks: dict[str, Tensor]) -> None:
    for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
        both = masks[a] & masks[b]
        if bool(both.any()):
            raise GraphError(
                f"expected disjoint splits (got {int(both.sum())} nodes in both {a} and {b}, e.g. node "
                f"{int(both.nonzero()[0])}): remove them from one"
            )


def _check_labelled(y: Tensor, masks: dict[str, Tensor]) -> None:
    if y.dim() == 2:
        return
    for split, mask in masks.items():
        unknown = mask & (y < 0)
        if bool(unknown.any()):
            raise GraphError(
                f"expected a class for every {split} node (got y[{int(unknown.nonzero()[0])}] = -1): "
                f"leave unknown nodes out of the split"
            )


def _checked_edges(edge_index: Tensor, n: int, symmetrise: bool) -> CSR:
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise GraphError(f"expected edge_index of shape [2, E] (got {list(edge_index.shape)})")
    if edge_index.is_floating_point():
        raise GraphError(f"expected whole node numbers in edge_index (got {edge_index.dtype})")
    if edge_index.shape[1] == 0:
        raise GraphError("expected at least one edge (got none): a graph without edges needs no graph network")
    src, dst = edge_index.long()
    outside = (edge_index < 0) | (edge_index >= n)
    if bool(outside.any()):
        raise GraphError(f"expected edges between nodes in [0, {n}) (got node {int(edge_index[outside][0])})")
    loops = src == dst
    key = src * n + dst
    if symmetrise:
        key = torch.cat([key, dst * n + src])[~torch.cat([loops, loops])].unique()
        if key.numel() == 0:
            raise GraphError("expected at least one edge between two nodes (got self-loops only)")
    else:
        remedy = "pass symmetrise=True (on the command line: --symmetrise) to repair this"
        if bool(loops.any()):
            node = int(src[loops][0])
            raise GraphError(f"expected no self-loops (got ({node}, {node})): {remedy}")
        key = key.sort().values
        twice = key[1:] == key[:-1]
        if bool(twice.any()):
            k = int(key[1:][twice][0])
            raise GraphError(f"expected no duplicate edges (got ({k // n}, {k % n}) more than once): {remedy}")
        reverse = (key % n * n + key // n).sort().values
        if not torch.equal(key, reverse):
            k = int(key[~torch.isin(key, reverse)][0])
            raise GraphError(
                f"expected an undirected graph with both directions listed (got ({k // n}, {k % n}) without "
                f"({k % n}, {k // n})): {remedy}"
            )
    if key.numel() >= 2**31:
        raise GraphError(f"expected fewer than 2^31 directed edges (got {key.numel():,}): int32 indices end there")
    adj = from_rows(key // n, key % n, None, (n, n))
    return CSR(adj.indptr, adj.indices, None, n, symmetric=True)
