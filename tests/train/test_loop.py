"""The training loop: the steps of an epoch, stops and the times of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lmc
from lmc.engine import Run
from lmc.errors import Interrupted
from lmc.methods import GAS
from lmc.train import Settings, adam, checkpoint, train, train_epoch


def bound() -> Run:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes, dropout=0.5)
    run = GAS(4, 1).bind(g, model, device="cpu")
    run.refresh()
    return run


def parameters(run: Run) -> list[torch.Tensor]:
    return [p.detach().clone() for p in run.problem.model.parameters()]


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_an_epoch_is_zero_grad_accumulate_clip_and_step(clip: float | None) -> None:
    run, other = bound(), bound()
    losses = [loss for _ in range(2) for loss in train_epoch(run, adam(run.problem.model, 0.01), clip=clip)]
    expected = []
    for _ in range(2):
        optimizer = adam(other.problem.model, 0.01)
        for batch in other.batches():
            optimizer.zero_grad()
            expected.append(other.accumulate(batch).loss)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(other.problem.model.parameters(), clip)
            optimizer.step()
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert all(torch.equal(a, b) for a, b in zip(parameters(run), parameters(other), strict=True))


def test_an_epoch_that_is_stopped_and_continued_is_the_same() -> None:
    run, other = bound(), bound()
    optimizer, answers = adam(run.problem.model, 0.01), iter([False, False, True])
    first = train_epoch(run, optimizer, epoch=3, stop=lambda: next(answers))
    rest = train_epoch(run, optimizer, epoch=3, start=len(first))
    whole = train_epoch(other, adam(other.problem.model, 0.01), epoch=3)
    assert (len(first), len(rest)) == (3, 1)
    assert torch.equal(torch.stack([*first, *rest]), torch.stack(whole))
    assert all(torch.equal(a, b) for a, b in zip(parameters(run), parameters(other), strict=True))


@pytest.mark.parametrize(("every", "epochs"), [("1epochs", [0, 1, 2, 3]), ("1000h", [0, 3])])
def test_checkpoints_are_written_at_the_start_at_the_end_and_when_the_last_one_is_old(
    every: str, epochs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = [], checkpoint.save

    def record(folder: Path, run: Run, optimizer: torch.optim.Optimizer, position: checkpoint.Position) -> None:
        saved.append(position.epoch)
        save(folder, run, optimizer, position)

    monkeypatch.setattr(checkpoint, "save", record)
    assert len(list(train(bound(), Settings(epochs=3, checkpoint_every=every), tmp_path))) == 3
    assert saved == epochs


def test_a_stop_without_a_folder_says_that_nothing_was_saved() -> None:
    with pytest.raises(Interrupted, match="nothing was saved"):
        next(train(bound(), Settings(epochs=2), stop=lambda: True))
