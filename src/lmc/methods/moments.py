"""Mean and covariance over all nodes of what a layer of IMC reads, for the batch norm that follows it.

They are stored by a sweep as ``moments{l}``, [1 + k, k] for k columns. A step on any batch computes the mean and the
variance of the state of layer l over all nodes from them (:class:`lmc.models.statistics.Distribution`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lmc.kernels.copies import unwritten
from lmc.kernels.packed import in_pieces
from lmc.kernels.row_moments import RowMoments
from lmc.methods.protocol import ExactPasses, ProblemView
from lmc.models.activation import Activation, BatchNorm
from lmc.stores import Rows

MANY_COLUMNS = 1024
"""Where a layer reads more columns, its batch norm reads the statistics of the batch, corrected."""

NUMBERS = {"cpu": 2**20, "cuda": 2**25}
"""Numbers of P X that are read at a time, by the type of the device: a temporary copy stays in the cache of a CPU."""


def columns_read(problem: ProblemView, Q: Mapping[int, int]) -> dict[int, int]:
    """The layers whose batch norm reads statistics of all nodes, and how many columns the layer reads at a sweep.

    These statistics follow from the distribution of what the layer reads (``Layer.affine_of``). The last layer is left
    out: for fixed batches, a sweep does not compute its sums.

    Args:
        Q: the columns of the rows that a layer aggregates, by layer.
    """
    model = problem.model
    if model.owns_forward:
        return {}
    first = {1: problem.graph.num_features * (1 + model.keeps_features)} if problem.aggregated else {}
    columns = first | {l: r * len(model.layer(l).affine_of) for l, r in Q.items()}
    layers = {l: model.layer(l) for l, k in columns.items() if k <= MANY_COLUMNS and l < model.num_layers}
    return {l: columns[l] for l, layer in layers.items() if layer.affine_of and _normalises(layer.activation)}


class Moments:
    """The moments of all layers that have some, from the complete sums of their rows, which come in pieces."""

    def __init__(self, exact: ExactPasses) -> None:
        self._exact = exact
        found = {l: exact.numbers.get(f"moments{l}") for l in sorted(exact.tables["Q"])}
        self._of_layer = {l: RowMoments(into[0], covariance=True) for l, into in found.items() if into is not None}

    def add(self, l: int, rows: Rows, m: Tensor) -> None:
        """Add rows of P Q of layer l; nothing happens where the layer has no moments."""
        if l in self._of_layer:
            reads_rows = "rows" in self._exact.problem.model.layer(l).affine_of
            self._of_layer[l].add(torch.cat([m, self._exact.tables["Q"][l].pull(rows)], 1) if reads_rows else m)

    def add_all(self, sums: str) -> None:
        """Add all rows of P Q of every layer, from the table ``sums``, "M" or "S"."""
        exact = self._exact
        for l in self._of_layer:
            Q, table = exact.tables["Q"][l], exact.tables[sums][l]
            for rows in exact.chunks:
                self.add(l, rows, table.pull(rows) if sums == "M" else exact.complete_sums(l, Q, table, rows))

    def store(self) -> None:
        """Store what was added, and the moments of P X."""
        for l, moments in self._of_layer.items():
            self._store(moments, self._exact.numbers[f"moments{l}"])
        first = None if 1 in self._of_layer else self._exact.numbers.get("moments1")
        if first is not None and unwritten(first):  # P X is constant
            moments = RowMoments(first[0], covariance=True)
            for rows in in_pieces(self._exact.chunks, max(1, NUMBERS[first.device.type] // first.shape[1])):
                moments.add(_dense_inputs(self._exact.problem, rows))
            self._store(moments, first)

    def _store(self, moments: RowMoments, into: Tensor) -> None:
        mean, covariance = moments.of_all(self._exact.problem.num_nodes, self._exact.total)
        into[0].copy_(mean)
        into[1:].copy_(covariance)


def _normalises(activation: Activation | None) -> bool:
    """Whether this is a batch norm with parameters, ReLU and nothing else."""
    norm = activation.norm if type(activation) is Activation else None
    return type(norm) is BatchNorm and norm.affine


def _dense_inputs(problem: ProblemView, rows: Rows) -> Tensor:
    """What a first layer on P X reads."""
    x = problem.inputs(rows)
    return x if isinstance(x, Tensor) else x.to_dense()
