"""What an object holds in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def live_tensors(root: Any, apart: tuple[type, ...] = ()) -> list[Tensor]:
    """Every dense tensor that can be reached from ``root`` through containers and objects of this library and torch,
    once; not through objects of the types ``apart``. A sparse one shares the memory of dense ones."""
    found: list[Tensor] = []
    walked: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if id(value) in walked or isinstance(value, apart):
            continue
        walked.add(id(value))
        if isinstance(value, Tensor):
            if value.layout == torch.strided:
                found.append(value)
        elif isinstance(value, dict):
            stack += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            stack += value
        elif type(value).__module__.split(".")[0] in ("lmc", "torch"):
            stack += vars(value).values() if hasattr(value, "__dict__") else []
    return found
