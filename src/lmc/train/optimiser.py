"""The optimiser of the library's own loops."""

from __future__ import annotations

import torch
from torch import nn


def adam(model: nn.Module, lr: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Adam over a model that lies where it trains: one kernel a step on a GPU."""
    fused = all(p.is_cuda for p in model.parameters())
    return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay, fused=fused)
