"""Mean and covariance over all nodes of what a layer of IMC reads, for the batch norm that follows it.

They are stored by a sweep as ``moments{l}``, [1 + k, k] for k columns. A step on any batch computes the mean and the
variance of the state of layer l over all nodes from them (:class:`lmc.models.statistics.Distribution`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from lmc.kernels.products import coarse_mm
from lmc.kernels.sums import column_sums
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


def store_moments(exact: ExactPasses, sums: str) -> None:
    """Store the moments of every layer that has some.

    Args:
        sums: the table of sums, "M" or "S", as a sweep has filled it.
    """
    for l in range(1, exact.problem.model.num_layers):
        into = exact.numbers.get(f"moments{l}")
        if into is None:
            continue
        if l in exact.tables["Q"]:
            _store(exact, into, partial(_rows_read, exact, sums, l), exact.problem.num_nodes)
        # P X is constant. A GPU is not asked whether it was stored, since the host would wait for the answer
        elif into.is_cuda or not bool(into.any()):
            most = max(1, NUMBERS[into.device.type] // into.shape[1])
            _store(exact, into, partial(_dense_inputs, exact.problem), most)


def _normalises(activation: Activation | None) -> bool:
    """Whether this is a batch norm with parameters, ReLU and nothing else."""
    norm = activation.norm if type(activation) is Activation else None
    return type(norm) is BatchNorm and norm.affine


def _rows_read(exact: ExactPasses, sums: str, l: int, rows: Rows) -> Tensor:
    """Rows of P Q, or of [P Q, Q], of layer l."""
    Q, table = exact.tables["Q"][l], exact.tables[sums][l]
    m = table.pull(rows) if sums == "M" else exact.complete_sums(l, Q, table, rows)
    return torch.cat([m, Q.pull(rows)], 1) if "rows" in exact.problem.model.layer(l).affine_of else m


def _dense_inputs(problem: ProblemView, rows: Rows) -> Tensor:
    """What a first layer on P X reads."""
    x = problem.inputs(rows)
    return x if isinstance(x, Tensor) else x.to_dense()


def _store(exact: ExactPasses, into: Tensor, read: Callable[[Rows], Tensor], most: int) -> None:
    """Mean and covariance over all nodes of the rows that ``read`` gives, at most ``most`` at a time."""
    size, mean, about = 0, torch.zeros_like(into[0]), torch.zeros_like(into[1:])  # of the rows so far
    for rows in _runs(exact.chunks, most):
        part = read(rows).to(into.dtype)
        apart, share = column_sums(part) / len(part) - mean, len(part) / (size + len(part))
        part = part - (mean + apart)  # so that nothing cancels
        about += coarse_mm(part.t(), part).addr_(apart, apart, alpha=size * share)
        mean += apart * share
        size += len(part)
    n = exact.problem.num_nodes
    into[0].copy_(exact.total(mean * size) / n)
    apart = mean - into[0]
    into[1:].copy_(exact.total(about.addr_(apart, apart, alpha=size)) / n)


def _runs(chunks: Iterable[Rows], most: int) -> Iterator[Rows]:
    """The rows of chunks, at most ``most`` at a time."""
    for rows in chunks:
        if isinstance(rows, slice):
            yield from (slice(i, min(i + most, rows.stop)) for i in range(rows.start, rows.stop, most))
        else:
            yield from rows.split(most)
