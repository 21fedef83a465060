"""A mini-batch: core rows, then halo rows, and one aggregation operator per layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lmc.graph.csr import CSR
from lmc.graph.product import Aggregation, Precomputed


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows a step computes; row numbers are those of the run, ``n_id`` those of the user's graph.

    Args:
        core: V_B, row numbers; ``rows`` is the same as a slice where they are contiguous.
        halo: N(V_B) \\ V_B, as far as the method reads it.
        operators: the aggregation of each layer.
        x: what the encoder reads, for the rows the first operator takes in.
        y: targets of core and halo rows.
        labelled: training nodes among core and halo rows.
        weight: batches in an epoch, b/c: the factor of the appendix that makes a batch's gradient an estimate of
            the whole graph's.
        n_id: node numbers of core and halo rows in the user's graph.
        beta: the convex combination coefficients of the halo rows, [num_halo, 1].
        fixed: this batch comes again, the same object, in every epoch.
        slot: which of the epoch's batches this is; fixed batches keep theirs.
        importance: factor on the loss of each core row, where rows are drawn with unequal chances.
    """

    core: Tensor
    rows: slice | Tensor
    halo: Tensor
    operators: tuple[Aggregation | Precomputed, ...]
    x: Tensor | CSR | None
    y: Tensor
    labelled: Tensor
    weight: float
    n_id: Tensor
    beta: Tensor | None = None
    fixed: bool = False
    slot: int = 0
    importance: Tensor | None = None

    @property
    def num_core(self) -> int:
        return self.core.numel()

    @property
    def num_halo(self) -> int:
        return self.halo.numel()

    @property
    def batch_size(self) -> int:
        """The name PyG's loaders use for the number of core rows."""
        return self.num_core

    @cached_property
    def ext(self) -> Tensor:
        """Core rows, then halo rows."""
        return torch.cat([self.core, self.halo]) if self.num_halo else self.core
