"""A cache of partitions on disk: a large partition takes minutes, and the same one is needed again and again.

The name of a file contains everything that its content depends on: the graph's structure, the number of parts, the
method and the seed.
"""

from __future__ import annotations

import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import Tensor

from lmc.graph import Graph
from lmc.partition.check import check_parts
from lmc.results import replacing, user_cache


def cache_path(graph: Graph, num_parts: int, method: str, seed: int) -> Path:
    """$XDG_CACHE_HOME (or ~/.cache) /lmc/partitions/<graph>-<method>-<parts>-<seed>.npz."""
    return user_cache() / "partitions" / f"{graph.fingerprint}-{method}-{num_parts}-{seed}.npz"


def read(path: Path, n: int, num_parts: int) -> Tensor | None:
    """The stored parts; None if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return check_parts(archive["parts"].astype(np.int64), n, num_parts)
    except (OSError, EOFError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error):
        return None


def write(path: Path, parts: Tensor) -> None:
    """Store ``parts`` atomically; a folder that cannot be written is not an error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            np.savez_compressed(stream, parts=parts.cpu().numpy().astype(np.int32))
