"""What happens at each ``propagate`` of a PyG convolution while a method computes a batch.

A network of PyG convolutions is row-wise code with calls of ``propagate`` in between. Each of these calls is one layer
of a method. Its result is the state s^l that histories store. Weights, biases and activations that follow it are
applied to the state, so the Jacobian of a halo row does not depend on the row's own incomplete sum.

For the time of one pass, :class:`HookedPass` replaces ``propagate`` of every convolution. The method decides which
operator the layer aggregates with and which state the network goes on with; the hook only computes s^l for a given
operator. A convolution that sums its neighbours with constant weights is the sparse product P x. Any other convolution
runs its own ``propagate`` on the edges of the operator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, WithStoredHalo
from lmc.models.gat import log_sum_exp
from lmc.models.passes import Operator
from lmc.pyg.core_rows_mode import CoreRowsMode

Call = Callable[..., Any]
"""(network, x, edge_index, edge_weight, edge_attr) -> logits: how the network is called; the last two are optional."""
ChooseState = Callable[[int, Callable[[Operator], Tensor]], Tensor]
"""(l, layer) -> the state that the network goes on with; ``layer(P)`` computes s^l with the operator P."""


@dataclass(frozen=True)
class PropagateSpec:
    """One ``propagate`` call of a network, as the inspection found it.

    Args:
        name: of the convolution in its network.
        linear: the result is P x with a matrix P that does not depend on the rows.
        weight: the argument that holds a constant number per edge, if there is one.
        shape: of a row of the result.
        message_width: the numbers in a row of x, where ``linear``.
        heads: of a softmax over the neighbours, whose logarithmic normaliser is stored at the end of the state.
        written: the network changes the result in place, so it gets a copy.
        features: the argument, of ``propagate`` or of ``edge_updater``, that holds the edge features.
    """

    name: str
    linear: bool
    weight: str | None
    shape: tuple[int, ...]
    message_width: int
    heads: int = 0
    written: bool = False
    features: str | None = None

    @property
    def width(self) -> int:
        """The numbers in a row of the state."""
        return torch.Size(self.shape).numel() + self.heads


@dataclass(frozen=True)
class EdgeUpdate:
    """The arguments of an ``edge_updater`` call, which runs later, on the edges of the operator."""

    kwargs: dict[str, Any]


def convolutions_of(network: nn.Module) -> dict[str, nn.Module]:
    """The convolutions of a network, by name."""
    from torch_geometric.nn import MessagePassing

    return {name or type(m).__name__: m for name, m in network.named_modules() if isinstance(m, MessagePassing)}


@contextmanager
def replaced_methods(
    network: nn.Module,
    propagate: Callable[..., Any],
    edge_updater: Callable[..., Any] = lambda convolution, edge_index, size, kwargs: EdgeUpdate(kwargs),
    normalised: bool = False,
    forward: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Replace methods of every convolution inside a ``with`` block, and let convolutions cache nothing.

    Args:
        propagate, edge_updater: called with (convolution, edge_index, size, the other arguments as a dict).
        normalised: the edges carry their weights already, so convolutions do not compute them.
        forward: called with (convolution, *args, **kwargs), if given.
    """
    convolutions = list(convolutions_of(network).values())
    before = [dict(vars(c)) for c in convolutions]
    try:
        for c in convolutions:
            attributes = vars(c)
            attributes |= {"propagate": _bound(propagate, c), "edge_updater": _bound(edge_updater, c)}
            if forward is not None:
                attributes["forward"] = partial(forward, c)
            attributes |= {key: None for key in attributes if key.startswith("_cached")}
            if "cached" in attributes:
                attributes["cached"] = False
            # elsewhere, "normalize" may mean something else (SAGEConv: rows of unit length)
            if normalised and "normalize" in attributes and "gcn_norm" in _namespace(c):
                attributes["normalize"] = False
        yield
    finally:
        for c, attributes in zip(convolutions, before, strict=True):
            vars(c).clear()
            vars(c).update(attributes)


