"""A hand-written graph of six nodes, as arrays and as a file."""

from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from lmc.data import fetch

# two triangles joined by one edge, both directions listed
EDGES = np.array([[0, 1, 0, 2, 1, 2, 3, 4, 3, 5, 4, 5, 2, 3], [1, 0, 2, 0, 2, 1, 4, 3, 5, 3, 5, 4, 3, 2]])


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """The six-node graph as the arrays of the file format."""
    return {
        "edge_index": EDGES.astype(np.int32),
        "x": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y": np.array([0, 0, 0, 1, 1, 1]),
        "train_idx": np.array([0, 3]),
        "val_idx": np.array([1, 4]),
        "test_idx": np.array([2, 5]),
        "num_nodes": np.int64(6),
        "num_classes": np.int64(2),
        "undirected": np.bool_(True),
    }


@pytest.fixture
def file(arrays: dict[str, np.ndarray], tmp_path: Path) -> Path:
    """The six-node graph in a file."""
    path = tmp_path / "six.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(autouse=True)
def no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the searched folders empty, and return the cache folder."""
    monkeypatch.delenv("LMC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lmc" / "data"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection."""

    def refuse(url: str) -> None:
        raise URLError("no network in tests")

    monkeypatch.setattr(fetch, "open_url", refuse)
