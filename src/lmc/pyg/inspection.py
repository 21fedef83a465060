"""The inspection that ``lmc.wrap`` does once: what a network does on small graphs, and what is refused.

A copy of the network in float64 runs plain passes, in which every ``propagate`` is recorded
(:mod:`lmc.pyg.recording`): on graphs of 13 and 61 nodes, with features of different scale, in evaluation and in
training mode. From these the inspection concludes what each call is (:class:`lmc.pyg.propagate_hook.PropagateSpec`): a
sparse product with a constant matrix, a softmax over neighbours, or something else. Then the copy runs on some of the
rows and in another order (:mod:`lmc.pyg.row_checks`). A network whose code between convolutions is not row-wise, or
whose gradient differs from that of plain autograd, is refused with a reason.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR, Graph
from lmc.pyg.matrices import aggregation_of
from lmc.pyg.network_call import NetworkCall
from lmc.pyg.propagate_hook import Call, PropagateSpec, convolutions_of, log_sum_exp, node_arguments, source
from lmc.pyg.recording import RecordedCall, Recording, Sample, reason, record
from lmc.pyg.row_checks import RowChecks, UseOfPX, close

NUM_NODES, MANY_NODES = 13, 61
"""Sizes of the graphs; primes, because a width is rarely one, and rows are recognised by their number."""
LARGE = 30.0
"""The scale of the features in one of the passes."""


class Inspection(NamedTuple):
    """What :func:`inspect_network` found."""

    specs: tuple[PropagateSpec, ...]
    out_width: int
    use_of_px: UseOfPX


def edge_data_read(network: nn.Module, call: NetworkCall, in_width: int) -> NetworkCall:
    """The call with what the network reads of the edges: what changes its result on a small graph."""
    probe, edges = probe_of(network), _ring_with_chords(NUM_NODES)
    x = torch.randn(NUM_NODES, in_width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def result(weight_seed: int | None, attr_seed: int | None) -> Any:
        """What the network returns with random edge data; None where it does not run with them."""
        try:
            sample = with_edge_data(Sample(x, edges, False), weight_seed, attr_seed, call.edge_dim)
            return record(probe, call, sample).logits
        except ConfigError:
            return None

    def differ(a: Any, b: Any) -> bool:
        return isinstance(a, Tensor) and isinstance(b, Tensor) and not torch.equal(a, b)

    weight = 1 if "edge_weight" in call.required else None
    features = call.edge_dim is not None and differ(result(weight, 1), result(weight, 2))
    attr = 1 if features else None
    weights = "edge_weight" in call.accepted and differ(result(1, attr), result(2, attr))
    return replace(call, edge_dim=call.edge_dim if features else None, reads_edge_weight=weights)


def with_edge_data(sample: Sample, weight_seed: int | None, attr_seed: int | None, edge_dim: int | None) -> Sample:
    """The sample with random edge weights and features, where they have a seed."""
    m, weight, attr = sample.edges.shape[1], None, None
    if weight_seed is not None:
        weight = 0.5 + torch.rand(m, generator=torch.Generator().manual_seed(weight_seed), dtype=torch.float64)
    if attr_seed is not None and edge_dim is not None:
        generator = torch.Generator().manual_seed(attr_seed)
        attr = torch.randn(m, edge_dim, generator=generator, dtype=torch.float64)
    return sample._replace(edge_weight=weight, edge_attr=attr)


def inspect_network(network: nn.Module, call: NetworkCall, in_width: int) -> Inspection:
    """Inspect a network; :class:`ConfigError` if methods cannot train it by batches."""
    if not convolutions_of(network):
        raise ConfigError(
            f"expected a network of PyG convolutions (got {type(network).__name__} without a MessagePassing module): "
            "build it of the convolutions of torch_geometric.nn"
        )
    generator = torch.Generator().manual_seed(0)
    probe = perturbed(probe_of(network), generator)
    sizes = (NUM_NODES, 1.0, False), (NUM_NODES, LARGE, False), (MANY_NODES, 1.0, True)
    samples = [_sample(call, in_width, *size, generator) for size in sizes]
    recordings = [record(probe, call, each, scaled=each is samples[0]) for each in samples]
    for recorded in recordings:
        _check_logits(recorded, type(network).__name__)
    plain, large, training = recordings
    _check_same_calls(plain, large, f"features times {LARGE:.0f}")
    _check_same_calls(plain, training, "training mode and more nodes")
    specs = tuple(_spec(calls) for calls in zip(*([(r, c) for c in r.calls] for r in recordings), strict=True))
    checks = [RowChecks(probe, call, specs, recorded) for recorded in recordings]
    for check in checks:
        check.check_row_wise()
    checks[2].check_gradients()  # parameters are trained in training mode
    first, in_training = checks[0], checks[2]
    constant = specs[0].linear and not training.calls[0].num_draws
    use = first.use_of_px() if constant else "none"
    return Inspection(specs, plain.logits.shape[1], use if use == "none" or in_training.use_of_px() == use else "none")


def _check_same_calls(plain: Recording, other: Recording, what: str) -> None:
    """Refuse a network that calls other convolutions in another pass."""
    if [c.name for c in other.calls] != [c.name for c in plain.calls]:
        raise ConfigError(f"expected the same convolutions in every pass (got others with {what})")


def _sample(
    call: NetworkCall, in_width: int, num_nodes: int, scale: float, training: bool, generator: torch.Generator
) -> Sample:
    """A small graph with random features, and with the edge data that the network reads."""
    x = scale * torch.randn(num_nodes, in_width, generator=generator, dtype=torch.float64)
    plain = Sample(x, _ring_with_chords(num_nodes), training)
    return with_edge_data(plain, num_nodes if call.reads_edge_weight else None, num_nodes, call.edge_dim)


def check_on(network: nn.Module, call: Call, specs: tuple[PropagateSpec, ...], sample: Sample) -> None:
    """Refuse a network that does on this sample of a user's graph what it did not do in the inspection.

    The passes are in training mode, without chance. A refusal has to be confirmed with slightly different parameters
    and features: at a kink, such as the median of equal numbers, more than one gradient is right, and rounding or the
    order of rows decides which one is computed.
    """
    try:
        _check_on(probe_of(network), call, specs, sample)
    except ConfigError:
        generator, x = torch.Generator().manual_seed(1), sample.x
        largest = x.abs().amax(0).nan_to_num(1, 1)
        moved = x + 0.01 * largest.where(largest > 0, 1) * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        _check_on(perturbed(probe_of(network), generator), call, specs, sample._replace(x=moved))


def sample_of(graph: Graph, num_nodes: int) -> Sample:
    """Some nodes of a graph with their features and the edges between them, in training mode.

    Neighbours are taken together: random nodes, and the first few neighbours of each.
    """
    n, adj = graph.num_nodes, graph.adj
    nodes = torch.arange(n)
    if n > num_nodes:
        seeds = torch.randint(n, (num_nodes // 4,), generator=torch.Generator().manual_seed(0))
        near = [adj.indices[int(adj.indptr[i]) : int(adj.indptr[i + 1])][:3].long().cpu() for i in seeds.tolist()]
        nodes = torch.cat([seeds, *near]).unique()
    rows = adj.select_rows(nodes.to(adj.device))
    src, dst = rows.indices.long().cpu(), rows.row_index().cpu()
    at = torch.searchsorted(nodes, src).clamp(max=nodes.numel() - 1)
    inside = nodes[at] == src
    x = graph.x.select_rows(nodes.to(graph.x.device)).to_dense() if isinstance(graph.x, CSR) else graph.x[nodes]
    data = (None if part is None else part.double().cpu()[inside] for part in (rows.values, rows.edge_data))
    return Sample(x.double().cpu(), torch.stack([at, dst])[:, inside], True, *data)


def _check_on(probe: nn.Module, call: Call, specs: tuple[PropagateSpec, ...], sample: Sample) -> None:
    recorded = record(probe, call, sample)
    if [c.name for c in recorded.calls] != [spec.name for spec in specs]:
        raise ConfigError("expected the same convolutions in every pass (got others on this graph)")
    for spec, each in zip(specs, recorded.calls, strict=True):
        _check_edges(each, sample, spec.name)
        if not (_is_linear(each, spec.weight) if spec.linear else _heads(each) == spec.heads or not spec.heads):
            raise ConfigError(
                f"expected {spec.name} to be the sum over neighbours that it was in the inspection (got another "
                "function of the rows of this graph): rescale the features, or wrap the network without it"
            )
    checks = RowChecks(probe, call, specs, recorded)
    checks.check_row_wise()
    checks.check_gradients()


def probe_of(network: nn.Module) -> nn.Module:
    """A float64 copy of a network on the CPU, with gradients for all parameters."""
    try:
        return copy.deepcopy(network).double().cpu().requires_grad_(True)
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"expected a network that can be copied, to inspect it (got {reason(error)})") from error


@torch.no_grad()
def perturbed(probe: nn.Module, generator: torch.Generator) -> nn.Module:
    """Change the parameters: biases of 0 and scales of 1 would hide what they are combined with."""
    for parameter in probe.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return probe


def _ring_with_chords(n: int) -> Tensor:
    """The edges of a connected graph in both directions, sorted by target as those of a graph are."""
    i = torch.arange(n)
    ring, chords = torch.stack([i, (i + 1) % n]), torch.stack([i[: n // 2], i[: n // 2] * 5 % n])
    one = torch.cat([ring, chords], 1)
    both = torch.cat([one, one.flip(0)], 1)
    return torch.unique(both[:, both[0] != both[1]].flip(0), dim=1).flip(0)


def _check_logits(recorded: Recording, network: str) -> None:
    logits, n = recorded.logits, recorded.sample.num_nodes
    if isinstance(logits, Tensor) and logits.dim() == 2 and logits.shape[0] == n:
        return
    if isinstance(logits, tuple | list | dict):
        first = next(iter(logits)) if isinstance(logits, dict) else 0
        got = f"a {type(logits).__name__} of {len(logits)}"
        remedy = f"name the entry to train, for example lmc.wrap(network, output={first!r})"
    else:
        got = _kind(logits)
        single = isinstance(logits, Tensor) and logits.shape == (n,)
        remedy = (
            "return [n, 1] instead of [n]" if single else "a method trains outputs of nodes, not of graphs or edges"
        )
    raise ConfigError(f"expected one row of logits per node, [{n}, C], from {network} (got {got}): {remedy}")


def _spec(recorded: Sequence[tuple[Recording, RecordedCall]]) -> PropagateSpec:
    """What one ``propagate`` is, from its calls in several passes; the first two are on the same graph."""
    calls = [call for _, call in recorded]
    call = calls[0]
    where = f"{call.name} ({type(call.convolution).__name__})"
    for recording, each in recorded:
        _check_edges(each, recording.sample, where)
        if not isinstance(each.out, Tensor) or each.out.shape[0] != recording.sample.num_nodes:
            raise ConfigError(f"expected one row per node from {where} (got {_kind(each.out)})")
    features = _edge_features(*recorded[0])
    weight = _edge_weight(calls[:2], where, features)
    all_heads = {_heads(each) for each in calls}
    heads = all_heads.pop() if len(all_heads) == 1 else 0
    linear = not call.updates and not heads and all(_is_linear(each, weight) for each in calls)
    message_width = source(call.kwargs["x"]).flatten(1).shape[1] if linear else 0
    written = any(each.written for each in calls)
    shape = tuple(call.out.shape[1:])
    return PropagateSpec(call.name, linear, weight, shape, message_width, heads, written, features)


def _check_edges(call: RecordedCall, sample: Sample, where: str) -> None:
    flow = call.convolution.flow
    if flow != "source_to_target":
        raise ConfigError(
            f'expected flow="source_to_target" in {where} (got {flow!r}): reverse the edges of the graph instead'
        )
    if not isinstance(call.edges, Tensor) or call.edges.layout is not torch.strided:
        raise ConfigError(f"expected an edge_index [2, E] in {where} (got {_kind(call.edges)}): do not convert it")
    got, given = _pairs(call.edges), _pairs(sample.edges)
    if got != given:
        found = [f"{len(given - got)} of {len(given)} edges left out"] if given - got else []
        found += [f"{len(got - given)} edges that the graph does not have"] if got - given else []
        raise ConfigError(
            f"expected {where} to aggregate over the edges it is given (got {' and '.join(found)}): a batch holds the "
            "neighbours in the graph, so drop edges with lmc.methods.DropEdge and add edges to the graph itself"
        )
    loops = int((call.edges[0] == call.edges[1]).sum())
    if loops not in (0, sample.num_nodes):
        raise ConfigError(f"expected self-loops of all nodes or of none in {where} (got {loops} of {sample.num_nodes})")


def _pairs(edges: Tensor) -> set[tuple[int, int]]:
    return {(a, b) for a, b in edges.t().tolist() if a != b}


def _edge_features(recording: Recording, call: RecordedCall) -> str | None:
    """The argument that holds the edge features as they were given, apart from those of self-loops."""
    attr, (src, dst), n = recording.sample.edge_attr, call.edges, recording.sample.num_nodes
    if attr is None:
        return None
    given = recording.sample.edges[1] * n + recording.sample.edges[0]
    order, kept = given.argsort(), src != dst
    rows = attr[order[torch.searchsorted(given[order], (dst * n + src)[kept])]]
    for name, value in call.arguments.items():
        fits = isinstance(value, Tensor) and value.shape == (src.numel(), attr.shape[1])
        if fits and torch.equal(value[kept], rows):
            return name
    return None


def _edge_weight(calls: Sequence[RecordedCall], where: str, features: str | None) -> str | None:
    """The argument that holds one constant number per edge, from calls on the same graph."""
    call = calls[0]
    nodes, num_edges = node_arguments(call.convolution), call.edges.shape[1]
    others = {k: v for k, v in call.kwargs.items() if isinstance(v, Tensor) and k not in nodes | call.updates.keys()}
    names = [k for k, v in others.items() if v.shape[:1] == (num_edges,) and k != features]
    for name in names:
        v = call.kwargs[name]
        if len(names) > 1 or v.numel() != num_edges or not all(torch.equal(v, each.kwargs[name]) for each in calls):
            raise ConfigError(
                f"expected at most one constant number per edge in {where}, and edge_attr as it was given (got "
                f"{', '.join(names)}): compute what depends on rows or parameters in edge_update or message"
            )
    return names[0] if names else None


def _heads(call: RecordedCall) -> int:
    """Heads of a softmax over neighbours that each weigh one block of the output; 0 for anything else."""
    if len(call.softmaxes) != 1:
        return 0
    (e, index), out = call.softmaxes[0], call.out
    if e.dim() != 2 or out.dim() != 3 or out.shape[1] != e.shape[1] or not torch.equal(index, call.edges[1]):
        return 0
    if call.reweighted is not None:  # the softmax is part of the message
        return e.shape[1] if close(call.reweighted, out) else 0
    x = call.kwargs.get("x")
    if x is None or source(x).shape[1:] != out.shape[1:]:
        return 0
    w = (e - log_sum_exp(e, index, out.shape[0])[index]).exp().unsqueeze(2)
    sums = torch.zeros_like(out).index_add(0, index, w * source(x)[call.edges[0]])
    return e.shape[1] if close(sums, out) else 0


def _is_linear(call: RecordedCall, weight: str | None) -> bool:
    """Whether the result is P x with a constant matrix P, for x of any scale."""
    x = call.kwargs.get("x")
    if x is None or aggregation_of(call.convolution) is None:
        return False
    pairs = [(source(x), call.out), *call.scaled]
    return all(x.dim() >= 2 and x.shape == out.shape and close(call.weighted_sum(weight, x), out) for x, out in pairs)


def _kind(out: Any) -> str:
    return f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
