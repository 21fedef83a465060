"""Wrapped networks under ``torch.autocast``, and networks with bfloat16 parameters."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch_geometric.nn import models

import lmc
from helpers import Gradients, full_loss, parts_of, random_graph, total_error
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.methods import CMC, GAS, IMC, TOP, FullBatch, LMC4Conv, Method
from lmc.models import APPNP, GAT, GCN, GCNII, GIN, PNA, SAGE, SIGN, Model, RecGCN
from lmc.pyg import wrap
from lmc.stores import Placement

G = random_graph()
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: models.GCN(6, 16, 3, 4, norm="LayerNorm", norm_kwargs={"mode": "node"}),
    "sage": lambda: models.GraphSAGE(6, 16, 2, 4, jk="cat"),
    "gat": lambda: models.GAT(6, 16, 2, 4, heads=2),
    "maximum": lambda: models.GraphSAGE(6, 16, 2, 4, aggr="max"),
}


def network(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NETWORKS[name]()


def swept(run: Run) -> Gradients:
    """The gradients that an epoch of steps accumulates."""
    for p in run.parameters.values():
        p.grad = None
    for batch in run.batches():
        run.accumulate(batch)
    return {name: p.grad.float() for name, p in run.parameters.items() if p.grad is not None}


@pytest.mark.parametrize("method", [LMC4Conv(clusters_per_batch=1), GAS(clusters_per_batch=1)], ids=["lmc", "gas"])
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_under_autocast_keep_float32_states(name: str, method: Method) -> None:
    run = method.bind(G, wrap(network(name)), parts_of(G), device="cpu")
    run.refresh()
    tables = {k: v.clone() for k, v in run.state_dict().items()}
    want = swept(run)
    run.load_state_dict(tables)
    with torch.autocast("cpu", torch.bfloat16):
        got = swept(run)
    error = total_error(got, want)
    assert 1e-4 < error < 0.05  # bfloat16 products were used, and the estimate is the same
    assert all(t.data().dtype == torch.float32 for t in run.named_tables().values())
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in run.parameters.values())


def test_full_batch_under_autocast_is_plain_autograd_under_autocast() -> None:
    net = network("sage")
    plain = copy.deepcopy(net)
    x, edges = G.x.float(), torch.stack([G.adj.indices.long(), G.adj.row_index()])  # type: ignore[union-attr]
    with torch.autocast("cpu", torch.bfloat16):
        full_loss(G, plain, plain(x, edges).float()).backward()  # type: ignore[arg-type]
        got = swept(FullBatch().bind(G, wrap(net), device="cpu"))
    want = {f"network.{k}": p.grad for k, p in plain.named_parameters() if p.grad is not None}
    assert total_error(got, want) < 0.01


@pytest.mark.parametrize(
    "method",
    [CMC(clusters_per_batch=1), IMC(clusters_per_batch=1, halo=0.0), IMC(clusters_per_batch=1, halo=1.0)],
    ids=["cmc", "imc", "imc-halo"],
)
def test_native_models_train_under_autocast(method: Method) -> None:
    run = method.bind(G, GCN(6, 16, 4, num_layers=3), parts_of(G), device="cpu")
    run.refresh()
    tables = {k: v.clone() for k, v in run.state_dict().items()}
    want = swept(run)
    run.load_state_dict(tables)
    with torch.autocast("cpu", torch.bfloat16):
        assert 1e-4 < total_error(swept(run), want) < 0.03


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_bfloat16_parameters_train(name: str) -> None:
    net = network(name)
    want = swept(FullBatch().bind(G, wrap(net), device="cpu"))
    run = LMC4Conv(num_parts=1).bind(G, wrap(copy.deepcopy(net).bfloat16()), device="cpu")
    run.refresh()
    assert total_error(swept(run), want) < 0.1
    assert {p.dtype for p in run.parameters.values()} == {torch.bfloat16}


def test_weights_of_a_bfloat16_network_are_computed_in_float32_and_rounded_once() -> None:
    """In bfloat16, degrees, their roots and products of these would be rounded, and a GPU does not count to 300."""
    net = network("gcn")
    (want,), _ = wrap(net).matrices(G.adj, torch.float32)
    (got,), _ = wrap(net.bfloat16()).matrices(G.adj, torch.bfloat16)
    assert torch.equal(got.data, want.data.bfloat16())


@pytest.mark.parametrize("method", [CMC(clusters_per_batch=1), IMC(clusters_per_batch=1), TOP(clusters_per_batch=1)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_methods_that_keep_sums_refuse_bfloat16_parameters(method: Method, wrapped: bool) -> None:
    model = wrap(network("gcn").bfloat16()) if wrapped else GCN(6, 16, 4, num_layers=2).bfloat16()
    with pytest.raises(ConfigError, match=r"expected float32 or float64 parameters .* torch\.autocast"):
        method.bind(G, model, parts_of(G), device="cpu")


def test_float16_parameters_are_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match=r"torch\.float16.* model\.float\(\)"):
        FullBatch().bind(G, GCN(6, 16, 4, num_layers=2).half(), device="cpu")


@pytest.mark.parametrize("cls", [GCN, SAGE, GIN, GAT, PNA, SIGN, APPNP, GCNII])
def test_native_models_run_under_autocast(cls: type[Model]) -> None:
    model = cls(6, 16, 4, num_layers=2)
    run = FullBatch().bind(G, model, device="cpu")
    batch = next(run.batches())
    exact = run.gradient(batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert total_error(run.gradient(batch), exact) < 0.1
        assert bool(lmc.predict(model, G).isfinite().all())


def test_recurrent_models_refuse_autocast() -> None:
    model = RecGCN(6, 16, 4)
    run = FullBatch().bind(G, model, device="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        for call in (run.refresh, lambda: run.accumulate(next(run.batches())), lambda: lmc.predict(model, G)):
            with pytest.raises(ConfigError, match="leave the context"):
                call()


def test_bfloat16_rows_are_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"use torch\.autocast around run\.accumulate"):
        FullBatch().bind(G, wrap(network("gcn")), placement=Placement(device="cpu", precision="bfloat16"))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, method) for name in (None, *NETWORKS) for method in (FullBatch(), GAS(clusters_per_batch=1))),
        *((name, IMC(clusters_per_batch=1, sweep_every=0)) for name in (None, "gcn", "sage")),
    ],
)
def test_one_context_around_a_training_is_one_around_every_step(name: str | None, method: Method) -> None:
    """autocast keeps narrowed weights until its context ends; steps and evaluations after an update read new ones."""
    found = []
    for around_all in (True, False):
        model = GCN(6, 16, 4, num_layers=2, seed=0) if name is None else wrap(network(name))
        parts = None if isinstance(method, FullBatch) else parts_of(G)
        run = method.bind(G, model, parts, device="cpu")
        run.refresh()
        optimizer, states = torch.optim.SGD(model.parameters(), lr=0.5), []

        def context(enabled: bool) -> contextlib.AbstractContextManager[object]:  # autocast within autocast keeps all
            return torch.autocast("cpu", torch.bfloat16) if enabled else contextlib.nullcontext()

        with context(around_all):
            for _ in range(3):
                for batch in run.batches():
                    with context(not around_all):
                        run.step(batch, optimizer)
                with context(not around_all):
                    states.append(lmc.predict(model, G, output="logits"))
        found.append((torch.stack(states), [p.detach().clone() for p in model.parameters()]))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))
