"""Every method that trains recurrent models: the duties all methods share, and the dropout of recurrent models."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor

from helpers import RECURRENT, chance, parts_of, random_graph, sweep, worst_error
from lmc.engine import Run
from lmc.graph import Aggregation
from lmc.methods import ClusterMethod, HistoryMethod, LMC4Rec
from lmc.methods.protocol import Layout
from lmc.methods.recurrent import operator_of
from lmc.models import RecGCN
from lmc.solvers.loop import CUDA_CHECK_EVERY
from lmc.stores import Placement

CUDA = torch.cuda.is_available()

STORES = [
    (name, tier)
    for name, cls in RECURRENT.items()
    for tier in (("device", "host") if issubclass(cls, HistoryMethod) else ("device",))
]


def model_of(seed: int = 0, dropout: float = 0.3) -> RecGCN:
    return RecGCN(6, 7, 4, dropout=dropout, input_dropout=dropout, kappa=0.8, tol=1e-12, seed=seed).double()


def bound(
    name: str, model: RecGCN | None = None, device: str = "cpu", history: str = "device", **settings: object
) -> Run:
    g = random_graph()
    chosen = {"clusters_per_batch": 1} if issubclass(RECURRENT[name], ClusterMethod) else {}
    run = RECURRENT[name](**(chosen | settings)).bind(  # type: ignore[arg-type]
        g, model or model_of(), None if name == "full" else parts_of(g), Placement(device, history), seed=5
    )
    run.refresh()
    return run


def train_epochs(run: Run, epochs: int) -> list[dict[str, Tensor]]:
    """Mean gradients of some epochs of training."""
    model = run.problem.model
    optimiser, means = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(epochs):
        grads = sweep(run)
        means.append({k: v.cpu() for k, v in grads.items()})
        for k, p in model.named_parameters():
            p.grad = grads[k]
        optimiser.step()
        model.project()
    return means


@pytest.mark.parametrize("name", RECURRENT)
class TestDuties:
    def test_gradient_changes_nothing(self, name: str) -> None:
        run = bound(name)
        model = run.problem.model
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=chance(1), dtype=p.dtype)
        model.eval()

        def everything() -> dict[str, Tensor]:
            grads = {f"grad of {k}": p.grad for k, p in model.named_parameters()}
            return copy.deepcopy(run.state_dict() | model.state_dict() | grads)

        batch = next(iter(run.batches()))
        before = everything()
        first, second = run.gradient(batch), run.gradient(batch)
        after = everything()
        assert all(torch.equal(after[k], before[k]) for k in before)
        assert all(torch.equal(first[k], second[k]) for k in first)
        assert not model.training

    def test_accumulate_adds_the_gradient_where_nothing_is_dropped(self, name: str) -> None:
        run = bound(name, model_of(dropout=0.0))
        batch = next(iter(run.batches()))
        want = run.gradient(batch)
        base = {k: torch.randn(p.shape, generator=chance(1), dtype=p.dtype) for k, p in run.parameters.items()}
        for k, p in run.parameters.items():
            p.grad = base[k].clone()
        run.accumulate(batch)
        assert worst_error({k: p.grad - base[k] for k, p in run.parameters.items()}, want) < 1e-12

    def test_the_same_seed_gives_the_same_run(self, name: str) -> None:
        before = torch.get_rng_state()
        a, b = (train_epochs(bound(name), 2) for _ in range(2))
        assert all(torch.equal(x[k], y[k]) for x, y in zip(a, b, strict=True) for k in x)
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_run_taken_up_goes_on_bit_for_bit(self, name: str) -> None:
        first = bound(name)
        train_epochs(first, 2)
        state, weights = copy.deepcopy(first.state_dict()), copy.deepcopy(first.problem.model.state_dict())
        want = sweep(first)
        second = bound(name, model_of(seed=8))
        second.problem.model.load_state_dict(weights)
        second.load_state_dict(state)
        got = sweep(second)
        assert all(torch.equal(got[k], want[k]) for k in want)

    def test_a_batch_is_one_solve_each_way(self, name: str) -> None:
        run = bound(name)
        sweep(run)
        solved = run.solves()
        if name == "sse":
            assert solved is None
        else:
            assert solved is not None
            assert solved["unconverged"] == 0
            assert solved["forward_steps"] >= 1


@pytest.mark.parametrize("name", [name for name, tier in STORES if tier == "host"])
def test_both_tiers_give_the_same_run(name: str) -> None:
    a, b = (train_epochs(bound(name, history=tier), 3) for tier in ("device", "host"))
    assert all(torch.equal(x[k], y[k]) for x, y in zip(a, b, strict=True) for k in x)


def test_steps_with_dropout_leave_the_histories_alone() -> None:
    kept, left = 0, 0
    updated: dict[int, set[bool]] = {}
    run = bound("lmc4rec", q=0.5)
    for _ in range(12):
        for batch in run.batches():
            before = run.H[1].data().clone(), run.V[1].data().clone()
            clean = run.gradient(batch)
            run.problem.model.zero_grad()
            run.accumulate(batch)
            got = {k: p.grad for k, p in run.parameters.items()}
            same = worst_error(got, clean) < 1e-12  # nothing was dropped out
            untouched = torch.equal(run.H[1].data(), before[0]) and torch.equal(run.V[1].data(), before[1])
            # at fixed parameters a history that is exact may be rewritten with what it holds: look at the chance too
            assert same or untouched
            kept, left = kept + same, left + (not same)
            updated.setdefault(batch.slot, set()).add(same)
            with torch.no_grad():
                run.problem.model.lin_in.bias.add_(0.01)  # type: ignore[union-attr, operator]
    assert 12 <= kept <= 36  # of 48, a half
    assert kept + left == 48
    assert list(updated.values()) == [{False, True}] * 4  # no batch is always left out


def test_q_of_one_never_drops_out() -> None:
    run = bound("lmc4rec", q=1.0)
    for batch in run.batches():
        clean = run.gradient(batch)
        run.problem.model.zero_grad()
        run.accumulate(batch)
        assert worst_error({k: p.grad for k, p in run.parameters.items()}, clean) < 1e-12


def test_warm_starts_save_steps() -> None:
    run = bound("lmc4rec", RecGCN(6, 7, 4, kappa=0.95, tol=1e-4))
    with torch.no_grad():
        run.problem.model.W.fill_(1.0)  # type: ignore[operator]
    run.problem.model.project()
    for table in run.named_tables().values():
        table.data().zero_()
    sweep(run)
    cold = run.solves()
    for _ in range(15):
        sweep(run)
    run.solves()
    with torch.no_grad():
        for p in run.problem.model.parameters():
            p.mul_(1.001)
    run.problem.model.project()
    sweep(run)
    warm = run.solves()
    assert cold is not None
    assert warm is not None
    assert warm["forward_steps"] + warm["backward_steps"] < (cold["forward_steps"] + cold["backward_steps"]) / 3


def test_one_step_updates_are_an_option() -> None:
    a, b = (train_epochs(bound("lmc4rec", model_of(dropout=0.0), update=u), 2) for u in ("solution", "step"))
    assert worst_error(a[0], b[0]) < 1e-9  # exact histories at first: the two agree
    assert worst_error(a[1], b[1]) > 1e-6
    assert LMC4Rec().update == "solution"


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no GPU here")
@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize(("name", "tier"), [(name, tier) for name, tier in STORES if name != "graphsaint"])
def test_gpu_gives_the_gradients_of_the_cpu(name: str, tier: str, redraw: bool) -> None:
    settings: dict[str, object] = {"redraw": redraw} if name != "full" else {}
    a, b = (train_epochs(bound(name, model_of(dropout=0.0), device, tier, **settings), 4) for device in ("cpu", "cuda"))
    assert max(worst_error(x, y) for x, y in zip(a, b, strict=True)) < 1e-8


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no GPU here")])]
)
def test_a_sampled_subgraph_gives_its_gradient_on_every_device(device: str) -> None:
    # GraphSAINT draws on the device, each with a stream of its own: subgraphs drawn there are carried here
    there, here = (bound("graphsaint", model_of(dropout=0.0), where) for where in (device, "cpu"))
    for batch in there.batches():
        core, P = batch.core.cpu(), operator_of(batch).forward.to("cpu")
        assert batch.importance is not None
        layout = Layout(core[:0], (Aggregation.exact(P),), None)
        carried = here.source.assemble(core, layout, batch.weight, batch.slot, batch.importance.cpu())
        got = {k: v.cpu() for k, v in there.gradient(batch).items()}
        assert worst_error(got, here.gradient(carried)) < 1e-8


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no GPU here")
@pytest.mark.parametrize("name", ["gas", "lmc4rec", "cmc4rec", "full"])
def test_a_step_waits_for_the_gpu_at_readings_of_the_residual_alone(name: str) -> None:
    run = bound(name, RecGCN(6, 7, 4, kappa=0.95, tol=1e-5), device="cuda")
    optimiser = torch.optim.Adam(run.problem.model.parameters(), lr=0.01, capturable=True)
    for epoch in range(4):
        for batch in run.batches():
            run.solves()
            with warnings.catch_warnings(record=True) as waits:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                run.accumulate(batch)
                optimiser.step()
                run.problem.model.project()
                torch.cuda.set_sync_debug_mode("default")
            solved = run.solves()
            assert solved is not None
            steps = [solved["forward_steps"], solved["backward_steps"]]
            readings = sum(1 + int(s) // CUDA_CHECK_EVERY for s in steps)
            if epoch > 0:  # a batch's first step prepares its matrices
                assert len([w for w in waits if "synchroniz" in str(w.message)]) <= readings


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no GPU here")
def test_dropout_trains_on_the_gpu() -> None:
    grads = train_epochs(bound("lmc4rec", device="cuda"), 3)
    assert all(bool(v.isfinite().all()) and bool(v.any()) for v in grads[-1].values())
