"""How far W of a recurrent model has moved since a row of the histories was stored.

States are old by what the optimiser did meanwhile, and by nothing else: where it left W alone they are taken as they
are. The way that W has gone, |W - W'| / |W| summed over the steps, is one number for all rows, and what it was
when a row was stored is one number a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.engine.recurrent import recurrent_model
from lmc.stores import Rows

if TYPE_CHECKING:
    from lmc.engine.run import Run

W, WAY, STORED = "W", "way", "stored"
OLDEST = 1.5
"""A halo row is corrected by at most this many times the change of the core's."""


def new_ages(problem: Problem) -> dict[str, Tensor]:
    """W of the last step, the way it has gone, and what that was when each row was stored."""
    weights = recurrent_model(problem.model).W.detach()
    rows = torch.zeros(problem.graph.num_nodes, dtype=problem.accumulate_dtype)
    return {W: weights.clone(), WAY: rows.new_zeros(()), STORED: rows}


def _way(run: Run) -> Tensor:
    """The way of W up to its value of today."""
    weights = recurrent_model(run.problem.model).W.detach()
    size = weights.norm()
    return run.memo[WAY] + torch.where(size > 0, (weights - run.memo[W]).norm() / size, 0.0)


def note(run: Run, rows: Rows) -> None:
    """These rows are stored now."""
    run.memo[WAY].copy_(_way(run))
    run.memo[W].copy_(recurrent_model(run.problem.model).W.detach())
    run.memo[STORED][rows] = run.memo[WAY]


def ages(run: Run, core: Rows, halo: Tensor) -> tuple[Tensor, Tensor]:
    """The way since the core was stored, in the mean, and that of every halo row, [h, 1], as a share of it; 0 where
    nothing has moved."""
    now, stored = _way(run), run.memo[STORED]
    moved = now - stored[core].mean()
    shares = ((now - stored[halo]) / moved).nan_to_num(0.0, 0.0, 0.0).clamp(0, OLDEST)
    dtype = run.problem.dtype
    return moved.to(dtype), shares.to(dtype).unsqueeze(1)
