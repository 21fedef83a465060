"""A method, a graph and a model become a run; whatever does not fit is refused here, with a reason."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lmc.engine.compatibility import check_fit
from lmc.engine.cuda_graphs import warm_up
from lmc.engine.distributed import Distributed, World, own_shard
from lmc.engine.distributed.exchange import Exchange
from lmc.engine.distributed.matrices import bound_over_ranks
from lmc.engine.distributed.ownership import check_distributed, check_ranks, join, share
from lmc.engine.distributed.world import local_device
from lmc.engine.layered import Layered
from lmc.engine.problem import Problem, kind_of, row_dtype
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import Graph, Shard, without_features
from lmc.heap import release_freed
from lmc.losses import Loss, checked_loss, describe
from lmc.methods import ClusterMethod, DropEdge, Method
from lmc.models import Model
from lmc.models.activation import BatchNormWithHalo
from lmc.partition import check_parts
from lmc.stores import Placement, placement_on


def bind(
    method: Method,
    graph: Graph | Shard | str | Path,
    model: Model,
    parts: Tensor | None = None,
    placement: Placement | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    inductive: bool | None = None,
    distributed: bool | Distributed = False,
) -> Run:
    """A run of ``method``; see :meth:`lmc.methods.Method.bind`."""
    placement, seed = placement_on(device, placement), int(seed)
    options = Distributed() if distributed is True else distributed or None
    given = _given(graph, options, placement.training_device)
    check_fit(given, model)
    whole = _whole(given, inductive)
    graph = whole.training_graph
    schedule = method if isinstance(method, DropEdge) else None
    method = method if schedule is None else schedule.inner
    kind = kind_of(model)
    _check_method(schedule or method, method, kind, model, placement)
    model.check_on(graph)
    row_dtype(placement, model)  # what it refuses is refused before the graph is divided
    _check_messages(graph, model, method)
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError("expected a parameter that is trained (got none): unfreeze some by requires_grad_(True)")
    loss = checked_loss(loss, graph, placement.training_device, next(model.parameters()).dtype)
    if parts is not None:
        parts = check_parts(_of_seen(torch.as_tensor(parts), whole, graph), graph.num_nodes)
    started = time.perf_counter()
    evaluated: Graph | Exchange | None = None if graph is whole else whole
    exchange = turns = None
    if options is None:
        clusters = method.clusters(graph, parts, seed)
    else:
        check_distributed(method, model, options, graph)
        placement = replace(placement, device=str(local_device(placement.training_device)))
        world = World(options, placement.training_device)
        check_ranks(schedule or method, model, seed, describe(loss), world)
        evaluated = None if evaluated is None else share(whole, world)
        exchange, clusters, turns = join(method, given if graph is whole else graph, parts, seed, world)
        graph, seed = exchange.shard.graph, clusters.seed
    divided = time.perf_counter()
    setup = method.setup
    if schedule is not None:  # P X would be another one in every epoch
        setup = replace(setup, precompute=False)
    problem = Problem.of(
        graph,
        model,
        placement,
        setup,
        order=clusters.order if exchange is None else None,
        loss=loss,
        exchange=exchange,
    )
    _check_problem(problem, method, schedule)
    features, num_parts = graph.num_features * problem.aggregated, (turns or clusters).num_parts
    method = method.settled(model, features, problem.num_nodes, num_parts)
    schedule = None if schedule is None else replace(schedule, inner=method)
    _prepare(model, problem)
    release_freed()
    run = Run(method, problem, clusters, seed, schedule, evaluated, turns)
    warm_up(run)
    run.setup_seconds = {"partition": divided - started, "bind": time.perf_counter() - divided}
    return run


def _given(graph: Graph | Shard | str | Path, options: Distributed | None, device: torch.device) -> Graph | Shard:
    """The graph or the shard of this rank, which is read where a folder of shards is named."""
    given = own_shard(graph, options, device) if isinstance(graph, str | Path) else graph
    if options is None and isinstance(given, Shard):
        raise ConfigError("expected distributed=True for a shard (got False): it holds a part of a graph; pass True")
    return given


def _whole(given: Graph | Shard, inductive: bool | None) -> Graph:
    """The graph with the protocol that is asked for; refuses those that cannot be inductive."""
    graph = given.graph if isinstance(given, Shard) else given
    whole = graph if inductive is None else replace(graph, inductive=inductive)
    if isinstance(given, Shard) and whole.inductive:
        raise ConfigError(
            "expected inductive=False for a folder of shards (got True): they were cut out of the whole graph; pass "
            "the graph of lmc.load"
        )
    if whole.training_graph is not whole and without_features(whole):
        raise ConfigError(
            f"expected features for inductive training (got graph {whole.name!r} without): what is learned for one "
            "node says nothing about an unseen one; train with inductive=False"
        )
    return whole


def _check_messages(graph: Graph, model: Model, method: Method) -> None:
    """Refuse messages that read what an edge was given with, for methods that do not keep it."""
    read = ("edge_attr",) if model.linear else ("edge_attr", "edge_weight")
    for name in read if not method.traits.edge_features else ():
        if getattr(graph, name) is not None:
            raise ConfigError(
                f"expected a graph without {name} for {method.traits.title} and {type(model).__name__} (got "
                "one with it): sampled entries of P are scaled, and hold no features of edges; use LMC4Conv, GAS, "
                "ClusterGCN, BackwardSGD or FullBatch"
            )


def _check_problem(problem: Problem, method: Method, schedule: DropEdge | None) -> None:
    """Refuse a method that cannot use the matrices, or the features, as they are."""
    if len(problem.matrices) > 1 and not method.traits.several_matrices:
        raise ConfigError(
            f"expected a model with one aggregation matrix for all layers (got {len(problem.matrices)} of them): "
            f"{method.traits.title} samples the entries of one; use LMC4Conv"
        )
    if schedule is not None and problem.stored is not None:
        raise ConfigError(
            f'expected features="device" for DropEdge (got {problem.features!r}): every epoch sums them anew'
        )


def _prepare(model: Model, problem: Problem) -> None:
    """Give the model what it needs to know of P, and all ranks the same parameters."""
    exchange = problem.exchange
    if exchange is None or not model.recurrent:
        model.prepare(problem.P)
    else:
        bound_over_ranks(model, problem.P, exchange)
    if exchange is not None:
        exchange.world.broadcast([*model.parameters(), *model.buffers()])


def _of_seen(parts: Tensor, whole: Graph, seen: Graph) -> Tensor:
    """The parts of the nodes that training sees, numbered without gaps; ``parts`` may be those of all nodes."""
    if seen is whole or seen.n_id is None or parts.shape != (whole.num_nodes,):
        return parts
    return parts.cpu()[seen.n_id.cpu()].unique(return_inverse=True)[1]


def _check_method(outer: Method, method: Method, kind: Layered, model: Model, placement: Placement) -> None:
    """Refuse a method that cannot train this kind of model, or not with this placement."""
    title = outer.traits.title
    for each in (outer, method):
        if kind.trained_as not in each.traits.trains:
            wanted, remedy = kind.refusal
            raise ConfigError(
                f"expected a model with {wanted} for {each.traits.title} (got {type(model).__name__}): use {remedy}"
            )
    if placement.precision == "bfloat16" and not method.traits.supports_bfloat16:
        raise ConfigError(
            f'expected precision="float32" for {title} (got "bfloat16"): it weighs sampled entries of P by sums of '
            "them; use a method of clusters, such as CMC"
        )
    if method.traits.batch_norm != "core" and any(isinstance(m, BatchNormWithHalo) for m in model.modules()):
        raise ConfigError(
            f'expected norm="batch" for {title} (got "batch-halo"): it does not normalise halo rows by themselves; '
            "LMC4Conv does"
        )
    method.check(model)
    traits, dtype = method.traits, next(model.parameters()).dtype
    if dtype.itemsize < 4 and (traits.accumulated_tables or traits.sweeps):
        raise ConfigError(
            f"expected float32 or float64 parameters for {title} (got {dtype}): it keeps sums and inverses in their "
            'dtype; use precision="bfloat16", or torch.autocast, with float32 parameters'
        )
    if placement.structure != "device" and not (isinstance(outer, ClusterMethod) and kind.reads_batches_only):
        raise ConfigError(
            f'expected structure="device" for {title} and {type(model).__name__} (got "{placement.structure}"): they '
            "read more than the edges of a batch; LMC4Conv, CMC and GAS with a model of layers, such as GCN, do not"
        )
