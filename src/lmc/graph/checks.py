"""Checks of the arrays that a user builds a graph from. Each error says what was expected and what to do."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph.csr import CSR

SPLITS = ("train", "val", "test")
TASKS = ("classes", "labels", "regression")


def checked_features(x: Tensor | np.ndarray | CSR, n: int) -> Tensor | CSR:
    """Finite real features of ``n`` nodes; whole numbers become float32."""
    if isinstance(x, CSR):
        _check_csr(x)
    else:
        x = torch.as_tensor(x)
    if len(x.shape) != 2 or x.shape[0] != n:
        raise GraphError(f"expected one feature row per node, [{n}, d] (got x of shape {list(x.shape)})")
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
    """Check the row pointers and columns of sparse features, since sparse products do not."""
    entries, steps = x.indices.numel(), x.indptr.diff()
    if x.data.shape != x.indices.shape:
        raise GraphError(f"expected one value for each of {entries} sparse entries (got {list(x.data.shape)})")
    if int(x.indptr[0]) != 0 or int(x.indptr[-1]) != entries or bool((steps < 0).any()):
        raise GraphError(f"expected row pointers that rise from 0 to {entries} in sparse features (got others)")
    if entries and not (int(x.indices.min()) >= 0 and int(x.indices.max()) < x.num_cols):
        raise GraphError(
            f"expected feature columns in [0, {x.num_cols}) (got {int(x.indices.min())} to {int(x.indices.max())})"
        )


def checked_targets(y: Tensor, num_classes: int | None, task: str | None = None) -> tuple[Tensor, int, str]:
    """The targets in the form of their task, the number of outputs they ask for, and the task.

    Classes are int64 [n], -1 where unknown; labels are float32 [n, C] of 0 and 1, and the targets of a regression float
    [n] or [n, k], both NaN where unknown. Without a ``task``, targets that fit several are refused.
    """
    if task not in (None, *TASKS):
        raise GraphError(f"expected task in {list(TASKS)}, or None (got {task!r})")
    if y.dim() not in (1, 2) or y.is_complex() or (y.dim() == 2 and y.shape[1] == 0):
        raise GraphError(f"expected y of shape [n] or [n, C], of real numbers (got {y.dtype} of shape {list(y.shape)})")
    task = task or _only_task(y, num_classes)
    if task == "classes":
        return *_checked_classes(y, num_classes), task
    return *(_checked_labels if task == "labels" else _checked_values)(y, num_classes), task


def _only_task(y: Tensor, num_classes: int | None) -> str:
    """The one task that the targets fit."""
    if y.dim() == 1 or y.shape[1] == 1:
        if not y.is_floating_point():
            return "classes"
        known = y[~y.isnan()]
        if bool((known == known.round()).all()):
            raise GraphError(
                f'expected a task for whole numbers as {y.dtype} in y (got none): pass task="classes" if they are '
                'class numbers, or task="regression"'
            )
        raise GraphError('expected whole class numbers in y (got fractions): pass task="regression" to predict numbers')
    labels, _ = _checked_labels(y, num_classes)
    if bool((labels.nan_to_num(0.0).sum(1) <= 1).all()):
        raise GraphError(
            f"expected a task for a 0/1 matrix with at most one 1 in a row (got y of shape {list(y.shape)}): pass "
            'task="classes" if a node has one class, task="labels" if it may have several, or task="regression"'
        )
    return "labels"


def _checked_labels(y: Tensor, num_classes: int | None) -> tuple[Tensor, int]:
    if y.dim() == 1:
        raise GraphError(f"expected a 0/1 matrix [n, C] of labels in y (got shape {list(y.shape)}): one column a label")
    if num_classes is not None and num_classes != y.shape[1]:
        raise GraphError(f"expected {num_classes} label columns (got y of shape {list(y.shape)})")
    if not bool(((y == 0) | (y == 1) | y.isnan()).all()):
        raise GraphError('expected a 0/1 matrix of labels in y (got other values): pass task="regression" for numbers')
    return y.to(torch.float32), y.shape[1]


def _checked_values(y: Tensor, num_classes: int | None) -> tuple[Tensor, int]:
    """The targets of a regression."""
    width = y.shape[1] if y.dim() == 2 else 1
    if num_classes is not None and num_classes != width:
        raise GraphError(f"expected {num_classes} target columns (got y of shape {list(y.shape)})")
    y = y if y.dtype in (torch.float32, torch.float64) else y.to(torch.float32)
    infinite = y.isinf()
    if bool(infinite.any()):
        raise GraphError(f"expected finite targets (got an infinite one in row {int(infinite.nonzero()[0, 0])} of y)")
    return y, width


def _checked_classes(y: Tensor, num_classes: int | None) -> tuple[Tensor, int]:
    if y.dim() == 2 and y.shape[1] > 1:  # one-hot rows; a row of zeros is an unknown class
        labels, width = _checked_labels(y, num_classes)
        labels = labels.nan_to_num(0.0)
        several = labels.sum(1) > 1
        if bool(several.any()):
            raise GraphError(f'expected one class per row of y (got several in row {int(several.nonzero()[0])}): pass '
                             'task="labels"')  # fmt: skip
        return labels.argmax(1).where(labels.any(1), -1), width
    y = y.squeeze(1) if y.dim() == 2 else y
    if y.is_floating_point():
        y = y.nan_to_num(nan=-1.0)
        if not bool((y == y.round()).all()):
            raise GraphError("expected whole class numbers in y (got fractions): pass int64 classes")
    y = y.long()
    if num_classes is None:
        num_classes = int(y.max()) + 1 if y.numel() else 0
    outside = (y < -1) | (y >= num_classes)
    if bool(outside.any()):
        node = int(outside.nonzero()[0])
        raise GraphError(f"expected classes in [0, {num_classes}), or -1 for unknown (got y[{node}] = {int(y[node])})")
    if num_classes < 1:
        raise GraphError("expected at least one known class (got none in y)")
    return y, num_classes


def checked_weight(weight: Tensor, train: Tensor) -> Tensor:
    """The factor on the loss of every node, finite and not negative."""
    if weight.shape != train.shape or weight.is_complex():
        raise GraphError(f"expected one weight per node, [{train.numel()}] (got {weight.dtype} {list(weight.shape)})")
    weight = weight if weight.dtype in (torch.float32, torch.float64) else weight.to(torch.float32)
    wrong = ~(weight.isfinite() & (weight >= 0))
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise GraphError(f"expected weights of at least 0, and finite (got weight[{node}] = {float(weight[node])})")
    if not bool((weight * train).any()):
        raise GraphError("expected a positive weight of at least one training node (got 0 for all of them)")
    return weight


def checked_mask(split: str, nodes: object, n: int) -> Tensor:
    """The boolean mask [n] of a split, from a mask or from node numbers."""
    if nodes is None:
        if split == "train":
            raise GraphError("expected train nodes (got none): pass a mask or node numbers")
        return torch.zeros(n, dtype=torch.bool)
    chosen = torch.as_tensor(nodes)
    if chosen.dim() != 1:
        raise GraphError(f"expected {split} as a mask or node numbers, one-dimensional (got {list(chosen.shape)})")
    if chosen.dtype == torch.bool:
        if chosen.numel() != n:
            raise GraphError(f"expected a {split} mask of length {n} (got {chosen.numel()})")
        mask = chosen
    elif chosen.is_floating_point():
        raise GraphError(f"expected {split} as a boolean mask or whole node numbers (got {chosen.dtype})")
    else:
        if 1 < n == chosen.numel() and bool((chosen <= 1).all()) and bool((chosen >= 0).all()):
            raise GraphError(
                f"expected {split} as a boolean mask or node numbers (got {n} numbers 0 and 1 for {n} nodes): pass "
                f"{split}.bool() if it is a mask, or every node number once"
            )
        outside = (chosen < 0) | (chosen >= n)
        if bool(outside.any()):
            raise GraphError(f"expected {split} nodes in [0, {n}) (got {int(chosen[outside][0])})")
        mask = torch.zeros(n, dtype=torch.bool, device=chosen.device)
        mask[chosen.long()] = True
    if not bool(mask.any()):
        raise GraphError(f"expected at least one {split} node (got an empty split)")
    return mask


def check_disjoint(masks: dict[str, Tensor]) -> None:
    """Refuse splits that share nodes."""
    for a, b in combinations(SPLITS, 2):
        both = masks[a] & masks[b]
        if bool(both.any()):
            raise GraphError(
                f"expected disjoint splits (got {int(both.sum())} nodes in both {a} and {b}, e.g. node "
                f"{int(both.nonzero()[0])}): remove them from one"
            )


def check_labelled(y: Tensor, masks: dict[str, Tensor]) -> None:
    """Refuse splits with nodes whose target is unknown."""
    unknown = (y.isnan() if y.dim() == 1 else y.isnan().any(1)) if y.is_floating_point() else y < 0
    for split, mask in masks.items():
        both = mask & unknown
        if bool(both.any()):
            what, value = ("target", "NaN") if y.is_floating_point() else ("class", "-1")
            raise GraphError(
                f"expected a {what} for every {split} node (got y[{int(both.nonzero()[0])}] = {value}): "
                f"leave unknown nodes out of the split"
            )