def _bound(method: Callable[..., Any], convolution: nn.Module) -> Callable[..., Any]:
    def called(edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
        return method(convolution, edge_index, size, kwargs)

    return called


def _namespace(convolution: nn.Module) -> dict[str, Any]:
    """The global names of the file that defines the convolution."""
    return vars(sys.modules[type(convolution).__module__])


@contextmanager
def replaced_softmax(convolution: nn.Module, softmax: Callable[..., Tensor] | None) -> Iterator[None]:
    """Replace the softmax over neighbours, where the convolution's file imports one, by a function that is called with
    the replaced one before its arguments."""
    names = _namespace(convolution)
    own = names.get("softmax")
    if own is None or softmax is None:
        yield
        return
    names["softmax"] = partial(softmax, own)
    try:
        yield
    finally:
        names["softmax"] = own


def own_method(convolution: nn.Module, name: str) -> Callable[..., Any]:
    """The convolution's own method, also while it is replaced."""
    return getattr(type(convolution), name).__get__(convolution)


def node_arguments(convolution: Any, method: str = "propagate") -> set[str]:
    """Arguments of ``propagate`` (or of ``edge_updater``) that a convolution reads at an end of an edge."""
    names = convolution._edge_user_args if method == "edge_updater" else convolution._user_args
    return {name[:-2] for name in names if name[-2:] in ("_i", "_j")}


@dataclass
class HookedPass:
    """One forward pass of a network over a batch, in which the method computes the result of every ``propagate``.

    Args:
        specs: the ``propagate`` calls that the network makes, in their order.
        choose: what the method does at a layer.
        mode: the mode under which the network runs; it knows the rows of the batch.
        PX: P X, where the first convolution aggregates the features themselves and P X is known.
        px_replaces_x: the network reads P X in the place of X, possibly of fewer rows than the batch.
        num_computed: rows of the last state; the network's rows after these have no meaning.
    """

    network: nn.Module
    specs: tuple[PropagateSpec, ...]
    choose: ChooseState
    mode: CoreRowsMode
    PX: Tensor | None = None
    px_replaces_x: bool = False
    l: int = field(default=0, init=False)
    num_computed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.num_computed = self.mode.num_rows
        self._names = {id(c): name for name, c in convolutions_of(self.network).items()}

    def run(self, call: Call, x: Tensor) -> Tensor:
        """The network's output; only its first ``num_computed`` rows have a meaning."""
        self._dtype = x.dtype
        no_edges = torch.empty(2, 0, dtype=torch.int64, device=x.device)
        p = self.mode.p
        forward = self._forward if p.grad_from_halo and p.num_core is not None else None
        with replaced_methods(self.network, self.propagate, normalised=True, forward=forward), self.mode:
            return call(self.network, x, no_edges)

    def _forward(self, convolution: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The convolution's forward; weights before its sum take their gradient from every row."""
        with self.mode.gradient_from("all"):
            return own_method(convolution, "forward")(*args, **kwargs)

    def propagate(self, convolution: nn.Module, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Tensor:
        """The result of one ``propagate``: the state that the method chooses for this layer."""
        self.l += 1
        spec = self._spec(self._names[id(convolution)])
        self.mode.gradient_from_core()
        with self.mode.gradient_from("off"):
            self.check(convolution, spec, kwargs)
            state = self.choose(self.l, self._layer(convolution, spec, kwargs))
            return self._result(state, spec)

    def check(self, convolution: nn.Module, spec: PropagateSpec, kwargs: dict[str, Any]) -> None:
        """Called with the arguments of every ``propagate``; an inspection compares them with what it expects."""

    def _spec(self, name: str) -> PropagateSpec:
        spec = self.specs[self.l - 1] if self.l <= len(self.specs) else None
        if spec is None or spec.name != name:
            raise ConfigError(
                f"expected the convolutions in the order seen before, here {spec.name if spec else 'none'} (got "
                f"{name}): a network whose path changes from pass to pass cannot be cut into layers"
            )
        return spec

    def _layer(
        self, convolution: nn.Module, spec: PropagateSpec, kwargs: dict[str, Any]
    ) -> Callable[[Operator], Tensor]:
        # under autocast, messages may be narrower than the rows; states and sums over neighbours are not
        if not spec.linear:
            return lambda P: self._over_edges(convolution, spec, kwargs, P).to(self._dtype)
        t = self.PX if self.l == 1 and self.PX is not None else source(kwargs["x"]).flatten(1).to(self._dtype)
        return lambda P: P(t if P.num_inputs == t.shape[0] else t[: P.num_inputs])

    def _result(self, state: Tensor, spec: PropagateSpec) -> Tensor:
        """A state as the network expects the result of ``propagate``."""
        self.num_computed = state.shape[0]
        if self.px_replaces_x and self.l == 1:
            self.mode.resize(self.num_computed)
        if self.num_computed < self.mode.num_rows:
            # nothing reads the rows that the method did not compute, but the network needs a row for each
            state = torch.cat([state, state.new_zeros(self.mode.num_rows - self.num_computed, state.shape[1])])
        if spec.heads:
            state = state[:, : -spec.heads]
        state = state.clone() if spec.written else state
        return state if len(spec.shape) == 1 else state.reshape(-1, *spec.shape)

    def _over_edges(self, convolution: nn.Module, spec: PropagateSpec, kwargs: dict[str, Any], P: Operator) -> Tensor:
        """The convolution's own ``propagate`` on the edges of the operator.

        Edges that end in core rows use its parameters, edges that end in halo rows use detached ones.
        """
        assert isinstance(P, Aggregation)
        A, c = P.forward, self.mode.p.core_of(P.forward.num_rows)
        stored = P.stored_halo if isinstance(P, WithStoredHalo) else None
        core = slice(0, c), None, self.mode.gradient_from("all")
        halo = slice(c, A.num_rows), stored, self.mode.gradient_from("none")
        parts = [
            EdgesInto(A, rows, self.mode.num_rows, convolution, spec).state(kwargs, states, gradient)
            for rows, states, gradient in (core, halo)
            if rows.start < rows.stop
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0]


class EdgesInto:
    """The edges of the matrix A that end in some of its ``rows``, for one convolution in a batch of ``num_rows``."""

    def __init__(self, A: CSR, rows: slice, num_rows: int, convolution: nn.Module, spec: PropagateSpec) -> None:
        self.edges, self.values, self.data = edges_into(A, rows)
        self.rows, self.num_cols, self.num_rows = rows, A.num_cols, num_rows
        self.convolution, self.spec = convolution, spec

    def state(self, kwargs: dict[str, Any], stored: Tensor | None, gradient: AbstractContextManager[None]) -> Tensor:
        """s^l of the rows; with attention, ``stored`` states of halo rows complete it. The convolution runs under
        ``gradient``."""
        softmax = StoredSoftmax(self.spec.heads, stored) if self.spec.heads else None
        with gradient, replaced_softmax(self.convolution, softmax):
            m = self._run("propagate", kwargs)
        return m.flatten(1) if softmax is None else softmax.state(m)

    def _run(self, method: Literal["propagate", "edge_updater"], kwargs: dict[str, Any]) -> Any:
        """The convolution's own method on these edges."""
        nodes = node_arguments(self.convolution, method)
        size = (self.num_cols, self.rows.stop - self.rows.start)
        arguments = {name: self._argument(name, value, name in nodes) for name, value in kwargs.items()}
        return own_method(self.convolution, method)(self.edges, size=size, **arguments)

    def _features(self, value: Tensor | None) -> Tensor | None:
        """The features of these edges in the place of ``value``; in the edge data, weights come before them."""
        known = value is not None and self.data is not None and self.data.dim() == 2
        return self.data[:, -value.shape[1] :] if known else None  # type: ignore[index, union-attr]

    def _argument(self, name: str, value: Any, at_ends: bool) -> Any:
        """An argument restricted to these edges; ``at_ends``: the convolution reads it at the ends of an edge."""
        if isinstance(value, EdgeUpdate):
            return self._run("edge_updater", value.kwargs)
        if name == self.spec.features:
            return self._features(value)
        if name == self.spec.weight:
            return self.values if value is None else self.values.view(-1, *value.shape[1:])
        if at_ends and isinstance(value, Tensor | tuple | list):
            return self._ends(value)
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == self.num_rows:
            return value[self.rows]
        return value

    def _ends(self, value: Tensor | Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """The rows of an argument at the sources and at the targets of these edges."""
        pair, places = (value, value) if isinstance(value, Tensor) else value, (slice(self.num_cols), self.rows)
        return tuple(None if end is None else end[rows] for end, rows in zip(pair, places, strict=True))


class StoredSoftmax:
    """A softmax over neighbours whose normaliser becomes part of the state.

    Halo rows have only some of their neighbours in the batch. Their ``stored`` states [m | log Z] complete both the
    normaliser and the sum, by the equation of :class:`lmc.models.gat.GATLayer`.
    """

    log_z: Tensor
    weight_sum: Tensor

    def __init__(self, heads: int, stored: Tensor | None) -> None:
        self.heads, self.stored = heads, stored

    def __call__(
        self, own: Any, e: Tensor, index: Tensor, ptr: Any = None, num_nodes: int | None = None, dim: int = 0
    ) -> Tensor:
        assert num_nodes is not None
        self.log_z = log_sum_exp(e, index, num_nodes)
        if self.stored is not None:
            self.log_z = torch.maximum(self.stored[:, -self.heads :], self.log_z.detach())
        w = (e - self.log_z.index_select(0, index)).exp()
        if self.stored is not None:
            self.weight_sum = torch.zeros_like(self.log_z).index_add(0, index, w)
        return w

    def state(self, m: Tensor) -> Tensor:
        """[m | log Z], completed by the stored states."""
        if self.stored is not None:
            m = m + (1 - self.weight_sum).unsqueeze(2) * self.stored[:, : -self.heads].view_as(m)
        return torch.cat([m.flatten(1), self.log_z], 1)


def source(x: Any) -> Tensor:
    """The rows at the sources of edges, of an argument that may be a pair (source, target)."""
    return x[0] if isinstance(x, tuple | list) else x


def edges_into(A: CSR, rows: slice) -> tuple[Tensor, Tensor, Tensor | None]:
    """The non-zero entries of some rows as [source, target - rows.start], their values and edge data; cached in A."""
    key = f"edges {rows.start} {rows.stop}"
    if key not in A._cache:
        first, last = int(A.indptr[rows.start]), int(A.indptr[rows.stop])
        row, col, values = A.row_index()[first:last], A.indices[first:last].long(), A.data[first:last]
        nonzero = values != 0
        data = None if A.edge_data is None else A.edge_data[first:last][nonzero]
        A._cache[key] = (torch.stack([col[nonzero], row[nonzero] - rows.start]), values[nonzero], data)
    found = A._cache[key]
    assert isinstance(found, tuple)
    return found
