"""How often the host would wait for a GPU in a draw: operations whose result the host reads, counted on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import random_graph
from lmc.methods import LADIES, VRGCN, FastGCN, GraphFMIB, GraphSAGE, GraphSAINT, Method
from lmc.models import GCN
from lmc.sampling import neighbours

WAITING = {"nonzero": 1, "_local_scalar_dense": 1, "_unique2": 1, "masked_select": 1, "equal": 1, "bincount": 2}
"""Operations that read numbers of the device on the host, and how many."""


class Waits(TorchDispatchMode):
    """Counts these operations."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.number += WAITING.get(name, 0)
        if name == "index":  # by a mask
            self.number += sum(each is not None and each.dtype == torch.bool for each in args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("method", "layers", "most"),
    [
        (GraphSAGE(2, batch_size=7), 3, 3),
        (GraphSAGE(2, batch_size=7, first_layer="complete"), 3, 2),
        (GraphFMIB(2, batch_size=7), 3, 3),
        (VRGCN(2, batch_size=7), 3, 2),
        (FastGCN(8, batch_size=7), 2, 6),
        (LADIES(8, batch_size=7), 2, 6),
        (GraphSAINT(coverage=5), 3, 3),
    ],
    ids=str,
)
def test_a_draw_synchronises_once_per_hop(
    method: Method, layers: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = random_graph()
    run = method.bind(g, GCN(6, 7, 4, num_layers=layers))
    draws, reads, read = run.source.epoch(0, 0), [], neighbours.read
    next(draws)  # the first draw of an epoch also prepares the epoch
    monkeypatch.setattr(neighbours, "read", lambda sizes: reads.append(sizes) or read(sizes))
    with Waits() as waits:
        next(draws)
    assert len(reads) + waits.number == most
