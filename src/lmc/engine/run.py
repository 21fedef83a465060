"""A method bound to a graph and a model: it hands out batches and adds gradient estimates to ``p.grad``."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmc.engine import recurrent
from lmc.engine.cuda_graphs import Recorder
from lmc.engine.prefetch import Drawing, Lookahead
from lmc.engine.problem import Problem
from lmc.errors import CheckpointError
from lmc.graph import CSR, Batch, Graph
from lmc.heap import release_freed
from lmc.models import modes_kept
from lmc.sampling import Clusters, derive
from lmc.stores import Rows, Staging, Table, overwrite, tables_of

if TYPE_CHECKING:
    from lmc.methods.base import Kept, Layout, Method


@dataclass(frozen=True)
class StepStats:
    """What one step saw. ``loss`` estimates the loss of the whole graph; it stays on the device (no waiting)."""

    loss: Tensor
    num_core: int
    num_halo: int


class Run:
    """Mutable state of training: histories, fixed batches, chance. Hyper-parameters are in ``method``.

    ``tables`` are the rows the method keeps between steps, by name and layer (``H[l]`` and ``V[l]`` for states and
    adjoints); ``memo`` the few other numbers it keeps; ``prepared`` what it computed once and could compute again.
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
        self._source: Lookahead | None = None
        self._later: tuple[int, Lookahead] | None = None
        self._sent_for: Batch | None = None
        settles = problem.model.recurrent
        kept = method.keeps_recurrent(problem) if settles else method.keeps(problem)
        self.tables = self._make_tables(kept, () if settles else method.bundles)
        self.memo = {name: value.to(problem.device) for name, value in method.memo(problem, clusters).items()}
        if settles:
            self.memo |= recurrent.new_tally()  # counts of the host: a GPU would have to be waited for
        self.prepared = method.prepare(problem, seed)
        # rows that are solved for are asked for twice: what is written of them is not held back
        self.staging = Staging(self.all_tables(), problem.stored, problem.device, bracketed=not settles)
        # a solver reads its residual on the host, which a recording cannot; nor is another's code recorded unless it is
        # known, nor sparse features on their way or made dense
        stays = problem.features == "device" or problem.stored is not None
        made_dense = problem.model.owns_forward and isinstance(problem.X, CSR)
        records = problem.device.type == "cuda" and stays and problem.model.recordable and not made_dense
        self._recorder = Recorder(problem.device, self.generator, self.staging) if records else None

    @property
    def H(self) -> dict[int, Table]:
        """Histories of states, by layer."""
        return self.tables.get("H", {})

    @property
    def V(self) -> dict[int, Table]:
        """Histories of adjoints, by layer."""
        return self.tables.get("V", {})

    @property
    def graph(self) -> Graph:
        """The graph in run order."""
        return self.problem.graph

    @property
    def records(self) -> bool:
        """Whether the steps of fixed batches are recorded."""
        return self._recorder is not None

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        return self.method.num_batches(self)

    @property
    def first_layer(self) -> str:
        """ "complete" where P X is computed once, else "pruned"; "recurrent" where there is but one."""
        if self.problem.model.recurrent:
            return "recurrent"
        return "complete" if self.problem.aggregated else "pruned"

    def batches(self, epoch: int | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch (by default the next one), from the ``start``-th on."""
        if epoch is None:
            epoch = self.epoch
        self.epoch = epoch + 1
        later, self._later = self._later, None
        looked_into = later is not None and later[0] == epoch and start == 0
        self._source = later[1] if later and looked_into else self._drawn(epoch, start)
        yield from self._source

    def _drawn(self, epoch: int, start: int) -> Lookahead:
        """The batches of an epoch; on a GPU those that are not kept are drawn beside steps."""
        method, problem = self.method, self.problem
        drawn = method.draw(self, epoch, start)
        # cutting a batch for a network that drives itself may ask its convolutions, which a step does at the same time
        apart = method.looks_ahead and not self.keeps_batches and not problem.model.owns_forward
        beside = method.draws_beside_steps or apart
        if beside and problem.device.type == "cuda" and not problem.model.recurrent:
            return Drawing(drawn, problem.device)
        return Lookahead(drawn)

    @property
    def keeps_batches(self) -> bool:
        """Whether batches are fixed, and kept on the device."""
        return not self.clusters.redraw and self.method.caches_batches and self.problem.placement.keep_batches

    def cluster_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch that are clusters of parts."""
        for slot, parts in enumerate(self.clusters.epoch(epoch)[start:], start):
            yield self._batch(parts, slot if self.clusters.redraw else parts[0] // self.clusters.per_batch)

    def accumulate(self, batch: Batch) -> StepStats:
        """p.grad += this method's estimate of dL/dp, and update the histories."""

        def step() -> tuple[list[Tensor], Tensor]:
            return self.method.estimate(self, batch, keep=True, dropout=True)

        recorder = self._recorder if batch.fixed else None
        if self._source is not None:
            self._source.step_begins()
        self.prefetch(batch)
        self.staging.begin(fixed=recorder is not None)
        grads, loss = step() if recorder is None else recorder(batch, step)
        with self.staging.together():
            self.staging.end()
            if self._source is not None:
                self._source.step_ends()
            self._look_ahead()
        for p, g in zip(self.parameters.values(), grads, strict=True):
            if p.grad is None:  # laid out as its parameter, which a fused optimiser expects
                p.grad = torch.mul(g, batch.weight, out=torch.empty_like(p))
            else:
                p.grad.add_(g, alpha=batch.weight)
        return StepStats(loss * batch.weight, batch.num_core, batch.num_halo)

    def gradient(self, batch: Batch) -> dict[str, Tensor]:
        """The same estimate by parameter name, without dropout; histories and ``p.grad`` stay as they are."""
        model = self.problem.model
        buffers = [b.clone() for b in model.buffers()]
        with modes_kept(model):
            grads, _ = self.method.estimate(self, batch, keep=False, dropout=False)
        for b, was in zip(model.buffers(), buffers, strict=True):
            b.copy_(was)
        return {name: g * batch.weight for name, g in zip(self.parameters, grads, strict=True)}

    def refresh(self) -> None:
        """Fill the histories exactly, by batches, at the current parameters (no dropout, evaluation mode)."""
        chunks = [self.clusters.core(parts) for parts in self.clusters.epoch(0)]
        self.method.fill(self, [c if isinstance(c, slice) else c.to(self.problem.device) for c in chunks])
        release_freed()

    def inputs(self, batch: Batch) -> Tensor | CSR:
        """What the encoder reads for a batch."""
        if batch.x is not None:
            return batch.x
        return self.problem.inputs(self._input_rows(batch))

    def _input_rows(self, batch: Batch) -> slice | Tensor:
        core_alone = batch.operators[0].num_inputs == batch.num_core and not self.problem.model.reads_all_rows
        return batch.rows if core_alone else batch.ext

    def prefetch(self, batch: Batch) -> None:
        """Send for the rows that a step on ``batch`` reads, unless they are on their way."""
        if self._sent_for is batch and self.staging.in_flight:
            return
        self._sent_for = batch
        self.staging.prefetch(*self._asks(batch))

    def _asks(self, batch: Batch) -> tuple[tuple[Rows, ...], Rows]:
        """The rows of the tables, and of the features, that a step reads."""
        reads = self.method.reads(batch)
        rows = reads if isinstance(reads, tuple) else (reads,)
        if self.problem.model.recurrent:  # a solver starts from the tables
            rows = (*rows, recurrent.solved_rows(batch))
        return rows, self._input_rows(batch)

    def _look_ahead(self) -> None:
        """Once a step is launched: send for the rows of the next one. What this step pushed is seen by their pull."""
        self._sent_for = None
        if self._source is not None and self.staging.active and (following := self._next_batch()) is not None:
            self.prefetch(following)

    def _next_batch(self) -> Batch | None:
        assert self._source is not None
        following = self._source.peek()
        if following is None and self.method.looks_ahead:
            if self._later is None or self._later[0] != self.epoch:
                self._later = self.epoch, self._drawn(self.epoch, 0)
            following = self._later[1].peek()
        if following is not None:
            rows, inputs = self._asks(following)
            self.staging.expect(*rows, inputs, following.rows)
        return following

    @property
    def tiers(self) -> dict[str, str]:
        """Where every table, and the features, lie: {"H[2]": "host", ..., "features": "device"};
        the structure, where it is not on the device."""
        tables = {f"{name}[{l}]": t.tier for name, layers in self.tables.items() for l, t in layers.items()}
        structure = {"structure": "host"} if self.problem.P.on_host else {}
        return {**tables, "features": self.problem.features, **structure}

    def solves(self) -> dict[str, float] | None:
        """Recurrent models: mean solver steps, failures and worst residual since the last call."""
        return recurrent.take_tally(self)

    def all_tables(self) -> list[Table]:
        """Every table kept between steps."""
        return [table for layers in self.tables.values() for table in layers.values()]

    def _batch(self, parts: tuple[int, ...], slot: int) -> Batch:
        if parts in self._fixed:
            return self._fixed[parts]
        fixed = self.keeps_batches
        batch = self.make_batch(self.clusters.core(parts), float(self.num_batches), fixed, slot)
        if fixed:
            self._fixed[parts] = batch
        return batch

    def make_batch(self, rows: slice | Tensor, weight: float, fixed: bool = False, slot: int = 0) -> Batch:
        """The batch whose core is ``rows`` (run order), built on the training device."""
        device = self.problem.device
        core = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows.to(device)
        rows = rows if isinstance(rows, slice) else core
        return self.assemble(core, rows, self._layout(core), weight, fixed, slot)

    def assemble(
        self,
        core: Tensor,
        rows: slice | Tensor,
        layout: Layout,
        weight: float,
        fixed: bool = False,
        slot: int = 0,
        importance: Tensor | None = None,
    ) -> Batch:
        """A batch of a core and what a method laid out around it; ``rows`` is the core as a slice where it is one."""
        halo, operators, beta = layout
        ext = torch.cat([core, halo]) if halo.numel() else core
        problem, graph = self.problem, self.problem.graph
        # dense rows are gathered when needed; a sparse slice is small, and its transpose is worth keeping with it
        first = ext if problem.model.reads_all_rows else ext[: operators[0].num_inputs]
        return Batch(
            core=core,
            rows=rows,
            halo=halo,
            operators=operators,
            x=problem.inputs(first) if isinstance(problem.X, CSR) and problem.features == "device" else None,
            y=graph.y[ext],
            labelled=graph.train[ext],
            weight=weight,
            n_id=self._order[ext],
            beta=beta,
            fixed=fixed,
            slot=slot,
            graph=graph,
            importance=importance,
        )

    def _layout(self, core: Tensor) -> Layout:
        """The method's layout, with the operator of each layer cut out of the matrix that layer reads."""
        problem = self.problem
        layouts = [self.method.layout(problem.on(kind), core) for kind in range(len(problem.matrices))]
        halo, operators, beta = layouts[0]
        if len(layouts) > 1:  # the matrices share their pattern, so halo and beta are the same
            operators = tuple(layouts[kind][1][l] for l, kind in enumerate(problem.kinds))
        return halo, operators, beta

    def seen_by(self, method: Method, problem: Problem) -> Run:
        """This run with another method and problem of the same nodes: the same tables, chance and parameters."""
        other = copy.copy(self)
        other.method, other.problem, other._fixed = method, problem, {}
        other.prepared = method.prepare(problem, self.seed)
        return other

    def _make_tables(self, kept: Kept, bundles: tuple[frozenset[str], ...]) -> dict[str, dict[int, Table]]:
        """The tables that a method keeps; those of a bundle, and of one type, travel together."""
        problem, wide = self.problem, self.method.accumulated_tables
        together: dict[object, list[tuple[str, int]]] = {}
        for name, layers in kept.items():
            bundle = next((names for names in bundles if name in names), None)
            for l in layers:
                together.setdefault((name in wide, bundle or (name, l)), []).append((name, l))
        made: dict[tuple[str, int], Table] = {}
        for members in together.values():
            dtype = problem.accumulate_dtype if members[0][0] in wide else problem.dtype
            widths = [kept[name][l] for name, l in members]
            found = tables_of(self.problem.placement.tier, problem.graph.num_nodes, widths, dtype, problem.device)
            made |= dict(zip(members, found, strict=True))
        return {name: {l: made[name, l] for l in layers} for name, layers in kept.items()}

    def table(self, width: int, dtype: torch.dtype | None = None) -> Table:
        """A table of zeros on the method's tier, one row a node, by default of the rows' type."""
        problem = self.problem
        return self.problem.placement.tier.table(problem.graph.num_nodes, width, dtype or problem.dtype, problem.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a later run needs to go on as if this one had not stopped."""
        return {**{name: table.data() for name, table in self.named_tables().items()}, **self.small_state()}

    def named_tables(self) -> dict[str, Table]:
        """The tables, as their rows are named in :meth:`state_dict`."""
        return {f"{name}.{l}": t for name, layers in self.tables.items() for l, t in layers.items()}

    def small_state(self) -> dict[str, Tensor]:
        """The rest of :meth:`state_dict`."""
        return {
            **{f"memo.{name}": value for name, value in self.memo.items()},
            "generator": self.generator.get_state(),
            "order": self.clusters.order,
            "offsets": torch.tensor(self.clusters.offsets),
            "epoch": torch.tensor(self.epoch),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up ``state``; the run must be bound to the same graph, partition and method. Tables may be anything with
        a shape whose rows can be read a run at a time."""
        missing = [key for key in (*self.named_tables(), *self.small_state()) if key not in state]
        if missing:
            raise CheckpointError(f"expected {', '.join(missing)} in the state (got {', '.join(state) or 'nothing'})")
        offsets = torch.tensor(self.clusters.offsets)
        if not (torch.equal(state["order"], self.clusters.order) and torch.equal(state["offsets"], offsets)):
            raise CheckpointError(
                "expected the partition the state was made with (got another one): bind with the same parts and seed"
            )
        for name, value in self.memo.items():
            value.copy_(state[f"memo.{name}"])
        for name, table in self.named_tables().items():
            kept, mine = state[name], table.data()
            if tuple(kept.shape) != tuple(mine.shape):
                raise CheckpointError(
                    f"history {'{}[{}]'.format(*name.split('.'))} has shape {list(mine.shape)} but the state holds "
                    f"{list(kept.shape)}: bind the method to this graph again"
                )
            if kept.dtype != mine.dtype:
                raise CheckpointError(
                    f"history {'{}[{}]'.format(*name.split('.'))} is {mine.dtype} but the state holds {kept.dtype}: "
                    "bind with the same precision"
                )
            overwrite(table, kept)
        self.generator.set_state(state["generator"].cpu())
        self.epoch = int(state["epoch"])
