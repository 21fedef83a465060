"""A plain forward pass of a network in which every ``propagate`` is recorded.

An inspection compares passes over different rows, so nothing in them may depend on chance or on which rows are present:
dropout is the identity, other random numbers of rows are constants, and batch norms use their running statistics.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.errors import ConfigError, LmcError
from lmc.models.passes import Pass
from lmc.pyg.core_rows_mode import CoreRowsMode, OptTensor, tensors_in
from lmc.pyg.matrices import LayerEdges, aggregation_of
from lmc.pyg.propagate_hook import (
    Call,
    PropagateSpec,
    convolutions_of,
    own_method,
    replaced_methods,
    replaced_softmax,
    source,
)

SCALES = (1e-3, 1e3)
"""Factors of the rows with which a sum over neighbours is repeated, to find messages that depend on their range."""

_DROPOUTS = {F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d}
_RANDOM = {
    torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.normal, torch.bernoulli, Tensor.bernoulli,
    Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_, Tensor.exponential_, Tensor.log_normal_,
}  # fmt: skip
"""Functions that draw numbers element by element."""
_CONSTANT = 0.6
"""What they draw in an inspection."""


class Sample(NamedTuple):
    """A small graph on which a network is run: features [n, in_width] in float64, edges [2, E], the mode, and the
    weights [E] and features [E, k] of the edges that the network reads."""

    x: Tensor
    edges: Tensor
    training: bool
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]


@dataclass
class RecordedCall:
    """One ``propagate`` of a plain pass.

    Args:
        kwargs: its arguments besides the edges.
        out: a copy of its result; ``live`` is the result itself, in ``version`` when it was returned.
        updates: arguments of ``edge_updater``, for the arguments of ``propagate`` that it computed.
        softmaxes: scores and target nodes of every softmax over neighbours.
        num_draws: dropouts and other random draws of the pass before this call.
        scaled: x and the result of the same call with x times each of :data:`SCALES`.
        reweighted: what the result should be if it weighs messages by the softmax, see :func:`_reweighted`.
    """

    name: str
    convolution: Any
    edges: Any
    kwargs: dict[str, Any]
    out: Any
    live: Any
    version: int
    updates: dict[str, dict[str, Any]]
    softmaxes: list[tuple[Tensor, Tensor]]
    num_draws: int
    scaled: list[tuple[Tensor, Tensor]]
    reweighted: Tensor | None

    @property
    def written(self) -> bool:
        """Whether the network has changed the result in place."""
        return getattr(self.live, "_version", 0) > self.version

    def layer_edges(self, weight: str | None, linear: bool = True, features: str | None = None) -> LayerEdges:
        """What this call sums over; ``weight`` and ``features`` are the arguments that hold those of edges."""
        of_edges = None if weight is None else self.kwargs[weight]
        of_edges = None if of_edges is None else of_edges.detach().flatten()
        rows = None if features is None else self.arguments.get(features)
        return LayerEdges(self.edges, of_edges, aggregation_of(self.convolution) if linear else None, rows)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``propagate``, and of ``edge_updater`` where it was called."""
        return {name: value for given in (*self.updates.values(), self.kwargs) for name, value in given.items()}

    def weighted_sum(self, weight: str | None, x: Tensor) -> Tensor:
        """P x, if this call is a sum or mean over edges."""
        w = self.layer_edges(weight).entries(x.shape[0], x.dtype)
        src, dst = self.edges
        return torch.zeros_like(x).index_add(0, dst, w.view(-1, *[1] * (x.dim() - 1)) * x[src])


class Recording(NamedTuple):
    """The calls of a pass over all nodes of a sample, and what the network returned."""

    sample: Sample
    calls: list[RecordedCall]
    logits: Any


