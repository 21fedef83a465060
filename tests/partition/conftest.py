"""A small graph and an empty cache."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmc.data
from lmc.graph import Graph


@pytest.fixture(scope="session")
def graph() -> Graph:
    return lmc.data.load("tiny-like")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of partitions."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lmc" / "partitions"
