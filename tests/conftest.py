"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real graphs: $LMC_DATA, or ../shared/data beside the project. Tests that need it are skipped
    where there is none."""
    here = Path(__file__).resolve().parent.parent
    for folder in (os.environ.get("LMC_DATA"), here.parent / "shared" / "data"):
        if folder and (Path(folder) / "cora.npz").is_file():
            return Path(folder)
    pytest.skip("no real graphs here: set LMC_DATA to a folder with cora.npz")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions made by tests do not end in the user's cache; within a session they are shared."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """PyG's networks draw their parameters from the global generator: every test starts from the same place."""
    torch.manual_seed(0)
