"""SIGN: "SIGN: Scalable Inception Graph Neural Networks"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.engine.exact import chunks_of, cut
from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import CSR, Batch, Precomputed
from lmc.methods.base import EXACT_ON_ONE_PART, UNBIASED, Operators
from lmc.methods.seeded import SeedMethod
from lmc.models import Model, Pass
from lmc.models import sign as sign_model
from lmc.stores import Table


@dataclass(frozen=True, eq=False)
class Hops:
    """X, P X, ..., P^k X: the features as they are, the others as tables."""

    problem: Problem
    tables: Sequence[Table]

    def rows(self, rows: Tensor) -> list[Tensor | CSR]:
        return [self.problem.inputs(rows), *(table.pull(rows) for table in self.tables)]


@dataclass(frozen=True)
class SIGN(SeedMethod):
    """Features aggregated k times in advance, in chunks of rows; then the rows of the training nodes, without a graph.

    The gradient of a batch is exact, so the mean over an epoch is the full gradient. With dropout on the features each
    P^r X is dropped out by itself.

    Args:
    """

    name: ClassVar[str] = "sign"
    title: ClassVar[str] = "SIGN"
    paper: ClassVar[str] = "SIGN: Scalable Inception Graph Neural Networks"
    outside: ClassVar[str] = "exact: aggregated in advance"
    step_rows: ClassVar[str] = "batch_size; k + 1 feature tables"
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART, UNBIASED})
    accepts: ClassVar[str] = "SIGN alone"

    def __post_init__(self) -> None:
        super().__post_init__()

    def check(self, model: Model) -> None:
        if not isinstance(model, sign_model.SIGN):
            raise ConfigError(
                f"expected the model lmc.models.SIGN (got {type(model).__name__}): features aggregated in advance "
                "serve no layer that has weights; use that model (--model sign) or another method"
            )

    def prepare(self, problem: Problem, seed: int) -> Any:
        tables: list[Table] = []
        for _ in range(problem.model.num_layers):
            n, width = problem.graph.num_nodes, problem.graph.num_features
            tables.append(problem.placement.tier.table(n, width, problem.dtype, problem.device))
            for rows in chunks_of(problem):
                chunk = cut(problem, rows, 1)
                below = problem.inputs(chunk.ext) if len(tables) == 1 else tables[-2].pull(chunk.ext)
                tables[-1].push(rows, chunk.operator(below.to_dense() if isinstance(below, CSR) else below))
        return Hops(problem, tables)

    def grow(self, run: Run, seeds: Tensor, chance: torch.Generator) -> tuple[Tensor, Operators]:
        return seeds[:0], tuple(Precomputed(seeds.numel()) for _ in range(run.problem.model.num_layers))

    def estimate(self, run: Run, batch: Batch, keep: bool, dropout: bool) -> tuple[list[Tensor], Tensor]:
        problem, model = run.problem, run.problem.model
        assert isinstance(model, sign_model.SIGN)
        model.train()
        logits = model.of_hops(run.prepared.rows(batch.core), Pass(dropout=dropout, generator=run.generator))
        loss = problem.row_losses(logits, batch.y, batch.labelled).sum()
        return list(torch.autograd.grad(loss, list(run.parameters.values()))), loss.detach()
