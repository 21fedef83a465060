"""Bytes that a step has to move, and how fast a device moves them.

Every stage is counted as reading its operands once and writing its result once, with i bytes for a number and 4 for an
index. Rows that a cache holds are not counted twice and needless passes not at all, so (bytes / time) over the
bandwidth of a copy says how close to the limit a step is.

    product   A [m, k] with z entries, on rows of width w      z (4 + i) + 4 (m + 1) + i w (k + m)
    gathered  the same, a row read for every entry             z (4 + i) + 4 (m + 1) + i w (z + m)
    dense     r rows from width a to width b                   i (r a + r b + a b)
    layer     forward: product, dense, a pass over the result (norm, ReLU and dropout read and write it);
              backward: the pass (reads adjoint and state, writes), dense twice (to the input, to W), product
    first     layer: nothing goes back beyond it: no product, dense once; none forward where P X was done once
    iteration of a fixed point: product, dense, a pass (2 r d)
    tables    i w (rows of the halo read + rows of the core written), for every table of the method
    Adam      7 i |p|: reads p, g and two moments, writes p and the moments
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from lmc.bench.epoch import elapsed_ms
from lmc.engine import Run
from lmc.errors import SolverWarning
from lmc.graph import CSR, Aggregation, Batch, spmm
from lmc.methods.recurrent import inside, operator_of
from lmc.models import recurrent_model
from lmc.models.equilibrium import Equilibrium

INDEX = 4
REPEAT = 16
"""How often a kernel is timed; the fastest call counts."""
COPIED = {"cuda": 2**30, "cpu": 2**28}
"""Bytes of the array whose copy is timed: much more than a cache holds."""


def fastest_ms(kernel: Callable[[], object], device: torch.device, repeat: int) -> float:
    """The shortest of ``repeat`` calls after one: a kernel does the same every time, and delays are not its own."""
    kernel()
    return min(elapsed_ms(kernel, device) for _ in range(repeat))


def product_bytes(A: CSR, width: int, item: int, gathered: bool = False) -> int:
    """Bytes of the product of A with a matrix of this width."""
    read = A.nnz if gathered else A.num_cols
    return A.nnz * (INDEX + item) + INDEX * (A.num_rows + 1) + item * width * (read + A.num_rows)


def dense_bytes(rows: int, a: int, b: int, item: int) -> int:
    """Bytes of a linear map of rows from width a to width b."""
    return item * (rows * a + rows * b + a * b)


def step_bytes(run: Run, batch: Batch, iterations: float = 0) -> int:
    """Bytes of one training step on a batch; ``iterations``: of both solves of a recurrent model together."""
    problem, model = run.problem, run.problem.model
    item = problem.dtype.itemsize
    rows = batch.operators[0].num_outputs if model.recurrent else batch.operators[0].num_inputs
    total = 0
    width = _input_width(run)
    if model.lin_in is not None:
        inner = model.lin_in.out_width
        total += 2 * dense_bytes(rows, width, inner, item) + (5 * item * rows * inner if model.act_in else 0)
        width = inner
    if model.recurrent:
        P = solved_block(batch)
        each = product_bytes(P, width, item) + dense_bytes(rows, width, width, item) + 2 * item * rows * width
        total += round(iterations * each)
    else:
        for l, out in enumerate(model.widths, start=1):
            total += _layer_bytes(run, batch, l, width, out, item)
            width = out
    rows = batch.operators[-1].num_outputs
    if model.lin_out is not None:
        total += 3 * dense_bytes(rows, width, model.out_width, item)
    total += 2 * item * rows * model.out_width  # the loss reads logits and writes their adjoints
    total += sum(t.data().shape[1] for t in run.named_tables().values()) * item * (batch.num_core + batch.num_halo)
    return total + 7 * item * sum(p.numel() for p in model.parameters())


def _input_width(run: Run) -> int:
    """How many numbers of a row of features are read; sparse features are read entry by entry."""
    X, item = run.problem.X, run.problem.dtype.itemsize
    return round(X.nnz * (INDEX + item) / (item * X.num_rows)) if isinstance(X, CSR) else run.problem.model.in_width


def _layer_bytes(run: Run, batch: Batch, l: int, a: int, b: int, item: int) -> int:
    op, model = batch.operators[l - 1], run.problem.model
    first, last = l == 1 and model.lin_in is None, l == model.num_layers and model.lin_out is None
    narrow = min(a, b)
    # the narrower side is aggregated: a map that shrinks its rows runs before the product, on what the product reads
    rows = op.num_inputs if b < a else op.num_outputs
    total = (2 if first else 3) * dense_bytes(rows, a, b, item)
    if isinstance(op, Aggregation):
        total += product_bytes(op.forward, narrow, item) + (0 if first else product_bytes(op.backward, narrow, item))
    return total + (0 if last else 5 * item * op.num_outputs * b)


def solved_block(batch: Batch) -> CSR:
    """The block of P among the rows for which a step of a recurrent model solves."""
    return inside(operator_of(batch).forward, batch)


def matrices_of(run: Run, batches: Sequence[Batch]) -> list[CSR]:
    """The forward matrix of the last layer, for every batch; none where all aggregations are precomputed."""
    if run.problem.model.recurrent:
        return [solved_block(batch) for batch in batches]
    last = [batch.operators[-1] for batch in batches]
    return [op.forward for op in last if isinstance(op, Aggregation)]


def product_ms(matrices: Sequence[CSR], width: int) -> float:
    """The time of one sparse product of this width, mean over the matrices."""
    like: dict[str, Any] = {"device": matrices[0].device, "dtype": matrices[0].dtype}
    x = torch.ones(max(A.num_cols for A in matrices), width, **like)
    out = torch.empty(max(A.num_rows for A in matrices), width, **like)
    return _mean_ms(matrices, lambda A: spmm(A, x[: A.num_cols], out=out[: A.num_rows]))


def dense_ms(matrices: Sequence[CSR], width: int) -> float:
    """The time of one linear map of the matrices' rows, from this width to itself, mean over the matrices."""
    like: dict[str, Any] = {"device": matrices[0].device, "dtype": matrices[0].dtype}
    x = torch.ones(max(A.num_rows for A in matrices), width, **like)
    out, W = torch.empty_like(x), torch.ones(width, width, **like)
    return _mean_ms(matrices, lambda A: torch.mm(x[: A.num_rows], W, out=out[: A.num_rows]))


