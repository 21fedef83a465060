"""NCCL with one rank: the process group, its collectives, and recorded steps between them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_torchrun import launch

import lmc


def trains() -> None:
    """Train by steps and by layers on one GPU as the only rank; recorded steps are those of one process."""
    g = lmc.load("tiny-like")
    for method, sync in (
        (lmc.methods.CMC(num_parts=4, clusters_per_batch=1), "step"),
        (lmc.methods.FullBatch(), "layer"),
    ):
        losses = []
        for distributed in (lmc.Distributed(sync=sync), False):
            torch.manual_seed(0)
            model = lmc.models.GCN(g.num_features, 8, g.num_classes)
            record = lmc.fit(g, model, method, epochs=5, device="cuda", distributed=distributed)
            losses.append([epoch.loss for epoch in record.epochs])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert torch.distributed.get_backend() == "nccl"


@pytest.mark.gpu
def test_one_rank_on_a_gpu_trains_as_one_process(tmp_path: Path) -> None:
    codes, outputs = launch(1, tmp_path, trains)
    assert codes == [0], "".join(outputs)
