"""``lmc shard``: one folder per rank of a distributed run, from a graph that is read in pieces."""

from __future__ import annotations

from lmc.cli.console import console, facts
from lmc.cli.options import Shard
from lmc.data.shards import check_folder, write_shards
from lmc.errors import ConfigError
from lmc.heap import release_freed
from lmc.methods import CMC
from lmc.partition import coarse_pieces, group_parts, partition, parts_in_pieces


def shard_command(options: Shard) -> None:
    """Divide a graph among ranks and write the shard of each."""
    out, ranks, seed = console(), options.ranks, options.seed
    if ranks < 1:
        raise ConfigError(f"expected --ranks of at least 1 (got {ranks})")
    graph = options.load(mapped=True)
    check_folder(options.out, graph)
    num_parts = options.parts or max(ranks, CMC().parts_in(graph))
    if not ranks <= num_parts <= graph.num_nodes:
        raise ConfigError(
            f"expected --parts between the number of ranks, {ranks}, and that of nodes, {graph.num_nodes:,} (got "
            f"{num_parts}): change --parts or --ranks"
        )
    if options.partition == "stream":
        parts, owners = parts_in_pieces(graph, coarse_pieces(graph, ranks, seed), num_parts, seed)
    else:
        parts = partition(graph, num_parts, options.partition, seed)
        owners = group_parts(graph, parts, ranks)
    release_freed()
    written = write_shards(graph, parts, owners, ranks, options.out)
    rows = [("graph", repr(graph)), ("parts", f"{owners.numel()}, {options.partition}")]
    for rank, of_rank in enumerate(written):
        owned, mirrors = of_rank["num_owned"], of_rank["num_local"] - of_rank["num_owned"]
        rows.append((f"rank {rank}", f"{owned:,} nodes, {mirrors:,} mirrors, {of_rank['size'] / 1e6:,.1f} MB"))
    out.print(facts([*rows, ("written", str(options.out))]))
