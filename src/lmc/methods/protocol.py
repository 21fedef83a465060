"""What a method is: an estimator of the gradient, written as a frozen record of settings that answers a few questions.

| question | answered by | LMC4Conv's answer |
|---|---|---|
| Which rows and operators make a batch? | :meth:`Method.layout` | core and halo; P induced on both |
| What is kept between steps? | :meth:`Method.tables` | states H[l], adjoints V[l] |
| With what does layer l aggregate? | :meth:`Method.operator` | the batch's operator |
| What happens to the state of layer l? | :meth:`Method.compensate` | (13) forward, (16) backward |
| How do the tables become exact? | :meth:`Method.fill` | states and adjoints of an exact pass |

A sampling method also draws its batches (:class:`SamplingMethod`). Everything that is constant about a method is in one
record, :class:`Traits`. A method sees the engine through three narrow views: :class:`ProblemView` (the graph and the
model), :class:`Step` (one training step) and :class:`ExactPasses` (exact states and adjoints of all nodes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError, check_at_least, check_fields, typed
from lmc.graph import CSR, Aggregation, Batch, Extractor, Graph, Precomputed, Shard
from lmc.losses import Loss
from lmc.models import Model, Operator, Pass
from lmc.partition import partition
from lmc.partition.dispatch import NAMES as PARTITIONS
from lmc.sampling import Clusters
from lmc.stores import Placement, Rows, Table

if TYPE_CHECKING:
    from lmc.engine import Distributed, Run

EXACT_ON_ONE_PART = "exact on one part"
EXACT_WITH_EXACT_HISTORIES = "exact with exact histories"
UNBIASED = "unbiased"
EXACT = frozenset({EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES})

Cut = Literal["before", "after"]
"""Where the state of a layer lies: before its activation, or after it as the paper's equations read."""

Widths = dict[str, dict[int, int]]
"""The tables that a method keeps: {"H": {2: 64}} is one table for layer 2 with a row of width 64 per node."""

Tables = dict[str, dict[int, Table]]
"""The tables themselves, by name and layer."""

Operators = tuple[Aggregation | Precomputed, ...]


@dataclass(frozen=True)
class Traits:
    """The constants of a method.

    Args:
        name: how the command line spells it.
        title: how tables and messages spell it.
        outside: what happens to messages from outside of the batch, in half a sentence.
        step_rows: the rows that a step computes, which decide its memory.
        accepts: the models it can train, in half a sentence; :meth:`Method.check` refuses the others.
        facts: the facts that it claims; the conformance suite tests them.
        trains: the kinds of model it trains: "layered", "recurrent".
        reads: the rows of a batch at which a step pulls its tables, by the names of :class:`lmc.graph.Batch`.
        bundles: tables that a step reads and writes at the same rows, so that they can be transferred together.
        accumulated_tables: tables that steps add to; they keep the dtype of the parameters.
        grad_from_all_rows: parameters take their gradient from every computed row (plain autograd of the batch's
            loss) instead of from core rows alone.
        grad_from_halo: weights that are applied before an aggregation take their gradient from halo rows too
            (:class:`lmc.models.Pass`).
        batch_norm: the statistics of batch norm: "core" rows and halo rows by themselves, "pooled" over all rows, or
            "renormalised" (:class:`lmc.models.Pass`).
        several_matrices: the layers of a model may aggregate with different matrices.
        supports_bfloat16: rows, tables and P may be bfloat16.
        edge_features: its operators keep the features of edges, for wrapped networks whose messages read them.
        keeps_batches: fixed batches are small enough to be kept on the device.
        pads_batches: a step ignores rows of padding, whose number is that of no node (:mod:`lmc.engine.padding`), on
            "all" graphs, on "plain" ones (undirected, without weights), or on "none". On a GPU :meth:`Method.layout`
            is then recorded, so that it must not read numbers on the host or draw (but see :attr:`Setup.draws_halo`).
        measures_every: k, where the step on every k-th batch also measures something and so differs from the others.
        draws_concurrently: a batch may be drawn while a step runs, since its draw reads nothing that steps change.
        sweeps: the tables are filled again during training, when :meth:`Method.due` says so.
        history_update_probability: on a recurrent model with dropout, the share of steps that run without dropout and
            update the histories; None: no message is read from the histories, and every step uses dropout.
        sync: how ranks of a distributed run may exchange rows, "step" or "layer" (:class:`lmc.Distributed`).
        sums: tables that hold sums of the rows of another table at all times, as (sums, rows, transposed): M = P T, or
            U = P^T V where transposed.
        shared_numbers: numbers with one column per batch of which the method reads all columns.
        row_numbers: numbers with one entry per node, which change with the rows of the tables.
        replicated_numbers: numbers that are the same on every rank of a distributed run.
    """

    name: str
    title: str
    outside: str
    step_rows: str = "core"
    accepts: str = "any"
    facts: frozenset[str] = frozenset({EXACT_ON_ONE_PART})
    trains: frozenset[str] = frozenset({"layered"})
    reads: tuple[str, ...] = ("halo",)
    bundles: tuple[frozenset[str], ...] = (frozenset({"H", "V"}),)
    accumulated_tables: frozenset[str] = frozenset()
    grad_from_all_rows: bool = False
    grad_from_halo: bool = False
    batch_norm: Literal["core", "pooled", "renormalised"] = "core"
    several_matrices: bool = True
    supports_bfloat16: bool = True
    edge_features: bool = True
    keeps_batches: bool = True
    pads_batches: Literal["all", "plain", "none"] = "none"
    measures_every: int = 1
    draws_concurrently: bool = False
    sweeps: bool = False
    history_update_probability: float | None = None
    sync: tuple[str, ...] = ()
    sums: tuple[tuple[str, str, bool], ...] = ()
    shared_numbers: tuple[str, ...] = ()
    row_numbers: tuple[str, ...] = ()
    replicated_numbers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setup:
    """How a method wants the problem to be set up.

    Args:
        precompute: compute P X once on the whole graph where the model's first aggregation is constant.
        swap_dropout: precompute P X even where the model drops features out before they are aggregated; the dropout
            then falls on P X.
        cut: where the state of a layer lies.
        records_fill: :meth:`Method.fill` computes on the device alone, so that it can be recorded as a CUDA graph.
        draws_halo: :meth:`Method.layout` draws halo rows on the host, so that it cannot be recorded.
            :meth:`Method.layout_with`, which is given these rows, is recorded instead.
    """

    precompute: bool = True
    swap_dropout: bool = False
    cut: Cut = "before"
    records_fill: bool = False
    draws_halo: bool = False


