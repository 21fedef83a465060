"""``sync="layer"``: every rank computes the rows that it owns, and fresh rows are exchanged at every aggregation.

The operator of a layer sends the rows that other ranks mirror, receives its own mirrors, and multiplies with the rows
of P that this rank owns. Backward, the adjoints of mirrors return to their owners, where they are added:

    forward    m = P[owned, owned + mirrors] [t; t_mirrors]
    backward   dt = (P^T v)[owned] + what other ranks send back of (P^T v)[mirrors]

So W ranks compute what one process does on the union of their batches, with the same adjoints, up to rounding. Batch
norms take their statistics over all ranks (:func:`total_of`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from lmc.engine.distributed.exchange import Exchange
from lmc.engine.distributed.world import World
from lmc.graph import Aggregation
from lmc.methods.protocol import Layout, ProblemView, operators


class _Mirrored(torch.autograd.Function):
    """The rows of all mirrors behind the rows that this rank computes."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, op: Fresh) -> Tensor:
        ctx.op = op
        return op.mirrored(t)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.op.returned(grads[0]), None


@dataclass(frozen=True, eq=False)
class Fresh:
    """The aggregation of a layer over the rows of all ranks.

    Args:
        P: the rows that this rank computes, over these rows and its mirrors.
        send: the rows to send, as numbers of computed rows.
        all_core: parameters take their gradient from every row.
    """

    P: Aggregation
    send: Tensor
    exchange: Exchange
    all_core: bool

    @property
    def num_outputs(self) -> int:
        return self.P.num_outputs

    num_inputs = num_outputs

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return self.P(_Mirrored.apply(t, self))

    def complete(self, *rows: Tensor) -> tuple[Aggregation, tuple[Tensor, ...]]:
        """P over these rows and those of mirrors, which come in one message."""
        every = _Mirrored.apply(torch.cat(rows, 1), self)
        return self.P, every.split([each.shape[1] for each in rows], 1)

    def linear_first(self, W: Tensor, b: Tensor | None, t: Tensor, clean: Tensor | None) -> Tensor | None:
        """(P t) W^T + b, whose narrower rows t W^T are sent; None where only core rows give the weights' gradient."""
        if not self.all_core:
            return None
        s = self(t @ W.t())
        return s if b is None else s + b

    def mirrored(self, t: Tensor) -> Tensor:
        """These rows, and behind them those of mirrors."""
        route = self.exchange.all
        return torch.cat([t, self._sent(t[self.send], route.send_counts, route.receive_counts)])

    def returned(self, v: Tensor) -> Tensor:
        """The adjoints of these rows: what this rank and the ranks that mirror them have."""
        route, own = self.exchange.all, v[: self.num_outputs].clone()
        back = self._sent(v[self.num_outputs :], route.receive_counts, route.send_counts)
        return own.index_add_(0, self.send, back)

    def total(self, value: Tensor) -> Tensor:
        """The sum of a value over the ranks."""
        return self.exchange.world.sum(value)

    def _sent(self, rows: Tensor, send_counts: list[int], receive_counts: list[int]) -> Tensor:
        """The rows of other ranks, in the dtype of those that are sent."""
        world = self.exchange.world
        wire = torch.bfloat16 if world.options.wire == "bfloat16" else rows.dtype
        out, work = world.exchange(rows.to(wire), send_counts, receive_counts)
        world.wait(work)
        return out.to(rows.dtype)


def layout(exchange: Exchange, problem: ProblemView, core: Tensor) -> Layout:
    """All rows that this rank owns, the core first; every rank's halo is what it owns beside its core."""
    shard = exchange.shard
    rest = torch.ones(shard.num_owned, dtype=torch.bool, device=core.device)
    rest[core] = False
    halo = rest.nonzero().squeeze(1)
    ext = torch.cat([core, halo])
    position = torch.empty_like(ext)
    position[ext] = torch.arange(ext.numel(), device=ext.device)
    columns = torch.cat([ext, *exchange.mirrors_of])
    P = Aggregation.exact(problem.blocks.block(ext, columns))
    fresh = Fresh(P, position[torch.cat(exchange.sent_to)], exchange, all_core=not halo.numel())
    return replace(Layout(halo, ()), operators=operators(problem, ext.numel(), cast(Aggregation, fresh)))


class _Total(torch.autograd.Function):
    """The sum over the ranks; every rank's value is read by all of them, so adjoints are added up too."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, world: World) -> Tensor:
        ctx.world = world
        return world.sum(value.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.world.sum(grads[0].contiguous().clone()), None


def total_of(world: World, value: Tensor) -> Tensor:
    """The sum of a value over the ranks, with its gradient."""
    return _Total.apply(value, world)
