"""What a network of PyG convolutions does, seen on a graph of twelve nodes; what cannot be cut is refused here."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import Precomputed
from lmc.models.rows import Operator, Pass
from lmc.pyg.core_rows_mode import CoreRows
from lmc.pyg.matrices import Call, aggregation
from lmc.pyg.propagate_hook import (
    At,
    Crossing,
    Deferred,
    Passage,
    convolutions_of,
    log_sum_exp,
    node_arguments,
    original,
    source,
    taken_over,
)

NUM_NODES = 12
SUBSET = [7, 2, 11, 4, 0, 9, 5]
"""Rows looked at alone, out of order; the first four as core."""


@dataclass
class Seen:
    """One ``propagate`` with its edges, its arguments, its result, and what its softmaxes were given."""

    name: str
    convolution: Any
    edges: Any
    kwargs: dict[str, Any]
    out: Tensor
    deferred: dict[str, dict[str, Any]] = field(default_factory=dict)
    softmaxes: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    drops: int = 0
    written: bool = False
    """Whether the network went on to change the result in place."""


First = Literal["changing", "swapped", "beside"]
"""The first sum changes with the parameters or by chance; it is that of X times weights, and nothing else reads X; it
is P X itself, and X may be read elsewhere too."""


def examine(network: nn.Module, call: Call, in_width: int) -> tuple[tuple[Crossing, ...], int, First]:
    """The crossings of a network, the width of its output and its first aggregation; :class:`ConfigError` where it
    cannot be cut."""
    if not convolutions_of(network):
        raise ConfigError(
            f"expected a network of PyG convolutions (got {type(network).__name__} without a MessagePassing module)"
        )
    try:
        probe = copy.deepcopy(network).double().cpu()
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"expected a network that can be copied, to look at it (got {error})") from error
    chance = torch.Generator().manual_seed(0)
    edges = _edges()
    with torch.no_grad():
        for parameter in probe.parameters():  # zero biases and unit scales hide what they are added to
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=chance, dtype=torch.float64))
    x, other = (torch.randn(NUM_NODES, in_width, generator=chance, dtype=torch.float64) for _ in range(2))
    seen, logits = record(probe, call, x, edges, training=False)
    again, _ = record(probe, call, other, edges, training=False)
    training, _ = record(copy.deepcopy(probe), call, x, edges, training=True)
    _check_output(network, logits)
    for what, them in (("other features", again), ("training mode", training)):
        if [s.name for s in them] != [s.name for s in seen]:
            raise ConfigError(f"expected the same convolutions in every pass (got others with {what})")
    crossings = tuple(_crossing(a, b, c, edges) for a, b, c in zip(seen, again, training, strict=True))
    _check_rows(probe, call, crossings, seen, x, logits)
    return crossings, logits.shape[1], _first(probe, call, crossings, training[0], seen, x, logits)


def _edges() -> Tensor:
    ring = [(i, (i + 1) % NUM_NODES) for i in range(NUM_NODES)]
    chords = [(0, 5), (1, 7), (3, 9), (2, 10), (4, 11), (0, 3)]
    one = torch.tensor(sorted({tuple(sorted(e)) for e in ring + chords})).t()
    return torch.cat([one, one.flip(0)], 1)


def record(probe: nn.Module, call: Call, x: Tensor, edges: Tensor, training: bool) -> tuple[list[Seen], Any]:
    """Every ``propagate`` of a plain forward pass, and its result; without dropout."""
    calls: list[Seen] = []
    made: dict[int, tuple[Any, dict[str, Any]]] = {}
    given: list[tuple[Any, int]] = []
    names = {id(c): name for name, c in convolutions_of(probe).items()}

    def edge_updater(convolution: Any, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Any:
        out = _watched(convolution, lambda: original(convolution, "edge_updater")(edge_index, size=size, **kwargs))
        made[id(out)] = (out, kwargs)
        return out

    watched: list[tuple[Tensor, Tensor]] = []

    def _watched(convolution: Any, what: Callable[[], Any]) -> Any:
        home = vars(sys.modules[type(convolution).__module__])
        theirs = home.get("softmax")
        if theirs is None:
            return what()

        def softmax(e: Tensor, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            watched.append((e, index))
            return theirs(e, index, *args, **kwargs)

        home["softmax"] = softmax
        try:
            return what()
        finally:
            home["softmax"] = theirs

    def propagate(convolution: Any, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Any:
        out = _watched(convolution, lambda: original(convolution, "propagate")(edge_index, size=size, **kwargs))
        deferred = {k: made[id(v)][1] for k, v in kwargs.items() if id(v) in made}
        kept = out.clone() if isinstance(out, Tensor) else out
        calls.append(
            Seen(
                names[id(convolution)], convolution, edge_index, dict(kwargs), kept, deferred, list(watched), mode.drops
            )
        )
        given.append((out, getattr(out, "_version", 0)))
        watched.clear()
        return out

    probe.train(training)
    mode = CoreRows([], x.shape[0], Pass(dropout=False))
    with torch.no_grad(), taken_over(probe, propagate, edge_updater), torch.random.fork_rng(devices=[]), mode:
        logits = call(probe, x, edges)
    for seen, (out, version) in zip(calls, given, strict=True):
        seen.written = getattr(out, "_version", 0) > version
    return calls, logits


def _check_output(network: nn.Module, logits: Any) -> None:
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[0] != NUM_NODES:
        got = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            f"expected one row of logits a node, [{NUM_NODES}, C] on a graph of {NUM_NODES} nodes (got {got} from "
            f"{type(network).__name__}): a pooling over nodes has no meaning on a batch of them"
        )


def _crossing(seen: Seen, again: Seen, training: Seen, edges: Tensor) -> Crossing:
    conv, where = seen.convolution, f"{seen.name} ({type(seen.convolution).__name__})"
    if conv.flow != "source_to_target":
        raise ConfigError(f'expected flow="source_to_target" in {where} (got {conv.flow!r}): the graph is undirected')
    for s in (seen, again, training):
        if not isinstance(s.edges, Tensor) or s.edges.layout is not torch.strided or _pairs(s.edges) != _pairs(edges):
            raise ConfigError(
                f"expected {where} to aggregate over the edges it is given (got others, dropped or chosen from the "
                "features): its neighbours would not be in the batch"
            )
    loops = int((seen.edges[0] == seen.edges[1]).sum())
    if loops not in (0, NUM_NODES):
        raise ConfigError(f"expected self-loops of all nodes or of none in {where} (got {loops} of {NUM_NODES})")
    if not isinstance(seen.out, Tensor) or seen.out.shape[0] != NUM_NODES:
        raise ConfigError(f"expected one row a node from {where} (got {_shape(seen.out)})")
    weight = _edge_weight(seen, again, where)
    shape = tuple(seen.out.shape[1:])
    heads = _heads(seen)
    x = seen.kwargs.get("x")
    linear = not seen.deferred and not heads and x is not None and _is_linear(seen, source(x), weight)
    message = source(x).flatten(1).shape[1] if linear else 0
    written = seen.written or again.written or training.written
    return Crossing(seen.name, linear, weight, shape, message, heads, written)


def _pairs(edges: Tensor) -> set[tuple[int, int]]:
    return {(a, b) for a, b in edges.t().tolist() if a != b}


def _edge_weight(seen: Seen, again: Seen, where: str) -> str | None:
    """The argument that holds one constant number per edge."""
    nodes, num_edges = node_arguments(seen.convolution), seen.edges.shape[1]
    names = [
        k
        for k, v in seen.kwargs.items()
        if isinstance(v, Tensor) and k not in nodes and k not in seen.deferred and v.shape[:1] == (num_edges,)
    ]
    for name in names:
        v = seen.kwargs[name]
        if len(names) > 1 or v.numel() != num_edges or not torch.equal(v, again.kwargs[name]):
            raise ConfigError(
                f"expected at most one constant number per edge in {where} (got {', '.join(names)}): compute what "
                "depends on the rows in edge_update or message"
            )
    return names[0] if names else None


def _heads(seen: Seen) -> int:
    """Heads of a softmax over neighbours whose result weighs one block of the output each; 0 for anything else."""
    if len(seen.softmaxes) != 1:
        return 0
    e, index = seen.softmaxes[0]
    ours = seen.edges[1]
    if e.dim() != 2 or seen.out.dim() != 3 or seen.out.shape[1] != e.shape[1] or not torch.equal(index, ours):
        return 0
    x = seen.kwargs.get("x", seen.kwargs.get("value"))
    if x is None or source(x).shape[1:] != seen.out.shape[1:]:
        return 0
    w = (e - log_sum_exp(e, index, NUM_NODES)[index]).exp().unsqueeze(2)
    sums = torch.zeros_like(seen.out).index_add(0, index, w * source(x)[seen.edges[0]])
    return e.shape[1] if _close(sums, seen.out) else 0


def _is_linear(seen: Seen, x: Tensor, weight: str | None) -> bool:
    how = aggregation(seen.convolution)
    if how is None or x.dim() < 2 or x.shape[0] != NUM_NODES or x.shape != seen.out.shape:
        return False
    src, dst = seen.edges
    w = weights(seen, weight)
    sums = torch.zeros_like(x).index_add(0, dst, w.view(-1, *[1] * (x.dim() - 1)) * x[src])
    return _close(sums, seen.out)


def weights(seen: Seen, weight: str | None) -> Tensor:
    """The entries of the matrix that a sum or mean over weighted edges is."""
    src, dst = seen.edges
    w = torch.ones(src.numel(), dtype=seen.out.dtype) if weight is None else seen.kwargs[weight].flatten()
    return w / torch.bincount(dst, minlength=NUM_NODES)[dst] if aggregation(seen.convolution) == "mean" else w


class _Checking(Passage):
    """Compares what every crossing reads with what it read when all rows were there."""

    seen: list[Seen]

    def propagate(self, convolution: nn.Module, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Tensor:
        out = super().propagate(convolution, edge_index, size, kwargs)
        assert self.mode.derived is not None
        self.mode.derived[id(out)] = out
        return out

    def inputs(self, convolution: nn.Module, crossing: Crossing, kwargs: dict[str, Any]) -> None:
        seen = self.seen[self.l - 1]
        self._compare(convolution, crossing, kwargs, seen.kwargs, updating=False)
        for name, value in kwargs.items():
            if isinstance(value, Deferred):
                self._compare(convolution, crossing, value.kwargs, seen.deferred[name], updating=True)

    def _compare(
        self, convolution: nn.Module, crossing: Crossing, kwargs: dict[str, Any], there: dict[str, Any], updating: bool
    ) -> None:
        before = f"after {self.crossings[self.l - 2].name}" if self.l > 1 else "before the first convolution"
        for name in node_arguments(convolution, updating) & kwargs.keys():
            pairs = zip(_pair(kwargs[name]), _pair(there[name]), strict=True)
            if not all(same(got, want) for got, want in pairs):
                raise ConfigError(
                    f"expected row-wise code {before} (got rows that depend on other rows, or on the edges, where "
                    f"{crossing.name} reads {name}): norms and sums over all nodes have no meaning on a batch; use "
                    'batch norm, or layer norm by row (mode="node")'
                )


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-6, atol=1e-8)


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def same(got: Any, want: Any) -> bool:
    """Whether the rows of :data:`SUBSET` are those of the whole."""
    if not isinstance(want, Tensor):
        return got is want or got == want
    want = want[SUBSET]
    return got.shape == want.shape and _close(got, want)


def _replay(
    probe: nn.Module, call: Call, crossings: tuple[Crossing, ...], seen: list[Seen], rows: Tensor, at: At
) -> Tensor:
    """The logits of a pass over :data:`SUBSET`, every crossing comparing what it reads with what was ``seen``."""
    probe.eval()
    p = Pass(num_core=4, dropout=False)
    mode = CoreRows([*probe.parameters(), *probe.buffers()], len(SUBSET), p)
    passage = _Checking(probe, crossings, len(SUBSET), p, at, mode)
    passage.seen = seen
    mode.derived = {id(rows): rows}
    with taken_over(probe, passage.propagate, passage.edge_updater, normalised=True), mode:
        return call(probe, rows, torch.empty(2, 0, dtype=torch.int64))


def _check_rows(
    probe: nn.Module, call: Call, crossings: tuple[Crossing, ...], seen: list[Seen], x: Tensor, logits: Tensor
) -> None:
    """Between crossings every row has to be computed from itself alone, without the edges."""

    def at(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
        out = seen[l - 1].out[SUBSET].flatten(1)
        return torch.cat([out, out.new_zeros(out.shape[0], crossings[l - 1].heads)], 1)

    try:
        got = _replay(probe, call, crossings, seen, x[SUBSET], at)
    except (TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"expected a network that runs on some of the rows, without the edges (got {type(error).__name__}: "
            f"{error}): only its convolutions may read edge_index"
        ) from error
    if not same(got, logits):
        raise ConfigError(
            "expected row-wise code after the last convolution (got logits that depend on other rows, or on the "
            "edges): norms and sums over all nodes have no meaning on a batch"
        )


def _first(
    probe: nn.Module,
    call: Call,
    crossings: tuple[Crossing, ...],
    training: Seen,
    seen: list[Seen],
    x: Tensor,
    logits: Tensor,
) -> First:
    """Whether the first sum can be computed once, and how the network takes it."""
    start = seen[0]
    if not crossings[0].linear or training.drops:
        return "changing"
    read = source(start.kwargs["x"])
    if read is x:
        return "beside"
    src, dst = start.edges
    w = weights(start, crossings[0].weight).unsqueeze(1)
    PX = torch.zeros_like(x).index_add(0, dst, w * x[src])

    def at(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
        if l > 1:
            out = seen[l - 1].out[SUBSET].flatten(1)
            return torch.cat([out, out.new_zeros(out.shape[0], crossings[l - 1].heads)], 1)
        return layer(Precomputed(len(SUBSET)))

    # what the first convolution reads is then the sum already: compare all that comes after it
    ahead = replace(start, kwargs=start.kwargs | {"x": start.out})
    try:
        got = _replay(probe, call, crossings, [ahead, *seen[1:]], PX[SUBSET], at)
    except ConfigError:
        return "changing"
    return "swapped" if same(got, logits) else "changing"


def _shape(out: Any) -> str:
    return f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
