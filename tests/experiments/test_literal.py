"""The study of Algorithm 2: its updates are those of the library where both say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from experiments.literal import UPDATES, Repeated
from helpers import parts_of, random_graph
from lmc.engine import Run
from lmc.methods import LMC4Rec
from lmc.models import RecGCN

Invoke = Callable[..., tuple[int, str]]


def trained(method: LMC4Rec, lr: float = 0.05) -> Run:
    """A run after two epochs of SGD."""
    g = random_graph()
    model = RecGCN(g.num_features, 5, g.num_classes, kappa=0.8, tol=1e-14).double()
    run = method.bind(g, model, parts_of(g), device="cpu")
    run.refresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(2):
        for batch in run.batches():
            run.step(batch, optimizer)
    return run


def test_one_step_and_many_steps_are_the_two_updates_of_the_library() -> None:
    one, step = (
        trained(Repeated(undo_drift=False, clusters_per_batch=1)),
        LMC4Rec(update="step", undo_drift=False, clusters_per_batch=1),
    )
    many = trained(Repeated(undo_drift=False, steps=120, clusters_per_batch=1))
    for got, want in ((one, trained(step)), (many, trained(LMC4Rec(undo_drift=False, clusters_per_batch=1)))):
        for name, table in want.named_tables().items():
            torch.testing.assert_close(got.named_tables()[name].data(), table.data(), rtol=1e-9, atol=1e-12)
    assert float((one.V[1].data() - many.V[1].data()).norm()) > 1e-6


def test_masks_of_the_paper_change_nothing_until_a_sign_changes() -> None:
    for lr, changes in ((1e-5, False), (0.05, True)):
        plain, masked = (
            trained(Repeated(undo_drift=False, paper_masks=paper, clusters_per_batch=1), lr) for paper in (False, True)
        )
        V = masked.V[1].data() * (masked.H[1].data() > 0)
        assert (float((V - plain.V[1].data()).norm()) > 1e-10 * float(V.norm())) == changes


def test_the_command_writes_a_table(invoke: Invoke, tmp_path: Path) -> None:
    options = [
        "literal",
        "tiny-like",
        "--scale",
        "0.1",
        "--hidden",
        "4",
        "--epochs",
        "2",
        "--every",
        "2",
        "--parts",
        "4",
    ]
    code, said = invoke(*options, "--optimizers", "sgd:lr=0.1", "--device", "cpu", "--run-dir", "out")
    assert code == 0, said
    records = [json.loads(line) for line in (tmp_path / "out" / "literal.jsonl").read_text().splitlines()]
    assert [r["update"] for r in records] == ["step", "solution"]
    assert all(len(r["seen"]["2"]) == 6 for r in records)
    code, said = invoke(*options, "--updates", "never")
    assert code == 2
    assert f"expected --updates among {', '.join(UPDATES)}" in said
