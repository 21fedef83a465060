"""Graphs in the user's cache: one safetensors file each, which is mapped into memory and not copied.

Only undirected graphs without weights are kept there. Damage is found by sums of the stored numbers, and by a checksum
of the header.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmc.data.arrays import check_pointers, naming
from lmc.files import replacing
from lmc.graph import CSR, SPLITS, Graph, MappedFiles

DTYPES = {"I64": torch.int64, "F64": torch.float64, "I32": torch.int32, "F32": torch.float32, "BOOL": torch.bool}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
START = b'{"__metadata__": {"check": "'
WORDS = {8: torch.int64, 4: torch.int32, 1: torch.uint8}
SUMMED = 2**22
"""Numbers of an array that are summed at a time."""


def write(graph: Graph, path: Path) -> None:
    """Write an undirected graph, completely or not at all."""
    x = graph.x
    features = {"x": x} if isinstance(x, Tensor) else {"indptr of x": x.indptr, "indices of x": x.indices, "x": x.data}
    tensors = {"indptr": graph.adj.indptr, "indices": graph.adj.indices, "y": graph.y, **features}
    tensors |= {split: getattr(graph, split) for split in SPLITS}
    facts: dict[str, Any] = {
        "check": "0" * 8,
        "num_classes": graph.num_classes,
        "task": graph.task,
        "features": graph.num_features,
        "fingerprint": graph.fingerprint,
    }
    facts |= {f"sum of {name}": _sum(each) for name, each in tensors.items()}
    header, end = dict[str, Any](__metadata__={name: str(value) for name, value in facts.items()}), 0
    listed = sorted(tensors.items(), key=lambda item: -item[1].itemsize)  # so that every array is aligned
    for name, each in listed:
        start, end = end, end + each.nbytes
        header[name] = {"dtype": NAMES[each.dtype], "shape": list(each.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    text = START + _check(text) + text[len(START) + 8 :]
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for _, each in listed:
            each.contiguous().numpy().tofile(stream)


def read(path: Path, name: str, mapped: bool = False) -> Graph:
    """The graph that :func:`write` stored.

    Args:
        mapped: its pages are unmapped where work on the graph goes on in pieces.
    """
    files = MappedFiles()
    with naming(path, "a graph in the cache"):
        content = files.open(path)
        begin = 8 + int(content[:8].view(torch.int64))
        text = content[8:begin].numpy().tobytes()
        if text[: len(START) + 8] != START + _check(text):
            raise ValueError("the header has changed")
        header: dict[str, Any] = json.loads(text)
        facts, tensors = header.pop("__metadata__"), dict[str, Tensor]()
        for key, about in header.items():
            start, end = (begin + at for at in about["data_offsets"])
            tensors[key] = content[start:end].view(DTYPES[about["dtype"]]).view(about["shape"])
            if _sum(tensors[key], files if mapped else None) != int(facts[f"sum of {key}"]):
                raise ValueError(f"{key} has changed")
        n, x, indptr, indices = len(tensors["y"]), tensors.pop("x"), tensors.pop("indptr"), tensors.pop("indices")
        check_pointers(indptr.numpy(), indices.numpy(), (n, n), "adjacency")
        features: Tensor | CSR = x
        if "indptr of x" in tensors:
            features = CSR(tensors.pop("indptr of x"), tensors.pop("indices of x"), x, int(facts["features"]))
        adj = CSR(indptr, indices, None, n, symmetric=True, files=files if mapped else None)
        given: dict[str, Any] = {**tensors, "num_classes": int(facts["num_classes"]), "name": name}
        graph = Graph(adj, features, **given, task=facts["task"])
        graph.__dict__["fingerprint"] = facts["fingerprint"]  # its hash takes longer than all of the above
        return graph


def _check(text: bytes) -> bytes:
    """The checksum of a header, eight digits after ``START``, over what follows them."""
    return f"{zlib.crc32(text[len(START) + 8 :]):08x}".encode()


def _sum(array: Tensor, files: MappedFiles | None = None) -> int:
    """The sum of the numbers as whole numbers of their bits, modulo 2^bits."""
    words, total = array.contiguous().view(-1).view(WORDS[array.itemsize]), 0
    for piece in words.split(SUMMED):
        total += int(np.add.reduce(piece.numpy(), dtype=piece.numpy().dtype))  # torch would convert to int64
        if files is not None:
            files.release()
    return total % 2 ** (8 * array.itemsize)
