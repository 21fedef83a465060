"""What methods share whose batches grow from seeds: the training nodes, in random order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import Aggregation, Batch, Precomputed
from lmc.methods.base import Method, Operators
from lmc.models import Model
from lmc.sampling import Hop, Neighbours, derive, generator, num_batches, shuffled
from lmc.stores import Rows

EXACT_WITH_ALL_NEIGHBOURS = "exact with all neighbours"
UNBIASED_AGGREGATION = "unbiased aggregation"


@dataclass(frozen=True)
class SeedMethod(Method):
    """A method whose batches are the training nodes in random order, and rows sampled around them.

    The gradient of a batch is plain autograd of the sampled computation: every computed row teaches the parameters.

    Args:
        batch_size: seeds in a batch at most.
    """

    batch_size: int = field(default=512, kw_only=True)

    facts: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_whole(batch_size=self.batch_size)

    @property
    def grad_from_all_rows(self) -> bool:
        return True

    @property
    def supports_bfloat16(self) -> bool:
        return False

    @property
    def several_matrices(self) -> bool:
        return False

    def grow(self, run: Run, seeds: Tensor, chance: torch.Generator) -> tuple[Tensor, Operators]:
        """The rows beside the seeds, and the operators of all layers; layer l reads the first rows of both."""
        raise NotImplementedError

    def num_batches(self, run: Run) -> int:
        return num_batches(run.graph.num_labelled, self.batch_size)

    def draw(self, run: Run, epoch: int, start: int) -> Iterator[Batch]:
        train = run.graph.train.nonzero().squeeze(1)
        batches = shuffled(train, self.batch_size, derive(run.seed, "seeds", epoch))
        for slot, seeds in enumerate(batches[start:], start):
            chance = generator(run.problem.device, run.seed, "sample", epoch, slot)
            halo, operators = self.grow(run, seeds, chance)
            yield run.assemble(seeds, seeds, (halo, operators, None), float(len(batches)), slot=slot)

    def reads(self, batch: Batch) -> Rows:
        """Nothing in advance: each layer reads other rows."""
        return batch.core[:0]


@dataclass(frozen=True)
class LayeredMethod(SeedMethod):
    """A seed method that samples anew for every layer, from the last down to the first.

    Args:
        first_layer: "complete" computes P X once where the model's first aggregation is constant, so that layer 1 is
            exact and needs no sample; "sampled" samples it like the others.
    """

    first_layer: Literal["complete", "sampled"] = field(default="sampled", kw_only=True)

    draws_beside_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_layer not in ("complete", "sampled"):
            raise ConfigError(f'expected first_layer "complete" or "sampled" (got {self.first_layer!r})')

    @property
    def aggregates_once(self) -> bool:
        return self.first_layer == "complete"

    def sample(self, run: Run, hop: int, rows: Tensor, chance: torch.Generator) -> tuple[Tensor, Aggregation]:
        """The nodes that ``rows`` read ``hop`` layers below the seeds, ``rows`` first, and the operator between."""
        raise NotImplementedError

    def grow(self, run: Run, seeds: Tensor, chance: torch.Generator) -> tuple[Tensor, Operators]:
        problem, rows = run.problem, seeds
        operators: list[Aggregation | Precomputed] = []
        for hop in range(1, problem.model.num_layers + 1):
            if hop == problem.model.num_layers and problem.aggregated:
                operators.append(Precomputed(rows.numel()))
            else:
                rows, operator = self.sample(run, hop, rows, chance)
                operators.append(operator)
        return rows[seeds.numel() :], tuple(reversed(operators))


@dataclass(frozen=True)
class NodeWise(LayeredMethod):
    """A seed method that samples a few neighbours of every row.

    Args:
        fanouts: neighbours drawn per row: one number, or one for every hop, that of the seeds first (the last layer's).
    """

    fanouts: int | Sequence[int] = 10

    reads_whole_rows: ClassVar[bool] = False
    """Whether the whole rows of P are read beside the sampled ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "fanouts", checked_fanouts(self.fanouts))

    def check(self, model: Model) -> None:
        if isinstance(self.fanouts, tuple) and len(self.fanouts) != model.num_layers:
            raise ConfigError(
                f"expected one fan-out for each of {model.num_layers} layers (got {len(self.fanouts)}): give one "
                "number for all, or as many as the model has layers"
            )

    def prepare(self, problem: Problem, seed: int) -> Any:
        return Neighbours(problem.P)

    def sample(self, run: Run, hop: int, rows: Tensor, chance: torch.Generator) -> tuple[Tensor, Aggregation]:
        fanout = self.fanouts if isinstance(self.fanouts, int) else self.fanouts[hop - 1]
        found = run.prepared.hop(rows, fanout, chance, count_whole=self.reads_whole_rows)
        l = run.problem.model.num_layers - hop + 1
        return found.nodes, self.operator_of(run, l, rows, found)

    def operator_of(self, run: Run, l: int, rows: Tensor, found: Hop) -> Aggregation:
        """The operator of layer l, which gives out ``rows``, with what the method adds to it."""
        return Aggregation.exact(found.matrix)


def checked_fanouts(fanouts: int | Sequence[int]) -> int | tuple[int, ...]:
    """One number, or a tuple of them."""
    for fanout in fanouts if isinstance(fanouts, Sequence) else (fanouts,):
        check_whole(fanouts=fanout)
    return tuple(int(fanout) for fanout in fanouts) if isinstance(fanouts, Sequence) else int(fanouts)


def check_whole(**values: int) -> None:
    """Whole numbers of at least 1."""
    for name, value in values.items():
        if value != int(value) or value < 1:
            raise ConfigError(f"expected {name} to be a whole number of at least 1 (got {value})")


def check_linear(model: Model, title: str, why: str, instead: str) -> None:
    """Refuse a model whose aggregation is not a fixed linear map of the messages."""
    if not model.linear:
        raise ConfigError(
            f"expected a model with a linear aggregation (got {type(model).__name__}, whose aggregation depends on the "
            f"rows): {title} {why}; use {instead}"
        )
