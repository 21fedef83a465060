"""Rows and tables in bfloat16: gradients within the rounding of float32's, and everything that adds up in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch_geometric import nn as pyg

import lmc
from helpers import Gradients, parts_of, random_graph, scrambled, total_error
from lmc.diagnostics import divide, plan, staleness
from lmc.engine import Run
from lmc.errors import CheckpointError, ConfigError
from lmc.graph import CSR, Graph, spmm
from lmc.methods import CMC, GAS, DropEdge, FullBatch, GraphSAGE, GraphSAINT, HistoryMethod, LMC4Conv, Method
from lmc.models import APPNP, GAT, GCN, GCNII, GIN, PNA, SAGE, Model, RecGCN
from lmc.stores import Placement

U = 2.0**-8
"""Unit roundoff: a rounding to bfloat16 moves a number by at most this share of itself."""
ROUNDINGS = 8
"""In a layer: of P, of the weights, of P t and of the result, forward and backward."""

METHODS: dict[str, Method] = {
    "full": FullBatch(),
    "gas": GAS(clusters_per_batch=2),
    "lmc": LMC4Conv(clusters_per_batch=2),
    "cmc": CMC(clusters_per_batch=2),
    "cmc-adjoints": CMC(clusters_per_batch=2, adjoints=True),
    "dropedge": DropEdge(CMC(clusters_per_batch=2)),
}
MODELS: dict[str, Callable[[Graph], Model]] = {
    "gcn": lambda g: GCN(g.num_features, 16, g.num_classes, num_layers=3),
    "gcnii": lambda g: GCNII(g.num_features, 16, g.num_classes, num_layers=4),
}
MORE: dict[str, Callable[[Graph], Model]] = {
    "gcn-norms": lambda g: GCN(
        g.num_features, 16, g.num_classes, num_layers=3, norm="layer", residual=True, linear_in=True, linear_out=True
    ),
    "gcn-batch-norm": lambda g: GCN(g.num_features, 16, g.num_classes, num_layers=3, norm="batch"),
    "sage": lambda g: SAGE(g.num_features, 16, g.num_classes, num_layers=3),
    "gin": lambda g: GIN(g.num_features, 16, g.num_classes, num_layers=3, norm="layer"),
    "appnp": lambda g: APPNP(g.num_features, 16, g.num_classes, num_layers=4),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def bound(
    method: str, model: Callable[[Graph], Model], precision: str, graph: Graph | None = None, device: str = "cpu"
) -> Run:
    """A run with exact tables, every parameter off its initial value.

    Precisions beside the library's own: "float64", and "inputs": float64 with parameters and features that were rounded
    to bfloat16 once.
    """
    g = random_graph(200) if graph is None else graph
    parts = None if method == "full" else parts_of(g)
    module = scrambled(model(g)).float()
    if precision in ("float64", "inputs"):
        module.double()
    if precision == "inputs":
        if isinstance(g.x, Tensor):
            g = dataclasses.replace(g, x=g.x.bfloat16().double())
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(p.bfloat16())
    stored = "bfloat16" if precision == "bfloat16" else "float32"  # the parameters' own type
    run = METHODS[method].bind(g, module, parts, placement=Placement(device=device, precision=stored))
    run.refresh()
    return run


def gradients(run: Run) -> list[Gradients]:
    return [{k: v.cpu() for k, v in run.gradient(batch).items()} for batch in run.batches()]


def limit(run: Run) -> float:
    """All roundings on the way of a gradient, each at its worst, none against another."""
    return ROUNDINGS * run.problem.model.num_layers * U


def errors_of(got: Sequence[Gradients], want: Sequence[Gradients]) -> Tensor:
    """The relative error of every batch's gradient."""
    doubled = [{k: v.double() for k, v in grads.items()} for grads in got]
    return torch.tensor([total_error(a, b) for a, b in zip(doubled, want, strict=True)])


