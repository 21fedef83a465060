"""Train with the library and with a dense reference side by side, and compare them after every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from dense import Data, Nodes, Tables, Values
from torch import Tensor

import lmc

TOLERANCE = 1e-10
"""Of every comparison, as a share of the largest entry."""


class Reference(Protocol):
    """What a dense reference offers."""

    tables: Tables

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]: ...

    def refresh(self, theta: Values) -> None: ...


def graph_of(data: Data) -> lmc.Graph:
    """The same graph for the library."""
    edges = torch.as_tensor(data.edges).t()
    y, train = torch.as_tensor(data.y), torch.as_tensor(data.train)
    others = (~train).nonzero().squeeze(1)
    weights = None if data.weights is None else torch.as_tensor(data.weights)
    return lmc.Graph.from_edges(
        edges if data.directed else torch.cat([edges, edges.flip(0)], 1),
        torch.as_tensor(data.x),
        y.float() if y.ndim == 2 else y,
        train=train,
        val=others[::2],
        test=others[1::2],
        num_classes=4,
        directed=data.directed,
        edge_weight=weights if weights is None or data.directed else torch.cat([weights, weights]),
        weight=data.node_weights,
    )


def loss_of(data: Data) -> Any:
    """The loss of the data for the library."""
    return None if data.class_weights is None else lmc.losses.cross_entropy(weight=data.class_weights)


def same(what: str, got: Any, want: Any, scale: float = 0.0) -> None:
    """Equal to rounding error, as a share of the largest entry (or of ``scale``, where that is larger)."""
    got, want = (np.asarray(a.detach() if isinstance(a, Tensor) else a, dtype=np.float64) for a in (got, want))
    assert got.shape == want.shape, f"{what}: shape {got.shape} where the reference has {want.shape}"
    if want.size == 0:
        return
    error = float(np.abs(got - want).max()) / max(float(np.abs(want).max()), scale, 1e-300)
    assert error < TOLERANCE, f"{what}: {error:.2e} from the reference"


def parameters_of(model: torch.nn.Module) -> Values:
    """Copies of the parameters by name."""
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def same_tables(run: Any, tables: Tables, when: str) -> None:
    """Every table of the run, in the user's numbering, is that of the reference."""
    order = run.clusters.order
    kept = {name: layers for name, layers in run.tables.items() if layers}
    assert {name: set(layers) for name, layers in kept.items()} == {k: set(v) for k, v in tables.items() if v}
    for name, layers in kept.items():
        for l, table in layers.items():
            rows = table.data().double()
            mine = torch.empty_like(rows)
            mine[order] = rows
            same(f"{name}[{l}] {when}", mine, tables[name][l])


def same_buffers(model: torch.nn.Module, buffers: Values, when: str) -> None:
    """Running statistics are those of the reference."""
    for name, buffer in model.named_buffers():
        if name in buffers:
            same(f"{name} {when}", buffer, buffers[name])


class Mover(Protocol):
    """What moves the parameters between two steps: an optimiser, or :class:`Noise`."""

    def step(self) -> Any: ...


class Noise:
    """Parameters that jump: every step adds fresh noise to their first values, so that tables are very stale.

    Args:
        size: the size of the noise.
        shares: another size for the parameters of these names, as a share of ``size``.
    """

    def __init__(self, model: torch.nn.Module, size: float, shares: dict[str, float] | None = None) -> None:
        self.first = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.model, self.size, self.shares = model, size, shares or {}
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self) -> None:
        for name, p in self.model.named_parameters():
            size = self.size * self.shares.get(name, 1.0)
            p.copy_(self.first[name] + size * torch.randn(p.shape, generator=self.generator, dtype=p.dtype))


def follow(
    run: Any,
    model: Any,
    reference: Reference,
    data: Data,
    mover: Mover,
    epochs: int = 3,
    refresh_before: int | None = 2,
    buffers: Values | None = None,
    look: Callable[[Any], None] | None = None,
) -> list[float]:
    """Train some epochs from empty tables, and fill the tables exactly before one of them; gives the losses.

    After every step the loss, every gradient and every table are compared, then ``mover`` moves the parameters, so
    that tables are stale from the second step on.

    Args:
        buffers: running statistics of the reference, to compare with the model's.
        look: called with every batch before its step; by default the halo is compared with the neighbours of the core.
    """
    losses = []
    for epoch in range(epochs):
        if epoch == refresh_before:
            run.refresh()
            reference.refresh(parameters_of(model))
            same_tables(run, reference.tables, "after a refresh")
        for batch in run.batches(epoch):
            when = f"in epoch {epoch}, batch {batch.slot}"
            theta, core = parameters_of(model), batch.n_id[: batch.num_core].numpy()
            if look is None:
                np.testing.assert_array_equal(np.sort(batch.n_id[batch.num_core :].numpy()), data.halo(core))
            else:
                look(batch)
            model.zero_grad()
            loss, grads = reference.step(theta, core, batch.slot, batch.weight)
            same(f"loss {when}", run.accumulate(batch).loss, loss)
            assert {name for name, _ in model.named_parameters()} == set(grads)
            largest = max(float(np.abs(g).max()) for g in grads.values())
            for name, p in model.named_parameters():
                # a bias before a batch norm has a gradient of rounding errors: it is measured by the others
                same(f"gradient of {name} {when}", p.grad, grads[name], scale=1e-3 * largest)
            same_tables(run, reference.tables, when)
            same_buffers(model, buffers or {}, when)
            losses.append(loss)
            mover.step()
            model.project()
    return losses
