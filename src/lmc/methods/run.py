"""A method bound to a graph and a model: it hands out batches and adds gradient estimates to ``p.grad``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmc.errors import CheckpointError, ConfigError
from lmc.graph import CSR, Batch, Graph
from lmc.history import Table
from lmc.methods.capture import Recorder
from lmc.methods.exact import exact_adjoints, exact_states
from lmc.methods.problem import Problem
from lmc.models import Pass
from lmc.sampling import Clusters, derive

if TYPE_CHECKING:
    from lmc.methods.base import Method


@dataclass(frozen=True)
class StepStats:
    """What one step saw. ``loss`` estimates the loss of the whole graph; it stays on the device (no waiting)."""

    loss: Tensor
    num_core: int
    num_halo: int


class Run:
    """Mutable state of training: histories, fixed batches, chance. Hyper-parameters are in ``method``.

    ``H[l]`` and ``V[l]`` are the tables of states and adjoints that the method keeps, by layer.
    """

    def __init__(self, method: Method, problem: Problem, clusters: Clusters, seed: int) -> None:
        self.method = method
        self.problem = problem
        self.clusters = clusters
        self.seed = seed
        self.epoch = 0
        self.generator = torch.Generator(problem.device).manual_seed(derive(seed, "dropout"))
        self.parameters = {name: p for name, p in problem.model.named_parameters() if p.requires_grad}
        self._order = clusters.order.to(problem.device)
        self._fixed: dict[tuple[int, ...], Batch] = {}
        records = problem.device.type == "cuda" and method.tier.name == "device"
        self._recorder = Recorder(problem.device, self.generator) if records else None
        layers_h, layers_v = method.keeps(problem)
        self.H = {l: self._table(l) for l in layers_h}
        self.V = {l: self._table(l) for l in layers_v}

    @property
    def graph(self) -> Graph:
        """The graph in run order."""
        return self.problem.graph

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        return self.clusters.num_batches

    @property
    def first_layer(self) -> str:
        """ "complete" where P X is computed once, else "pruned"."""
        return "complete" if self.problem.aggregated else "pruned"

    def batches(self, epoch: int | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch (by default the next one), from the ``start``-th on."""
        if epoch is None:
            epoch = self.epoch
        self.epoch = epoch + 1
        for parts in self.clusters.epoch(epoch)[start:]:
            yield self._batch(parts)

    def accumulate(self, batch: Batch) -> StepStats:
        """p.grad += this method's estimate of dL/dp, and update the histories."""

        def step() -> tuple[list[Tensor], Tensor]:
            return self._estimate(batch, keep=True, dropout=True)

        grads, loss = self._recorder(batch, step) if self._recorder is not None and batch.fixed else step()
        for p, g in zip(self.parameters.values(), grads, strict=True):
            p.grad = g * batch.weight if p.grad is None else p.grad.add_(g, alpha=batch.weight)
        return StepStats(loss * batch.weight, batch.num_core, batch.num_halo)

    def gradient(self, batch: Batch) -> dict[str, Tensor]:
        """The same estimate by parameter name, without dropout; histories and ``p.grad`` stay as they are."""
        model = self.problem.model
        training, buffers = model.training, [b.clone() for b in model.buffers()]
        grads, _ = self._estimate(batch, keep=False, dropout=False)
        for b, was in zip(model.buffers(), buffers, strict=True):
            b.copy_(was)
        model.train(training)
        return {name: g * batch.weight for name, g in zip(self.parameters, grads, strict=True)}

    def refresh(self) -> None:
        """Fill the histories exactly, by batches, at the current parameters (no dropout, evaluation mode)."""
        if not self.H:
            return
        chunks = [self.clusters.core(parts) for parts in self.clusters.epoch(0)]
        chunks = [c if isinstance(c, slice) else c.to(self.problem.device) for c in chunks]
        H = [t for _, t in exact_states(self.problem, chunks, lambda l, _: self.H.get(l) or self._table(l))]
        if self.V:
            # the tables themselves are filled: recorded steps read and write their memory
            for table in self.V.values():
                table.data().zero_()
            for _ in exact_adjoints(self.problem, chunks, H, lambda l, _: self.V.get(l) or self._table(l)):
                pass

    def _estimate(self, batch: Batch, keep: bool, dropout: bool) -> tuple[list[Tensor], Tensor]:
        """Gradients and loss of a batch WITHOUT the factor b/c, as the histories hold their adjoints."""
        problem, method = self.problem, self.method
        for table in (*self.H.values(), *self.V.values()):
            table.prefetch(batch.halo)
        problem.model.train()
        p = Pass(
            num_core=batch.num_core if batch.num_halo else None,
            pooled=method.pooled_statistics,
            dropout=dropout,
            generator=self.generator,
        )
        s = h0 = problem.model.encode(self._inputs(batch), p)
        for l, P in enumerate(batch.operators, start=1):
            s = problem.advance(l, s, P, p, h0)
            s = method.compensate(self, batch, l, s, keep)
        assert isinstance(s, Tensor)
        logits = problem.finish(s, p)
        num = logits.shape[0]
        losses = problem.row_losses(logits, batch.y[:num], batch.labelled[:num])
        grads = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        return list(grads), losses[: batch.num_core].sum().detach()

    def _inputs(self, batch: Batch) -> Tensor | CSR:
        if batch.x is not None:
            return batch.x
        if batch.operators[0].num_inputs == batch.num_core:
            return self.problem.inputs(batch.rows)
        return self.problem.inputs(batch.ext)

    def _batch(self, parts: tuple[int, ...]) -> Batch:
        if parts in self._fixed:
            return self._fixed[parts]
        fixed = not self.clusters.redraw and self.method.caches_batches
        batch = self.make_batch(self.clusters.core(parts), float(self.num_batches), fixed)
        if fixed:
            self._fixed[parts] = batch
        return batch

    def make_batch(self, rows: slice | Tensor, weight: float, fixed: bool = False) -> Batch:
        """The batch whose core is ``rows`` (run order), built on the training device."""
        problem = self.problem
        device = problem.device
        core = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows.to(device)
        rows = rows if isinstance(rows, slice) else core
        halo, operators, beta = self.method.layout(problem, core)
        ext = torch.cat([core, halo]) if halo.numel() else core
        graph = problem.graph
        batch = Batch(
            core=core,
            rows=rows,
            halo=halo,
            operators=operators,
            x=None,
            y=graph.y[ext],
            labelled=graph.train[ext],
            weight=weight,
            n_id=self._order[ext],
            beta=beta,
            fixed=fixed,
        )
        if isinstance(problem.X, CSR):
            # a sparse slice is small, and its transpose is worth keeping with it
            object.__setattr__(batch, "x", self._inputs(batch))
        return batch

    def _table(self, l: int) -> Table:
        problem = self.problem
        width = problem.model.widths[l - 1]
        return self.method.tier.table(problem.graph.num_nodes, width, problem.dtype, problem.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a later run needs to go on as if this one had not stopped."""
        state = {f"H.{l}": t.data() for l, t in self.H.items()}
        state |= {f"V.{l}": t.data() for l, t in self.V.items()}
        return state | {
            "generator": self.generator.get_state(),
            "order": self.clusters.order,
            "offsets": torch.tensor(self.clusters.offsets),
            "epoch": torch.tensor(self.epoch),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up ``state``; the run must be bound to the same graph, partition and method."""
        missing = [key for key in self.state_dict() if key not in state]
        if missing:
            raise CheckpointError(f"expected {', '.join(missing)} in the state (got {', '.join(state) or 'nothing'})")
        offsets = torch.tensor(self.clusters.offsets)
        if not (torch.equal(state["order"], self.clusters.order) and torch.equal(state["offsets"], offsets)):
            raise CheckpointError(
                "expected the partition the state was made with (got another one): bind with the same parts and seed"
            )
        for name, tables in (("H", self.H), ("V", self.V)):
            for l, table in tables.items():
                kept, mine = state[f"{name}.{l}"], table.data()
                if kept.shape != mine.shape:
                    raise CheckpointError(
                        f"history {name}[{l}] has shape {list(mine.shape)} but the state holds {list(kept.shape)}: "
                        "bind the method to this graph again"
                    )
                mine.copy_(kept)
        self.generator.set_state(state["generator"].cpu())
        self.epoch = int(state["epoch"])


def check_device(device: str | torch.device) -> torch.device:
    """A device that exists; "auto" is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError('expected a device of this machine (got "cuda", but no GPU is visible): use device="cpu"')
    return chosen
