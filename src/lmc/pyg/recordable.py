"""Whether the steps of a network can be recorded as CUDA graphs (:mod:`lmc.engine.cuda_graphs`).

A CUDA graph repeats the operations of the pass that was recorded. A network that takes decisions during a pass (layers
left out at random, a hook that writes a log) would take them once and for all, and a network that reads a number from
the device cannot be recorded at all. What a user's own code does is not known, so only networks that consist of PyG's
and torch's own modules are recorded.
"""

from __future__ import annotations

from typing import Any

from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_recordable(network: nn.Module) -> bool:
    """Whether every pass of ``network`` runs the same operations and none of them makes the host wait."""
    from torch_geometric.nn.models.basic_gnn import BasicGNN

    act = getattr(network, "act", None)
    known_act = act is None or isinstance(act, nn.Module)
    return isinstance(network, BasicGNN) and known_act and all(_repeats(module) for module in network.modules())


def _repeats(module: Any) -> bool:
    home = type(module).__module__
    known = home.startswith(("torch.nn.", "torch_geometric.nn.")) or home == "torch_geometric.utils._trim_to_layer"
    hooked = any(getattr(module, hooks, None) for hooks in HOOKS)
    # without a momentum, batch norm divides by a count that it reads on the host
    reads_count = isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None
    return known and not hooked and not reads_count and not isinstance(module, nn.RNNBase)
