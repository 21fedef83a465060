"""Checks of the arrays that a user builds a graph from. Each error says what was expected and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from lmc.errors import GraphError, typed
from lmc.graph.csr import CSR, pointer_dtype

SPLITS = ("train", "val", "test")
TASKS = ("classes", "labels", "regression")
MOST_CLASSES = 1_000
"""Classes that a graph may have even if it has fewer nodes; a model allocates an output for each of them."""
MOST_COLUMNS = 1 << 22
"""Columns that sparse features may have even if there are fewer nodes; a model allocates weights for each of them."""


def is_sparse(values: object) -> bool:
    """Whether ``values`` is a scipy matrix."""
    return bool(sp.issparse(values))


@typed
def check_options(
    num_classes: int | None, name: str, symmetrise: bool, directed: bool, task: str | None, inductive: bool
) -> None:  # fmt: skip
    """Refuse options of a graph that are not of these types."""


def as_tensor(what: str, values: object) -> Tensor:
    """``values`` as a tensor of numbers. Other byte orders and unsigned integers are converted; text is refused."""
    if is_sparse(values):
        raise GraphError(f"expected a dense {what} (got a scipy {type(values).__name__}): pass {what}.toarray()")
    if hasattr(values, "__array__") and not isinstance(values, Tensor | np.ndarray):
        values = np.array(values)  # torch does not read a table of pandas
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "biufc":
            raise GraphError(f"expected numeric arrays (got {what} of dtype {values.dtype}): pass numbers only")
        if values.dtype.kind == "u" and values.size and int(values.max()) >= 2**63:
            raise GraphError(f"expected {what} below 2^63 (got {int(values.max())}): these are no numbers of nodes")
        kind: Any = {"u": np.int64 if values.itemsize > 1 else np.uint8, "f": f"f{min(values.itemsize, 8)}"}
        values = np.asarray(values, kind.get(values.dtype.kind, values.dtype.newbyteorder("=")), order="C")
    try:
        with warnings.catch_warnings():  # of numpy arrays that are read-only; a graph does not write into its arrays
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            made = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise GraphError(
            f"expected {what} as an array of numbers (got {type(values).__name__}: {error}): pass an array or a tensor"
        ) from error
    if made.layout != torch.strided:
        raise GraphError(f"expected a dense {what} (got a sparse tensor): pass its entries, or {what}.to_dense()")
    if made.is_meta:
        raise GraphError(f"expected {what} with values (got a tensor on the meta device): load it on a CPU or a GPU")
    return made.long() if made.dtype in (torch.uint16, torch.uint32, torch.uint64) else made


def as_edges(adjacency: Any) -> Tensor:
    """Edges [2, E]; a scipy adjacency of zeros and ones gives those of its ones."""
    if not is_sparse(adjacency):
        return as_tensor("edge_index", adjacency)
    entries = adjacency.tocoo(copy=True)
    entries.eliminate_zeros()  # as setdiag(0) leaves them behind
    if entries.ndim != 2 or entries.shape[0] != entries.shape[1] or not bool((entries.data == 1).all()):
        raise GraphError(
            f"expected a square scipy adjacency of zeros and ones (got shape {list(entries.shape)} or other values): "
            f"pass edge_index [2, E], and values as edge_weight"
        )
    return torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))


def as_features(x: Any) -> Tensor | CSR:
    """Features as a tensor, or as a :class:`CSR` if they are given as one or as a scipy matrix."""
    if isinstance(x, CSR):
        return x
    if not is_sparse(x):
        return as_tensor("x", x)
    rows = x.tocsr()
    if rows.ndim != 2 or max(rows.shape) >= 2**31:
        raise GraphError(
            f"expected sparse features [n, d] with n and d below 2^31 (got {list(rows.shape)}): pass one row per node, "
            "without empty columns"
        )
    return csr_of(rows.indptr, rows.indices, rows.data, rows.shape[1])


def csr_of(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, num_cols: int) -> CSR:
    """A matrix from the numpy arrays of its rows; whole numbers become float32."""
    pointers = torch.from_numpy(indptr.astype(np.int64)).to(pointer_dtype(indices.size))
    columns = torch.from_numpy(indices.astype(np.int32))
    data = as_tensor("x", values)
    return CSR(pointers, columns, data if data.is_floating_point() else data.float(), num_cols)


def checked_features(x: Any, n: int) -> Tensor | CSR:
    """Finite real features of ``n`` nodes; whole numbers become float32."""
    x = as_features(x)
    if isinstance(x, CSR):
        _check_csr(x)
    if len(x.shape) != 2 or x.shape[0] != n:
        raise GraphError(
            f"expected one feature row per node, [{n}, d] (got x of shape {list(x.shape)}): y has {n} rows, and x must "
            "list the same nodes"
        )
    if x.shape[1] == 0:
        raise GraphError("expected at least one feature column (got x with none): pass x=None where nodes have none")
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
        return x if isinstance(x, CSR) else x.detach()
    return x.to(dtype=torch.float32)


def _check_csr(x: CSR) -> None:
    """Check the row pointers and columns of sparse features, since sparse products do not."""
    entries, steps = x.indices.numel(), x.indptr.diff()
    if x.num_cols > max(x.num_rows, MOST_COLUMNS):
        raise GraphError(
            f"expected at most {max(x.num_rows, MOST_COLUMNS):,} feature columns (got {x.num_cols:,}): leave out empty "
            "columns"
        )
    if x.data.shape != x.indices.shape:
        raise GraphError(
            f"expected one value for each of {entries} sparse entries (got {list(x.data.shape)}): pass a scipy matrix"
        )
    if int(x.indptr[0]) != 0 or int(x.indptr[-1]) != entries or bool((steps < 0).any()):
        raise GraphError(
            f"expected row pointers that rise from 0 to {entries} in sparse features (got others): pass a scipy matrix"
        )
    if entries and not (int(x.indices.min()) >= 0 and int(x.indices.max()) < x.num_cols):
        raise GraphError(
            f"expected feature columns in [0, {x.num_cols}) (got {int(x.indices.min())} to {int(x.indices.max())}): "
            "number them from 0, or raise num_cols"
        )


def check_task(task: str | None) -> None:
    """Refuse a task that does not exist."""
    if task not in (None, *TASKS):
        raise GraphError(f"expected task in {list(TASKS)}, or None (got {task!r})")


def checked_targets(y: Tensor, num_classes: int | None, task: str | None = None) -> tuple[Tensor, int, str]:
    """The targets in the form of their task, the number of outputs they ask for, and the task.

    Classes are int64 [n], -1 where unknown; labels are float32 [n, C] of 0 and 1, and the targets of a regression float
    [n] or [n, k], both NaN where unknown. Without a ``task``, targets that fit several are refused.
    """
    check_task(task)
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
                'class numbers, or task="regression" (on the command line: --task)'
            )
        raise GraphError('expected whole class numbers in y (got fractions): pass task="regression" to predict numbers')
    labels, _ = _checked_labels(y, num_classes)
    if bool((labels.nan_to_num(0.0).sum(1) <= 1).all()):
        raise GraphError(
            f"expected a task for a 0/1 matrix with at most one 1 in a row (got y of shape {list(y.shape)}): pass "
            'task="classes" if a node has one class, task="labels" if it may have several (on the command line: --task)'
        )
    return "labels"


def _checked_labels(y: Tensor, num_classes: int | None) -> tuple[Tensor, int]:
    if y.dim() == 1:
        raise GraphError(f"expected a 0/1 matrix [n, C] of labels in y (got shape {list(y.shape)}): one column a label")
    if num_classes is not None and num_classes != y.shape[1]:
        raise GraphError(
            f"expected {num_classes} label columns (got y of shape {list(y.shape)}): leave num_classes out"
        )
    if not bool(((y == 0) | (y == 1) | y.isnan()).all()):
        raise GraphError('expected a 0/1 matrix of labels in y (got other values): pass task="regression" for numbers')
    return y.to(torch.float32), y.shape[1]


def _checked_values(y: Tensor, num_classes: int | None) -> tuple[Tensor, int]:
    """The targets of a regression."""
    width = y.shape[1] if y.dim() == 2 else 1
    if num_classes is not None and num_classes != width:
        raise GraphError(
            f"expected {num_classes} target columns (got y of shape {list(y.shape)}): leave num_classes out"
        )
    y = y if y.dtype in (torch.float32, torch.float64) else y.to(torch.float32)
    infinite = y.isinf()
    if bool(infinite.any()):
        raise GraphError(
            f"expected finite targets (got an infinite one in row {int(infinite.nonzero()[0, 0])} of y): write NaN "
            "where the target is unknown"
        )
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
    if num_classes > max(y.numel(), MOST_CLASSES):
        raise GraphError(
            f"expected at most {max(y.numel(), MOST_CLASSES):,} classes for {y.numel():,} nodes (got {num_classes:,}): "
            f"renumber them, y.unique(return_inverse=True)[1]"
        )
    outside = (y < -1) | (y >= num_classes)
    if bool(outside.any()):
        node = int(outside.nonzero()[0])
        raise GraphError(
            f"expected classes in [0, {num_classes}), or -1 for unknown (got y[{node}] = {int(y[node])}): change it, "
            "or raise num_classes"
        )
    if num_classes < 1:
        raise GraphError(
            "expected at least one known class (got none in y): for predictions alone pass y=None and no splits"
        )
    return y, num_classes


def checked_weight(weight: Tensor, train: Tensor) -> Tensor:
    """The factor on the loss of every node, finite and not negative."""
    if weight.shape != train.shape or weight.is_complex():
        raise GraphError(f"expected one weight per node, [{train.numel()}] (got {weight.dtype} {list(weight.shape)})")
    weight = weight if weight.dtype in (torch.float32, torch.float64) else weight.to(torch.float32)
    wrong = ~(weight.isfinite() & (weight >= 0))
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise GraphError(
            f"expected weights of at least 0, and finite (got weight[{node}] = {float(weight[node])}): a node of "
            "weight 0 has no part in the loss"
        )
    if bool(train.any()) and not bool((weight * train).any()):
        raise GraphError(
            "expected a positive weight of at least one training node (got 0 for all of them): raise one, or leave "
            "weight out"
        )
    return weight


def checked_splits(splits: Mapping[str, object], n: int) -> dict[str, Tensor]:
    """The boolean masks [n] of all splits; those that are not given are empty. Train is needed, unless test alone is
    given, for an evaluation."""
    given = {split: nodes for split, nodes in splits.items() if nodes is not None}
    if "train" not in given and list(given) != ["test"]:
        raise GraphError(
            "expected train nodes (got none): pass a mask or node numbers; for an evaluation pass test alone, and for "
            "predictions leave out y"
        )
    masks = {split: checked_mask(split, nodes, n) for split, nodes in given.items()}
    empty = torch.zeros_like(next(iter(masks.values())))
    masks = {split: masks.get(split, empty) for split in SPLITS}
    for a, b in combinations(SPLITS, 2):
        both = masks[a] & masks[b]
        if bool(both.any()):
            raise GraphError(
                f"expected disjoint splits (got {int(both.sum())} nodes in both {a} and {b}, e.g. node "
                f"{int(both.nonzero()[0])}): remove them from one"
            )
    return masks


def checked_mask(split: str, nodes: object, n: int) -> Tensor:
    """The boolean mask [n] of a split, from a mask or from node numbers."""
    chosen = as_tensor(split, nodes)
    if chosen.dim() == 1 and not chosen.numel() and chosen.dtype != torch.bool:
        raise GraphError(_empty(split))
    if chosen.dim() != 1:
        raise GraphError(
            f"expected {split} as a mask or node numbers, one-dimensional (got {list(chosen.shape)}): of several masks "
            "[n, k] pass one column"
        )
    if chosen.dtype == torch.bool:
        if chosen.numel() != n:
            raise GraphError(f"expected a {split} mask of length {n} (got {chosen.numel()}): pass a boolean per node")
        mask = chosen
    elif chosen.is_floating_point() or chosen.is_complex():
        raise GraphError(
            f"expected {split} as a boolean mask or whole node numbers (got {chosen.dtype}): convert it to one of these"
        )
    else:
        if 1 < n == chosen.numel() and bool((chosen <= 1).all()) and bool((chosen >= 0).all()):
            raise GraphError(
                f"expected {split} as a boolean mask or node numbers (got {n} numbers 0 and 1 for {n} nodes): pass "
                f"{split}.bool() if it is a mask, or every node number once"
            )
        outside = (chosen < 0) | (chosen >= n)
        if bool(outside.any()):
            raise GraphError(
                f"expected {split} nodes in [0, {n}) (got {int(chosen[outside][0])}): number the nodes from 0"
            )
        mask = torch.zeros(n, dtype=torch.bool, device=chosen.device)
        mask[chosen.long()] = True
    if not bool(mask.any()):
        raise GraphError(_empty(split))
    return mask


def _empty(split: str) -> str:
    return f"expected at least one {split} node (got an empty split): name some, or leave {split} out"


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
