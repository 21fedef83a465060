"""The optimiser of the training loop."""

from __future__ import annotations

import torch
from torch import nn


def adam(model: nn.Module, lr: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Adam over the parameters of ``model``; on a GPU its update is one kernel."""
    fused = all(p.is_cuda for p in model.parameters())
    return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay, fused=fused)
