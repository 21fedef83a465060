"""``sync="layer"``: every rank computes rows that it owns, and fresh rows are exchanged at every aggregation.

The operator of a layer sends the rows that other ranks mirror, receives its own mirrors, and multiplies with the rows
of P that this rank owns. Backward, the adjoints of mirrors return to their owners, where they are added:

    forward    m = P[owned, owned + mirrors] [t; t_mirrors]
    backward   dt = (P^T v)[owned] + what other ranks send back of (P^T v)[mirrors]

So W ranks compute what one process does on the union of their batches, with the same adjoints, up to rounding. Batch
norms take their statistics over all ranks (:func:`total_of`).

Full batch and backward SGD compute all rows. LMC4Conv computes the batches of all ranks and the rows within one hop of
them (:class:`Reach`); every rank reads the histories of its own rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from lmc.engine.distributed.exchange import Exchange, Route
from lmc.engine.distributed.world import World
from lmc.graph import Aggregation
from lmc.methods.protocol import Layout, Method, ProblemView, operators


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
        P: the rows that this rank computes, over these rows and its mirrors of rows that others compute.
        route: the rows to send, as numbers of computed rows, and the mirrors that arrive.
        all_core: parameters take their gradient from every row of every rank.
    """

    P: Aggregation
    route: Route
    world: World
    all_core: bool

    @cached_property
    def send(self) -> Tensor:
        return torch.cat(self.route.send)

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
        return torch.cat([t, self._sent(t[self.send], self.route.send_counts, self.route.receive_counts)])

    def returned(self, v: Tensor) -> Tensor:
        """The adjoints of these rows: what this rank and the ranks that mirror them have."""
        route, own = self.route, v[: self.num_outputs].clone()
        back = self._sent(v[self.num_outputs :], route.receive_counts, route.send_counts)
        return own.index_add_(0, self.send, back)

    def total(self, value: Tensor) -> Tensor:
        """The sum of a value over the ranks."""
        return self.world.sum(value)

    def _sent(self, rows: Tensor, send_counts: list[int], receive_counts: list[int]) -> Tensor:
        """The rows of other ranks, in the dtype of those that are sent."""
        wire = torch.bfloat16 if self.world.options.wire == "bfloat16" else rows.dtype
        out, work = self.world.exchange(rows.to(wire), send_counts, receive_counts)
        self.world.wait(work)
        return out.to(rows.dtype)


class Reach:
    """The local rows within one hop of parts. Owners tell once which parts their mirrored rows are next to, so that all
    ranks agree on the rows of a step without a message."""

    def __init__(self, exchange: Exchange) -> None:
        shard = exchange.shard
        adj, owned, n = shard.graph.adj.to("cpu"), shard.num_owned, shard.num_local
        lengths, (of_mirrors,) = exchange.rows_of_mirrors(adj, shard.parts[adj.indices.long()])
        mine = adj.leading(owned)
        row = torch.cat([mine.row_index(), torch.arange(owned, n).repeat_interleave(lengths.long())])
        part = torch.cat([shard.parts[mine.indices.long()], of_mirrors])
        pairs = torch.stack([part, row]).unique(dim=1)
        self._parts, (self._part, self._row) = shard.parts.to(exchange.device), pairs.to(exchange.device)

    def __call__(self, parts: tuple[int, ...]) -> Tensor:
        """Whether each local row is in one of the parts, or next to one, bool [num_local]."""
        chosen = torch.tensor(parts, device=self._parts.device)
        mask = torch.isin(self._parts, chosen)
        mask[self._row[torch.isin(self._part, chosen)]] = True
        return mask


def layout(
    exchange: Exchange, method: Method, reached: Tensor | None, all_core: bool, problem: ProblemView, core: Tensor
) -> Layout:
    """The rows that this rank computes: its core, and what else of ``reached`` it owns as its halo.

    Args:
        reached: the rows that are computed by any rank, bool [num_local]; None: all.
        all_core: the cores of all ranks are the whole graph.
    """
    owned, device = exchange.shard.num_owned, core.device
    reached = torch.ones(exchange.shard.num_local, dtype=torch.bool, device=device) if reached is None else reached
    rest = reached[:owned].clone()
    rest[core] = False
    halo = rest.nonzero().squeeze(1)
    ext = torch.cat([core, halo])
    position = torch.empty(owned, dtype=torch.int64, device=device)
    position[ext] = torch.arange(ext.numel(), device=device)
    send, receive = ([rows[reached[rows]] for rows in every] for every in (exchange.sent_to, exchange.mirrors_of))
    P = problem.blocks.block(ext, torch.cat([ext, *receive]))
    fresh = Fresh(Aggregation.exact(P), Route([position[rows] for rows in send], receive), exchange.world, all_core)
    every = operators(problem, ext.numel(), cast(Aggregation, fresh))
    return Layout(halo, every, method.coefficients(problem, P, halo))


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
