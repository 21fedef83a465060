"""Every method x every model: the facts it declares, and the duties all methods share.

A new method joins by entering ``lmc.methods.METHODS``; a new fact needs a check here, or the suite fails.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers import (
    CONVOLUTIONAL as METHODS,
)
from helpers import (
    DIVIDED,
    GRAPHS,
    MODELS,
    PARTS,
    SPECIAL_GRAPHS,
    accepts,
    chance,
    full_gradient,
    make,
    model_for,
    parts_of,
    random_graph,
    scrambled,
    sweep,
    worst_error,
)
from lmc.engine import Run
from lmc.graph import Graph
from lmc.losses import Loss
from lmc.methods import HistoryMethod, Method
from lmc.models import GCN, SIGN, Model
from lmc.stores import Placement


def settings(name: str, **wanted: object) -> Method:
    """The method with those of the wanted settings that it has.

    alpha = 0 trusts histories alone: it is the setting that "exact with exact histories" is claimed for.
    """
    known = {f.name for f in dataclasses.fields(METHODS[name])}
    chosen = {"alpha": 0.0, "clusters_per_batch": 1} | wanted
    return METHODS[name](**{k: v for k, v in chosen.items() if k in known})


def parts_for(g: Graph) -> Tensor:
    return PARTS if g.num_nodes == 8 else parts_of(g)


def check_one_part(name: str, g: Graph, model: Model, loss: Loss | None = None) -> None:
    run = settings(name).bind(g, model, torch.zeros(g.num_nodes, dtype=torch.int64), loss=loss)
    (batch,) = run.batches()
    want = full_gradient(g, model, loss)
    assert worst_error(run.gradient(batch), want) < 1e-12
    assert worst_error(sweep(run), want) < 1e-12


def check_exact_histories(name: str, g: Graph, model: Model, loss: Loss | None = None) -> None:
    for redraw in (False, True):
        run = settings(name, redraw=redraw).bind(g, model, parts_for(g), loss=loss)
        run.refresh()
        assert worst_error(sweep(run), full_gradient(g, model, loss)) < 1e-10


def check_unbiased(name: str, g: Graph, model: Model, loss: Loss | None = None) -> None:
    # every part is in exactly one batch of an epoch, so the mean over an epoch is the mean over the draw
    for redraw in (False, True):
        run = settings(name, redraw=redraw, batch_size=3).bind(g, model, parts_for(g), loss=loss)
        assert worst_error(sweep(run), full_gradient(g, model, loss)) < 1e-10


ALL = 10**6
EVERYTHING: dict[str, object] = {"fanouts": ALL, "layer_size": ALL}
"""Samples as large as what they are drawn from."""


def check_all_neighbours(name: str, g: Graph, model: Model, loss: Loss | None = None) -> None:
    # ShaDow reads as far as the model does, with the graph's own normalisation
    own = {"depth": model.num_layers, "normalise": "graph"} if name == "shadow" else {}
    for first_layer in ("complete", "sampled"):
        run = settings(name, first_layer=first_layer, batch_size=3, **EVERYTHING, **own).bind(
            g, model, parts_for(g), loss=loss
        )
        run.refresh()
        assert worst_error(sweep(run), full_gradient(g, model, loss)) < 1e-10


CHECKS: dict[str, Callable[[str, Graph, Model, Loss | None], None]] = {
    "exact on one part": check_one_part,
    "exact with exact histories": check_exact_histories,
    "unbiased": check_unbiased,
    "exact with all neighbours": check_all_neighbours,
}
IN_THE_MEAN = {"unbiased aggregation", "unbiased with exact histories"}
"""Facts about many draws: test_unbiased.py checks them."""
CLAIMS = [(name, fact) for name, cls in METHODS.items() for fact in sorted(cls.traits.facts - IN_THE_MEAN)]


@pytest.mark.parametrize("name", METHODS)
def test_every_declared_fact_is_known_here(name: str) -> None:
    unknown = METHODS[name].traits.facts - CHECKS.keys() - IN_THE_MEAN
    assert not unknown, f"no check for {sorted(unknown)}: write one into CHECKS"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_a_fact(name: str) -> None:
    assert METHODS[name].traits.facts


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    ("name", "fact", "model"),
    [(name, fact, model) for name, fact in CLAIMS for model in MODELS if accepts(name, model)],
)
def test_declared_fact(name: str, fact: str, model: str, graph: str) -> None:
    g = GRAPHS[graph]()
    if fact not in CHECKS:
        pytest.fail(f"{name} declares {fact!r}, which this suite cannot check")
    CHECKS[fact](name, g, make(model, g), None)


@pytest.mark.parametrize(("graph", "model"), [("weighted", "gcn"), ("directed", "sage"), ("directed-weighted", "gcn")])
@pytest.mark.parametrize(("name", "fact"), CLAIMS)
def test_declared_fact_with_edge_weights_and_directions(name: str, fact: str, model: str, graph: str) -> None:
    g = SPECIAL_GRAPHS[graph]()
    CHECKS[fact](name, g, make("sign" if name == "sign" else model, g))


def rich_model(seed: int = 0, method: str = "") -> Model:
    """Batch norm, dropout on the features too, residual: everything with a state of its own."""
    if method == "sign":
        return SIGN(6, 7, 4, num_layers=3, dropout=0.5, norm="batch", input_dropout=0.2, seed=seed)
    return GCN(6, 7, 4, num_layers=3, dropout=0.5, norm="batch", input_dropout=0.2, residual=True, seed=seed)


@pytest.mark.parametrize("name", DIVIDED)
def test_one_part_with_batch_norm_is_the_full_gradient(name: str) -> None:
    g = random_graph()
    check_one_part(name, g, scrambled(GCN(6, 7, 4, num_layers=3, norm="batch")))


@pytest.mark.parametrize("name", METHODS)
class TestDuties:
    def bound(self, name: str, model: Model | None = None) -> Run:
        g = random_graph()
        model = model or scrambled(rich_model(method=name))
        run = settings(name, alpha=0.4, batch_size=9, fanouts=2, layer_size=6).bind(g, model, parts_of(g), seed=5)
        run.refresh()
        return run

    def test_gradient_changes_nothing(self, name: str) -> None:
        run = self.bound(name)
        model = run.problem.model
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=chance(1), dtype=p.dtype)

        def everything() -> dict[str, Tensor]:
            grads = {f"grad of {k}": p.grad for k, p in model.named_parameters()}
            return copy.deepcopy(run.state_dict() | model.state_dict() | grads)

        batch = next(iter(run.batches()))
        before = everything()
        first, second = run.gradient(batch), run.gradient(batch)
        after = everything()
        assert all(torch.equal(after[k], before[k]) for k in before)
        assert all(torch.equal(first[k], second[k]) for k in first)

    @pytest.mark.parametrize("training", [True, False])
    def test_gradient_leaves_the_mode_alone(self, name: str, training: bool) -> None:
        run = self.bound(name)
        run.problem.model.train(training)
        run.gradient(next(iter(run.batches())))
        assert run.problem.model.training is training

    def test_accumulate_adds(self, name: str) -> None:
        once, twice = (self.bound(name) for _ in range(2))
        batch = next(iter(once.batches()))
        once.accumulate(batch)
        base = {k: torch.randn(p.shape, generator=chance(1), dtype=p.dtype) for k, p in twice.parameters.items()}
        for k, p in twice.parameters.items():
            p.grad = base[k].clone()
        twice.accumulate(next(iter(twice.batches())))
        for k, p in twice.parameters.items():
            torch.testing.assert_close(p.grad, base[k] + once.parameters[k].grad, rtol=1e-13, atol=1e-13)

    def test_accumulate_is_the_gradient_where_nothing_is_dropped(self, name: str) -> None:
        g = random_graph()
        run = self.bound(name, make(model_for(name, "gcn-layer-norm"), g))
        batch = next(iter(run.batches()))
        want = run.gradient(batch)
        run.accumulate(batch)
        assert worst_error({k: p.grad for k, p in run.parameters.items()}, want) < 1e-14

    def test_the_same_seed_gives_the_same_run(self, name: str) -> None:
        a, b = (sweep(self.bound(name)) for _ in range(2))
        assert all(torch.equal(a[k], b[k]) for k in a)

    def test_no_global_generator_is_touched(self, name: str) -> None:
        model = scrambled(rich_model(method=name))
        before = torch.get_rng_state()
        sweep(self.bound(name, model))
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_run_taken_up_goes_on_bit_for_bit(self, name: str) -> None:
        first = self.bound(name)
        sweep(first)
        state, weights = copy.deepcopy(first.state_dict()), copy.deepcopy(first.problem.model.state_dict())
        want = sweep(first)
        second = self.bound(name, rich_model(8, name).double())
        second.problem.model.load_state_dict(weights)
        second.load_state_dict(state)
        got = sweep(second)
        assert all(torch.equal(got[k], want[k]) for k in want)

    def test_binding_leaves_the_graph_alone(self, name: str) -> None:
        g = random_graph()
        before = copy.deepcopy({k: getattr(g, k) for k in ("x", "y", "train")} | {"indices": g.adj.indices})
        sweep(settings(name).bind(g, make(model_for(name), g), parts_of(g)))
        after = {k: getattr(g, k) for k in ("x", "y", "train")} | {"indices": g.adj.indices}
        assert all(torch.equal(after[k], before[k]) for k in before)


STORES = [
    (name, tier)
    for name, cls in METHODS.items()
    for tier in (
        ("device", "host") if issubclass(cls, HistoryMethod) or name in ("vrgcn", "fm-ib", "sign") else ("device",)
    )
]
COMPARED = [(name, tier) for name, tier in STORES if name != "graphsaint"]
"""Methods that can be made to draw the same on every device."""


def visits(run: Run, model: Model) -> list[dict[str, Tensor]]:
    """Mean gradients of five epochs of training. The first epoch sees each batch for the first time, later ones may
    replay what was recorded; a refresh in the middle must reach the replayed steps too."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    for epoch in range(5):
        if epoch in (0, 3):
            run.refresh()
        grads = sweep(run)
        means.append({k: v.cpu() for k, v in grads.items()})
        for k, p in model.named_parameters():
            p.grad = grads[k]
        optimiser.step()
    return means


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(("redraw", "sparse_features"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("model", ["gcn", "gcn-linear-in-out", "gcnii", "gcnii-two-matrices", "gcn-batch-norm"])
@pytest.mark.parametrize(("name", "tier"), COMPARED)
def test_gpu_gives_the_gradients_of_the_cpu(
    name: str, tier: str, model: str, redraw: bool, sparse_features: bool
) -> None:
    g = random_graph(sparse_features=sparse_features)
    # a GPU draws other samples than a CPU: what is compared is the computation
    method = settings(name, alpha=0.4, redraw=redraw, batch_size=9, **EVERYTHING)
    means = {}
    for device in ("cpu", "cuda"):
        module = (
            scrambled(GCN(6, 7, 4, num_layers=3, norm="batch"))
            if model == "gcn-batch-norm" and name != "sign"
            else make(model_for(name, model), g)
        )
        means[device] = visits(method.bind(g, module, parts_of(g), Placement(device, tier)), module)
    errors = [worst_error(a, b) for a, b in zip(means["cuda"], means["cpu"], strict=True)]
    assert max(errors) < 1e-9, errors


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(("name", "tier"), STORES)
def test_a_run_taken_up_on_the_gpu_goes_on_alike(name: str, tier: str) -> None:
    # the state is loaded into a run that has recorded its steps already
    g = random_graph()
    runs = []
    for seed in (0, 8):
        method = settings(name, alpha=0.4)
        run = method.bind(g, rich_model(seed, name).double(), parts_of(g), Placement("cuda", tier), seed=5)
        run.refresh()
        for _ in range(3):
            sweep(run)
        runs.append(run)
    first, second = runs
    state, weights = copy.deepcopy(first.state_dict()), copy.deepcopy(first.problem.model.state_dict())
    want = [sweep(first) for _ in range(2)]
    second.problem.model.load_state_dict(weights)
    second.load_state_dict(state)
    got = [sweep(second) for _ in range(2)]
    # sums on a GPU may come in another order; dropout masks and histories that differ would show in the first digits
    assert max(worst_error(a, b) for a, b in zip(got, want, strict=True)) < 1e-9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("tier", ["device", "host"])
def test_dropout_and_batch_norm_train_on_the_gpu(tier: str) -> None:
    g = random_graph()
    run = settings("lmc", alpha=0.4).bind(g, rich_model(), parts_of(g), Placement("cuda", tier))
    run.refresh()
    grads = sweep(run)
    assert all(v.is_cuda and bool(v.isfinite().all()) and bool(v.any()) for v in grads.values())
