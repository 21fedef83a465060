"""Partitions on disk: a large one takes minutes, and the same one is asked for again and again.

A file is named after all that decides its content: the graph's structure, the number of parts, the method and
the seed.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph import Graph
from lmc.partition.check import check_parts
from lmc.results import replacing


def cache_path(graph: Graph, num_parts: int, method: str, seed: int) -> Path:
    """$XDG_CACHE_HOME (or ~/.cache) /lmc/partitions/<graph>-<method>-<parts>-<seed>.npz."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "lmc" / "partitions" / f"{graph.fingerprint}-{method}-{num_parts}-{seed}.npz"


def read(path: Path, n: int, num_parts: int) -> Tensor | None:
    """The stored parts; None where there are none, or a damaged file, which is then written anew."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return check_parts(archive["parts"].astype(np.int64), n, num_parts)
    except (OSError, EOFError, KeyError, ValueError, TypeError, AttributeError):
        return None
    except (zipfile.BadZipFile, zlib.error, GraphError):
        return None


def write(path: Path, parts: Tensor) -> None:
    """Store ``parts`` in one stroke. A folder that cannot be written costs time later, never the run."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            np.savez_compressed(stream, parts=parts.cpu().numpy().astype(np.int32))
