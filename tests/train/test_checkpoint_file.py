"""Files that are written in chunks are ordinary safetensors files."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
import torch

from helpers import chance, make, parts_of, random_graph
from lmc.methods import CMC
from lmc.stores import Disk, Pinned, Placement, Store
from lmc.train import checkpoint


@pytest.mark.parametrize("chunk", [4, 2**24], ids=["chunks", "at once"])
@pytest.mark.parametrize("tier", [Disk(), Pinned()], ids=lambda tier: tier.name)
def test_the_reader_of_safetensors_reads_what_is_written(
    tier: Store, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHUNK", chunk)
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
        checkpoint.write(file, {**plain, "table": table}, {"key": "value"})
    with safetensors.safe_open(path, framework="pt") as opened:
        assert opened.metadata() == {"key": "value"}
        for name, value in {**plain, "table": rows}.items():
            assert torch.equal(opened.get_tensor(name), value)
    found = checkpoint.matrices_in(path)["table"]
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
    for a, b in zip(run.all_tables(), again.all_tables(), strict=True):
        assert torch.equal(a.data(), b.data())