def _mean_ms(matrices: Sequence[CSR], kernel: Callable[[CSR], object]) -> float:
    """The time of one call of the kernel, mean over the matrices."""

    def all_of_them() -> None:
        for A in matrices:
            kernel(A)

    return fastest_ms(all_of_them, matrices[0].device, REPEAT) / len(matrices)


def iteration_ms(run: Run, matrices: Sequence[CSR]) -> float:
    """The time of one iteration of the forward solver of a recurrent model, mean over the matrices."""
    model = recurrent_model(run.problem.model)
    endless = replace(model.solver, max_steps=16, tol=1e-30)  # no iteration reaches it
    W = model.W.detach()
    counts: list[int] = []

    def all_of_them() -> None:
        counts.clear()
        for A in matrices:
            C = torch.ones(A.num_rows, W.shape[0], device=A.device, dtype=A.dtype)
            counts.append(Equilibrium(A, A, W, endless).states(C, torch.zeros_like(C)).steps)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolverWarning)  # the solves are not meant to converge
        return fastest_ms(all_of_them, matrices[0].device, REPEAT // 4) / sum(counts)


def copy_ms(device: torch.device) -> tuple[float, int]:
    """The time of a copy within the device's memory, and the bytes it reads and writes."""
    size = COPIED[device.type]
    a = torch.ones(size // 4, device=device)
    b = torch.empty_like(a)
    return fastest_ms(lambda: b.copy_(a), device, REPEAT), 2 * size
