"""The file format of graphs: one ``.npz`` of plain arrays, read without pickle and written atomically.

Keys: ``edge_index`` int32 [2, E] as [source, target], with both directions listed unless the graph is directed;
features ``x`` dense [n, d], or sparse as ``x_indptr x_indices x_data x_shape``; ``y`` [n] or [n, C] and
``train_idx``, or ``y`` and ``test_idx`` alone in a file for evaluations, or none of them in a file for predictions.
Optional: ``val_idx test_idx``, ``num_nodes``, ``num_classes``,
``task`` ("classes", "labels" or "regression"), ``node_weight`` [n], ``edge_weight`` [E], ``edge_attr`` [E, k], and
``undirected``, which is false for a directed graph, ``inductive``, which is true where training sees the training nodes
alone, and ``metric``, the name of the metric that scores the graph.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmc.data.arrays import check_pointers, read_npz
from lmc.errors import DataError, FileError, GraphError, RunWarning, typed
from lmc.files import replacing
from lmc.graph import CSR, SPLITS, Graph
from lmc.graph.checks import csr_of

REQUIRED = ("edge_index",)
TARGETS = ("y", "train_idx")
"""Either both, or none in a file without targets, which serves predictions. Of a file with test nodes alone, which
serves evaluations, ``y``."""
SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
OPTIONAL = (
    "val_idx", "test_idx", "num_nodes", "num_classes", "task", "node_weight", "edge_weight", "edge_attr", "undirected",
    "inductive", "metric",
)  # fmt: skip
KEYS = (*REQUIRED, "x", *SPARSE, *TARGETS, *OPTIONAL)


def read(
    path: str | os.PathLike[str], *, name: str | None = None, symmetrise: bool = False, directed: bool | None = None,
    task: str | None = None,
) -> Graph:  # fmt: skip
    """Read the graph in the file at ``path``; every error message names the file. ``task`` and ``directed`` replace
    those of the file.

    Raises:
        DataError: the file is missing, damaged, holds objects, or lacks a key.
        GraphError: the arrays are complete but do not form a graph.
    """
    path = Path(path).expanduser()
    return graph_of(path, _arrays(path), name=name, symmetrise=symmetrise, directed=directed, task=task)


def graph_of(
    path: Path, arrays: Mapping[str, Any], *, name: str | None = None, symmetrise: bool = False,
    directed: bool | None = None, task: str | None = None,
) -> Graph:  # fmt: skip
    """The graph of the arrays of a file; the arguments are those of :func:`read`."""
    ignored = ", ".join(sorted(arrays.keys() - set(KEYS)))
    if ignored:
        warnings.warn(f"{path}: ignored the keys {ignored} (known: {', '.join(KEYS)})", RunWarning, stacklevel=2)
    y = arrays.get("y")
    given: dict[str, Any] = {split: arrays.get(f"{split}_idx") for split in SPLITS}
    task = str(arrays["task"]) if task is None and "task" in arrays else task
    try:
        features, n = _features(arrays), _whole(arrays, "num_nodes")
        key, counted = ("x", features) if y is None else ("y", y)
        rows = counted.shape[0] if len(counted.shape) else 0
        if n is not None and n != rows:
            raise GraphError(f"expected {key} with num_nodes = {n} rows (got {rows}): one of the two is wrong")
        classes = _whole(arrays, "num_classes") if task != "regression" else None  # that of the columns of y
        given |= {"num_classes": classes, "name": name or path.stem, "symmetrise": symmetrise}
        given |= {"task": task, "weight": arrays.get("node_weight")}
        given |= {"directed": not (symmetrise or _flag(arrays, "undirected", True)) if directed is None else directed}
        given |= {key: arrays.get(key) for key in ("edge_weight", "edge_attr")}
        given |= {"inductive": _flag(arrays, "inductive", False)} if y is not None else {}
        graph = Graph.from_edges(arrays["edge_index"], features, y, **given)
        return replace(graph, metric=str(arrays["metric"])) if "metric" in arrays else graph
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error


@typed
def write(graph: Graph, path: str | Path) -> Path:
    """Write ``graph`` to ``path``, completely or not at all; :func:`lmc.load` returns the same arrays."""
    path = Path(path).expanduser()
    if path.suffix != ".npz":
        raise DataError(f"expected a path ending in .npz (got {str(path)!r}): rename it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            np.savez(stream, **_as_arrays(graph))
    except OSError as error:
        raise FileError(
            f"expected a path that can be written (got {path}: {error.strerror or error}): use another"
        ) from error
    return path


def _arrays(path: Path) -> dict[str, np.ndarray]:
    arrays = read_npz(path)
    targets: tuple[str, ...] = TARGETS if any(key in arrays for key in TARGETS) else ()
    if "test_idx" in arrays and not arrays.keys() & {"train_idx", "val_idx"}:
        targets = ("y",)
    missing = [key for key in (*REQUIRED, *targets) if key not in arrays]
    if "x" not in arrays and not all(key in arrays for key in SPARSE):
        missing.append("x (or " + " ".join(SPARSE) + ")")
    if missing:
        raise DataError(
            f"expected the keys {', '.join(missing)} in {path} (got {', '.join(arrays) or 'none'}): "
            f"add them, or write the file with lmc.save"
        )
    return arrays


def _whole(arrays: Mapping[str, np.ndarray], key: str) -> int | None:
    """The integer under an optional key."""
    if key not in arrays:
        return None
    value = arrays[key]
    if value.size != 1 or not np.issubdtype(value.dtype, np.integer):
        raise GraphError(
            f"expected {key} as one whole number (got {value.dtype} of shape {list(value.shape)}): write the file with "
            "lmc.save"
        )
    return int(value.reshape(()))


def _flag(arrays: Mapping[str, np.ndarray], key: str, default: bool) -> bool:
    """The boolean under an optional key."""
    value = np.asarray(arrays.get(key, default))
    if value.size != 1 or value.dtype != np.bool_:
        raise GraphError(
            f"expected {key} as one boolean (got {value.dtype} of shape {list(value.shape)}): write the file with "
            "lmc.save"
        )
    return bool(value.reshape(()))


def _features(arrays: Mapping[str, np.ndarray]) -> np.ndarray | CSR:
    if "x" in arrays:
        both = [key for key in SPARSE if key in arrays]
        if both:
            raise GraphError(f"expected x, or {', '.join(SPARSE)} (got x and {', '.join(both)}): write one of them")
        return arrays["x"]
    indptr, indices, data, shape = (arrays[key] for key in SPARSE)
    _, cols = check_pointers(indptr, indices, shape, "x")
    if indices.shape != data.shape:
        raise GraphError(
            f"expected x_indices, x_data of one length (got {list(indices.shape)}, {list(data.shape)}): write the file "
            "with lmc.save"
        )
    return csr_of(indptr, indices, data, cols)


def _as_arrays(graph: Graph) -> dict[str, Any]:
    graph = graph.to("cpu")
    rows = graph.adj.row_index().to(torch.int32)
    arrays: dict[str, Any] = {
        "edge_index": torch.stack([graph.adj.indices, rows]).numpy(),
        "num_nodes": np.int64(graph.num_nodes),
        "num_classes": np.int64(graph.num_classes),
        "undirected": np.bool_(not graph.directed),
        "task": np.array(graph.task),
    } | ({"inductive": np.True_} if graph.inductive else {})
    arrays |= {"metric": np.array(graph.metric)} if graph.metric else {}
    for key in ("node_weight", "edge_weight", "edge_attr"):
        value = getattr(graph, "weight" if key == "node_weight" else key)
        if value is not None:
            arrays[key] = value.numpy()
    if graph.splits:
        arrays["y"] = graph.y.numpy()
    for split in graph.splits:
        arrays[f"{split}_idx"] = getattr(graph, split).nonzero().squeeze(1).to(torch.int32).numpy()
    if isinstance(graph.x, CSR):
        parts = [part.numpy() for part in (graph.x.indptr, graph.x.indices, graph.x.data)]
        arrays |= zip(SPARSE, [*parts, np.array(graph.x.shape, dtype=np.int64)], strict=True)
    else:
        arrays["x"] = graph.x.numpy()
    return arrays
