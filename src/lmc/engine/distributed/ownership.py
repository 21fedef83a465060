"""Who owns what: the shard and the batches of one rank, and the batches of all others."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from lmc.engine.distributed.exchange import Exchange
from lmc.engine.distributed.shards import check_shards
from lmc.engine.distributed.world import Distributed, World
from lmc.errors import ConfigError
from lmc.graph import Graph, Shard
from lmc.methods import METHODS, ClusterMethod, LMC4Conv, Method
from lmc.models import Model
from lmc.partition import group_parts, partition
from lmc.sampling import Clusters, derive


def check_distributed(method: Method, model: Model, options: Distributed, graph: Graph) -> None:
    """Refuse a method or a model that cannot be run in this way."""
    traits, kind = method.traits, type(model).__name__
    if options.sync not in traits.sync:
        can = ", ".join(sorted(cls.traits.title for cls in METHODS.values() if options.sync in cls.traits.sync))
        other = f'; it can be run with sync="{traits.sync[0]}"' if traits.sync else ""
        raise ConfigError(
            f'expected a method that can be run with sync="{options.sync}" (got {traits.title} on {kind}): use one of '
            f"{can}{other}"
        )
    if options.sync == "layer":
        _check_layers(method, model, options, graph)
    if model.recurrent and "lambda_pf" not in dict(model.named_buffers()):
        raise ConfigError(f"expected RecGCN as the recurrent model of a distributed run (got {kind}): use it")
    if options.sync_every > 1 and traits.sums:
        raise ConfigError(
            f"expected sync_every=1 for {traits.title} (got {options.sync_every}): its sums have to fit the rows of "
            "other ranks; use LMC4Conv"
        )


def check_ranks(method: Method, model: Model, seed: int, loss: str | None, world: World) -> None:
    """Refuse ranks that would compute different things."""
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    versions = {"version of torch": torch.__version__, "version of lmc": sys.modules["lmc"].__version__}
    options = {"method": method, "model": (type(model).__name__, model.settings, model.arguments, shapes)}
    world.check_same({**versions, **options, "seed": seed, "loss": loss, "options of ranks": world.options})


def _check_layers(method: Method, model: Model, options: Distributed, graph: Graph) -> None:
    """Refuse a model whose rows cannot be exchanged at every layer."""
    norms = any(isinstance(module, _BatchNorm) for module in model.modules())
    if isinstance(method, LMC4Conv) and (
        graph.directed or norms or not model.linear or model.owns_forward or not method.backward
    ):
        raise ConfigError(
            "expected an undirected graph, and a native model of weighted sums without batch norm, for LMC4Conv with "
            f'sync="layer" and its backward compensation (got {type(model).__name__}): use sync="step"'
        )
    if model.owns_forward and not model.linear:
        raise ConfigError(
            'expected a wrapped network of weighted sums for sync="layer" (got one that computes messages of edges): '
            'ranks exchange the rows that are summed; use a native model, or a method with sync="step"'
        )
    if model.recurrent and options.wire != "exact":
        raise ConfigError(
            f'expected wire="exact" for {type(model).__name__} with sync="layer" (got "{options.wire}"): rounded rows '
            "have no fixed point to the tolerance; drop wire"
        )
    if model.owns_forward and norms:
        raise ConfigError(
            'expected a wrapped network without batch norm for sync="layer" (got one with it): its statistics are '
            "those of one rank; use layer norm, or a native model"
        )


def join(
    method: Method, graph: Graph | Shard, parts: Tensor | None, seed: int, world: World
) -> tuple[Exchange, Clusters, Schedule]:
    """The shard of this rank in run order, its batches, and those of all ranks."""
    shard = shard_of(method, graph, parts, seed, world)
    clusters = local_clusters(method, shard, rank_seed(seed, world.rank))
    shard = shard.permute(clusters.order)
    part_ids = shard.parts[torch.tensor(clusters.offsets[:-1])]
    return Exchange(world, shard, world.device, seed), clusters, Schedule(world, clusters, part_ids, seed)


def share(graph: Graph | Shard, world: World) -> Exchange:
    """A share of the graph for exact passes, one part per rank."""
    return Exchange(world, shard_of(Method(), graph, None, 0, world), world.device)


def shard_of(method: Method, graph: Graph | Shard, parts: Tensor | None, seed: int, world: World) -> Shard:
    """What this rank holds; a graph in memory is cut, and every rank computes the same partition."""
    if isinstance(graph, Shard):
        if parts is not None:
            raise ConfigError("expected no parts for a shard (got some): it was divided by lmc shard; leave them out")
        check_shards(graph, method, world)
        return graph
    if parts is None and isinstance(method, ClusterMethod):
        parts = method.parts_of(graph, seed)
    elif parts is None:
        parts = partition(graph, world.ranks, seed=seed)
    shard = Shard.cut(graph, parts, group_parts(graph, parts, world.ranks), world.rank, world.ranks)
    sums = {"graph": shard.checksum[:12], "division into parts": int((parts * torch.arange(parts.numel())).sum())}
    world.check_same({f"checksum of the {name}": value for name, value in sums.items()})
    return shard


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank; rank 0 has that of the run, as one process would."""
    return seed if rank == 0 else derive(seed, "rank", rank)