@dataclass(frozen=True, eq=False)
class Layout:
    """What a method lays out around the core rows of a batch.

    Args:
        halo: the rows beside the core.
        operators: one operator per layer.
        coefficients: one number per halo row, [num_halo, 1], for the method's own use; LMC4Conv's beta.
    """

    halo: Tensor
    operators: Operators
    coefficients: Tensor | None = None


class ProblemView(Protocol):
    """What a method may know of the graph and the model; nodes are in run order."""

    @property
    def graph(self) -> Graph:
        """The graph; in a distributed run, that of this rank: rows that it owns, then mirrors of other ranks' rows."""

    @property
    def num_nodes(self) -> int:
        """The nodes of the whole graph."""

    @property
    def model(self) -> Model: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def blocks(self) -> Extractor:
        """Cuts blocks out of P, which is normalised on the WHOLE graph."""

    @property
    def transposed(self) -> Extractor:
        """Cuts blocks out of P^T."""

    def halo(self, core: Tensor) -> Tensor:
        """The nodes outside of ``core`` that it reads, or that read it; ``blocks.halo(core)`` are those it reads. On an
        undirected graph these are the same."""

    @property
    def P(self) -> CSR: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of rows, tables and P."""

    @property
    def accumulate_dtype(self) -> torch.dtype:
        """The dtype of the parameters, of losses, and of sums over steps."""

    @property
    def aggregated(self) -> bool:
        """Whether P X was computed once, so that layer 1 reads complete messages."""

    def completeness(self, P: CSR, halo: Tensor) -> Tensor:
        """x = deg_local / deg_global of the halo, the last rows of the block P, [num_halo, 1]."""

    def renormalise(self, block: CSR) -> CSR:
        """The aggregation matrix of the subgraph whose pattern is ``block``, normalised as a graph of its own."""

    def of_layer(self, l: int) -> ProblemView:
        """The same with the matrix of layer l as P."""

    def inputs(self, rows: Rows) -> Tensor | CSR:
        """What the encoder reads for these rows."""

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """w_i loss_i / (sum of w over labelled nodes) of the leading rows of a batch, zero where a row is not labelled,
        each times its importance."""

    def aggregate(self, read: Callable[[Rows], Tensor | CSR], width: int) -> Table:
        """P t as a table, chunk by chunk; ``read`` gives rows of t."""


@dataclass(frozen=True, eq=False)
class Step:
    """One training step as a method sees it.

    Args:
        tables: what is kept between steps, one row per node (:meth:`Method.tables`).
        numbers: the small tensors that are kept beside the tables (:meth:`Method.numbers`).
        prepared: what :meth:`SamplingMethod.prepare` gave.
        parameters: the trained parameters, by name.
        generator: the source of dropout masks.
        keep: whether tables and numbers are updated; a diagnostic step leaves them as they are.
        dropout: whether the model drops out.
        scratch: what a layer of this step leaves for the others.
    """

    problem: ProblemView
    batch: Batch
    tables: Tables
    numbers: dict[str, Tensor]
    prepared: Any
    parameters: Mapping[str, nn.Parameter]
    generator: torch.Generator
    keep: bool
    dropout: bool
    scratch: dict[Any, Any] = field(default_factory=dict)

    @property
    def H(self) -> dict[int, Table]:
        """The histories of states, by layer."""
        return self.tables.get("H", {})

    @property
    def V(self) -> dict[int, Table]:
        """The histories of adjoints, by layer."""
        return self.tables.get("V", {})


class ExactPasses(Protocol):
    """Exact passes over all nodes at the current parameters, chunk by chunk, without dropout."""

    @property
    def problem(self) -> ProblemView: ...

    @property
    def tables(self) -> Tables: ...

    @property
    def numbers(self) -> dict[str, Tensor]: ...

    @property
    def chunks(self) -> list[Rows]: ...

    @property
    def cores(self) -> list[Rows]:
        """The core rows of every fixed batch, by slot."""

    @property
    def extended(self) -> list[Tensor]:
        """Core and halo rows of every fixed batch, by slot; none where batches, or graphs, change."""

    def fill_states(self) -> list[Table]:
        """H[l] <- the exact states; gives the states of all layers."""

    def fill_adjoints(self, states: list[Table]) -> None:
        """V[l] <- the exact adjoints at these states."""

    def fill_messages(self) -> list[Table]:
        """T[l] <- the exact rows that layer l aggregates; gives the states of all layers."""

    def messages(
        self,
        sums: str,
        store: Callable[[int, Rows, Tensor], None],
        stored: Callable[[int], None],
        complete: Callable[[int, Rows, Tensor], None],
        random: bool = False,
    ) -> None:
        """One pass over the exact rows that layers aggregate, for every table Q of messages.

        When ``store`` has stored the rows of layer l in Q[l], layer l of the table ``sums`` is filled: "M" with P Q[l];
        "S", in all layers but the last, with the share of it that comes from outside of fixed batches. The pass
        continues from these sums. The running statistics of the batch norms between layers are set to those of the
        whole graph on the way.

        Args:
            store: is called with (l, rows, the exact rows that layer l aggregates), chunk by chunk.
            stored: is called with l after the last chunk of a layer; on a GPU perhaps on a second stream.
            complete: is called with (l, rows, rows of P Q[l]) for all rows of every layer but the last, chunk by chunk.
            random: the rows of a copy of the model with random parameters.
        """

    def adjoints(self, states: list[Table]) -> Iterator[tuple[int, Table]]:
        """(l, table of the exact adjoints of layer l), from the last layer to the first."""

    def fill_sums(
        self, l: int, rows: Table, sums: Table, transposed: bool = False, relu: bool = False, outside: bool = False
    ) -> None:
        """sums <- P rows, or P^T rows, with the matrix of layer l; with ``relu``, of the positive part of the rows;
        with ``outside``, without the entries of P within fixed batches, of rows that :meth:`messages` has made."""

    def complete_sums(self, l: int, rows: Table, outside: Table, of: Rows) -> Tensor:
        """P rows for the rows ``of``, where ``outside`` holds the share of it from outside of fixed batches."""

    def fill_feature_sums(self, sums: Table) -> None:
        """sums <- P X with the matrix of the first layer."""

    def publish(self, tables: Iterable[Table]) -> None:
        """Give other ranks the rows of these tables that they mirror."""

    def affine_adjoint(self, l: int, rows: Rows, m: Table, t: Table, v: Table) -> Tensor:
        """The adjoint of the sums of layer l, from the adjoint v of its state, for these rows."""

    def total(self, value: Tensor) -> Tensor:
        """A sum over the rows of all ranks, from that over the rows of this one."""


class BatchSource(Protocol):
    """What a sampling method draws its batches from."""

    @property
    def problem(self) -> ProblemView: ...

    @property
    def tables(self) -> Tables: ...

    @property
    def prepared(self) -> Any:
        """What :meth:`SamplingMethod.prepare` gave."""

    @property
    def seed(self) -> int: ...

    def assemble(
        self, core: Tensor, layout: Layout, weight: float, slot: int, importance: Tensor | None = None
    ) -> Batch:
        """A batch of these core rows."""


@dataclass(frozen=True)
class Method:
    """An estimator of the gradient: a frozen record of settings that answers the questions below."""

    traits: ClassVar[Traits]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def setup(self) -> Setup:
        """How the problem is set up for this method."""
        return Setup()

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        """The halo and the operators of a batch with these core rows."""
        raise NotImplementedError

    def layout_with(self, problem: ProblemView, core: Tensor, halo: Tensor) -> Layout:
        """The same with halo rows that :meth:`layout` has drawn before (:attr:`Setup.draws_halo`)."""
        raise NotImplementedError

    def coefficients(self, problem: ProblemView, P: CSR, halo: Tensor) -> Tensor | None:
        """One number per halo row, the last rows of the block P; None where the method reads none."""
        return None

    def tables(self, problem: ProblemView) -> Widths:
        """The tables that are kept between steps."""
        return {}

    def numbers(self, problem: ProblemView, num_batches: int) -> dict[str, Tensor]:
        """The small tensors that are kept between steps beside the tables."""
        return {}

    def operator(self, step: Step, l: int) -> Operator:
        """The aggregation of layer l in this step."""
        return step.batch.operators[l - 1]

    def compensate(self, step: Step, l: int, s: Tensor) -> Tensor:
        """The state of layer l as the next layer reads it. Pull rows of the halo before pushing those of the core."""
        return s

    def fill(self, exact: ExactPasses) -> None:
        """Make the tables exact at the current parameters."""
        if "H" in exact.tables:
            states = exact.fill_states()
            if "V" in exact.tables:
                exact.fill_adjoints(states)

    def due(self, numbers: dict[str, Tensor], epoch: int, step: int, num_batches: int) -> bool:
        """Whether the tables are filled again before this step of this epoch, both counted from 0."""
        return False

    def regraph(self, exact: ExactPasses) -> None:
        """Update what the tables hold of the edges: P has changed (:class:`lmc.methods.DropEdge`)."""

    def check(self, model: Model) -> None:
        """Refuse a model that this method cannot train, with the reason."""

    def settled(self, model: Model, features: int, num_nodes: int, num_parts: int) -> Method:
        """This method with its automatic options chosen for a model and a graph.

        Args:
            features: the columns of P X where it is computed once, else 0.
            num_nodes, num_parts: those of the whole graph, so that the choice does not depend on the number of ranks.
        """
        return self

    def clusters(self, graph: Graph, parts: Tensor | None, seed: int) -> Clusters:
        """How the graph is divided: by default one part, which is the whole graph."""
        whole = torch.zeros(graph.num_nodes, dtype=torch.int64) if parts is None else parts
        return Clusters.of(whole, per_batch=int(whole.max()) + 1, redraw=False, seed=seed)

    @typed
    def bind(
        self,
        graph: Graph | Shard | str | Path,
        model: Model,
        parts: Tensor | None = None,
        placement: Placement | None = None,
        *,
        device: str | torch.device | None = None,
        loss: Loss | None = None,
        seed: int = 0,
        inductive: bool | None = None,
        distributed: bool | Distributed = False,
    ) -> Run:
        """This method on this graph and model.

        Args:
            graph: a graph; in a distributed run also the :class:`Shard` of this rank, or the folder of ``lmc shard``,
                of which every rank reads its own file.
            parts: an assignment [n] of nodes to parts; by default the method's own partitioner divides the graph that
                training sees. Of an inductive graph, those of all nodes or of the training nodes.
            placement: where to train, and what is kept where.
            device: a shorthand for ``placement=Placement(device=device)``.
            loss: a function (outputs, targets) -> losses [rows], such as those of :mod:`lmc.losses`; by default cross
                entropy of classes, binary cross entropy of labels, or the squared error of a regression.
            seed: of the partition, batches and dropout masks.
            inductive: whether training sees the training nodes and the edges between them alone; by default as the
                graph says (``graph.inductive``).
            distributed: train together with the other processes that torchrun started; :class:`lmc.Distributed` says
                how. Every process passes the same graph, of which it keeps its share, or its own :class:`Shard`.
        """
        from lmc.engine import bind  # the one call from a method into the engine

        return bind(
            self, graph, model, parts, placement, device=device, loss=loss, seed=seed, inductive=inductive,
            distributed=distributed,
        )  # fmt: skip


def operators(problem: ProblemView, first_rows: int, P: Aggregation) -> Operators:
    """One operator per layer: P, after the precomputed first one where there is one."""
    rest = problem.model.num_layers - 1
    return (Precomputed(first_rows) if problem.aggregated else P, *[P] * rest)


@dataclass(frozen=True)
class ClusterMethod(Method):
    """A method whose batches are clusters of parts.

    Args:
        num_parts: b; by default about one part per 2,000 nodes, 10 to 1,500.
        clusters_per_batch: c, drawn without replacement; by default an eighth of the parts, at least 2.
        redraw: draw new batches every epoch instead of fixing the subgraphs once.
        partition: "metis", "metis-work", "kaminpar" or "kaminpar-fast" (need the package kaminpar),
            "label-propagation", "stream", "random", or "auto": "metis", and from 15 million edges on "kaminpar-fast"
            where that package is installed.
    """

    num_parts: int | None = None
    clusters_per_batch: int | None = None
    redraw: bool = False
    partition: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, num_parts=self.num_parts, clusters_per_batch=self.clusters_per_batch)
        if self.partition not in PARTITIONS:
            raise ConfigError(f"expected partition in {list(PARTITIONS)} (got {self.partition!r})")
        if self.num_parts and self.clusters_per_batch and self.clusters_per_batch > self.num_parts:
            raise ConfigError(
                f"expected clusters_per_batch of at most num_parts = {self.num_parts} (got {self.clusters_per_batch}): "
                "take fewer clusters, or more parts"
            )

    def parts_of(self, graph: Graph, seed: int) -> Tensor:
        """The assignment of nodes to parts that this method trains on, unless it is given another."""
        return partition(graph, self.parts_in(graph), method=self.partition, seed=seed)

    def parts_in(self, graph: Graph) -> int:
        """b, the number of parts that this method divides a graph into."""
        return self.num_parts or min(graph.num_nodes, max(10, min(1500, round(graph.num_nodes / 2000))))

    def clusters(self, graph: Graph, parts: Tensor | None, seed: int) -> Clusters:
        if parts is None:
            parts = self.parts_of(graph, seed)
        b = int(parts.max()) + 1
        if self.num_parts is not None and self.num_parts != b:
            raise ConfigError(f"expected an assignment to {self.num_parts} parts (got {b} parts): make them agree")
        c = self.parts_in_batch(b)
        if c > b:
            raise ConfigError(f"expected clusters_per_batch of at most {b} parts (got {c}): take fewer clusters")
        return Clusters.of(parts, c, self.redraw, seed)

    def parts_in_batch(self, b: int) -> int:
        """c, the number of parts in a batch, of b parts."""
        return int(self.clusters_per_batch or 0) or max(min(2, b), b // 8)


@dataclass(frozen=True)
class HistoryMethod(ClusterMethod):
    """A cluster method that keeps histories; :class:`lmc.Placement` says where they are stored."""


@dataclass(frozen=True)
class SamplingMethod(Method):
    """A method that draws its own batches instead of clusters of parts."""

    def prepare(self, problem: ProblemView, seed: int) -> Any:
        """What is computed once from the graph and the seed, and read by every draw; it is not in checkpoints."""
        return None

    def num_batches(self, graph: Graph) -> int:
        """Batches in an epoch."""
        raise NotImplementedError

    def draw(self, source: BatchSource, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch from the ``start``-th on. Each depends on the seed, the epoch and its own number
        alone, so that a run can be resumed anywhere."""
        raise NotImplementedError


@runtime_checkable
class RowwiseMethod(Protocol):
    """A method that computes the outputs of a batch row by row, without aggregating."""

    def outputs(self, step: Step, p: Pass) -> Tensor:
        """The model's outputs for the core rows."""


def with_histories(model: Model) -> str:
    """Methods for an aggregation that is not linear. LMC4Conv completes a softmax over neighbours, but no maximum."""
    return "LMC4Conv or GAS" if model.exact else "GAS"


def check_linear(model: Model, title: str, why: str, instead: str = "") -> None:
    """Refuse a model whose aggregation is not a fixed linear map of the messages.

    Args:
        instead: a method that trains such a model; by default one with histories.
    """
    if not model.linear:
        raise ConfigError(
            f"expected a model with a linear aggregation (got {type(model).__name__}, whose aggregation depends on the "
            f"rows): {title} {why}; use {instead or with_histories(model)}"
        )
