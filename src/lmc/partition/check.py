"""The check of an assignment of nodes to parts, computed here or given by the user."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmc.errors import GraphError


def check_parts(parts: Any, n: int, num_parts: int | None = None) -> Tensor:
    """``parts`` as int64 [n]; every part 0 .. b-1 has a node.

    Args:
        parts: the part of every node: a tensor, array or list of whole numbers.
        n: number of nodes of the graph.
        num_parts: b, if known; by default the largest part plus one.
    """
    parts = torch.as_tensor(parts)
    if parts.dim() != 1 or parts.numel() != n:
        raise GraphError(
            f"expected one part per node, [{n}] (got shape {list(parts.shape)}): make the assignment for this graph"
        )
    if parts.is_floating_point() or parts.is_complex() or parts.dtype == torch.bool:
        raise GraphError(f"expected whole part numbers (got {parts.dtype}): convert them to int64")
    parts = parts.long()
    if n == 0 or int(parts.min()) < 0:
        raise GraphError("expected parts numbered from 0 (got a negative or no number): renumber them")
    b = int(parts.max()) + 1
    if num_parts is not None and b > num_parts:
        raise GraphError(f"expected parts in [0, {num_parts}) (got part {b - 1}): renumber them")
    b = b if num_parts is None else num_parts
    # more parts than nodes cannot all be in use, and counting them could exhaust memory
    empty = torch.bincount(parts, minlength=b) == 0 if b <= n else None
    if empty is None or bool(empty.any()):
        which = "more parts than nodes" if empty is None else f"part {int(empty.nonzero()[0])} empty"
        raise GraphError(
            f"expected every part of 0 .. {b - 1} in use (got {which}): renumber them, "
            f"e.g. with parts.unique(return_inverse=True)[1]"
        )
    return parts
