"""The training flags of modules, set for a while and restored one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """At the end, every submodule has the training flag that it had at the beginning.

    ``module.train(was)`` would give the root's flag to all of them, also to those that a user has frozen.
    """
    modes = [(m, m.training) for m in module.modules()]
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Every submodule is in evaluation mode within, and in its own mode again at the end."""
    with modes_kept(module):
        module.eval()
        yield
