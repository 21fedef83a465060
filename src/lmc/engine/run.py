"""A method bound to a graph and a model: the state of training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from lmc.engine.batches import Batches
from lmc.engine.bound_parameters import BoundParameters
from lmc.engine.cuda_graphs import records_fill
from lmc.engine.distributed.exchange import Exchange
from lmc.engine.distributed.ownership import Schedule
from lmc.engine.distributed.step import StepSync
from lmc.engine.exact import Passes, chunks_of, sweep_chunks
from lmc.engine.layered import Estimate
from lmc.engine.pipeline import Pipeline
from lmc.engine.problem import Problem
from lmc.engine.recurrent import take_solves
from lmc.errors import CheckpointError, ConfigError
from lmc.graph import CSR, Batch, Graph
from lmc.heap import release_freed
from lmc.methods import DropEdge
from lmc.methods.protocol import Method, Setup, Step, Tables, Widths
from lmc.models import modes_kept
from lmc.sampling import Clusters, derive
from lmc.stores import Table, overwrite, tables_of


@dataclass(frozen=True)
class StepStats:
    """What one step saw. ``loss`` estimates the loss of the whole graph; it stays on the device."""

    loss: Tensor
    num_core: int
    num_halo: int


class Run:
    """The mutable state of training: tables, generator, position. Hyper-parameters are in ``method``.

    ``tables`` are the rows that the method keeps between steps, by name and layer (``H[l]`` and ``V[l]`` for states and
    adjoints); ``numbers`` are the small tensors that it keeps beside them. ``setup_seconds`` is the time that the run
    took to set up: "partition" and "bind", and "load" where the graph was loaded for it.
    """

    def __init__(
        self, method: Method, problem: Problem, clusters: Clusters, seed: int, schedule: DropEdge | None = None,
        whole: Graph | Exchange | None = None, turns: Schedule | None = None,
    ) -> None:  # fmt: skip
        self._shared = whole if isinstance(whole, Exchange) else None
        if isinstance(whole, Exchange):
            whole = whole.shard.graph
        self.whole = problem.graph if whole is None else whole
        """The graph that is evaluated: that of training, or the whole graph of an inductive run, as it was given; of a
        rank, its share."""
        self.method, self.problem, self.clusters, self.seed = method, problem, clusters, seed
        self.schedule = schedule
        self.adjacency = None if schedule is None else _adjacencies(schedule, problem, seed)
        self.epoch = 0
        self.setup_seconds: dict[str, float] = {}
        self._fresh = False  # whether the tables were filled after the last step
        self.refreshed = 0
        """How often the tables were filled."""
        self.generator = torch.Generator(problem.device).manual_seed(derive(seed, "dropout"))
        self.parameters = {name: p for name, p in problem.model.named_parameters() if p.requires_grad}
        self._bound = BoundParameters(problem.model)
        self.tables = make_tables(method, problem)
        self.H, self.V = self.tables.get("H", {}), self.tables.get("V", {})
        numbers = method.numbers(problem, clusters.num_batches)
        self.numbers = {name: value.to(problem.device) for name, value in numbers.items()} | problem.kind.numbers()
        exchange = problem.exchange
        self.nodes = clusters.order if exchange is None else exchange.shard.ids[: exchange.shard.num_owned]
        """The number of the node of every row in the graph that was given; of a rank, the nodes that it owns."""
        self.source = Batches(method, problem, clusters, seed, self.tables, schedule is None, turns)
        self.pipeline = Pipeline(self.source, self.tables, self.generator, looks_ahead=schedule is None)
        self.sync = None if turns is None or exchange is None else StepSync(self, exchange, turns)
        """The exchange with other ranks; None where there are none."""

    @property
    def graph(self) -> Graph:
        """The graph in run order."""
        return self.problem.graph

    @property
    def is_first_rank(self) -> bool:
        """Whether this process writes and shows the results: rank 0 of a distributed run."""
        return self.sync is None or self.sync.world.rank == 0

    @cached_property
    def evaluated(self) -> Problem:
        """The problem of the graph that is evaluated, with its own P."""
        trained = self.problem
        if self.whole is trained.graph:
            return trained
        return Problem.of(self.whole, trained.model, trained.placement, exchange=self._shared)

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        return self.source.num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch."""
        return self.batches()

    def __repr__(self) -> str:
        graph, name = self.graph, (self.schedule or self.method).traits.title
        batches, epochs = f"{len(self)} batch{'es' * (len(self) != 1)}", f"{self.epoch} epoch{'s' * (self.epoch != 1)}"
        return (
            f"Run({name} on {graph.name!r} ({graph.num_nodes:,} nodes), {self.problem.model!r}, {batches} an epoch, "
            f"{epochs} begun, {self.problem.device})"
        )

    @property
    def first_layer(self) -> str:
        """ "complete" where P X is computed once, else "pruned"; "recurrent" where there is but one."""
        return self.problem.kind.first_layer(self.problem)

    def batches(self, epoch: int | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch (by default the next one), from the ``start``-th on."""
        if epoch is None:
            epoch = self.epoch
        self.epoch = epoch + 1
        source = source_on(self, epoch)
        if start == 0:  # later in an epoch the tables hold the sums on its graph, as the steps before have changed them
            regraph(self, source.problem)
        batches = self.pipeline.epoch(epoch, start, source)
        if not self.method.traits.sweeps and self.sync is None:  # a loop here would hold the batch of the last step
            yield from batches
            return
        for step, batch in enumerate(batches, start):
            if self.sync is not None:
                self.sync.begin(epoch, step)
            if not self._fresh and self.method.due(self.numbers, epoch, step, self.num_batches):
                self.refresh()
                regraph(self, source.problem)
            yield batch

    def step(self, batch: Batch, optimizer: torch.optim.Optimizer, clip: float | None = None) -> StepStats:
        """One training step: p.grad <- this method's estimate, then the optimiser's step and the model's projection.

        An optimiser that evaluates the loss several times (LBFGS) makes an estimate, which updates the tables, every
        time; the statistics are those of the first.

        Args:
            clip: largest norm of the gradient; None: no clipping.
        """
        if not callable(getattr(optimizer, "zero_grad", None)):
            raise ConfigError(
                f"expected an optimiser of torch (got {type(optimizer).__name__}): pass one, such as "
                "torch.optim.Adam(model.parameters())"
            )
        seen: list[StepStats] = []

        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            seen.append(self.accumulate(batch))
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(self.parameters.values(), clip)
            return seen[-1].loss

        if _needs_closure(type(optimizer).step):
            optimizer.step(closure)  # type: ignore[arg-type]
        else:  # the gradients are there before the step, for hooks of the optimiser
            closure()
            optimizer.step()
        self.problem.model.project()
        return seen[0]

    def method_step(self, batch: Batch, keep: bool, dropout: bool) -> Step:
        """A step on a batch, as the method sees it."""
        prepared = self.source.prepared
        return Step(
            self.problem, batch, self.tables, self.numbers, prepared, self.parameters, self.generator, keep, dropout
        )

    def accumulate(self, batch: Batch) -> StepStats:
        """p.grad += this method's estimate of dL/dp, and update the tables."""
        self._bound.check()
        torch.clear_autocast_cache()  # it keeps narrowed weights until its context ends; these may have changed
        kind, self._fresh = self.problem.kind, False
        _check_batch(self, batch)
        if self.sync is not None:
            self.sync.before(batch)
        if _idle(self, batch):
            grads, loss = _no_estimate(self)
        else:
            grads, loss = self.pipeline.step(batch, lambda of: kind.estimate(self, of, keep=True, dropout=True))
        if self.sync is not None:
            grads, loss = self.sync.after(batch, grads, loss)
        scaled = torch._foreach_mul(grads, batch.weight)  # b/c, of every method; in the paper (18), (19)
        for p, g in zip(self.parameters.values(), scaled, strict=True):
            if p.grad is not None:
                p.grad.add_(g)
            else:  # laid out as its parameter, which a fused optimiser expects
                p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        return StepStats(loss * batch.weight, batch.num_core, batch.num_halo)

    def gradient(self, batch: Batch) -> dict[str, Tensor]:
        """The same estimate by parameter name, without dropout; tables, buffers and ``p.grad`` stay as they are."""
        self._bound.check()
        torch.clear_autocast_cache()
        _check_batch(self, batch)
        model = self.problem.model
        if self.sync is not None:
            self.sync.before(batch)
        self.pipeline.prefetch(batch)
        with modes_kept(model), _buffers_kept(model):
            estimate = partial(self.problem.kind.estimate, self, batch, keep=False, dropout=False)
            grads, _ = _no_estimate(self) if _idle(self, batch) else estimate()
        if self.sync is not None:
            grads = self.sync.total(grads)
        return {name: g * batch.weight for name, g in zip(self.parameters, grads, strict=True)}

    def refresh(self) -> None:
        """Fill the tables exactly, in chunks, at the current parameters (no dropout, evaluation mode)."""
        problem = self.problem
        if self.sync is not None:
            self.sync.refreshed()
        # a model that makes a message of each edge needs memory for all edges of a chunk
        large = self.method.traits.sweeps or (problem.device.type == "cuda" and problem.model.linear)
        chunks = sweep_chunks(problem) if large else self.clusters.cores(problem.device)
        fill, recorder = partial(self.method.fill, Passes(self, problem, chunks)), self.pipeline.recorder
        if recorder is not None and records_fill(self, chunks):
            recorder.fill(fill)
        else:
            fill()
        self._fresh, self.refreshed = True, self.refreshed + 1
        if problem.device.type == "cpu":  # elsewhere the passes leave nothing in the memory of the host
            release_freed()

    def solves(self) -> dict[str, float] | None:
        """Recurrent models: mean solver steps, failures and worst residual since the last call."""
        return take_solves(self.numbers)

    @property
    def tiers(self) -> dict[str, str]:
        """The tier of every table, of the features, and of the structure where it is not on the device:
        {"H[2]": "host", "V[2]": "host", "features": "device"}."""
        tables = {f"{name}[{l}]": t.tier for name, layers in self.tables.items() for l, t in layers.items()}
        P = self.problem.P
        structure = {"structure": "host" if P.files is None else "disk"} if P.on_host else {}
        return {**tables, "features": self.problem.features, **structure}

    def named_tables(self) -> dict[str, Table]:
        """The tables, as their rows are named in :meth:`state_dict`."""
        return {f"{name}.{l}": t for name, layers in self.tables.items() for l, t in layers.items()}

    def state_dict(self, tables: bool = True) -> dict[str, Tensor]:
        """Everything a later run needs to go on as if this one had not stopped; the tables can be left out."""
        return {
            **{name: table.data() for name, table in self.named_tables().items() if tables},
            **{f"numbers.{name}": value for name, value in self.numbers.items()},
            "generator": self.generator.get_state(),
            "order": self.nodes,
            "offsets": torch.tensor(self.clusters.offsets),
            "epoch": torch.tensor(self.epoch),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load ``state``; the run must be bound to the same graph, partition and method. Tables may be anything with
        a shape whose rows can be read a run at a time."""
        check_state(self, state)
        for name, value in self.numbers.items():
            value.copy_(state[f"numbers.{name}"])
        for name, table in self.named_tables().items():
            overwrite(table, state[name])
        self.generator.set_state(state["generator"].cpu())
        self.epoch, self._fresh = int(state["epoch"]), False


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """The buffers of a model have their values again afterwards, also after an error."""
    before = [b.clone() for b in model.buffers()]
    try:
        yield
    finally:
        for b, was in zip(model.buffers(), before, strict=True):
            b.copy_(was)


def _idle(run: Run, batch: Batch) -> bool:
    """Whether this rank has nothing to compute; by layers it takes part in the exchanges of all others."""
    return batch.idle and (run.sync is None or run.sync.world.options.sync == "step")


def _no_estimate(run: Run) -> Estimate:
    """What a rank without a batch adds to the estimate of the others."""
    grads = [torch.zeros_like(p) for p in run.parameters.values()]
    return grads, grads[0].new_zeros(())


def source_on(run: Run, epoch: int) -> Batches:
    """What makes the batches of an epoch; with a schedule, on the graph of that epoch."""
    if run.adjacency is None:
        return run.source
    whole, turns = run.problem, None if run.sync is None else run.sync.schedule
    graph = replace(whole.graph, adj=run.adjacency(epoch), x=whole.X)  # type: ignore[arg-type]
    exchange = None if whole.exchange is None else whole.exchange.on(graph.adj)
    setup = Setup(precompute=False, cut=whole.cut)
    problem = Problem.of(graph, whole.model, whole.placement, setup, loss=whole.loss, exchange=exchange)
    if run.sync is not None:
        run.sync.regraph(problem)
    return Batches(run.method, problem, run.clusters, run.seed, run.tables, fixed=False, turns=turns)


def _adjacencies(schedule: DropEdge, problem: Problem, seed: int) -> Callable[[int], CSR]:
    """The adjacency of every epoch; all ranks leave out the same edges."""
    exchange = problem.exchange
    if exchange is None:
        return schedule.adjacencies(problem.graph, seed)
    return schedule.adjacencies(exchange.shard.graph, exchange.seed, exchange.shard.ids)


def regraph(run: Run, problem: Problem) -> None:
    """With a schedule, update what the tables hold of the edges: those of this epoch."""
    if run.schedule is not None:
        run.method.regraph(Passes(run, problem, chunks_of(problem)))


def _check_batch(run: Run, batch: Batch) -> None:
    """Refuse a batch of another run: its rows have other numbers. The graphs of one run share their masks."""
    if not isinstance(batch, Batch):
        raise ConfigError(f"expected a batch of this run (got {type(batch).__name__}): take it from run.batches()")
    if batch.graph is None or batch.graph.train is not run.graph.train:
        raise ConfigError("expected a batch of this run (got one of another run): take it from run.batches()")


def check_state(run: Run, state: Mapping[str, Any]) -> None:
    """Refuse a state that is not one of this run; nothing is changed."""
    missing = [key for key in (*run.named_tables(), *run.state_dict(tables=False)) if key not in state]
    if missing:
        raise CheckpointError(
            f"expected {', '.join(missing)} in the state (got {', '.join(state) or 'nothing'}): another method, model "
            "or version of lmc has stored it; bind those, or begin a new run"
        )
    offsets = torch.tensor(run.clusters.offsets)
    if not (torch.equal(state["order"], run.nodes) and torch.equal(state["offsets"], offsets)):
        raise CheckpointError(
            "expected the partition the state was made with (got another one): bind with the same parts and seed"
        )
    for name, value in run.state_dict(tables=False).items():
        if name not in ("order", "offsets") and (state[name].shape, state[name].dtype) != (value.shape, value.dtype):
            raise CheckpointError(
                f"expected {name} of shape {list(value.shape)} and type {value.dtype} in the state (got "
                f"{list(state[name].shape)} and {state[name].dtype}): bind the method to this graph again"
            )
    try:
        torch.Generator(run.problem.device).set_state(state["generator"].cpu())
    except RuntimeError as error:
        raise CheckpointError(
            f"expected the state of a generator (got one that torch refuses: {error}): pass what run.state_dict() gave"
        ) from error
    if state["epoch"] < 0:
        raise CheckpointError(
            f"expected an epoch of at least 0 in the state (got {int(state['epoch'])}): pass what run.state_dict() gave"
        )
    for name, table in run.named_tables().items():
        _check_rows("{}[{}]".format(*name.split(".")), state[name], table.data())


def _check_rows(label: str, kept: Any, mine: Tensor) -> None:
    """Refuse rows of a table of another shape or dtype."""
    if tuple(kept.shape) != tuple(mine.shape):
        raise CheckpointError(
            f"history {label} has shape {list(mine.shape)} but the state holds "
            f"{list(kept.shape)}: bind the method to this graph again"
        )
    if kept.dtype != mine.dtype:
        raise CheckpointError(
            f"history {label} is {mine.dtype} but the state holds {kept.dtype}: bind with the same precision"
        )


@cache
def _needs_closure(step: Callable[..., object]) -> bool:
    """Whether the step of an optimiser has to be given a function that evaluates the loss."""
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def make_tables(method: Method, problem: Problem) -> Tables:
    """The tables that a method keeps; those of a bundle, and of one dtype, are transferred together."""
    traits = method.traits
    widths: Widths = problem.kind.tables(method, problem)
    bundles = traits.bundles if problem.kind.bracketed else ()
    groups: dict[object, list[tuple[str, int]]] = {}
    for name, layers in widths.items():
        bundle = next((names for names in bundles if name in names), None)
        for l in layers:
            groups.setdefault((name in traits.accumulated_tables, bundle or (name, l)), []).append((name, l))
    made: dict[tuple[str, int], Table] = {}
    for members in groups.values():
        accumulated = members[0][0] in traits.accumulated_tables
        dtype = problem.accumulate_dtype if accumulated else problem.dtype
        each = [widths[name][l] for name, l in members]
        found = tables_of(problem.placement.tier, problem.graph.num_nodes, each, dtype, problem.device)
        made |= dict(zip(members, found, strict=True))
    return {name: {l: made[name, l] for l in layers} for name, layers in widths.items()}
