"""Training recurrent models: the record, resuming, long chains, and the citation graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import lmc
from helpers import random_graph
from lmc.errors import Interrupted
from lmc.graph import Graph
from lmc.methods import SSE, CMC4Rec, FullBatch, LMC4Rec, Method
from lmc.models import GCN, RecGCN
from lmc.solvers import Anderson
from lmc.train import Training


def test_the_record_contains_figures_of_the_solver() -> None:
    g = random_graph()
    model = RecGCN(6, 8, 4)
    record = lmc.fit(g, model, LMC4Rec(4, 1), epochs=3, device="cpu")
    assert lmc.evaluate(model, g) == record.epochs[-1].scores
    assert lmc.evaluate(model, g, max_elements=100) == record.epochs[-1].scores  # chunk by chunk
    for epoch in record.epochs:
        assert epoch.solver is not None
        assert epoch.solver["forward_steps"] >= 1
        assert epoch.solver["unconverged"] == 0
    assert record.config["model"]["solver"] == "picard"
    assert record.config["first_layer"] == "recurrent"
    assert lmc.fit(g, GCN(6, 8, 4), FullBatch(), epochs=1, device="cpu").epochs[0].solver is None


@pytest.mark.parametrize("method", [LMC4Rec(4, 1), CMC4Rec(4, 1), SSE(4, 1), FullBatch()], ids=lambda m: m.traits.name)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(method: Method, tmp_path: Path) -> None:
    g = random_graph()

    def fit(folder: str, stop_after: int | None = None, resume: bool = False) -> tuple[RecGCN, lmc.RunRecord]:
        def listen(training: Training) -> None:
            if training.record.epoch == stop_after:
                raise Interrupted("enough")

        model = RecGCN(6, 8, 4, input_dropout=0.2, seed=1)
        record = lmc.fit(
            g, model, method, epochs=6, device="cpu", run_dir=tmp_path / folder, resume=resume, callbacks=[listen],
            checkpoint_every="1epochs",
        )  # fmt: skip
        return model, record

    straight, record = fit("a")
    with pytest.raises(Interrupted):
        fit("b", stop_after=3)
    again, taken_up = fit("b", resume=True)
    for p, q in zip(straight.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)
    assert [e.loss for e in record.epochs] == [e.loss for e in taken_up.epochs]
    assert [e.scores for e in record.epochs] == [e.scores for e in taken_up.epochs]


def chains(length: int, count: int = 10, seed: int = 0) -> Graph:
    """Chains of two classes, known from the features of their first node alone."""
    n = count * length
    node = torch.arange(n).view(count, length)
    one_way = torch.stack([node[:, :-1].reshape(-1), node[:, 1:].reshape(-1)])
    kind = torch.arange(count) % 2
    x = torch.zeros(n, 2)
    x[node[:, 0], kind] = 1
    mask = torch.rand(n, generator=torch.Generator().manual_seed(seed))
    return Graph.from_edges(
        torch.cat([one_way, one_way.flip(0)], 1), x, kind.repeat_interleave(length),
        train=mask < 0.3, val=(mask >= 0.3) & (mask < 0.5), test=mask >= 0.5, name=f"chains-{length}",
    )  # fmt: skip


def learned(g: Graph, method: Method, epochs: int, kappa: float) -> float:
    """Test accuracy of RecGCN on chains: with a norm close to 1 a node depends on distant nodes."""
    model = RecGCN(2, 4, 2, kappa=kappa, solver=Anderson(tol=1e-7, max_steps=2000)).double()
    record = lmc.fit(g, model, method, epochs=epochs, lr=0.003, clip=0.1, eval_every=10, device="cpu")
    assert record.test is not None
    return record.test


@pytest.mark.slow
@pytest.mark.parametrize("length", [50, 100])
def test_chains_are_learned_by_the_fixed_point_and_not_by_two_layers(
    length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    g = chains(length)
    two_layers = lmc.fit(g, GCN(2, 16, 2, num_layers=2), FullBatch(), epochs=200, device="cpu", eval_every=20).test
    full = learned(g, FullBatch(), 600, 0.999)
    ours = learned(g, LMC4Rec(10, 5), 300, 0.999)
    with capsys.disabled():
        sys.stdout.write(
            f"\nchains of {length}: 2-layer GCN {two_layers:.3f}, full batch {full:.3f}, LMC4Rec {ours:.3f}\n"
        )
    assert two_layers is not None
    assert two_layers < 0.7
    assert full > 0.95
    assert ours > 0.95
