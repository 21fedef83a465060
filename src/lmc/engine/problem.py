"""A graph and a model on their device: the aggregation matrices, the features and the losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.engine.distributed.exchange import Exchange, mirrored
from lmc.engine.distributed.matrices import local_matrices
from lmc.engine.exact import chunks_of, cut
from lmc.engine.features import FirstReads, aggregated_features, permuted, plain_features, tier_of, when_read
from lmc.errors import ConfigError
from lmc.graph import CSR, Batch, Extractor, Graph, adjacency_of, offload
from lmc.losses import Loss
from lmc.methods.protocol import Cut, Setup
from lmc.models import Model, Pass
from lmc.stores import Placement, Rows, Table

if TYPE_CHECKING:
    from lmc.engine.layered import Layered

PLAIN_SETUP = Setup()
"""How a problem is set up where no method asks for anything else, as for an evaluation."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The graph, the model and the loss L = sum over labelled i of w_i loss_i / sum over labelled i of w_i.

    Without node weights w_i this is the mean over the |V_L| labelled nodes.

    Args:
        graph: the graph in run order, on the training device; its features only where they are read there.
        blocks: cuts blocks out of P, the aggregation matrix normalised on the WHOLE graph.
        X: what the first layer reads: the features, or P X (beside X for a model that reads both) where ``aggregated``
            or where the model encodes P X; a table where it is not on the device.
        aggregated: P X is constant and was computed once, in the place of the first aggregation.
        cut: where the state of a layer lies.
        matrices: the matrices that layers aggregate with, all of one pattern; ``blocks`` cuts out of one of them.
        matrix_index: which of them each layer reads, by its number among them.
        features: the tier of X.
        loss: the loss of a row; None: cross entropy of classes, or binary cross entropy of labels.
        exchange: in a distributed run, the way to other ranks; the graph is then that of this rank, mirrors last.
        first_reads: computes rows of X that are read for the first time; None: X is complete.
    """

    graph: Graph
    model: Model
    placement: Placement
    blocks: Extractor
    X: Tensor | CSR | Table
    aggregated: bool
    cut: Cut
    matrices: tuple[Extractor, ...]
    matrix_index: tuple[int, ...]
    features: str = "device"
    loss: Loss | None = None
    exchange: Exchange | None = None
    first_reads: FirstReads | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        model: Model,
        placement: Placement,
        setup: Setup = PLAIN_SETUP,
        order: Tensor | None = None,
        loss: Loss | None = None,
        exchange: Exchange | None = None,
    ) -> Problem:
        """Move the graph, with its nodes in ``order``, and the model to the device, and compute constants once.

        P is normalised, and P X summed, in the dtype of the parameters; both are rounded to that of the rows
        afterwards. Sparse features are not rounded.
        """
        if setup.cut not in ("before", "after"):
            raise ConfigError(f'expected cut "before" or "after" (got {setup.cut!r})')
        device = placement.training_device
        model.to(device)
        parameters, rows = next(model.parameters()).dtype, row_dtype(placement, model)
        dtype = parameters if isinstance(graph.x, CSR) else rows
        aggregated = aggregates_once(model, setup)
        both = aggregated and model.keeps_features
        tier = tier_of(placement.features, graph, graph.num_features * (2 if both else 1), dtype, device)
        on_host, files = placement.structure != "device", placement.structure_files()
        graph, table = permuted(graph, order, tier, device, files)
        graph = _without_nan(graph.to(device, features=False, structure=not on_host))
        found, index = _matrices(graph, model, parameters, exchange, on_host)
        placed = _placed(found, device, on_host)
        X: Tensor | CSR | Table
        first_reads = None
        if aggregated and exchange is None and when_read(placed[0], graph.x, tier, dtype):
            assert isinstance(graph.x, Tensor)
            first_reads = FirstReads(placed[0], graph.x, both)
            X = first_reads.sums
        elif aggregated or model.encodes_aggregates:
            X = mirrored(aggregated_features(placed[0], graph.x, table, tier, both, dtype), exchange)
        else:
            X = plain_features(graph.x, table, tier, device, dtype)
        if rows != parameters:
            placed = _placed([matrix.to(dtype=rows) for matrix in found], device, on_host)
        matrices = tuple(Extractor(matrix) for matrix in placed)
        return cls(
            graph, model, placement, matrices[0], X, aggregated, setup.cut, matrices, index, tier.name, loss, exchange,
            first_reads,
        )  # fmt: skip

    @cached_property
    def kind(self) -> Layered:
        """How the model's passes go."""
        return kind_of(self.model)

    @property
    def num_owned(self) -> int:
        """The leading rows that this process computes: all, or those that its rank owns."""
        return self.graph.num_nodes if self.exchange is None else self.exchange.shard.num_owned

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes if self.exchange is None else self.exchange.shard.num_nodes

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have nodes in the whole graph."""
        return self.graph.splits if self.exchange is None else self.exchange.shard.splits

    def of_layer(self, l: int) -> Problem:
        matrix = self.matrices[self.matrix_index[l - 1]]
        return self if self.blocks is matrix else replace(self, blocks=matrix)

    def renormalise(self, block: CSR) -> CSR:
        l, adj = self.matrix_index.index(self.matrices.index(self.blocks)) + 1, self.graph.adj
        if adj.symmetric and block.edge_data is None:
            return self.model.renormalise(block, l)
        found, index = self.model.matrices(adjacency_of(block, adj), block.dtype)
        return found[index[l - 1]]

    @property
    def P(self) -> CSR:
        return self.blocks.P

    @property
    def transposed(self) -> Extractor:
        return self.blocks.transposed

    def halo(self, core: Tensor) -> Tensor:
        """The nodes outside of ``core`` that it reads, or that read it, ascending; undirected, these are the same."""
        return self.blocks.halo(core, both=self.graph.directed)

    @property
    def device(self) -> torch.device:
        return self.P.device

    @property
    def dtype(self) -> torch.dtype:
        return self.P.dtype

    @property
    def accumulate_dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def completeness(self, P: CSR, halo: Tensor) -> Tensor:
        """x = deg_local / deg_global of the halo, the last rows of the block P; without self-loops, [num_halo, 1].

        On a directed graph a degree counts the edges of both directions, so that one x serves both passes.
        """
        deg_local, deg_global = P.degrees()[P.num_rows - halo.numel() :] - 1, self.P.degrees(halo) - 1
        if self.graph.directed:
            first = P.num_rows - halo.numel()
            deg_local = deg_local + P.t().degrees()[first:] - 1
            deg_global = deg_global + self.P.t().degrees(halo) - 1
        if self.exchange is not None:  # neighbours of mirrors may be elsewhere
            deg_global = self.exchange.degree[halo]
        return (deg_local.to(self.accumulate_dtype) / deg_global).unsqueeze(1)

    def inputs(self, rows: slice | Tensor) -> Tensor | CSR:
        if isinstance(self.X, CSR):
            there = rows if isinstance(rows, slice) else rows.to(self.X.device)
            return self.X.select_rows(there).to(self.device)
        if not isinstance(self.X, Tensor):
            return self.X.pull(rows)
        if self.first_reads is not None:
            self.first_reads.fill(rows)
        return self.X[rows] if isinstance(rows, slice) else self.X.index_select(0, rows)

    @property
    def stored(self) -> Table | None:
        """The features as a table, where they lie on a slower tier."""
        return None if isinstance(self.X, Tensor | CSR) else self.X

    def encode(self, x: Tensor | CSR, p: Pass) -> Tensor | CSR:
        """h^0, in the type of the rows; features that are sparse, and not transformed, as they are."""
        h0 = self.model.encode(x, p)
        return h0 if isinstance(h0, CSR) else h0.to(self.dtype)

    def aggregate(self, read: Callable[[Rows], Tensor | CSR], width: int) -> Table:
        table = self.table(width)
        for rows in chunks_of(self):
            chunk = cut(self, rows, 1)
            t = read(chunk.ext)
            table.push(rows, chunk.operator(t.to_dense() if isinstance(t, CSR) else t))
        return table

    def table(self, width: int, dtype: torch.dtype | None = None) -> Table:
        """A table of zeros where histories are stored, one row per node, by default in the dtype of the rows."""
        return self.placement.tier.table(self.graph.num_nodes, width, dtype or self.dtype, self.device)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The losses of the leading rows of a batch, each with its importance."""
        num, weight = outputs.shape[0], self.graph.weight
        of_rows = None if weight is None else weight[batch.ext[:num]]
        losses = row_losses(self, outputs, batch.y[:num], batch.labelled[:num], of_rows)
        return losses if batch.importance is None else losses * batch.importance


