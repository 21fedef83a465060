"""Folders of shards in a distributed run: every rank reads its own file, and all ranks agree on what they have read."""

from __future__ import annotations

from pathlib import Path

import torch

from lmc.data import is_sharded, read_shard
from lmc.engine.distributed.world import Distributed, World, local_device
from lmc.errors import ConfigError, DataError
from lmc.graph import Shard
from lmc.methods import ClusterMethod, Method


def own_shard(folder: str | Path, options: Distributed | None, device: torch.device) -> Shard:
    """The shard of this rank. What one rank refuses, all ranks refuse in the same words.

    Args:
        options: None where this process was started alone, which is refused.
        device: the training device, which decides how ranks are connected.
    """
    folder = Path(folder).expanduser()
    if not is_sharded(folder):
        raise DataError(f"expected a folder of lmc shard (got {folder}): make one, or pass the graph of lmc.load")
    if options is None:
        raise ConfigError(
            f"expected a process of torchrun for the shards in {folder} (got one that was started alone): use torchrun "
            f"--nproc-per-node {len(list(folder.glob('rank-*')))}, or load the whole graph"
        )
    world, shard, refusal = World(options, local_device(device)), None, ""
    try:
        shard = read_shard(folder, world.rank, world.ranks)
    except DataError as error:
        refusal = str(error)
    refusals = list(filter(None, world.texts(refusal)))
    if shard is None or refusals:
        raise DataError(refusals[0])
    return shard


def check_shards(shard: Shard, method: Method, world: World) -> None:
    """Refuse, on all ranks, shards that do not belong together, and a method that wants another number of parts."""
    own = [shard.rank, shard.ranks, int(shard.checksum[:12], 16), shard.num_owned]
    own += [shard.parts[: shard.num_owned].unique().numel(), *shard.send_counts, *shard.receive_counts]
    rows = [row.tolist() for row in world.gather(torch.tensor(own, device=world.device))]
    for rank, (of, ranks, *_) in enumerate(rows):
        if (of, ranks) != (rank, world.ranks):
            raise ConfigError(
                f"expected the shard of rank {rank} of {world.ranks} (got that of rank {of} of {ranks}): every rank "
                "loads its own, made for this number of ranks"
            )
    facts = torch.tensor(rows)
    sent, received = facts[:, 5:].split(world.ranks, 1)
    together = bool((facts[:, 2] == facts[0, 2]).all()) and int(facts[:, 3].sum()) == shard.num_nodes
    if not (together and torch.equal(sent, received.t())):
        raise ConfigError(
            "expected the shards of one graph and one partition (got files that do not belong together): copy the "
            "folder that one call of lmc shard has written to every machine"
        )
    wanted, parts = method.num_parts if isinstance(method, ClusterMethod) else None, int(facts[:, 4].sum())
    if wanted not in (None, parts):
        raise ConfigError(
            f"expected num_parts={parts}, by which the shards were divided (got {wanted}): leave it out, or run lmc "
            f"shard with --parts {wanted}"
        )
