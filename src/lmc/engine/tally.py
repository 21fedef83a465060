"""A count of the solves of a recurrent model, kept with the run."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.solvers import Solution

TALLY = "solves"
_COUNTS = ("batches", "forward_steps", "backward_steps", "unconverged", "worst_residual")


def new_tally() -> dict[str, Tensor]:
    """A tally of no solves; it stays on the host, since a GPU would have to be waited for."""
    return {TALLY: torch.zeros(len(_COUNTS), dtype=torch.float64)}


def count(numbers: dict[str, Tensor], solves: tuple[Solution, Solution] | None) -> None:
    """Add the solves of one step."""
    if solves is None:
        return
    steps, failures = [s.steps for s in solves], sum(not s.converged for s in solves)
    tally = numbers[TALLY]
    tally[:4] += tally.new_tensor([1, *steps, failures])
    tally[4:].clamp_(min=max(s.residual for s in solves))


def take(numbers: dict[str, Tensor]) -> dict[str, float] | None:
    """Mean steps of the solves, how many did not converge, and the worst residual, since the last call; None where
    nothing was solved."""
    if TALLY not in numbers:
        return None
    counts = dict(zip(_COUNTS, numbers[TALLY].tolist(), strict=True))
    batches = counts.pop("batches")
    if batches == 0:
        return None
    numbers[TALLY].zero_()
    return {name: value / batches if name.endswith("steps") else value for name, value in counts.items()}
