"""The inspection that ``lmc.wrap`` does once: what a network does on a graph of twelve nodes, and what is refused.

A copy of the network in float64 runs three plain passes, in which every ``propagate`` is recorded. From these the
inspection concludes what each call is (:class:`lmc.pyg.propagate_hook.PropagateSpec`): a sparse product with a constant
matrix, a softmax over neighbours, or something else. Then the copy runs on seven of the twelve rows, without the edges
and with the recorded results in the place of every ``propagate``. If the code between convolutions is row-wise, each
convolution now reads the same rows as before; if not, the network is refused with a reason.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import Precomputed
from lmc.models.passes import Operator, Pass
from lmc.pyg.core_rows_mode import CoreRowsMode, tensors_in
from lmc.pyg.matrices import LayerEdges, aggregation_of
from lmc.pyg.propagate_hook import (
    Call,
    ChooseState,
    EdgeUpdate,
    HookedPass,
    PropagateSpec,
    convolutions_of,
    log_sum_exp,
    node_arguments,
    own_method,
    replaced_methods,
    replaced_softmax,
    source,
)

NUM_NODES = 12
SUBSET = [7, 2, 11, 4, 0, 9, 5]
"""The rows of the second part of the inspection, out of order; the first four are core rows."""

UseOfPX = Literal["none", "replaces_x", "beside_x"]
"""How the network can use P X, computed once. ``none``: the first sum changes with the parameters or by chance.
``replaces_x``: the first sum is P (X W) and nothing else reads X, so the network may read P X in the place of X.
``beside_x``: the first sum is P X itself, and X may be read elsewhere too."""


class Inspection(NamedTuple):
    """What :func:`inspect_network` found."""

    specs: tuple[PropagateSpec, ...]
    out_width: int
    use_of_px: UseOfPX


def inspect_network(network: nn.Module, call: Call, in_width: int) -> Inspection:
    """Inspect a network; :class:`ConfigError` if methods cannot train it by batches."""
    if not convolutions_of(network):
        raise ConfigError(
            f"expected a network of PyG convolutions (got {type(network).__name__} without a MessagePassing module)"
        )
    generator = torch.Generator().manual_seed(0)
    probe = _perturbed_copy(network, generator)
    x, other = (torch.randn(NUM_NODES, in_width, generator=generator, dtype=torch.float64) for _ in range(2))
    edges = _small_graph()
    calls, logits = record_calls(probe, call, x, edges, training=False)
    again, _ = record_calls(probe, call, other, edges, training=False)
    training, _ = record_calls(copy.deepcopy(probe), call, x, edges, training=True)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[0] != NUM_NODES:
        raise ConfigError(
            f"expected one row of logits per node, [{NUM_NODES}, C] on a graph of {NUM_NODES} nodes (got "
            f"{_kind(logits)} from {type(network).__name__}): a pooling over nodes has no meaning on a batch of them"
        )
    for what, them in (("other features", again), ("training mode", training)):
        if [c.name for c in them] != [c.name for c in calls]:
            raise ConfigError(f"expected the same convolutions in every pass (got others with {what})")
    specs = tuple(_spec(*three, edges) for three in zip(calls, again, training, strict=True))
    subset = SubsetCheck(probe, call, specs, calls, x, logits)
    subset.check_row_wise()
    constant_first_sum = specs[0].linear and not training[0].num_dropouts
    return Inspection(specs, logits.shape[1], subset.use_of_px() if constant_first_sum else "none")


def _perturbed_copy(network: nn.Module, generator: torch.Generator) -> nn.Module:
    """A float64 copy with other parameters: biases of 0 and scales of 1 would hide what they are combined with."""
    try:
        probe = copy.deepcopy(network).double().cpu()
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"expected a network that can be copied, to inspect it (got {error})") from error
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return probe


def _small_graph() -> Tensor:
    """The edges of a ring with chords, both directions."""
    ring = [(i, (i + 1) % NUM_NODES) for i in range(NUM_NODES)]
    chords = [(0, 5), (1, 7), (3, 9), (2, 10), (4, 11), (0, 3)]
    one = torch.tensor(sorted({tuple(sorted(e)) for e in ring + chords})).t()
    return torch.cat([one, one.flip(0)], 1)


@dataclass
class RecordedCall:
    """One ``propagate`` of a plain pass.

    Args:
        kwargs: its arguments besides the edges.
        out: a copy of its result; ``live`` is the result itself, in ``version`` when it was returned.
        updates: arguments of ``edge_updater``, for the arguments of ``propagate`` that it computed.
        softmaxes: scores and target nodes of every softmax over neighbours.
        num_dropouts: dropouts of the pass before this call.
    """

    name: str
    convolution: Any
    edges: Any
    kwargs: dict[str, Any]
    out: Tensor
    live: Any
    version: int
    updates: dict[str, dict[str, Any]]
    softmaxes: list[tuple[Tensor, Tensor]]
    num_dropouts: int

    @property
    def written(self) -> bool:
        """Whether the network has changed the result in place."""
        return getattr(self.live, "_version", 0) > self.version

    def weighted_sum(self, weight: str | None, x: Tensor) -> Tensor:
        """P x, if this call is a sum or mean over edges; ``weight`` is the argument that holds their weights."""
        of_edges = None if weight is None else self.kwargs[weight].flatten()
        w = LayerEdges(self.edges, of_edges, aggregation_of(self.convolution)).entries(NUM_NODES, x.dtype)
        src, dst = self.edges
        return torch.zeros_like(x).index_add(0, dst, w.view(-1, *[1] * (x.dim() - 1)) * x[src])


def record_calls(
    probe: nn.Module, call: Call, x: Tensor, edges: Tensor, training: bool
) -> tuple[list[RecordedCall], Any]:
    """Every ``propagate`` of a plain forward pass without dropout, and what the network returns."""
    names = {id(c): name for name, c in convolutions_of(probe).items()}
    mode = RowTrackingMode([], x, Pass(dropout=False))
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
        copied, version = out.clone() if isinstance(out, Tensor) else out, getattr(out, "_version", 0)
        updated = {k: updates[id(v)][1] for k, v in kwargs.items() if id(v) in updates}
        made = names[id(convolution)], convolution, edge_index, dict(kwargs)
        calls.append(RecordedCall(*made, copied, out, version, updated, softmaxes.copy(), mode.num_dropouts))
        softmaxes.clear()
        return out

    probe.train(training)
    replaced = replaced_methods(probe, propagate, edge_updater)
    with torch.no_grad(), replaced, torch.random.fork_rng(devices=[]), mode:
        logits = call(probe, x, edges)
    return calls, logits


class RowTrackingMode(CoreRowsMode):
    """A mode that also knows which tensors were computed from rows, and counts dropouts."""

    def __init__(self, weights: list[Tensor], rows: Tensor, p: Pass) -> None:
        super().__init__(weights, rows.shape[0], p)
        self.num_dropouts = 0
        self._from_rows = {id(rows): rows}

    def add_rows(self, rows: Tensor) -> None:
        self._from_rows[id(rows)] = rows

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        name = getattr(func, "__name__", "")
        makes_constants = name.startswith("new_") or name.endswith("_like")
        if self.gradient_rows != "off" and not makes_constants:
            read = tensors_in(*args, *(kwargs or {}).values())
            if any(id(t) in self._from_rows for t in read):
                self._from_rows.update((id(t), t) for t in tensors_in(out) if id(t) not in self._weights)
        return out

    def _check_constants(self, name: str, others: list[Tensor]) -> None:
        if any(id(t) in self._from_rows for t in others):
            raise ConfigError(
                f"expected one row per node, along the first dimension, where {name} meets a parameter (got shapes "
                f"{[list(t.shape) for t in others]} for {self.num_rows} nodes): write it row by row, x @ W instead of "
                "W.T @ x.T, [n, k, d] instead of [n * k, d]"
            )

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        self.num_dropouts += training and p > 0
        return super()._dropout(input, p, training, inplace)


def _spec(call: RecordedCall, again: RecordedCall, training: RecordedCall, edges: Tensor) -> PropagateSpec:
    """What one ``propagate`` is, from its calls with two different features and in training mode."""
    where = f"{call.name} ({type(call.convolution).__name__})"
    _check_edges(call, again, training, edges, where)
    if not isinstance(call.out, Tensor) or call.out.shape[0] != NUM_NODES:
        raise ConfigError(f"expected one row per node from {where} (got {_kind(call.out)})")
    weight = _edge_weight(call, again, where)
    heads = _heads(call)
    x = call.kwargs.get("x")
    linear = not call.updates and not heads and x is not None and _is_linear(call, source(x), weight)
    message_width = source(x).flatten(1).shape[1] if linear else 0
    written = call.written or again.written or training.written
    return PropagateSpec(call.name, linear, weight, tuple(call.out.shape[1:]), message_width, heads, written)


def _check_edges(call: RecordedCall, again: RecordedCall, training: RecordedCall, edges: Tensor, where: str) -> None:
    flow = call.convolution.flow
    if flow != "source_to_target":
        raise ConfigError(f'expected flow="source_to_target" in {where} (got {flow!r}): the graph is undirected')
    for c in (call, again, training):
        if not isinstance(c.edges, Tensor) or c.edges.layout is not torch.strided or _pairs(c.edges) != _pairs(edges):
            raise ConfigError(
                f"expected {where} to aggregate over the edges it is given (got others, dropped or chosen from the "
                "features): its neighbours would not be in the batch"
            )
    loops = int((call.edges[0] == call.edges[1]).sum())
    if loops not in (0, NUM_NODES):
        raise ConfigError(f"expected self-loops of all nodes or of none in {where} (got {loops} of {NUM_NODES})")


def _pairs(edges: Tensor) -> set[tuple[int, int]]:
    return {(a, b) for a, b in edges.t().tolist() if a != b}


def _edge_weight(call: RecordedCall, again: RecordedCall, where: str) -> str | None:
    """The argument that holds one constant number per edge."""
    nodes, num_edges = node_arguments(call.convolution), call.edges.shape[1]
    others = {k: v for k, v in call.kwargs.items() if isinstance(v, Tensor) and k not in nodes | call.updates.keys()}
    names = [k for k, v in others.items() if v.shape[:1] == (num_edges,)]
    for name in names:
        v = call.kwargs[name]
        if len(names) > 1 or v.numel() != num_edges or not torch.equal(v, again.kwargs[name]):
            raise ConfigError(
                f"expected at most one constant number per edge in {where} (got {', '.join(names)}): compute what "
                "depends on the rows in edge_update or message"
            )
    return names[0] if names else None


def _heads(call: RecordedCall) -> int:
    """Heads of a softmax over neighbours that each weigh one block of the output; 0 for anything else."""
    if len(call.softmaxes) != 1:
        return 0
    (e, index), out = call.softmaxes[0], call.out
    if e.dim() != 2 or out.dim() != 3 or out.shape[1] != e.shape[1] or not torch.equal(index, call.edges[1]):
        return 0
    x = call.kwargs.get("x", call.kwargs.get("value"))
    if x is None or source(x).shape[1:] != out.shape[1:]:
        return 0
    w = (e - log_sum_exp(e, index, NUM_NODES)[index]).exp().unsqueeze(2)
    sums = torch.zeros_like(out).index_add(0, index, w * source(x)[call.edges[0]])
    return e.shape[1] if _close(sums, out) else 0


def _is_linear(call: RecordedCall, x: Tensor, weight: str | None) -> bool:
    """Whether the result is P x with a constant matrix P."""
    if aggregation_of(call.convolution) is None or x.dim() < 2 or x.shape[0] != NUM_NODES or x.shape != call.out.shape:
        return False
    return _close(call.weighted_sum(weight, x), call.out)


@dataclass(frozen=True)
class SubsetCheck:
    """Passes over the rows of :data:`SUBSET`, compared with the recorded pass over all rows."""

    probe: nn.Module
    call: Call
    specs: tuple[PropagateSpec, ...]
    calls: list[RecordedCall]
    x: Tensor
    logits: Tensor

    def check_row_wise(self) -> None:
        """Refuse a network that does not compute every row from itself alone, without the edges, between layers."""
        try:
            logits = self._run(self.x[SUBSET], self.calls, lambda l, layer: self._recorded_state(l))
        except ConfigError:
            raise
        except (TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"expected a network that runs on some of the rows, without the edges (got {type(error).__name__}: "
                f"{error}): only its convolutions may read edge_index"
            ) from error
        if not same_rows(logits, self.logits):
            raise ConfigError(
                "expected row-wise code after the last convolution (got logits that depend on other rows, or on the "
                "edges): norms and sums over all nodes have no meaning on a batch"
            )

    def use_of_px(self) -> UseOfPX:
        """How the network can use P X, where its first sum is linear and without chance."""
        first = self.calls[0]
        if source(first.kwargs["x"]) is self.x:
            return "beside_x"
        PX = first.weighted_sum(self.specs[0].weight, self.x)

        def choose(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
            return layer(Precomputed(len(SUBSET))) if l == 1 else self._recorded_state(l)

        # the first convolution reads the sum already, and all that follows must be the same
        summed = replace(first, kwargs=first.kwargs | {"x": first.out})
        try:
            logits = self._run(PX[SUBSET], [summed, *self.calls[1:]], choose)
        except ConfigError:
            return "none"
        return "replaces_x" if same_rows(logits, self.logits) else "none"

    def _recorded_state(self, l: int) -> Tensor:
        out = self.calls[l - 1].out[SUBSET].flatten(1)
        return torch.cat([out, out.new_zeros(out.shape[0], self.specs[l - 1].heads)], 1)

    def _run(self, rows: Tensor, expected: list[RecordedCall], choose: ChooseState) -> Tensor:
        """Logits of a pass over ``rows`` in which every ``propagate`` has to read the rows of an ``expected`` call."""
        self.probe.eval()
        weights = [*self.probe.parameters(), *self.probe.buffers()]
        mode = RowTrackingMode(weights, rows, Pass(num_core=4, dropout=False))
        return ComparedPass(self.probe, self.specs, choose, mode, expected=expected).run(self.call, rows)


@dataclass
class ComparedPass(HookedPass):
    """A pass that compares what every ``propagate`` reads with the ``expected`` call over all rows."""

    expected: list[RecordedCall] = field(default_factory=list)

    def propagate(self, convolution: nn.Module, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Tensor:
        out = super().propagate(convolution, edge_index, size, kwargs)
        assert isinstance(self.mode, RowTrackingMode)
        self.mode.add_rows(out)
        return out

    def check(self, convolution: nn.Module, spec: PropagateSpec, kwargs: dict[str, Any]) -> None:
        expected = self.expected[self.l - 1]
        self._compare(spec, node_arguments(convolution), kwargs, expected.kwargs)
        for name, value in kwargs.items():
            if isinstance(value, EdgeUpdate):
                nodes = node_arguments(convolution, "edge_updater")
                self._compare(spec, nodes, value.kwargs, expected.updates[name])

    def _compare(self, spec: PropagateSpec, nodes: set[str], kwargs: dict[str, Any], expected: dict[str, Any]) -> None:
        before = f"after {self.specs[self.l - 2].name}" if self.l > 1 else "before the first convolution"
        for name in nodes & kwargs.keys():
            pairs = zip(_as_tuple(kwargs[name]), _as_tuple(expected[name]), strict=True)
            if not all(same_rows(got, want) for got, want in pairs):
                raise ConfigError(
                    f"expected row-wise code {before} (got rows that depend on other rows, or on the edges, where "
                    f"{spec.name} reads {name}): norms and sums over all nodes have no meaning on a batch; use "
                    'batch norm, or layer norm by row (mode="node")'
                )


def same_rows(got: Any, want: Any) -> bool:
    """Whether ``got`` are the rows :data:`SUBSET` of ``want``."""
    if not isinstance(want, Tensor):
        return got is want or got == want
    want = want[SUBSET]
    return got.shape == want.shape and _close(got, want)


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-6, atol=1e-8)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _kind(out: Any) -> str:
    return f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
