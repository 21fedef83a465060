"""``check_model``: which properties a model has, measured in float64 on a small graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmc.engine import Problem, Run, check_fit
from lmc.engine.exact import exact_logits, exact_states
from lmc.errors import ConfigError, LmcError
from lmc.graph import CSR, Aggregation, Graph
from lmc.losses import DEFAULT, Loss
from lmc.methods import CMC, BackwardSGD, FullBatch, LMC4Conv, Method
from lmc.methods.protocol import with_histories
from lmc.models import Model, Pass
from lmc.pyg import wrap
from lmc.pyg.core_rows_mode import CoreRowsMode
from lmc.stores import Placement

__all__ = ["Check", "ModelReport", "check_model"]

TOLERANCE = 1e-8
NUM_NODES, NUM_PARTS = 60, 4


@dataclass(frozen=True)
class Check:
    """One property. ``holds`` is None if it does not apply; ``error`` is a relative error, if one was measured."""

    name: str
    holds: bool | None
    error: float | None = None
    note: str = ""


@dataclass(frozen=True)
class ModelReport:
    """The result of :func:`check_model`; prints as a table, and ``report["name"]`` is one of its checks."""

    model: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every required property holds, so that every method may be used."""
        return all(check.holds is not False for check in self.checks if check.name in REQUIRED)

    def __getitem__(self, name: str) -> Check:
        return {check.name: check for check in self.checks}[name]

    def __str__(self) -> str:
        words = {True: "yes", False: "NO", None: "-"}
        rows = [("", "holds", "error", "")] + [
            (c.name, words[c.holds], "" if c.error is None else f"{c.error:.1e}", c.note) for c in self.checks
        ]
        widths = [*(max(len(row[k]) for row in rows) for k in range(3)), 0]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        found = "all required properties hold" if self.ok else "a required property does NOT hold"
        return "\n".join([f"{self.model}: {found}", *lines])


CUT, FORWARD, CHUNKS = "divided into layers", "forward pass", "computed in chunks"
ONE_PART, CORE, EXACT = "exact on one part", "gradient from core rows", "exact with exact histories"
LINEAR, FIRST, USED, GENERATOR = "CMC applies", "P X computed once", "parameters used", "generator of the run"
REQUIRED = (CUT, FORWARD, CHUNKS, ONE_PART, CORE, GENERATOR)


