"""NCCL with one rank: the process group, its collectives, and recorded steps between them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from agent import launch

import lmc
from lmc.engine.distributed import World
from lmc.engine.distributed.world import local_device


def collectives() -> None:
    """Every collective once, with rows and without."""
    world = World(lmc.Distributed(timeout=60), local_device(torch.device("cuda")))
    assert torch.distributed.get_backend() == "nccl"
    rows = torch.arange(6.0, device=world.device).view(3, 2)
    assert torch.equal(world.sum(rows.clone()), rows)
    assert torch.equal(world.gather(rows)[0], rows)
    assert world.texts("one") == ["one"]
    assert world.any(True)
    world.broadcast([rows])
    for some in (rows, rows[:0]):
        found, work = world.exchange(some, [len(some)], [len(some)])
        world.wait(work)
        assert torch.equal(found, some)
    torch.cuda.synchronize()


def trains(method: lmc.methods.Method, sync: str) -> None:
    """Train on one GPU as the only rank; losses are those of one process."""
    g, losses = lmc.load("tiny-like"), []
    for distributed in (lmc.Distributed(sync=sync), False):
        torch.manual_seed(0)
        model = lmc.models.GCN(g.num_features, 8, g.num_classes)
        record = lmc.fit(g, model, method, epochs=5, device="cuda", distributed=distributed)
        losses.append([epoch.loss for epoch in record.epochs])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        (collectives, ()),
        (trains, (lmc.methods.CMC(num_parts=4, clusters_per_batch=1), "step")),
        (trains, (lmc.methods.FullBatch(), "layer")),
    ],
    ids=["collectives", "recorded-steps", "layers"],
)
def test_one_rank_on_a_gpu(job: object, arguments: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "nccl"  # NCCL writes past sys.stdout
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(notes))
    codes, outputs = launch(1, tmp_path, job, *arguments, start="spawn")  # type: ignore[arg-type]
    assert codes == [0], "".join(outputs) + (notes.read_text() if notes.exists() else "")