def row_losses(problem: Problem, outputs: Tensor, y: Tensor, labelled: Tensor, weight: Tensor | None = None) -> Tensor:
    """w_i loss_i / sum of w over the labelled nodes, of every row; zero where it is not labelled."""
    whole = problem.graph if problem.exchange is None else problem.exchange.shard
    outputs = outputs.to(problem.accumulate_dtype)
    if problem.loss is not None:
        losses = _own_losses(problem.loss, outputs, y, labelled)
    elif problem.graph.multi_label:
        each = F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none")
        losses = each.mean(1) * labelled
    else:
        losses = F.cross_entropy(outputs, y.where(labelled, -100), reduction="none", ignore_index=-100)
    if weight is not None:
        losses = losses * weight.to(losses.dtype)
    return losses / whole.total_weight


def losses_of(problem: Problem, outputs: Tensor, rows: Rows) -> Tensor:
    """The losses of rows of the graph."""
    graph = problem.graph
    weight = None if graph.weight is None else graph.weight[rows]
    return row_losses(problem, outputs, graph.y[rows], graph.train[rows], weight)


def _own_losses(loss: Loss, outputs: Tensor, y: Tensor, labelled: Tensor) -> Tensor:
    """The losses of a user's function. It sees unlabelled rows as zeros, and no gradient flows through them, not even
    NaN."""
    of_rows = labelled.unsqueeze(1)
    y = y.where(labelled if y.dim() == 1 else of_rows, 0)
    losses = loss(outputs.where(of_rows, 0), y.to(outputs.dtype) if y.is_floating_point() else y)
    return losses.where(labelled, 0)