def local_clusters(method: Method, shard: Shard, seed: int) -> Clusters:
    """How a rank divides its own nodes into batches: ``clusters_per_batch`` of its own parts, or all of them."""
    parts = shard.parts[: shard.num_owned].unique(return_inverse=True)[1]
    if not isinstance(method, ClusterMethod):
        return method.clusters(shard.graph, parts, seed)
    per_batch, num_parts = method.clusters_per_batch, int(parts.max()) + 1
    local = replace(method, num_parts=None, clusters_per_batch=per_batch and min(per_batch, num_parts))
    return local.clusters(shard.graph, parts, seed)


@dataclass(frozen=True)
class Turn:
    """The batch of one rank in one step; ``parts`` are those of the whole graph, none where the rank has no batch."""

    slot: int
    parts: tuple[int, ...]


class Schedule:
    """The batches of all ranks, which follow from their seeds and numbers of parts.

    Args:
        clusters: those of this rank.
        part_ids: the parts of this rank in run order, in the numbering of the whole graph.
        seed: of the run.
    """

    def __init__(self, world: World, clusters: Clusters, part_ids: Tensor, seed: int) -> None:
        facts = torch.tensor([clusters.num_parts, clusters.per_batch])
        self.parts = [ids.tolist() for ids in world.gather(part_ids.to(world.device))]
        self._clusters = [
            Clusters(facts[:0], tuple(range(int(count) + 1)), int(c), clusters.redraw, rank_seed(seed, rank))
            for rank, (count, c) in enumerate(world.gather(facts.to(world.device)))
        ]
        self.num_batches = [each.num_batches for each in self._clusters]
        self.steps = max(self.num_batches)
        """Steps in an epoch: the largest number of batches of a rank."""
        self.per_batch = max(each.per_batch for each in self._clusters)
        self._epoch = lru_cache(maxsize=2)(self._turns)

    @property
    def num_parts(self) -> int:
        """The parts of all ranks."""
        return sum(map(len, self.parts))

    def turns(self, epoch: int, step: int) -> list[Turn]:
        """The batches of all ranks in a step."""
        return [turns[step] if step < len(turns) else Turn(0, ()) for turns in self._epoch(epoch)]

    def _turns(self, epoch: int) -> list[list[Turn]]:
        found = []
        for ids, clusters in zip(self.parts, self._clusters, strict=True):
            batches = enumerate(clusters.epoch(epoch))
            found.append(
                [
                    Turn(k if clusters.redraw else parts[0] // clusters.per_batch, tuple(ids[p] for p in parts))
                    for k, parts in batches
                ]
            )
        return found
