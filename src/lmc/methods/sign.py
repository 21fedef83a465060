"""SIGN: "SIGN: Scalable Inception Graph Neural Networks"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR, Precomputed
from lmc.methods.protocol import EXACT_ON_ONE_PART, UNBIASED, BatchSource, Operators, ProblemView, Step, Traits
from lmc.methods.seeded import SampledTraits, SeedMethod
from lmc.models import Model, Pass
from lmc.models import sign as sign_model
from lmc.stores import Table


@dataclass(frozen=True, eq=False)
class Hops:
    """X, P X, ..., P^k X: the features as they are, the others as tables."""

    problem: ProblemView
    tables: Sequence[Table]

    def rows(self, rows: Tensor) -> list[Tensor | CSR]:
        return [self.problem.inputs(rows), *(table.pull(rows) for table in self.tables)]


@dataclass(frozen=True)
class SIGN(SeedMethod):
    """Features aggregated k times in advance, in chunks of rows; then the rows of the training nodes, without a graph.

    The gradient of a batch is exact, so the mean over an epoch is the full gradient. With dropout on the features each
    P^r X is dropped out by itself. P X, ..., P^k X are stored where the placement keeps histories.
    """

    traits: ClassVar[Traits] = SampledTraits(
        "sign", "SIGN", outside="exact: aggregated in advance", step_rows="batch_size; k + 1 feature tables",
        accepts="SIGN alone", facts=frozenset({EXACT_ON_ONE_PART, UNBIASED}),
    )  # fmt: skip

    def check(self, model: Model) -> None:
        if not isinstance(model, sign_model.SIGN):
            raise ConfigError(
                f"expected the model lmc.models.SIGN (got {type(model).__name__}): features aggregated in advance "
                "serve no layer that has weights; use that model (--model sign) or another method"
            )

    def prepare(self, problem: ProblemView, seed: int) -> Any:
        hops: list[Table] = []
        for _ in range(problem.model.num_layers):
            hops.append(problem.aggregate(problem.inputs if not hops else hops[-1].pull, problem.graph.num_features))
        return Hops(problem, hops)

    def grow(self, source: BatchSource, seeds: Tensor, chance: torch.Generator) -> tuple[Tensor, Operators]:
        return seeds[:0], tuple(Precomputed(seeds.numel()) for _ in range(source.problem.model.num_layers))

    def outputs(self, step: Step, p: Pass) -> Tensor:
        model = step.problem.model
        assert isinstance(model, sign_model.SIGN)
        return model.of_hops(step.prepared.rows(step.batch.core), p)
