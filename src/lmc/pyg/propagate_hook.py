"""Where rows meet: every ``propagate`` of a PyG convolution, taken over for the time of one pass.

A network of PyG convolutions is row-wise code with a ``propagate`` here and there. Each of these calls is a layer: its
result is the state s^l that histories keep, and lies before the weights, biases and activations that follow it. So a
halo row's Jacobian does not depend on its own incomplete sum, whatever comes after.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, WithStoredHalo
from lmc.models.gat import log_sum_exp
from lmc.models.rows import Operator, Pass
from lmc.pyg.core_rows_mode import CoreRows

At = Callable[[int, Callable[[Operator], Tensor]], Tensor]
"""(l, layer) -> the state to go on with; ``layer(P)`` computes s^l with the operator P."""


@dataclass(frozen=True)
class Crossing:
    """One ``propagate``, as it was seen on a small graph.

    Args:
        name: of the convolution in its network.
        linear: the result is P x with a matrix P that does not depend on the rows.
        weight: the argument that holds a constant number per edge, if there is one.
        shape: of a row of the result; ``width``, the numbers in a row of the state.
        message_width: the numbers in a row of x, where ``linear``.
        heads: of a softmax over the neighbours, whose logarithmic normaliser is kept at the end of the state.
        written: the network changes the result in place: it gets one of its own.
    """

    name: str
    linear: bool
    weight: str | None
    shape: tuple[int, ...]
    message_width: int
    heads: int = 0
    written: bool = False

    @property
    def width(self) -> int:
        return torch.Size(self.shape).numel() + self.heads


class Deferred:
    """What ``edge_updater`` was asked for; computed with the edges of the operator, once that is known."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        self.kwargs = kwargs


@contextmanager
def taken_over(
    network: nn.Module,
    propagate: Callable[..., Any],
    edge_updater: Callable[..., Any],
    normalised: bool = False,
    entered: Callable[[nn.Module], Callable[..., Any]] | None = None,
) -> Iterator[None]:
    """Call these instead of the convolutions' own, with the convolution as first argument; nothing stays cached.

    With ``normalised`` the edges have their weights already, and convolutions need not compute them. ``entered`` makes
    the ``forward`` to call in place of a convolution's own.
    """
    convolutions = convolutions_of(network)
    was = [dict(vars(c)) for c in convolutions.values()]
    try:
        for c in convolutions.values():
            own = vars(c)
            own["propagate"] = _bound(propagate, c)
            own["edge_updater"] = _bound(edge_updater, c)
            if entered is not None:
                own["forward"] = entered(c)
            for key in own:
                if key.startswith("_cached"):
                    own[key] = None
            if "cached" in own:
                own["cached"] = False
            # elsewhere, "normalize" may mean something else (SAGEConv: rows of unit length)
            if normalised and "normalize" in own and "gcn_norm" in vars(sys.modules[type(c).__module__]):
                own["normalize"] = False
        yield
    finally:
        for c, before in zip(convolutions.values(), was, strict=True):
            vars(c).clear()
            vars(c).update(before)


