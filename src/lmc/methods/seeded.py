"""The common part of methods whose batches grow from seeds, which are the training nodes in random order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lmc.errors import ConfigError, check_at_least
from lmc.graph import Aggregation, Batch, Graph, Precomputed
from lmc.methods.protocol import BatchSource, Layout, Operators, ProblemView, SamplingMethod, Setup, Traits
from lmc.models import Model
from lmc.sampling import Hop, Neighbours, derive, generator, num_batches, shuffled

EXACT_WITH_ALL_NEIGHBOURS = "exact with all neighbours"
UNBIASED_AGGREGATION = "unbiased aggregation"


@dataclass(frozen=True)
class SampledTraits(Traits):
    """The traits of methods that sample.

    The gradient of a batch is plain autograd of the sampled computation, so every computed row contributes to it. Each
    layer reads other rows, so nothing is prefetched. Sampled entries of P are weighed by sums of them, so they are not
    rounded to bfloat16. They are drawn without the features of their edges.
    """

    facts: frozenset[str] = frozenset()
    reads: tuple[str, ...] = ()
    bundles: tuple[frozenset[str], ...] = ()
    grad_from_all_rows: bool = True
    several_matrices: bool = False
    supports_bfloat16: bool = False
    edge_features: bool = False


@dataclass(frozen=True)
class SeedMethod(SamplingMethod):
    """A method whose batches are the training nodes in random order, and rows sampled around them.

    Args:
        batch_size: the largest number of seeds in a batch.
    """

    batch_size: int = field(default=512, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, batch_size=self.batch_size)

    def grow(self, source: BatchSource, seeds: Tensor, chance: torch.Generator) -> tuple[Tensor, Operators]:
        """The rows beside the seeds, and the operators of all layers; layer l reads the first rows of both."""
        raise NotImplementedError

    def num_batches(self, graph: Graph) -> int:
        return num_batches(graph.num_labelled, self.batch_size)

    def draw(self, source: BatchSource, epoch: int, start: int) -> Iterator[Batch]:
        problem = source.problem
        train = problem.graph.train.nonzero().squeeze(1)
        batches = shuffled(train, self.batch_size, derive(source.seed, "seeds", epoch))
        for slot, seeds in enumerate(batches[start:], start):
            chance = generator(problem.device, source.seed, "sample", epoch, slot)
            layout = Layout(*self.grow(source, seeds, chance))
            yield source.assemble(seeds, layout, float(len(batches)), slot)


@dataclass(frozen=True)
class LayeredMethod(SeedMethod):
    """A seed method that samples anew for every layer, from the last down to the first.

    Args:
        first_layer: "complete" computes P X once where the model's first aggregation is constant, so that layer 1 is
            exact and needs no sample; "sampled" samples it like the others.
    """

    first_layer: Literal["complete", "sampled"] = field(default="sampled", kw_only=True)

    @property
    def setup(self) -> Setup:
        return Setup(precompute=self.first_layer == "complete")

    def sample(
        self, source: BatchSource, hop: int, rows: Tensor, chance: torch.Generator
    ) -> tuple[Tensor, Aggregation]:
        """The nodes that ``rows`` read ``hop`` layers below the seeds, ``rows`` first, and the operator between."""
        raise NotImplementedError

    def grow(self, source: BatchSource, seeds: Tensor, chance: torch.Generator) -> tuple[Tensor, Operators]:
        problem, rows = source.problem, seeds
        operators: list[Aggregation | Precomputed] = []
        for hop in range(1, problem.model.num_layers + 1):
            if hop == problem.model.num_layers and problem.aggregated:
                operators.append(Precomputed(rows.numel()))
            else:
                rows, operator = self.sample(source, hop, rows, chance)
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

    def prepare(self, problem: ProblemView, seed: int) -> Any:
        return Neighbours(problem.P)

    def sample(
        self, source: BatchSource, hop: int, rows: Tensor, chance: torch.Generator
    ) -> tuple[Tensor, Aggregation]:
        fanout = self.fanouts if isinstance(self.fanouts, int) else self.fanouts[hop - 1]
        found = source.prepared.hop(rows, fanout, chance, count_whole=self.reads_whole_rows)
        l = source.problem.model.num_layers - hop + 1
        return found.nodes, self.operator_of(source, l, rows, found)

    def operator_of(self, source: BatchSource, l: int, rows: Tensor, found: Hop) -> Aggregation:
        """The operator of layer l, which gives out ``rows``, with what the method adds to it."""
        return Aggregation.exact(found.matrix)


def checked_fanouts(fanouts: int | Sequence[int]) -> int | tuple[int, ...]:
    """One fan-out, or those of all hops, as plain numbers of at least 1."""
    for fanout in fanouts if isinstance(fanouts, Sequence) else (fanouts,):
        check_at_least(1, fanouts=fanout)
    return tuple(int(fanout) for fanout in fanouts) if isinstance(fanouts, Sequence) else int(fanouts)
