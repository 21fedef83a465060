"""Exact states and adjoints of a recurrent model: the local step of a batch, repeated over chunks of rows.

With one chunk a pass is one solve of the whole graph. With several it is block Gauss-Seidel: each chunk is solved with
its neighbours held at the table's values, until a sweep finds every chunk solved already. Under the Perron-Frobenius
condition both converge to the same point.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.engine.recurrent import recurrent_model
from lmc.errors import SolverWarning
from lmc.graph import CSR, spmm
from lmc.models import Pass
from lmc.solvers import Solution
from lmc.stores import Rows, Table

MAX_SWEEPS = 300


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of a chunk, the rows they read beside themselves, and the two parts of P."""

    rows: Rows
    halo: Tensor
    inside: CSR
    outside: CSR


def blocks_of(problem: Problem, chunks: Sequence[Rows]) -> list[Block]:
    """P cut into chunks of rows; together they have P's non-zeros."""
    n = problem.graph.num_nodes
    whole = torch.empty(0, dtype=torch.int64, device=problem.device)
    found = []
    for rows in chunks:
        if rows == slice(0, n):
            return [Block(rows, whole, problem.P, problem.P)]
        index = torch.arange(*rows.indices(n), device=problem.device) if isinstance(rows, slice) else rows
        halo = problem.blocks.halo(index)
        outside = problem.blocks.block(index, halo)
        found.append(Block(rows, halo, problem.blocks.induced(index), outside))
    return found


@torch.no_grad()
def settle_states(problem: Problem, chunks: Sequence[Rows], Z: Table) -> None:
    """Z <- the fixed point, from what the table holds."""
    model = recurrent_model(problem.model)

    def solve(block: Block) -> Solution:
        b = model.encode(problem.inputs(block.rows), Pass())
        assert isinstance(b, Tensor)
        if block.halo.numel():
            b = b + spmm(block.outside, Z.pull(block.halo).clamp_min(0)) @ model.W.t()
        return model.exact_equilibrium(block.inside, block.inside).states(b, Z.pull(block.rows))

    _sweep(problem, chunks, Z, solve)


def settle_adjoints(problem: Problem, chunks: Sequence[Rows], Z: Table, V: Table) -> None:
    """V <- dL/dZ at the states Z, from what the table holds."""
    model, graph = recurrent_model(problem.model), problem.graph

    def solve(block: Block) -> Solution:
        z = Z.pull(block.rows).detach()
        h = z.clamp_min(0).requires_grad_()
        losses = problem.row_losses(model.decode(h, Pass()), graph.y[block.rows], graph.train[block.rows])
        (G,) = torch.autograd.grad(losses.sum(), h)
        if block.halo.numel():
            G = G + spmm(block.outside, V.pull(block.halo)) @ model.W.detach()
        return model.exact_equilibrium(block.inside, block.inside).adjoints(z, G, V.pull(block.rows))

    _sweep(problem, chunks, V, solve)


def _sweep(problem: Problem, chunks: Sequence[Rows], table: Table, solve: Callable[[Block], Solution]) -> None:
    blocks = blocks_of(problem, chunks)
    for _ in range(MAX_SWEEPS):
        settled = True
        for block in blocks:
            solution = solve(block)
            table.push(block.rows, solution.value)
            settled = settled and solution.steps == 1
        if settled or len(blocks) == 1:
            return
    warnings.warn(
        f"expected the sweeps over {len(blocks)} chunks to settle (got changes after {MAX_SWEEPS}): lower kappa",
        SolverWarning,
        stacklevel=2,
    )
