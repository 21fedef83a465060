"""Recurrent models on the citation graphs: accuracy, loss curves, estimated errors and steps of warm starts.

These tests take minutes on a CPU and seconds on a GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch

import lmc
from experiments.recurrent import RecurrentSetup, time_recurrent
from lmc.methods import GAS, SSE, BackwardSGD, ClusterGCN, CMC4Rec, LMC4Rec
from lmc.models import RecGCN
from lmc.train import train_epoch

pytestmark = [pytest.mark.slow, pytest.mark.data]

RATES = {"cora": (3e-3, 1e-3), "citeseer": (1e-2, 1e-3), "pubmed": (3e-3, 3e-4)}
"""Learning rates for METIS and for random parts."""


@pytest.mark.parametrize("how", ["metis", "random"])
@pytest.mark.parametrize("name", RATES)
def test_lmc4rec_is_within_a_point_of_backward_sgd(
    data_dir: Path, name: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    g = lmc.load(data_dir / f"{name}.npz")
    lr = RATES[name][how == "random"]
    tests: dict[str, float] = {}
    tenth: dict[str, float] = {}
    curves: dict[str, list[float]] = {}
    for cls in (BackwardSGD, LMC4Rec):
        records = []
        for seed in range(5):
            model = RecGCN(g.num_features, 128, g.num_classes, seed=seed)
            method = cls(10, 2, partition=how)
            records.append(lmc.fit(g, model, method, epochs=40, lr=lr, seed=seed))
        tests[cls.traits.title] = fmean(r.test or 0.0 for r in records)
        curves[cls.traits.title] = [fmean(r.epochs[e].loss for r in records) for e in range(40)]
        tenth[cls.traits.title] = curves[cls.traits.title][9]
    apart = fmean(abs(a - b) for a, b in zip(*curves.values(), strict=True)) / fmean(curves["Backward SGD"])
    with capsys.disabled():
        sys.stdout.write(
            f"\n{name}, {how}: test {tests}, loss after 10 epochs {tenth}, mean distance of the curves {apart:.1%}\n"
        )
    assert tests["LMC4Rec"] > tests["Backward SGD"] - 0.01
    assert tenth["LMC4Rec"] < 1.25 * tenth["Backward SGD"] + 0.01
    assert apart < 0.1


def errors_of_V(data_dir: Path, name: str, how: str, dropout: float, methods: tuple[type, ...]) -> dict[str, float]:
    """Relative errors of the adjoints of all batches, mean over measurements in 40 epochs of training."""
    g = lmc.load(data_dir / f"{name}.npz")
    found: dict[str, float] = {}
    for cls in methods:
        measured = []
        for seed in range(3):  # one measurement of one seed may be an outlier
            model = RecGCN(g.num_features, 128, g.num_classes, dropout, seed=seed)
            run = cls(10, 2, partition=how).bind(g, model, seed=seed)
            run.refresh()
            optimiser = torch.optim.Adam(model.parameters(), lr=RATES[name][how == "random"])
            for epoch in range(40):
                train_epoch(run, optimiser)
                if epoch % 8 == 7:
                    probe = lmc.diagnostics.EstimateProbe(run)
                    measured += [probe(batch).V for batch in run.batches(epoch + 1)]
        found[cls.traits.title] = fmean(measured)
    return found


@pytest.mark.parametrize("how", ["metis", "random"])
@pytest.mark.parametrize("name", RATES)
def test_estimated_errors_are_ordered_as_in_the_paper(
    data_dir: Path, name: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    V = errors_of_V(data_dir, name, how, 0.0, (CMC4Rec, LMC4Rec, GAS, ClusterGCN, SSE))
    with capsys.disabled():
        sys.stdout.write(f"\n{name}, {how}: mean error of V {V}\n")
    assert V["LMC4Rec"] < V["GAS"] < V["Cluster-GCN"]
    assert V["LMC4Rec"] < V["SSE"]


@pytest.mark.parametrize("how", ["metis", "random"])
def test_with_dropout_adjoints_scaled_to_the_loss_are_better_than_none(
    data_dir: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    V = errors_of_V(data_dir, "cora", how, 0.5, (LMC4Rec, GAS))
    with capsys.disabled():
        sys.stdout.write(f"\ncora, {how}, dropout 0.5: mean error of V {V}\n")
    assert V["LMC4Rec"] < V["GAS"]


@pytest.mark.parametrize("how", ["metis", "random"])
def test_warm_starts_cut_the_steps_threefold(data_dir: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    g = lmc.load(data_dir / "cora.npz")
    setup = RecurrentSetup(lr=RATES["cora"][how == "random"], warmup=50, repeat=4, counted=4)
    # counted on a CPU: a GPU reads its residual every few steps only, and takes up to that many steps too many
    (line,) = time_recurrent(g, {"lmc4rec": LMC4Rec(10, 2, partition=how)}, setup, torch.device("cpu"))
    with capsys.disabled():
        sys.stdout.write(f"\ncora, {how}: steps from zero {line.cold}, from the histories {line.warm}\n")
    assert line.fewer is not None
    assert line.fewer > 3
