"""The memory of a run before it is trained: ``lmc train`` with ``--dry-run``, ``--memory`` and ``--clusters auto``."""

from __future__ import annotations

import dataclasses
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.table import Column, Table

from lmc.cli.console import size
from lmc.cli.options import Train
from lmc.cli.spec import AUTO
from lmc.diagnostics.choice import certainly_fits
from lmc.diagnostics.plan import Division, Plan, divide, largest_clusters, plan, remedy
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import ClusterMethod, Method
from lmc.models import Model
from lmc.stores import Placement, free_memory

_UNITS = ("", "K", "M", "G", "T")


def planned(
    out: Console, graph: Graph, model: Model, method: Method, placement: Placement, options: Train,
    parts: torch.Tensor | None,
) -> tuple[Method, Plan | None]:  # fmt: skip
    """The method, with its plan where one was made; a run that does not fit is refused.

    A plan is made where the options ask for one, and for a GPU that may be too small.
    """
    device, largest = placement.training_device, options.clusters == AUTO
    limit = parse_memory(options.memory) if options.memory else None
    if limit is None and device.type == "cuda":
        limit = free_memory(device)
    wanted = options.dry_run or largest or options.memory is not None
    if not wanted and (limit is None or not isinstance(method, ClusterMethod) or certainly_fits(graph, model, limit)):
        return method, None
    division = divide(graph, method, options.seed, parts)
    if largest:
        method = _largest(division, model, method, placement, limit or free_memory(device))
    found = plan(division, model, method, placement)
    if options.dry_run:
        out.print(plan_table(found))
        out.print(_words(found, method, division, limit), soft_wrap=True)
    if limit is not None and found.device > limit:
        raise _refusal(division, model, method, placement, limit, found)
    return method, found


def _largest(division: Division, model: Model, method: Method, placement: Placement, limit: int) -> Method:
    """The method with as many clusters in a batch as fit."""
    if not isinstance(method, ClusterMethod):
        raise ConfigError(
            f"expected a method with parts for --clusters auto (got {method.traits.title}): use --method cmc"
        )
    c = largest_clusters(division, model, method, limit, placement)
    if c is None:
        smallest = dataclasses.replace(method, clusters_per_batch=1)
        found = plan(division, model, smallest, placement)
        raise _refusal(division, model, smallest, placement, limit, found)
    return dataclasses.replace(method, clusters_per_batch=c)


@contextmanager
def held_to(memory: str | None, device: torch.device, found: Plan | None) -> Iterator[None]:
    """Limit torch's memory on a GPU to ``--memory``: it frees cached memory before it reserves more than that."""
    if memory is None or found is None or device.type != "cuda":
        yield
        return
    limit, total = parse_memory(memory), torch.cuda.get_device_properties(device).total_memory
    # What earlier work of this process left on the GPU counts towards the limit until it is freed. A workspace of
    # cuBLAS lives as long as the process; where it was cut out of a large cached block, the whole block stays reserved.
    gc.collect()
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    # torch takes an index here, or None for the current device, and no "cuda" without one
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device.index)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"expected a run within {size(limit)} (got a plan of {size(found.device)}, and more was needed): binding, "
            "evaluation and gaps between pieces of memory take room beside a step; raise --memory, lower --clusters or "
            "keep less on the device (--history host, --features host, --rebuild-batches, --structure host or disk)"
        ) from error
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.index)


def plan_table(found: Plan) -> Table:
    """A table of what is kept where, and of what a step needs in addition."""
    table = Table("what", "tier", Column("size", justify="right"), title="Plan", title_justify="left")
    for item in found.items:
        table.add_row(item.name, item.tier, size(item.size))
    table.add_row("a step, at its peak", "device", size(found.step), end_section=True)
    for tier in ("device", "host", "disk"):
        total = found.tier(tier) + (found.step if tier == "device" else 0)
        if total:
            table.add_row("in all", tier, size(total))
    return table


def _words(found: Plan, method: Method, division: Division, limit: int | None) -> str:
    """The batches of a plan, and the memory at the peak of a step."""
    batch, c = found.batch, division.clusters(method).per_batch
    taken = f"{c} parts a batch" if isinstance(method, ClusterMethod) else "the whole graph at once"
    text = (
        f"{taken}, {found.num_batches} steps an epoch; the largest batch seen has {batch.core:,} core and "
        f"{batch.halo:,} halo rows; memory at the peak of a step: {size(found.device)}"
    )
    return text if limit is None else f"{text} of {size(limit)}"


def _refusal(
    division: Division, model: Model, method: Method, placement: Placement, limit: int, found: Plan
) -> ConfigError:
    """The error of a run that does not fit, with the options that would make it fit."""
    advice = "a full batch has no option that makes it smaller: train by parts, e.g. --method cmc --clusters auto"
    if isinstance(method, ClusterMethod):
        better = remedy(division, model, method, limit, placement)
        advice = (
            "no option of this method makes it fit: use more parts, a narrower model or more memory"
            if better is None
            else f"{' '.join(better.options)} would take {size(better.plan.device)}"
        )
    return ConfigError(f"expected a run within {size(limit)} (got a plan of {size(found.device)}): {advice}")


def parse_memory(text: str) -> int:
    """ "4GB" -> bytes; "4GiB" are 4 x 1024^3."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([KMGT]?)(i?)B?\s*", text, flags=re.IGNORECASE)
    if found is None or not float(found[1]) > 0:
        raise ConfigError(f"expected an amount of memory such as 4GB (got {text!r})")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** _UNITS.index(found[2].upper()))