def check_model(model: nn.Module, graph: Graph | None = None, loss: Loss | None = None) -> ModelReport:
    """Measure which properties ``model`` has; a float64 copy is measured, and the model itself is not changed.

    These are checked: the network can be divided into layers; the forward pass gives one row of logits per node; rows
    computed in chunks equal those computed at once; one part gives the full gradient; over several parts, gradients
    from core rows add up to the full gradient (backward SGD); so do those of LMC4Conv with exact histories; whether the
    aggregation is linear (CMC); whether the first aggregation is computed once; whether every parameter is used;
    whether a step leaves torch's global generator unchanged.

    Args:
        model: a native model, a model of your own, or a network that :func:`lmc.wrap` accepts.
        graph: where to measure; by default a connected graph of 60 nodes that fits the model. It should be small,
            because the full gradient is computed several times.
        loss: a loss of your own, as for :meth:`lmc.methods.Method.bind`.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"expected a torch.nn.Module (got {type(model).__name__})")
    name = type(model).__name__
    try:
        mine = copy.deepcopy(wrap(model)).double().cpu()
    except LmcError as reason:
        return ModelReport(name, (Check(CUT, False, note=str(reason)),))
    if graph is None:
        graph = _graph(mine)
    check_fit(graph, mine)
    return ModelReport(name, (Check(CUT, True, note=f"{mine.num_layers} aggregations"), *_checks(mine, graph, loss)))


def _checks(model: Model, g: Graph, loss: Loss | None) -> Iterator[Check]:
    statistics = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    try:
        want, logits = _plain(model, g, loss)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        yield Check(FORWARD, False, note=f"{type(error).__name__}: {error}")
        return
    fits = logits.shape == (g.num_nodes, g.num_classes)
    yield Check(FORWARD, fits, note="" if fits else f"gives {list(logits.shape)}")
    if not fits:
        return
    yield _tried(CHUNKS, lambda: _in_chunks(model, g, logits), "a row depends on other rows outside an aggregation")
    yield _tried(ONE_PART, lambda: _error(_swept(LMC4Conv(), g, model, 1, loss), want), "")
    hint = "a parameter takes gradient from halo rows: build row-wise maps from lmc.models, or use torch's functions"
    yield _tried(CORE, lambda: _error(_swept(BackwardSGD(clusters_per_batch=1), g, model, NUM_PARTS, loss), want), hint)
    yield _exact(model, g, loss, want, statistics)
    if model.linear:
        yield Check(LINEAR, True, note="the aggregation is linear")
        if not statistics:
            method = CMC(clusters_per_batch=1, adjoints=True)
            hint = "its tables hold h^{l-1}: aggregate that, and apply weights to the sum"
            yield _tried(
                "CMC exact with exact tables", lambda: _error(_swept(method, g, model, NUM_PARTS, loss), want), hint
            )
    else:
        hint = f"an aggregation depends on the rows (attention, max, ...): use {with_histories(model)}"
        yield Check(LINEAR, None, note=hint)
    first = "" if model.constant_input else "the features are transformed or dropped out before the first aggregation"
    yield Check(FIRST, model.constant_input or None, note=first)
    unused = [k for k, v in want.items() if not bool(v.any())]
    yield Check(USED, not unused, note=f"no gradient for {', '.join(unused)}" if unused else "")
    own = _keeps_generator(model, g)
    yield Check(GENERATOR, own, note="" if own else "use dropout of lmc.models, F.dropout or nn.Dropout")


def _exact(model: Model, g: Graph, loss: Loss | None, want: dict[str, Tensor], statistics: bool) -> Check:
    if statistics:
        return Check(EXACT, None, note="batch statistics differ from batch to batch")
    method = LMC4Conv(clusters_per_batch=1, alpha=0.0)
    if not model.exact:
        error = _error(_swept(method, g, model, NUM_PARTS, loss), want)
        return Check(EXACT, None, error, "the Jacobian of an incomplete aggregate is not that of the whole one")
    return _tried(EXACT, lambda: _error(_swept(method, g, model, NUM_PARTS, loss), want), "what follows an aggregation "
                  "inside a layer is not affine: set Layer.affine to False, or move it into activate")  # fmt: skip


def _tried(name: str, measure: Callable[[], float], hint: str) -> Check:
    try:
        error = measure()
    except (LmcError, RuntimeError, TypeError, ValueError, AttributeError, IndexError, AssertionError) as reason:
        return Check(name, False, note=f"{type(reason).__name__}: {reason}")
    holds = error < TOLERANCE
    return Check(name, holds, error, "" if holds else hint)


def _graph(model: Model) -> Graph:
    """A ring with random chords, with the weights and features of edges that a wrapped network reads."""
    g, n = torch.Generator().manual_seed(0), NUM_NODES
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    order = torch.randperm(n, generator=g)
    edges = torch.cat([ring, torch.randint(n, (2, 2 * n), generator=g)], 1)
    x = torch.randn(n, model.in_width, generator=g, dtype=torch.float64)
    y = torch.randint(model.out_width, (n,), generator=g)
    splits: dict[str, Any] = {"train": order[: n // 2], "val": order[n // 2 : -5], "test": order[-5:]}
    if model.owns_forward:
        attr = None if model.edge_dim is None else torch.randn(3 * n, model.edge_dim, generator=g, dtype=torch.float64)
        weight = torch.rand(3 * n, generator=g, dtype=torch.float64) if model.reads_edge_weight else None
        splits |= {"edge_attr": attr, "edge_weight": weight}
    classes = model.out_width
    return Graph.from_edges(edges, x, y, **splits, num_classes=classes, name="check_model", symmetrise=True)


def _plain(model: Model, g: Graph, loss: Loss | None) -> tuple[dict[str, Tensor], Tensor]:
    """The full gradient by plain autograd through the plain forward pass, and its logits in evaluation mode."""
    model = copy.deepcopy(model)
    if model.owns_forward:  # a wrapped network is compared with PyG's own pass, without dropout
        x = g.x.to_dense() if isinstance(g.x, CSR) else g.x
        edges = torch.stack([g.adj.indices.long(), g.adj.row_index()])

        def forward() -> Tensor:
            with CoreRowsMode([], g.num_nodes, Pass(dropout=False)):
                return model(x.double(), edges, edge_weight=g.edge_weight, edge_attr=g.edge_attr)
    else:
        matrices, index = model.matrices(g.adj, torch.float64)
        operators = [Aggregation.exact(matrices[number]) for number in index]

        def forward() -> Tensor:
            return model(g.x.to(dtype=torch.float64), operators, Pass(dropout=False))

    model.eval()
    with torch.no_grad():
        logits = forward()
    if logits.shape != (g.num_nodes, g.num_classes):
        return {}, logits
    model.train()
    out = forward()[g.train]
    y = g.y[g.train]
    losses = (loss or DEFAULT[g.task]())(out, y.to(out.dtype) if y.is_floating_point() else y)
    weight = torch.ones_like(losses) if g.weight is None else g.weight[g.train].to(out.dtype)
    names, parameters = zip(*((k, p) for k, p in model.named_parameters() if p.requires_grad), strict=True)
    grads = torch.autograd.grad((weight * losses).sum() / weight.sum(), parameters, materialize_grads=True)
    return dict(zip(names, grads, strict=True)), logits


def _bound(method: Method, g: Graph, model: Model, num_parts: int, loss: Loss | None = None) -> Run:
    parts = torch.randperm(g.num_nodes, generator=torch.Generator().manual_seed(1)) % num_parts
    run = method.bind(g, copy.deepcopy(model), parts, loss=loss)
    run.refresh()
    return run


def _swept(method: Method, g: Graph, model: Model, num_parts: int, loss: Loss | None) -> dict[str, Tensor]:
    """The mean of one epoch's gradients from exact histories, without dropout."""
    run = _bound(method, g, model, num_parts, loss)
    grads = [run.gradient(batch) for batch in run.batches()]
    return {k: torch.stack([each[k] for each in grads]).mean(0) for k in grads[0]}


def _error(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """The largest relative error of any parameter; for a zero gradient, relative to that of all parameters."""
    floor = 1e-4 * sum(float(w.square().sum()) for w in want.values()) ** 0.5
    return max(float((got[k] - w).norm()) / max(float(w.norm()), floor) for k, w in want.items())


def _in_chunks(model: Model, g: Graph, logits: Tensor) -> float:
    problem = Problem.of(g, copy.deepcopy(model), Placement(device="cpu"))
    third = g.num_nodes // 3
    chunks = [slice(0, third), slice(third, third + 1), slice(third + 1, g.num_nodes)]
    tables = [table for _, table in exact_states(problem, chunks, lambda _, width: problem.table(width))]
    got = torch.cat([part for _, part in exact_logits(problem, chunks, tables)])
    return float((got - logits).norm() / logits.norm())


def _keeps_generator(model: Model, g: Graph) -> bool:
    run = _bound(FullBatch(), g, model, 1)
    before = torch.get_rng_state()
    run.accumulate(next(iter(run.batches())))
    same = torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(before)
    return same