def _bound(call: Callable[..., Any], convolution: nn.Module) -> Callable[..., Any]:
    def called(edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
        return call(convolution, edge_index, size, kwargs)

    return called


def convolutions_of(network: nn.Module) -> dict[str, nn.Module]:
    """The PyG convolutions of a network, by name."""
    from torch_geometric.nn import MessagePassing

    return {name or type(m).__name__: m for name, m in network.named_modules() if isinstance(m, MessagePassing)}


def original(convolution: nn.Module, name: str) -> Callable[..., Any]:
    """The convolution's own method, taken over or not."""
    return getattr(type(convolution), name).__get__(convolution)


def node_arguments(convolution: Any, updating: bool = False) -> set[str]:
    """Arguments of ``propagate`` (of ``edge_updater``) that a convolution reads at an end of an edge."""
    names = convolution._edge_user_args if updating else convolution._user_args
    return {name[:-2] for name in names if name[-2:] in ("_i", "_j")}


class Passage:
    """One pass of a network over a batch, cut at its crossings."""

    def __init__(
        self, network: nn.Module, crossings: tuple[Crossing, ...], num_rows: int, p: Pass, at: At, mode: CoreRows
    ) -> None:
        self.crossings, self.num_rows = crossings, num_rows
        self.p, self.at, self.mode = p, at, mode
        self.names = {id(c): name for name, c in convolutions_of(network).items()}
        self.l = 0
        self.first: Tensor | None = None
        """P X, where the first crossing reads the features themselves and this is known."""
        self.swapped = False
        """Nothing but the first crossing reads the features: they may have fewer rows than what follows."""
        self.rows = num_rows
        """Rows that the last crossing gave; only these mean anything."""

    def propagate(self, convolution: nn.Module, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Tensor:
        self.l += 1
        expected = self.crossings[self.l - 1].name if self.l <= len(self.crossings) else "none"
        if self.names[id(convolution)] != expected:
            raise ConfigError(
                f"expected the convolutions in the order seen before, here {expected} (got "
                f"{self.names[id(convolution)]}): a network whose path changes from pass to pass cannot be cut"
            )
        crossing = self.crossings[self.l - 1]
        self.mode.after_sum()
        with self.mode.under("off"):
            self.inputs(convolution, crossing, kwargs)
            if crossing.linear:
                t = source(kwargs["x"]).flatten(1) if self.l > 1 or self.first is None else self.first
                s = self.at(self.l, lambda P: P(t if P.num_inputs == t.shape[0] else t[: P.num_inputs]))
            else:
                s = self.at(self.l, lambda P: self._over_edges(convolution, crossing, kwargs, P))
            self.rows = s.shape[0]
            if self.swapped and self.l == 1:
                self.num_rows = self.rows
                self.mode.resize(self.rows)
            if self.rows < self.num_rows:
                # nobody reads the rows that the method did not compute; the network still needs a row for each
                s = torch.cat([s, s.new_zeros(self.num_rows - self.rows, s.shape[1])])
            if crossing.heads:
                s = s[:, : -crossing.heads]
            s = s.clone() if crossing.written else s
            return s if len(crossing.shape) == 1 else s.reshape(-1, *crossing.shape)

    def entered(self, convolution: nn.Module) -> Callable[..., Any]:
        """A convolution's forward, in which weights before the sum are taught by every row."""
        own = original(convolution, "forward")

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self.mode.under("live"):
                return own(*args, **kwargs)

        return forward

    def inputs(self, convolution: nn.Module, crossing: Crossing, kwargs: dict[str, Any]) -> None:
        """Called with what a crossing reads; for those who check."""

    def edge_updater(self, convolution: nn.Module, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Any:
        return Deferred(kwargs)

    def _over_edges(self, convolution: nn.Module, crossing: Crossing, kwargs: dict[str, Any], P: Operator) -> Tensor:
        """The convolution's own ``propagate`` on the operator's edges: those to core rows with its parameters, those
        to halo rows with frozen ones."""
        assert isinstance(P, Aggregation)
        A = P.forward
        c = self.p.core_of(A.num_rows)
        recalled = P.stored_halo if isinstance(P, WithStoredHalo) else None
        parts = [
            self._rows(convolution, crossing, kwargs, A, slice(first, last), rule, known)
            for first, last, rule, known in ((0, c, "live", None), (c, A.num_rows, "frozen", recalled))
            if last > first
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _rows(
        self,
        convolution: nn.Module,
        crossing: Crossing,
        kwargs: dict[str, Any],
        A: CSR,
        rows: slice,
        rule: Any,
        recalled: Tensor | None,
    ) -> Tensor:
        edges, values = edges_of(A, rows)
        size = (A.num_cols, rows.stop - rows.start)

        def cut(name: str, value: Any, nodes: set[str]) -> Any:
            if isinstance(value, Deferred):
                ends = node_arguments(convolution, updating=True)
                given = {k: cut(k, v, ends) for k, v in value.kwargs.items()}
                return original(convolution, "edge_updater")(edges, size=size, **given)
            if name == crossing.weight:
                return values if value is None else values.view(-1, *value.shape[1:])
            if name in nodes and isinstance(value, Tensor):
                value = (value, value)
            if name in nodes and isinstance(value, tuple | list):
                a, b = value
                return (a if a is None else a[: A.num_cols], b if b is None else b[rows])
            if isinstance(value, Tensor) and value.dim() and value.shape[0] == self.num_rows:
                return value[rows]
            return value

        with self.mode.under(rule), normaliser(convolution, recalled, crossing.heads) as seen:
            nodes = node_arguments(convolution)
            given = {k: cut(k, v, nodes) for k, v in kwargs.items()}
            out = original(convolution, "propagate")(edges, size=size, **given)
        if not crossing.heads:
            return out.flatten(1)
        if recalled is not None:
            stored = recalled[:, : -crossing.heads].view_as(out)
            out = out + (1 - seen["sum"]).unsqueeze(2) * stored
        return torch.cat([out.flatten(1), seen["log"]], 1)


def source(x: Any) -> Tensor:
    """The rows that send, of an argument that may be a pair."""
    return x[0] if isinstance(x, tuple | list) else x


def edges_of(A: CSR, rows: slice) -> tuple[Tensor, Tensor]:
    """The non-zero entries of some rows as [source, target - rows.start], and their values; made once."""
    key = f"edges {rows.start} {rows.stop}"
    if key not in A._cache:
        first, last = int(A.indptr[rows.start]), int(A.indptr[rows.stop])
        row, col, values = A.row_index()[first:last], A.indices[first:last].long(), A.data[first:last]
        there = values != 0
        A._cache[key] = (torch.stack([col[there], row[there] - rows.start]), values[there])
    found = A._cache[key]
    assert isinstance(found, tuple)
    return found


@contextmanager
def normaliser(convolution: nn.Module, recalled: Tensor | None, heads: int) -> Iterator[dict[str, Tensor]]:
    """See the normaliser of the convolution's softmax over neighbours, and, with ``recalled`` states, complete it from
    them (the equation of :class:`lmc.models.gat.GATLayer`)."""
    home = vars(sys.modules[type(convolution).__module__])
    seen: dict[str, Tensor] = {}
    if not heads:
        yield seen
        return
    theirs = home["softmax"]

    def softmax(e: Tensor, index: Tensor, ptr: Any = None, num_nodes: int | None = None, dim: int = 0) -> Tensor:
        assert num_nodes is not None
        log_z = log_sum_exp(e, index, num_nodes)
        if recalled is not None:
            log_z = torch.maximum(recalled[:, -heads:], log_z.detach())
        w = (e - log_z.index_select(0, index)).exp()
        seen["log"] = log_z
        if recalled is not None:
            seen["sum"] = torch.zeros_like(log_z).index_add(0, index, w)
        return w

    home["softmax"] = softmax
    try:
        yield seen
    finally:
        home["softmax"] = theirs