def record(probe: nn.Module, call: Call, sample: Sample, scaled: bool = False) -> Recording:
    """Run a plain forward pass over a sample and record every ``propagate``; ``scaled``: repeat it with scaled rows."""
    names = {id(c): name for name, c in convolutions_of(probe).items()}
    mode = RowTrackingMode([], sample.x, Pass(dropout=False))
    calls: list[RecordedCall] = []
    updates: dict[int, tuple[Any, dict[str, Any]]] = {}  # holds the results, so that no id is used again
    softmaxes: list[tuple[Tensor, Tensor]] = []

    def softmax(own: Callable[..., Tensor], e: Tensor, index: Tensor, *args: Any, **options: Any) -> Tensor:
        softmaxes.append((e, index))
        return own(e, index, *args, **options)

    def run(convolution: Any, method: str, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Any:
        with replaced_softmax(convolution, softmax):
            return own_method(convolution, method)(edge_index, size=size, **kwargs)

    def edge_updater(convolution: Any, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Any:
        out = run(convolution, "edge_updater", edge_index, size, kwargs)
        updates[id(out)] = (out, kwargs)
        return out

    def propagate(convolution: Any, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Any:
        out = run(convolution, "propagate", edge_index, size, kwargs)
        copied, version = out.detach().clone() if isinstance(out, Tensor) else out, getattr(out, "_version", 0)
        updated = {k: updates[id(v)][1] for k, v in kwargs.items() if id(v) in updates}
        made = names[id(convolution)], convolution, edge_index, dict(kwargs)
        found, draws = softmaxes.copy(), mode.num_draws
        softmaxes.clear()
        again = _scaled_calls(convolution, edge_index, size, kwargs) if scaled and not updated else []
        weighed = None if updated else _reweighted(convolution, edge_index, size, kwargs, found, out)
        calls.append(RecordedCall(*made, copied, out, version, updated, found, draws, again, weighed))
        return out

    probe.train(sample.training)
    try:
        with repeatable(probe), replaced_methods(probe, propagate, edge_updater), mode:
            logits = call(probe, sample.x, sample.edges, sample.edge_weight, sample.edge_attr)
    except LmcError:
        raise
    except Exception as error:
        n, width = sample.x.shape
        raise ConfigError(
            f"expected a network that runs on x [{n}, {width}] and edge_index [2, {sample.edges.shape[1]}] in float64 "
            f"(got {reason(error)}): {_remedy(error, width)}"
        ) from error
    return Recording(sample, calls, logits)


def _remedy(error: Exception, width: int) -> str:
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    if any(name.startswith("torch._dynamo") for name in modules):
        return "functions of torch.compile cannot be intercepted, so wrap the network without them"
    if isinstance(error, RuntimeError | IndexError):
        return f"pass in_width if {width} is not the width of its features"
    return "lmc.wrap passes these two arguments, so all else needs a default"


@torch.no_grad()
def _scaled_calls(convolution: Any, edges: Any, size: Any, kwargs: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """x and the result of a ``propagate`` with x times each of :data:`SCALES`, where it may be a sum of x."""
    x = kwargs.get("x")
    if aggregation_of(convolution) is None or not isinstance(x, Tensor | tuple | list):
        return []
    found = []
    for scale in SCALES:
        scaled = x * scale if isinstance(x, Tensor) else tuple(None if end is None else end * scale for end in x)
        found.append((source(scaled), own_method(convolution, "propagate")(edges, size=size, **kwargs | {"x": scaled})))
    return found


@torch.no_grad()
def _reweighted(
    convolution: Any, edges: Any, size: Any, kwargs: dict[str, Any], softmaxes: list[tuple[Tensor, Tensor]], out: Any
) -> Tensor | None:
    """The sum of two ``propagate`` whose softmax is multiplied by r_i u_ij and r_i (1 - u_ij), divided by r_i.

    It equals the result itself if that is a sum of messages, each of them times its weight in the softmax.
    """
    if len(softmaxes) != 1 or softmaxes[0][0].dim() != 2 or not isinstance(out, Tensor) or out.dim() != 3:
        return None
    e, index = softmaxes[0]
    generator = torch.Generator().manual_seed(0)
    r = 0.5 + torch.rand(out.shape[0], e.shape[1], generator=generator, dtype=e.dtype)
    u = torch.rand(e.shape, generator=generator, dtype=e.dtype)
    total = torch.zeros_like(out)
    for factor in (r[index] * u, r[index] * (1 - u)):
        with replaced_softmax(convolution, lambda own, *args, f=factor, **options: own(*args, **options) * f):
            total += own_method(convolution, "propagate")(edges, size=size, **kwargs)
    return total / r.unsqueeze(2)


class RowTrackingMode(CoreRowsMode):
    """A mode that also knows which tensors were computed from rows, and in which nothing depends on chance or on the
    other rows of a batch norm."""

    def __init__(self, weights: list[Tensor], rows: Tensor, p: Pass) -> None:
        super().__init__(weights, rows.shape[0], p)
        self.num_draws = 0
        self._from_rows = {id(rows): rows}

    def add_rows(self, rows: Tensor) -> None:
        """Note that a tensor was computed from rows, where the mode has not seen it."""
        self._from_rows[id(rows)] = rows

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.gradient_rows == "off":
            return func(*args, **(kwargs or {}))
        if func in _DROPOUTS:
            return self._dropout(*args, **(kwargs or {}))
        if func is F.rrelu:
            self.num_draws += 1
            return F.rrelu(*args[:3])
        if func in _RANDOM:
            return self._draw(func, args, kwargs or {})
        out = super().__torch_function__(func, types, args, kwargs)
        name = getattr(func, "__name__", "")
        makes_constants = name.startswith("new_") or name.endswith("_like")
        if not makes_constants:
            read = tensors_in(*args, *(kwargs or {}).values())
            if any(id(t) in self._from_rows for t in read):
                self._from_rows.update((id(t), t) for t in tensors_in(out) if id(t) not in self._weights)
        return out

    def _draw(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Random numbers: constants for rows, whose number differs from pass to pass, and else the same in each."""
        self.num_draws += 1
        state = torch.default_generator.get_state()
        out: Tensor = func(*args, **kwargs)
        if out.dim() == 0 or out.shape[0] != self.num_rows:
            return out
        torch.default_generator.set_state(state)
        return out.fill_(_CONSTANT)

    def _check_constants(self, name: str, others: list[Tensor]) -> None:
        if any(id(t) in self._from_rows for t in others):
            raise ConfigError(
                f"expected one row per node, along the first dimension, where {name} meets a parameter (got shapes "
                f"{[list(t.shape) for t in others]} for {self.num_rows} nodes): write it row by row, x @ W instead of "
                "W.T @ x.T, [n, k, d] instead of [n * k, d]"
            )

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        self.num_draws += training and p > 0
        return super()._dropout(input, p, training, inplace)

    def _batch_norm(
        self, input: Tensor, running_mean: OptTensor, running_var: OptTensor, weight: OptTensor = None,
        bias: OptTensor = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        training = training and running_mean is None
        return super()._batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@contextmanager
def repeatable(network: nn.Module) -> Iterator[None]:
    """A block that begins with the same random numbers every time, and leaves the global generators of torch, numpy
    and Python and the buffers of the network as they were."""
    buffers = [(m, dict(m._buffers)) for m in network.modules() if m._buffers]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            for module, before in buffers:  # copies, because autograd may need the buffers themselves later
                module._buffers.update({k: None if b is None else b.clone() for k, b in before.items()})
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for module, before in buffers:
            module._buffers.update(before)


def state_of(call: RecordedCall, spec: PropagateSpec) -> Tensor:
    """The result of a recorded call as the state of its layer; a softmax's normaliser is left zero."""
    out = call.out.flatten(1)
    return torch.cat([out, out.new_zeros(out.shape[0], spec.heads)], 1)


def reason(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