def _matrices(
    graph: Graph, model: Model, dtype: torch.dtype, exchange: Exchange | None, on_host: bool
) -> tuple[list[CSR], tuple[int, ...]]:
    """The matrices that the layers of the model read, normalised on the whole graph, and which of them each reads."""
    if exchange is None:
        return model.matrices(graph.adj, dtype)
    found, index = local_matrices(model, exchange, dtype)
    return found if on_host else [matrix.to(graph.device) for matrix in found], index


def _placed(matrices: list[CSR], device: torch.device, on_host: bool) -> list[CSR]:
    """The matrices, with their entries left in host memory where they are to stay there."""
    return [offload(matrix, device) for matrix in matrices] if on_host else matrices


def _without_nan(graph: Graph) -> Graph:
    """The graph with 0 for unknown labels: their loss counts 0 times, and 0 times NaN would be NaN."""
    if not (graph.multi_label and bool(graph.y.isnan().any())):
        return graph
    return replace(graph, y=graph.y.nan_to_num(0.0))


def aggregates_once(model: Model, setup: Setup) -> bool:
    """Whether P X is constant and computed once."""
    return setup.precompute and (model.constant_input or (setup.swap_dropout and model.aggregates_features))


def row_dtype(placement: Placement, model: Model) -> torch.dtype:
    """The dtype of rows, tables and P; refuses bfloat16 where training with it would go wrong.

    bfloat16 has the range of float32 and 8 bits of precision: a rounding changes a number by at most 2^-8 of itself.
    """
    parameters, device = next(model.parameters()).dtype, placement.training_device
    if parameters == torch.float16 and device.type == "cpu":
        raise ConfigError(
            "expected float32, float64 or bfloat16 parameters on a CPU (got torch.float16): sparse products have no "
            "float16; convert with model.float()"
        )
    if placement.precision == "float32":
        return parameters
    if parameters != torch.float32:
        raise ConfigError(
            f'expected float32 parameters for precision="bfloat16" (got {parameters}): convert with model.float()'
        )
    why = kind_of(model).bfloat16_obstacle(model)
    if why:
        raise ConfigError(f'expected precision="float32" for {type(model).__name__} (got "bfloat16"): {why}')
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise ConfigError(
            f'expected a GPU of compute capability 8.0 for precision="bfloat16" (got '
            f'{torch.cuda.get_device_name(device)}): it has no bfloat16 products; use precision="float32"'
        )
    return torch.bfloat16


def kind_of(model: Model) -> Layered:
    """The kind of a model: the one place where the engine asks what it is like. A kind says how a step estimates its
    gradient, how exact passes go, and which conveniences (edges on the host, CUDA graphs, bfloat16) it allows."""
    from lmc.engine.layered import Layered
    from lmc.engine.own_forward import OwnForward
    from lmc.engine.recurrent import RecurrentKind

    if model.recurrent:
        return RecurrentKind()
    return OwnForward() if model.owns_forward else Layered()
