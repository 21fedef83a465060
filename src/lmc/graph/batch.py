"""A mini-batch: core rows, then halo rows, and one aggregation operator per layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph.checks import SPLITS
from lmc.graph.csr import CSR
from lmc.graph.graph import Graph
from lmc.graph.product import Aggregation, Precomputed

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows that a step computes; row numbers are those of the run, ``n_id`` those of the user's graph.

    The number n, which is that of no row, represents a row of padding (:mod:`lmc.engine.padding`).

    Args:
        core: V_B, row numbers; ``rows`` is the same as a slice where they are contiguous.
        halo: N(V_B) \\ V_B, as far as the method reads it.
        operators: the aggregation of each layer.
        inputs: the encoder's input for the input rows of the first operator, where the batch holds it.
        y: targets of core and halo rows.
        labelled: training nodes among core and halo rows.
        weight: batches in an epoch, b/c: the factor of the appendix that makes a batch's gradient an estimate of
            the whole graph's.
        n_id: node numbers of core and halo rows in the user's graph.
        coefficients: one number per halo row, [num_halo, 1], for the method's own use; LMC4Conv's beta.
        fixed: whether the same object is used in every epoch.
        slot: the number of the batch in its epoch; a fixed batch keeps its number.
        graph: the graph in run order, for ``x``, ``edge_index`` and :meth:`to_data`.
        num_real: the number of core rows, and of halo rows, that are not padding, int64 [1] or [2] on the device; None:
            there is no padding, or no step needs the numbers.
        importance: factor on the loss of each core row, where rows are drawn with unequal probabilities.
    """

    core: Tensor
    rows: slice | Tensor
    halo: Tensor
    operators: tuple[Aggregation | Precomputed, ...]
    inputs: Tensor | CSR | None
    y: Tensor
    labelled: Tensor
    weight: float
    n_id: Tensor
    coefficients: Tensor | None = None
    fixed: bool = False
    slot: int = 0
    graph: Graph | None = None
    num_real: Tensor | None = None
    importance: Tensor | None = None

    @property
    def idle(self) -> bool:
        """Whether it has no rows: a rank of a distributed run that has no batch in this step."""
        return self.num_core == self.num_halo == 0

    @property
    def num_core(self) -> int:
        return self.core.numel()

    @property
    def num_halo(self) -> int:
        return self.halo.numel()

    @property
    def batch_size(self) -> int:
        """The name PyG's loaders use for the number of core rows."""
        return self.num_core

    @property
    def num_nodes(self) -> int:
        """Core and halo rows; a node has a row in each subgraph that it belongs to."""
        return self.num_core + self.num_halo

    @property
    def num_edges(self) -> int:
        """The columns of ``edge_index``: both directions of an edge count, as in PyG."""
        return self._edges.nnz

    @property
    def train_mask(self) -> Tensor:
        """The name PyG uses for the labelled rows."""
        return self.labelled

    @property
    def val_mask(self) -> Tensor:
        """Validation nodes among core and halo rows."""
        return self._graph().val[self.ext]

    @property
    def test_mask(self) -> Tensor:
        """Test nodes among core and halo rows."""
        return self._graph().test[self.ext]

    def _graph(self) -> Graph:
        if self.graph is None:
            raise GraphError("expected a batch of a run (got one without its graph): take it from run.batches()")
        return self.graph

    @property
    def x(self) -> Tensor:
        """The features of core and halo rows as a dense tensor; they are gathered at every access."""
        x, ext = self._graph().x, self.ext
        rows = ext.to(x.device)
        return (x.select_rows(rows).to_dense() if isinstance(x, CSR) else x[rows]).to(ext.device)

    @cached_property
    def _edges(self) -> CSR:
        """The adjacency between rows of the batch, in batch numbering."""
        adj, ext = self._graph().adj, self.ext
        entries = adj.select_rows(ext)
        if ext.unique().numel() < ext.numel():  # a node has a row in each subgraph that it belongs to
            return self._within_subgraphs(entries)
        row = torch.full((adj.num_rows,), -1, dtype=torch.int64, device=ext.device)
        row[ext] = torch.arange(ext.numel(), device=ext.device)
        columns = row[entries.indices.long()]
        return replace(entries, indices=columns).filtered(columns >= 0)

    def _within_subgraphs(self, entries: CSR) -> CSR:
        """Those ``entries`` of the adjacency that the first operator has, whose subgraphs are not connected."""
        first = self.operators[0]
        assert isinstance(first, Aggregation)
        P, n = first.forward, entries.num_cols
        known, order = (P.row_index() * n + self.ext[P.indices.long()]).sort()
        wanted = entries.row_index() * n + entries.indices
        at = torch.searchsorted(known, wanted).clamp(max=known.numel() - 1)
        columns = P.indices.long()[order[at]]
        return replace(entries, indices=columns).filtered(known[at] == wanted)

    @cached_property
    def edge_index(self) -> Tensor:
        """All edges between rows of the batch, [2, E] in batch numbering as PyG has them, without self-loops."""
        return torch.stack([self._edges.indices, self._edges.row_index()])

    @property
    def edge_weight(self) -> Tensor | None:
        """The weights of the edges in ``edge_index``; None where the graph has none."""
        return self._edges.values

    @property
    def edge_attr(self) -> Tensor | None:
        """The features of the edges in ``edge_index``; None where the graph has none."""
        return self._edges.edge_data

    def to_data(self) -> Data:
        """This batch in the form of PyG's loaders: a ``Data`` with ``x y edge_index n_id batch_size`` and the masks.

        The ``batch_size`` core rows come first. Weights and features of edges are included where the graph has them;
        histories and operators of the method are not.
        """
        from torch_geometric.data import Data

        masks = {f"{split}_mask": getattr(self, f"{split}_mask") for split in SPLITS}
        given = {"edge_weight": self.edge_weight, "edge_attr": self.edge_attr}
        more = masks | {name: value for name, value in given.items() if value is not None}
        return Data(x=self.x, edge_index=self.edge_index, y=self.y, n_id=self.n_id, batch_size=self.num_core, **more)

    @cached_property
    def ext(self) -> Tensor:
        """Core rows, then halo rows."""
        return torch.cat([self.core, self.halo]) if self.num_halo else self.core

    @cached_property
    def place(self) -> Tensor:
        """The slot as a tensor, int64 [1] on the device, for steps that are recorded once for several batches."""
        return torch.full((1,), self.slot, device=self.core.device)

    def unrecorded(self) -> Batch:
        """The same batch, whose step is not recorded."""
        return replace(self, fixed=False)

    def __repr__(self) -> str:
        layers = len(self.operators)
        return (
            f"Batch({self.slot}, {self.num_core:,} core and {self.num_halo:,} halo rows, {layers} "
            f"layer{'s' * (layers > 1)}, weight {self.weight:g})"
        )


def live_tensors(root: Any, apart: tuple[type, ...] = ()) -> list[Tensor]:
    """Every dense tensor that can be reached from ``root`` through containers and objects of this library and torch.

    Each is listed once. A sparse tensor is listed by its values, which may be a copy in another dtype; it shares its
    indices with dense ones.

    Args:
        apart: types of objects that are not searched.
    """
    found: list[Tensor] = []
    visited: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if id(value) in visited or isinstance(value, apart):
            continue
        visited.add(id(value))
        if isinstance(value, Tensor):
            found.append(value if value.layout == torch.strided else value.values())
        elif isinstance(value, dict):
            stack += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            stack += value
        elif type(value).__module__.split(".")[0] in ("lmc", "torch"):
            stack += vars(value).values() if hasattr(value, "__dict__") else []
    return found
