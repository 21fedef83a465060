"""LMC4Conv reaches what full batch reaches, on the public splits."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

import pytest

import lmc
from lmc.methods import FullBatch, LMC4Conv, Method

SEEDS = range(5)


def accuracy(g: lmc.Graph, method: Method, seed: int) -> float:
    """Test accuracy at the best validation epoch of a 2-layer GCN with the usual settings of these graphs."""
    model = lmc.models.GCN(g.num_features, 16, g.num_classes, num_layers=2, dropout=0.5, input_dropout=True, seed=seed)
    record = lmc.fit(g, model, method, epochs=200, lr=0.01, weight_decay=5e-4, seed=seed, device="cpu")
    assert record.test is not None
    return record.test


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["cora", "pubmed"])
def test_lmc_is_within_a_point_of_full_batch(data_dir: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    g = lmc.load(data_dir / f"{name}.npz")
    full = mean(accuracy(g, FullBatch(), seed) for seed in SEEDS)
    ours = mean(accuracy(g, LMC4Conv(10, 5), seed) for seed in SEEDS)
    with capsys.disabled():
        sys.stdout.write(f"\n{name}: full batch {full:.4f}, LMC4Conv {ours:.4f} (mean of {len(SEEDS)} seeds)\n")
    assert ours > full - 0.01
