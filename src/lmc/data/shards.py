"""Folders of shards: what every rank of a distributed run holds of a graph, as files.

``rank-R/shard.npz`` contains the arrays of :class:`lmc.graph.Shard` for rank R. ``manifest.json`` is written last and
contains the facts of the whole graph and the size and the SHA-256 of every file, so that a folder that is incomplete or
damaged is refused. A rank needs its own file and the manifest only.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmc.data.arrays import naming, read_npz
from lmc.errors import CheckpointError, DataError
from lmc.files import locked, read_json, replace, replacing, writable
from lmc.graph import CSR, SPLITS, Graph, Shard
from lmc.heap import release_freed

FORMAT = 1
MANIFEST = "manifest.json"
GRAPH_FACTS = ("num_classes", "name", "task", "inductive", "metric")
NODES = ("y", *SPLITS, "weight", "n_id")
SHARD_FACTS = ("num_nodes", "num_edges", "split_sizes", "total_weight", "checksum")
RANK_FACTS = ("num_owned", "send_counts", "receive_counts")
ROWS = ("ids", "parts", "degree", "strength", "send")
AGAIN = "write the folder again with lmc shard"


def write_shards(graph: Graph, parts: Tensor, owners: Tensor, ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Cut the graph and write one file per rank, then the manifest; one shard is in memory at a time.

    Args:
        parts, owners: those of :meth:`lmc.graph.Shard.cut`.

    Returns:
        What the manifest says of each rank.
    """
    written: list[dict[str, Any]] = []
    common: dict[str, Any] = {}
    with locked(folder), writable(folder):
        (folder / MANIFEST).unlink(missing_ok=True)  # until the new one is there, the folder is incomplete
        for rank in range(ranks):
            shard = Shard.cut(graph, parts, owners, rank, ranks)
            path = _file(folder, rank)
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as file:
                np.savez(file, **_arrays(shard))
            facts = {name: getattr(shard, name) for name in RANK_FACTS}
            facts |= {"num_local": shard.num_local, "size": path.stat().st_size, "sha256": _digest(path)}
            written.append(facts)
            common = {name: getattr(shard, name) for name in SHARD_FACTS}
            common |= {name: getattr(graph, name) for name in GRAPH_FACTS}
            common |= {"directed": graph.directed, "num_features": graph.num_features}
            del shard  # before the next one is cut
            release_freed()
        for stale in set(folder.glob("rank-*/shard.npz")) - {_file(folder, rank) for rank in range(ranks)}:
            stale.unlink()
            with suppress(OSError):  # it holds files of somebody else, which stay
                stale.parent.rmdir()
        manifest = {"format": FORMAT, "ranks": written, **common}
        replace(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    return written


def check_folder(folder: Path, graph: Graph) -> None:
    """Refuse to replace the shards of another graph; those of the same graph are written again."""
    if (folder / MANIFEST).is_file():
        there, here = _manifest(folder), {name: getattr(graph, name) for name in ("name", "num_nodes", "num_edges")}
        if {name: there[name] for name in here} != here:
            raise DataError(
                f"expected no folder, or one of this graph (got {folder}, the shards of {there['name']} with "
                f"{there['num_nodes']:,} nodes): choose another one, or delete it"
            )


def is_sharded(folder: Path) -> bool:
    """Whether a path is a folder of shards, complete or not."""
    return folder.is_dir() and ((folder / MANIFEST).is_file() or _file(folder, 0).parent.is_dir())


def read_shard(folder: str | Path, rank: int, ranks: int | None = None) -> Shard:
    """The shard of a rank, after its file has been checked against the manifest.

    Args:
        ranks: the number of ranks of this run, where the folder must have been made for it.
    """
    folder = Path(folder).expanduser()
    manifest = _manifest(folder)
    count = len(manifest["ranks"])
    if not 0 <= rank < count or ranks not in (None, count):
        raise DataError(
            f"expected a folder for rank {rank} of {ranks or 'any number'} (got {folder}, made for {count} ranks): "
            f"start {count} ranks, or run lmc shard with --ranks {ranks or rank + 1}"
        )
    facts, path = manifest["ranks"][rank], _file(folder, rank)
    if not path.is_file() or path.stat().st_size != facts["size"] or _digest(path) != facts["sha256"]:
        got = "a file with other content" if path.is_file() else "no such file"
        raise DataError(f"expected {path} as {MANIFEST} describes it (got {got}): copy it again, or {AGAIN}")
    arrays = {key: torch.from_numpy(value) for key, value in read_npz(path).items()}
    with naming(path, "a shard"):
        x = _csr(arrays, "x", manifest["num_features"]) if "x_indptr" in arrays else arrays["x"]
        n = arrays["ids"].numel()
        adj = _csr(arrays, "adj", n, symmetric=not manifest["directed"])
        nodes: dict[str, Any] = {name: arrays.get(name) for name in NODES}
        graph = Graph(adj, x, **nodes, **{name: manifest[name] for name in GRAPH_FACTS})
        given: dict[str, Any] = {name: _frozen(manifest[name]) for name in SHARD_FACTS}
        given |= {name: _frozen(facts[name]) for name in RANK_FACTS} | {name: arrays[name] for name in ROWS}
        return Shard(graph=graph, rank=rank, **given)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"expected a folder that lmc shard has completed (got {folder} without {MANIFEST}): {AGAIN}")
    try:
        manifest = read_json(path)
    except CheckpointError as error:
        raise DataError(f"expected a whole {path} (got a damaged file): {AGAIN}") from error
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("ranks"), list):
        raise DataError(f"expected format {FORMAT} in {path} (got {manifest.get('format')!r}): {AGAIN}")
    return manifest


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}" / "shard.npz"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _arrays(shard: Shard) -> dict[str, Any]:
    graph = shard.graph
    found: dict[str, Tensor | None] = {name: getattr(shard, name) for name in ROWS}
    found |= {name: getattr(graph, name) for name in NODES}
    for name, rows in (("adj", graph.adj), ("x", graph.x)):
        if isinstance(rows, CSR):
            found |= {f"{name}_{key}": getattr(rows, key) for key in ("indptr", "indices", "values", "edge_data")}
        else:
            found[name] = rows
    return {name: array.numpy() for name, array in found.items() if array is not None}


def _csr(arrays: dict[str, Tensor], name: str, num_cols: int, symmetric: bool = False) -> CSR:
    indptr, indices, values, data = (
        arrays.get(f"{name}_{key}") for key in ("indptr", "indices", "values", "edge_data")
    )
    assert indptr is not None
    assert indices is not None
    return CSR(indptr, indices, values, num_cols, symmetric, edge_data=data)
