"""Mini-batches of whole parts: which parts form a batch, and which rows their nodes have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.sampling.seeds import generator

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Clusters:
    """Batches of c parts out of b, drawn without replacement.

    Nodes are renumbered once so that every part is a contiguous range of rows. With ``redraw=False`` the parts of each
    batch, which is then fixed, are adjacent too, and a core is one range of rows.

    Args:
        order: node ``order[i]`` of the graph becomes row ``i`` of the run.
        offsets: part k (in the order of the run) has the rows ``offsets[k]:offsets[k + 1]``.
        per_batch: c.
        redraw: draw new batches every epoch instead of fixing them once.
        seed: the batches of an epoch depend only on it and on the number of the epoch.
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
        shuffled = torch.randperm(num_parts, generator=generator(CPU, seed, "parts"))
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

    @property
    def parts(self) -> Tensor:
        """The part of every row."""
        return torch.arange(self.num_parts).repeat_interleave(torch.tensor(self.offsets).diff())

    def epoch(self, number: int) -> list[tuple[int, ...]]:
        """The batches of one epoch in their order, each a tuple of ascending parts."""
        source = generator(CPU, self.seed, "epoch", number)
        if self.redraw:
            drawn = torch.randperm(self.num_parts, generator=source).split(self.per_batch)
            return [tuple(sorted(group.tolist())) for group in drawn]
        fixed = torch.arange(self.num_parts).split(self.per_batch)
        return [tuple(fixed[k].tolist()) for k in torch.randperm(len(fixed), generator=source).tolist()]

    def core(self, parts: tuple[int, ...]) -> slice | Tensor:
        """The rows of a batch: a slice if they are contiguous, else row numbers."""
        if parts[-1] - parts[0] + 1 == len(parts):
            return slice(self.offsets[parts[0]], self.offsets[parts[-1] + 1])
        return torch.cat([torch.arange(self.offsets[k], self.offsets[k + 1]) for k in parts])

    def cores(self, device: torch.device) -> list[slice | Tensor]:
        """The rows of the batches of the first epoch; where batches are fixed, by their slot."""
        found = [self.core(parts) for parts in sorted(self.epoch(0))]
        return [core if isinstance(core, slice) else core.to(device) for core in found]
