"""The change of the weights W of a recurrent model since each row of the histories was stored.

A stored state is outdated by what the optimiser did since, and by nothing else: where it left W alone, states are read
as they are. The path length of W, |W - W'| / |W| summed over the steps, is one number for all rows, and its value when
a row was stored is one number per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.methods.protocol import ExactPasses, ProblemView, Step
from lmc.models import recurrent_model
from lmc.stores import Rows

W, PATH, STORED = "W", "path", "stored"
OLDEST = 1.5
"""A halo row is corrected by at most this many times the change of the core's."""


def new_ages(problem: ProblemView) -> dict[str, Tensor]:
    """W of the last step, its path length, and what that was when each row was stored."""
    weights = recurrent_model(problem.model).W.detach()
    rows = torch.zeros(problem.graph.num_nodes, dtype=problem.accumulate_dtype)
    return {W: weights.clone(), PATH: rows.new_zeros(()), STORED: rows}


def _path(view: Step | ExactPasses) -> Tensor:
    """The path length of W up to its value of today."""
    weights = recurrent_model(view.problem.model).W.detach()
    size = weights.norm()
    return view.numbers[PATH] + torch.where(size > 0, (weights - view.numbers[W]).norm() / size, 0.0)


def note(view: Step | ExactPasses, rows: Rows) -> None:
    """Record that these rows are stored now."""
    numbers = view.numbers
    numbers[PATH].copy_(_path(view))
    numbers[W].copy_(recurrent_model(view.problem.model).W.detach())
    numbers[STORED][rows] = numbers[PATH]


def ages(step: Step, core: Rows, halo: Tensor) -> tuple[Tensor, Tensor]:
    """The mean path length of W since the core was stored, and that of every halo row, [h, 1], as a share of it; 0
    where nothing has moved."""
    now, stored = _path(step), step.numbers[STORED]
    moved = now - stored[core].mean()
    shares = ((now - stored[halo]) / moved).nan_to_num(0.0, 0.0, 0.0).clamp(0, OLDEST)
    dtype = step.problem.dtype
    return moved.to(dtype), shares.to(dtype).unsqueeze(1)
