"""A method is an estimator of the gradient: a frozen record of settings that answers four questions.

Which rows and operators make a batch (:meth:`Method.layout`), which histories it keeps (:meth:`Method.keeps`), what
happens to a layer's state (:meth:`Method.compensate`), and which facts it claims (``facts``). The rest is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.engine import recurrent
from lmc.engine.exact import chunks_of, exact_adjoints, exact_states
from lmc.engine.precision import check_precision, row_type
from lmc.engine.problem import Cut, Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import Aggregation, Batch, Graph, Precomputed
from lmc.heap import release_freed
from lmc.models import Model, Operator, Pass
from lmc.partition import METHODS as PARTITIONS
from lmc.partition import check_parts, partition
from lmc.sampling import Clusters
from lmc.stores import Placement, Rows, overwrite, placement_on

Kept = dict[str, dict[int, int]]
"""Tables by name and layer, with their widths."""

Operators = tuple[Aggregation | Precomputed, ...]
Layout = tuple[Tensor, Operators, Tensor | None]
"""Halo rows, one operator per layer, and the halo's beta."""

EXACT_ON_ONE_PART = "exact on one part"
EXACT_WITH_EXACT_HISTORIES = "exact with exact histories"
UNBIASED = "unbiased"


@dataclass(frozen=True)
class Method(recurrent.Answers):
    """What all methods share; see the module's docstring."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    outside: ClassVar[str]
    """What happens to messages from outside the batch, in half a sentence."""
    step_rows: ClassVar[str] = "core"
    """The rows a step computes: the memory of a step is theirs."""
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART})
    caches_batches: ClassVar[bool] = True
    draws_beside_steps: ClassVar[bool] = False
    """Whether a batch may be drawn while a step runs: its draw reads nothing that steps change."""
    pooled_statistics: ClassVar[bool] = False
    steady_statistics: ClassVar[bool] = False
    """What batch norm does (:class:`lmc.models.Pass`)."""
    trains_convolutional: ClassVar[bool] = True
    """Whether it trains models of several layers."""
    grad_from_halo: ClassVar[bool] = False
    """Whether halo rows teach the weights that a sum reads them through (:class:`lmc.models.Pass`)."""
    looks_ahead: ClassVar[bool] = True
    """Whether the batches of an epoch may be drawn before the epoch before has ended."""
    accepts: ClassVar[str] = "any"
    """The models it can train, in half a sentence; :meth:`check` refuses the others."""

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        """The halo, the operators and beta for a batch with these core rows."""
        raise NotImplementedError

    def keeps(self, problem: Problem) -> Kept:
        """The tables kept between steps: {"H": {2: 64}} is one of width 64 for the states of layer 2."""
        return {}

    def fill(self, run: Run, chunks: list[Rows]) -> None:
        """Make the tables exact at the current parameters (no dropout, evaluation mode)."""
        if not run.H:
            return
        if run.problem.model.recurrent:
            # by batches a fixed point takes sweeps of them; as many rows as evaluation takes at once are quicker
            chunks = list(chunks_of(run.problem))
        H = [t for _, t in exact_states(run.problem, chunks, lambda l, w: run.H.get(l) or run.table(w))]
        if run.V:
            # the tables themselves are filled: recorded steps read and write their memory
            for table in run.V.values():
                overwrite(table)
            wide = run.problem.accumulate_dtype
            own = run.problem.dtype == wide  # else adjoints, which chunks add up, have to be rounded afterwards
            for l, table in exact_adjoints(
                run.problem, chunks, H, lambda l, w: (run.V.get(l) if own else None) or run.table(w, wide)
            ):
                if l in run.V and not own:
                    overwrite(run.V[l], table.data())

    def regraph(self, run: Run) -> None:
        """The graph under the run is another one: put right what the tables hold of the old one."""

    def memo(self, problem: Problem, clusters: Clusters) -> dict[str, Tensor]:
        """Numbers beside the tables that are kept between steps."""
        return {}

    def check(self, model: Model) -> None:
        """Refuse a model this method cannot train, with the reason."""

    def prepare(self, problem: Problem, seed: int) -> Any:
        """What is computed once from the graph and the seed, and read by every draw; no checkpoint holds it."""
        return None

    def num_batches(self, run: Run) -> int:
        """Batches in an epoch."""
        return run.clusters.num_batches

    def draw(self, run: Run, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of one epoch from the ``start``-th on. They depend on the run's seed, the epoch and their own
        number alone, so that a run can be taken up anywhere."""
        return run.cluster_batches(epoch, start)

    def reads(self, batch: Batch) -> Rows | tuple[Rows, ...]:
        """The rows of its tables that a step pulls: where they have to travel, they do so during the step before."""
        return batch.halo

    def operator(self, run: Run, batch: Batch, l: int, keep: bool) -> Operator:
        """The aggregation of layer l in this step; with ``keep``, it may update tables."""
        return batch.operators[l - 1]

    def compensate(self, run: Run, batch: Batch, l: int, s: Tensor, keep: bool) -> Tensor:
        """The state of layer l as the next layer reads it; with ``keep``, histories are updated.

        Pull the halo's rows before pushing the core's: they are on their way since the step began.
        """
        return s

    def clusters(self, graph: Graph, parts: Tensor | None, seed: int) -> Clusters:
        """How the graph is divided."""
        whole = torch.zeros(graph.num_nodes, dtype=torch.int64) if parts is None else parts
        return Clusters.of(whole, per_batch=int(whole.max()) + 1, redraw=False, seed=seed)

    def estimate(self, run: Run, batch: Batch, keep: bool, dropout: bool) -> tuple[list[Tensor], Tensor]:
        """Gradients and loss of a batch WITHOUT the factor b/c, as the histories hold their adjoints."""
        problem = run.problem
        if problem.model.recurrent:
            return recurrent.estimate(run, batch, keep, dropout)
        run.prefetch(batch)
        problem.model.train()
        p = Pass(
            num_core=batch.num_core if batch.num_halo and not self.grad_from_all_rows else None,
            pooled=self.pooled_statistics,
            batch_renorm=self.steady_statistics,
            dropout=dropout,
            generator=run.generator,
            grad_from_halo=self.grad_from_halo,
        )

        def at(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
            return self.compensate(run, batch, l, layer(self.operator(run, batch, l, keep)), keep)

        losses = problem.losses(problem.forward(run.inputs(batch), p, at), batch)
        # a wrapped network may hold parameters that it does not use
        grads = torch.autograd.grad(losses.sum(), list(run.parameters.values()), materialize_grads=True)
        return list(grads), losses[: batch.num_core].sum().detach()

    def bind(
        self,
        graph: Graph,
        model: Model,
        parts: Tensor | None = None,
        placement: Placement | None = None,
        *,
        device: str | torch.device | None = None,
        seed: int = 0,
    ) -> Run:
        """This method on this graph and model.

        Args:
            parts: an assignment [n] of nodes to parts; by default the method's own partitioner divides the graph.
            placement: where to train, and what is kept where.
            device: a shorthand for ``placement=Placement(device=device)``.
            seed: of batches and dropout masks.
        """
        placement = placement_on(device, placement)
        check_widths(graph, model)
        self.check_kind(model)
        check_precision(placement.precision, self.supports_bfloat16, self.title)
        # what this refuses is refused before a graph is divided
        row_type(placement.precision, model, placement.training_device)
        self.check(model)
        self.check_structure(model, placement.structure)
        if parts is not None:
            parts = check_parts(torch.as_tensor(parts), graph.num_nodes)
        seed = int(seed)
        clusters = self.clusters(graph, parts, seed)
        problem = Problem.of(
            graph,
            model,
            placement,
            self.aggregates_once,
            self.state_cut,
            self.swaps_dropout,
            order=clusters.order,
        )
        if len(problem.matrices) > 1 and not self.several_matrices:
            raise ConfigError(
                f"expected a model with one aggregation matrix for all layers (got {len(problem.matrices)} of them): "
                f"{self.title} samples the entries of one; use LMC4Conv"
            )
        model.prepare(problem.P)
        release_freed()
        return Run(self, problem, clusters, seed)

    def check_kind(self, model: Model) -> None:
        """Refuse a recurrent model, or one with layers, where the method trains the other kind."""
        if not (self.trains_recurrent if model.recurrent else self.trains_convolutional):
            wanted, remedy = ("layers, such as GCN,", "LMC4Rec") if model.recurrent else ("a fixed point", "LMC4Conv")
            raise ConfigError(
                f"expected a model with {wanted} for {self.title} (got {type(model).__name__}): use {remedy}"
            )

    def check_structure(self, model: Model, structure: str) -> None:
        """Refuse edges on the host where more is read of them than batches."""
        if structure == "host" and not self.reads_batches_alone(model):
            raise ConfigError(
                f'expected structure="device" for {self.title} and {type(model).__name__} (got "host"): they read more '
                "than the edges of a batch; LMC4Conv, CMC and GAS with a model of layers, such as GCN, do not"
            )

    def reads_batches_alone(self, model: Model) -> bool:
        """Whether no more is read of the edges than those of a batch, so that they may stay on the host."""
        return isinstance(self, ClusterMethod) and not (model.recurrent or model.owns_forward)

    @property
    def grad_from_all_rows(self) -> bool:
        """Whether parameters take their gradient from every computed row (plain autograd of the batch's loss), not from
        core rows alone."""
        return False

    @property
    def several_matrices(self) -> bool:
        """Whether the layers of a model may aggregate with matrices of their own (``problem.matrices``)."""
        return True

    @property
    def aggregates_once(self) -> bool:
        """Whether P X may be computed once on the whole graph."""
        return True

    @property
    def swaps_dropout(self) -> bool:
        """Whether P X is computed once although the features are dropped out: the dropout then falls on P X."""
        return False

    @property
    def state_cut(self) -> Cut:
        """Where a layer's state lies."""
        return "before"

    @property
    def supports_bfloat16(self) -> bool:
        """Whether it trains with rows in bfloat16."""
        return True

    @property
    def accumulated_tables(self) -> frozenset[str]:
        """Tables that are added to, and so keep the parameters' type whatever that of the rows."""
        return frozenset()

    @property
    def bundles(self) -> tuple[frozenset[str], ...]:
        """Tables that a step reads and writes at the same rows, by name, in every layer: they travel together."""
        return ()

    def operators(self, problem: Problem, first_rows: int, P: Aggregation) -> Operators:
        """One operator per layer: P, after the precomputed first one where there is one."""
        rest = problem.model.num_layers - 1
        return (Precomputed(first_rows) if problem.aggregated else P, *[P] * rest)


@dataclass(frozen=True)
class ClusterMethod(Method):
    """A method whose batches are clusters of parts.

    Args:
        num_parts: b; by default about one part per 2,000 nodes, at least 10.
        clusters_per_batch: c, drawn without replacement; by default an eighth of the parts, at least 2.
        redraw: draw new batches every epoch instead of fixing the subgraphs once.
        partition: "metis", "random" or "label-propagation".
    """

    num_parts: int | None = None
    clusters_per_batch: int | None = None
    redraw: bool = False
    partition: str = "metis"

    def __post_init__(self) -> None:
        for field in ("num_parts", "clusters_per_batch"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"expected {field} of at least 1 (got {value})")
            if value is not None and value != int(value):
                raise ConfigError(f"expected {field} to be a whole number (got {value})")
        if self.partition not in PARTITIONS:
            raise ConfigError(f"expected partition in {list(PARTITIONS)} (got {self.partition!r})")
        if self.num_parts and self.clusters_per_batch and self.clusters_per_batch > self.num_parts:
            raise ConfigError(
                f"expected clusters_per_batch of at most num_parts = {self.num_parts} (got {self.clusters_per_batch})"
            )

    def parts_of(self, graph: Graph, seed: int) -> Tensor:
        """The assignment of nodes to parts that this method trains on, unless it is given another."""
        b = int(self.num_parts or 0) or min(graph.num_nodes, max(10, min(1500, round(graph.num_nodes / 2000))))
        return partition(graph, b, method=self.partition, seed=seed)

    def clusters(self, graph: Graph, parts: Tensor | None, seed: int) -> Clusters:
        if parts is None:
            parts = self.parts_of(graph, seed)
        b = int(parts.max()) + 1
        if self.num_parts is not None and self.num_parts != b:
            raise ConfigError(f"expected an assignment to {self.num_parts} parts (got {b} parts): make them agree")
        c = int(self.clusters_per_batch or 0) or max(min(2, b), b // 8)
        if c > b:
            raise ConfigError(f"expected clusters_per_batch of at most {b} parts (got {c})")
        return Clusters.of(parts, c, self.redraw, seed)


@dataclass(frozen=True)
class HistoryMethod(ClusterMethod):
    """A cluster method that keeps histories."""

    @property
    def bundles(self) -> tuple[frozenset[str], ...]:
        return (frozenset({"H", "V"}),)


def check_widths(graph: Graph, model: Model) -> None:
    """A graph and a model that fit each other."""
    if not isinstance(graph, Graph):
        raise ConfigError(f"expected an lmc.Graph (got {type(graph).__name__}): lmc.load makes one")
    if not isinstance(model, Model):
        raise ConfigError(
            f"expected a model of lmc.models (got {type(model).__name__}): lmc.wrap makes one of a network of PyG "
            "convolutions; docs/bring-your-own-model.md shows how to write one"
        )
    for what, wanted, got, source in (
        ("inputs", graph.num_features, model.in_width, "g.num_features"),
        ("outputs", graph.num_classes, model.out_width, "g.num_classes"),
    ):
        if wanted != got:
            raise ConfigError(
                f"expected a model with {wanted} {what} for graph {graph.name!r} (got {got}): build it with {source}"
            )
