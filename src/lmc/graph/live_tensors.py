"""The tensors that an object keeps in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def live_tensors(root: Any, apart: tuple[type, ...] = ()) -> list[Tensor]:
    """Every dense tensor that can be reached from ``root`` through containers and objects of this library and torch.

    Each is listed once. A sparse tensor is listed by its values, which may be a copy in another dtype; it shares its
    indices with dense ones.

    Args:
        apart: types of objects that are not searched.
    """
    found: list[Tensor] = []
    visited: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if id(value) in visited or isinstance(value, apart):
            continue
        visited.add(id(value))
        if isinstance(value, Tensor):
            found.append(value if value.layout == torch.strided else value.values())
        elif isinstance(value, dict):
            stack += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            stack += value
        elif type(value).__module__.split(".")[0] in ("lmc", "torch"):
            stack += vars(value).values() if hasattr(value, "__dict__") else []
    return found