def assert_rounded(
    method: str, model: Callable[[Graph], Model], graph: Graph | None = None, device: str = "cpu"
) -> list[Gradients]:
    """The gradients in bfloat16 are off by its roundings, no more and no less; gives them.

    By how much one rounding changes a gradient depends on the model (a ReLU may switch), and is measured in float64 by
    rounding the parameters and the features alone. Steps in bfloat16 round ``ROUNDINGS`` times a layer,
    independently, so they are off by at most sqrt(ROUNDINGS) times as much.
    """
    runs = {kind: bound(method, model, kind, graph, device) for kind in ("bfloat16", "float32", "float64", "inputs")}
    grads = {kind: gradients(run) for kind, run in runs.items()}
    errors = errors_of(grads["bfloat16"], grads["float64"])
    assert float(errors.max()) < limit(runs["bfloat16"])
    assert float(errors.min()) > U / 16, "nothing was rounded"
    unit = errors_of(grads["inputs"], grads["float64"]).square().mean().sqrt()
    assert 0.25 < float(errors.square().mean().sqrt() / unit) < ROUNDINGS**0.5
    assert float(errors_of(grads["float32"], grads["float64"]).max()) < 1e-5
    return grads["bfloat16"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_float32_but_for_rounding(method: str, model: str, device: str) -> None:
    got = assert_rounded(method, MODELS[model], device=device)
    assert all(g.dtype == torch.float32 for g in got[0].values())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MORE)
@pytest.mark.parametrize("method", ["full", "lmc", "cmc"])
def test_other_models_too(method: str, model: str, device: str) -> None:
    assert_rounded(method, MORE[model], device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["gcn", "gcn-norms", "sage"])
def test_sparse_features_stay_float32(model: str, device: str) -> None:
    g = random_graph(200, sparse_features=True)
    make = (MODELS | MORE)[model]
    narrow = bound("lmc", make, "bfloat16", g, device)
    assert isinstance(narrow.problem.X, CSR)
    assert narrow.problem.X.dtype == torch.float32
    assert_rounded("lmc", make, g, device)


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_gpu_and_cpu_agree_but_for_rounding(method: str) -> None:
    cpu, cuda = (bound(method, MODELS["gcn"], "bfloat16", device=device) for device in ("cpu", "cuda"))
    if method != "dropedge":  # which edges are left out depends on the device
        exact = gradients(bound(method, MODELS["gcn"], "float64"))
        theirs, mine = (errors_of(gradients(run), exact).square().mean().sqrt() for run in (cuda, cpu))
        assert 0.5 < float(theirs / mine) < 2.0  # other orders of summation, the same roundings
        for a, b in zip(gradients(cuda), gradients(cpu), strict=True):
            assert total_error(a, b) < limit(cpu)
    for name, table in cpu.named_tables().items():
        mine, theirs = table.data().float(), cuda.named_tables()[name].data().cpu().float()
        assert float((theirs - mine).norm() / mine.norm()) < limit(cpu)


