"""Files that are written in chunks are ordinary safetensors files."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
import torch

from helpers import chance, make, parts_of, random_graph
from lmc.errors import CheckpointError
from lmc.methods import CMC
from lmc.stores import Disk, Pinned, Placement, Store
from lmc.train import checkpoint, sealed


@pytest.mark.parametrize("chunk", [4, 2**24], ids=["chunks", "at once"])
@pytest.mark.parametrize("tier", [Disk(), Pinned()], ids=lambda tier: tier.name)
def test_the_reader_of_safetensors_reads_what_is_written(
    tier: Store, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "CHUNK", chunk)
    rows = torch.randn(7, 3, generator=chance())
    table = tier.table(7, 3, torch.float32, torch.device("cpu"))
    table.push(slice(0, 7), rows)
    plain = {
        "a": torch.arange(3),
        "b": torch.tensor(2.5, dtype=torch.float64),
        "c": torch.tensor([True, False, True]),
        "d": rows.t().bfloat16(),
    }
    path = tmp_path / "file.safetensors"
    with path.open("wb") as file:
        sealed.write(file, {**plain, "table": table}, {"key": "value"})
    with safetensors.safe_open(path, framework="pt") as opened:
        assert opened.metadata() == {"key": "value"}
        for name, value in {**plain, "table": rows}.items():
            assert torch.equal(opened.get_tensor(name), value)
    found = sealed.matrices_in(path)["table"]
    assert (found.shape, found.dtype) == ((7, 3), torch.float32)
    assert torch.equal(found[2:5], rows[2:5])


def test_a_run_with_tables_on_disk_continues_from_its_checkpoint(tmp_path: Path) -> None:
    g = random_graph()
    method = CMC(clusters_per_batch=2)
    model, other = make("gcn", g), make("gcn", g, seed=8)
    run = method.bind(g, model, parts_of(g), placement=Placement(history="disk", features="disk"))
    run.refresh()
    for batch in run.batches():
        run.accumulate(batch)
    checkpoint.save(tmp_path, run, torch.optim.Adam(model.parameters()), checkpoint.Position(epoch=1))
    again = method.bind(g, other, parts_of(g), placement=Placement(history="disk", features="disk"))
    assert checkpoint.load(tmp_path, again, torch.optim.Adam(other.parameters())) == checkpoint.Position(epoch=1)
    for a, b in zip(run.named_tables().values(), again.named_tables().values(), strict=True):
        assert torch.equal(a.data(), b.data())


def test_a_checkpoint_keeps_extras_and_the_state_of_any_optimiser(tmp_path: Path) -> None:
    g = random_graph()
    model = make("gcn", g)
    run = CMC(clusters_per_batch=2).bind(g, model, parts_of(g), device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.125
    rows = torch.randn(2, 3, generator=chance())
    extras = {"best": {"w": rows}, "milestones": {30: 1}, "pair": (1, [None, "a", float("-inf")]), "flag": True}
    checkpoint.save(tmp_path, run, optimizer, checkpoint.Position(1, extras=extras))
    other = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    position = checkpoint.load(tmp_path, run, other)
    assert position is not None
    assert torch.equal(position.extras.pop("best")["w"], rows)
    assert position.extras == {k: v for k, v in extras.items() if k != "best"}
    assert other.param_groups[0]["lr"] == 0.125
    assert all(torch.equal(other.state[p]["momentum_buffer"], p.grad) for p in model.parameters() if p.grad is not None)


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    g = random_graph()
    model = make("gcn", g)
    run = CMC(clusters_per_batch=2).bind(g, model, parts_of(g), device="cpu")
    with pytest.raises(
        CheckpointError, match=r"plain values in a checkpoint \(got function as position\.extras\.f\): keep other"
    ):
        checkpoint.save(
            tmp_path, run, torch.optim.Adam(model.parameters()), checkpoint.Position(extras={"f": parts_of})
        )
