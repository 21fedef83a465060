"""Random parts of equal size: the yardstick any partitioner must beat."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.graph import Graph


def random_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Part sizes differ by one node at most."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(graph.num_nodes, generator=generator) % num_parts