def steps(run: Run, epochs: int, lr: float = 0.01) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(run.problem.model.parameters(), lr=lr)
    for _ in range(epochs):
        for batch in run.batches():
            optimizer.zero_grad()
            run.accumulate(batch)
            optimizer.step()
    return optimizer


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["gas", "lmc", "cmc-adjoints"])
def test_parameters_and_sums_are_float32_rows_are_not(method: str, device: str) -> None:
    runs = {p: bound(method, MODELS["gcn"], p, device=device) for p in ("float32", "bfloat16")}
    run = runs["bfloat16"]
    optimizer = steps(run, 3)
    model = run.problem.model
    kept = [*model.parameters(), *(p.grad for p in model.parameters()), *run.numbers.values()]
    kept += [v for state in optimizer.state.values() for v in state.values()]
    assert {t.dtype for t in kept if t is not None} == {torch.float32}
    assert run.problem.P.dtype == torch.bfloat16
    assert isinstance(run.problem.X, Tensor)
    assert run.problem.X.dtype == torch.bfloat16
    for name, table in run.named_tables().items():
        full = runs["float32"].named_tables()[name].data()
        summed = name[0] in "MU"
        assert table.data().nbytes == (full.nbytes if summed else full.nbytes // 2), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_sums_of_cmc_stay_those_of_the_rows(dropout: float, device: str) -> None:
    """|M - P T| is that of float32's roundings, one an update and at most some hundred of them here."""
    run = bound("cmc-adjoints", lambda g: GCN(g.num_features, 16, g.num_classes, 3, dropout), "bfloat16", device=device)
    before = run.tables["T"][2].data().clone()
    steps(run, 100)
    assert float((run.tables["T"][2].data() - before).norm() / before.norm()) > 0.1
    P = run.problem.P.to(dtype=torch.float64)
    for sums, rows in (("M", "T"), ("U", "V")):
        for l, table in run.tables[sums].items():
            exact = spmm(P, run.tables[rows][l].data().double())
            assert float((table.data() - exact).norm() / exact.norm()) < 200 * 2.0**-24


def test_exact_tables_are_exact_but_for_rounding() -> None:
    """By batches or all rows at once: adjoints that several batches add up are rounded at the end."""
    run = bound("lmc", MODELS["gcn"], "bfloat16")
    found = staleness(run)
    assert max([*found.H.values(), *found.V.values()]) < U


def test_tables_of_another_precision_are_refused() -> None:
    narrow, single = (bound("gas", MODELS["gcn"], precision) for precision in ("bfloat16", "float32"))
    with pytest.raises(CheckpointError, match=r"float32 but the state holds torch\.bfloat16.*same precision"):
        single.load_state_dict(narrow.state_dict())


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("cls", [LMC4Conv, CMC])
def test_every_tier_trains_as_the_device_does(cls: type[HistoryMethod], tier: str) -> None:
    g, trained = random_graph(200), []
    for where in ("device", tier):
        model = GCN(g.num_features, 16, g.num_classes, num_layers=3, dropout=0.5)
        method = cls(clusters_per_batch=2)
        run = method.bind(
            g, model, parts_of(g), placement=Placement(history=where, features=where, precision="bfloat16")
        )
        run.refresh()
        steps(run, 3)
        trained.append([*model.parameters(), *(t.data() for t in run.named_tables().values())])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_a_plan_counts_the_bytes_of_every_table() -> None:
    g = lmc.load("tiny-like")
    model = GCN(g.num_features, 16, g.num_classes, num_layers=3)
    method = CMC(8, 2)
    division = divide(g, method)
    found, full = (plan(division, model, method, placement=Placement(precision=p)) for p in ("bfloat16", "float32"))
    run = method.bind(g, model, division.parts, placement=Placement(precision="bfloat16"))
    sizes, single = ({i.name: i.size for i in p.items} for p in (found, full))
    for l in (2, 3):
        assert sizes[f"history T[{l}]"] == run.tables["T"][l].data().nbytes == single[f"history T[{l}]"] // 2
        assert sizes[f"history M[{l}]"] == run.tables["M"][l].data().nbytes == single[f"history M[{l}]"]
    assert sizes["P X"] == single["P X"] // 2
    assert found.step < full.step


REFUSED: dict[str, tuple[Method, Callable[[Graph], Model], str]] = {
    "recurrent": (FullBatch(), lambda g: RecGCN(g.num_features, 8, g.num_classes), "tolerance"),
    "wrapped": (FullBatch(), lambda g: lmc.wrap(pyg.GCN(g.num_features, 8, 2, g.num_classes)), "PyG"),
    "attention": (FullBatch(), lambda g: GAT(g.num_features, 8, g.num_classes), "exponentials"),
    "deviations": (FullBatch(), lambda g: PNA(g.num_features, 8, g.num_classes), "differences"),
    "double": (FullBatch(), lambda g: GCN(g.num_features, 8, g.num_classes).double(), "model.float"),
    "sampled": (GraphSAGE(), lambda g: GCN(g.num_features, 8, g.num_classes), "CMC"),
    "sampled subgraphs": (GraphSAINT(), lambda g: GCN(g.num_features, 8, g.num_classes), "CMC"),
    "wrapped method": (DropEdge(GraphSAGE()), lambda g: GCN(g.num_features, 8, g.num_classes), "CMC"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_rounding_would_harm_is_refused_with_the_reason(what: str) -> None:
    method, make, reason = REFUSED[what]
    g = random_graph()
    with pytest.raises(ConfigError, match=rf"bfloat16.*{reason}"):
        method.bind(g, make(g), placement=Placement(precision="bfloat16"))


def test_an_unknown_precision_is_refused() -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match="float16"):
        GAS().bind(g, MODELS["gcn"](g), parts_of(g), placement=Placement(precision="float16"))
