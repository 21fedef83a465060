"""Whether a network's pass may be recorded once and replayed (:mod:`lmc.engine.cuda_graphs`).

A replay does what the recorded pass did: a network that decides on the way (layers left out at random, a hook that
writes a log) would decide once and for all, and one that asks the device for a number cannot be recorded at all. What
code of a user's own does is not known, so only networks of PyG's own parts are recorded.
"""

from __future__ import annotations

from typing import Any

from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def replays(network: nn.Module) -> bool:
    """Whether every pass of ``network`` does the same operations, none of which the host waits for."""
    from torch_geometric.nn.models.basic_gnn import BasicGNN

    act = getattr(network, "act", None)
    known_act = act is None or isinstance(act, nn.Module)
    return isinstance(network, BasicGNN) and known_act and all(_steady(module) for module in network.modules())


def _steady(module: Any) -> bool:
    home = type(module).__module__
    theirs = home.startswith(("torch.nn.", "torch_geometric.nn.")) or home == "torch_geometric.utils._trim_to_layer"
    hooked = any(getattr(module, hooks, None) for hooks in HOOKS)
    # without a momentum, batch norm divides by a count that it reads on the host
    counts = isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None
    return theirs and not hooked and not counts and not isinstance(module, nn.RNNBase)
