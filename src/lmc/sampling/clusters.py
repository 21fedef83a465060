"""Mini-batches of whole parts: which parts go together, and where their nodes lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.sampling.seeds import derive


@dataclass(frozen=True, eq=False)
class Clusters:
    """b parts, c of them a batch, drawn without replacement.

    Nodes are renumbered once so that every part is a contiguous run; with ``redraw=False`` the parts of each (then
    fixed) batch are neighbours too, and a core is ONE run of rows.

    Args:
        order: node ``order[i]`` of the graph becomes row ``i`` of the run.
        offsets: part k (in run order) holds the rows ``offsets[k]:offsets[k + 1]``.
        per_batch: c.
        redraw: draw new batches every epoch instead of fixing them once.
        seed: of the draws; an epoch's batches depend on it and the epoch's number alone.
    """

    order: Tensor
    offsets: tuple[int, ...]
    per_batch: int
    redraw: bool
    seed: int

    @classmethod
    def of(cls, parts: Tensor, per_batch: int, redraw: bool, seed: int) -> Clusters:
        """Clusters of the assignment ``parts`` [n]."""
        num_parts = int(parts.max()) + 1
        shuffled = torch.randperm(num_parts, generator=_generator(seed, "parts"))
        rank = torch.empty_like(shuffled)
        rank[shuffled] = torch.arange(num_parts)
        position = rank[parts.cpu()]
        sizes = torch.bincount(position, minlength=num_parts)
        offsets = (0, *sizes.cumsum(0).tolist())
        return cls(position.argsort(stable=True), offsets, per_batch, redraw, seed)

    @property
    def num_parts(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_batches(self) -> int:
        return -(-self.num_parts // self.per_batch)

    def epoch(self, number: int) -> list[tuple[int, ...]]:
        """The batches of one epoch, each a tuple of ascending parts, in the order they are used."""
        generator = _generator(self.seed, "epoch", number)
        if self.redraw:
            drawn = torch.randperm(self.num_parts, generator=generator).split(self.per_batch)
            return [tuple(sorted(group.tolist())) for group in drawn]
        fixed = torch.arange(self.num_parts).split(self.per_batch)
        return [tuple(fixed[k].tolist()) for k in torch.randperm(len(fixed), generator=generator).tolist()]

    def core(self, parts: tuple[int, ...]) -> slice | Tensor:
        """The rows of a batch: a slice where they are contiguous, else row numbers."""
        if parts[-1] - parts[0] + 1 == len(parts):
            return slice(self.offsets[parts[0]], self.offsets[parts[-1] + 1])
        return torch.cat([torch.arange(self.offsets[k], self.offsets[k + 1]) for k in parts])


def _generator(seed: int, *names: object) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, *names))
