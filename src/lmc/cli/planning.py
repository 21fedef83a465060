"""``lmc train --dry-run``, ``--memory`` and ``--clusters auto``: what a run will take, before it takes it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.table import Table

from lmc.cli.choices import PlanChoice, RunChoice
from lmc.diagnostics.plan import Division, Plan, divide, largest_clusters, plan, remedy
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import ClusterMethod, Method
from lmc.models import Model
from lmc.stores import Placement, check_device, free_memory

_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_EASY = 0.3
"""A GPU whose memory is this little used by what certainly lies there needs no plan."""


def parse_memory(text: str) -> int:
    """ "4GB" -> bytes."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?)i?B?\s*", text, flags=re.IGNORECASE)
    if found is None or found[1].count(".") > 1 or not float(found[1]) > 0:
        raise ConfigError(f"expected an amount of memory such as 4GB (got {text!r})")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def placement_of(where: RunChoice) -> Placement:
    """What stays on the device, as the options say."""
    return Placement(
        where.device, where.history, where.features, where.structure, where.precision, not where.rebuild_batches
    )


def planned(
    out: Console, graph: Graph, model: Model, method: Method, where: RunChoice, choice: PlanChoice
) -> tuple[Method, torch.Tensor | None, Plan | None]:
    """The method, with the batches that fit where these are to be found, and its parts and plan where these are known;
    a run that does not fit is refused."""
    device = check_device(where.device)
    limit = parse_memory(choice.memory) if choice.memory else None
    if limit is None and device.type == "cuda":
        limit = free_memory(device)
    asked = choice.dry_run or choice.clusters_auto or choice.memory is not None
    if not asked and (limit is None or not isinstance(method, ClusterMethod) or _easy(graph, model, limit)):
        return method, None, None
    division = divide(graph, method, where.seed)
    placement = placement_of(where)
    if choice.clusters_auto:
        if not isinstance(method, ClusterMethod):
            raise ConfigError(
                f"expected a method with parts for --clusters auto (got {method.title}): use --method cmc"
            )
        within = limit or free_memory(device)
        c = largest_clusters(division, model, method, within, device, placement)
        if c is None:
            _refuse(division, model, dataclasses.replace(method, clusters_per_batch=1), device, placement, within)
        method = dataclasses.replace(method, clusters_per_batch=c)
    found = plan(division, model, method, device, placement)
    if choice.dry_run:
        out.print(plan_table(found))
        out.print(_words(found, method, division, limit), soft_wrap=True)
    if limit is not None and found.device > limit:
        _refuse(division, model, method, device, placement, limit, found)
    return method, division.parts, found


@contextmanager
def held_to(memory: str | None, device: torch.device, found: Plan | None) -> Iterator[None]:
    """Training within ``--memory``: on a GPU torch gives cached memory back before it reserves more than that."""
    if memory is None or found is None or device.type != "cuda":
        yield
        return
    limit, total = parse_memory(memory), torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()  # planning may have left more
    # torch takes an index here, or None for the current device, and no "cuda" without one
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device.index)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"expected a run within {size(limit)} (got a plan of {size(found.device)}, and more was needed): binding, "
            "evaluation and gaps between pieces of memory take room beside a step; raise --memory, lower --clusters or "
            "keep less on the device (--history host, --features host, --rebuild-batches, --structure host)"
        ) from error
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.index)


def plan_table(found: Plan) -> Table:
    """What stays where, and what a step adds."""
    table = Table(title="Plan", title_justify="left")
    table.add_column("what")
    table.add_column("tier")
    table.add_column("size", justify="right")
    for item in found.items:
        table.add_row(item.name, item.tier, size(item.size))
    table.add_row("a step, at its peak", "device", size(found.step), end_section=True)
    for tier in ("device", "host", "disk"):
        total = found.tier(tier) + (found.step if tier == "device" else 0)
        if total:
            table.add_row("in all", tier, size(total))
    return table


def size(count: int) -> str:
    """Bytes in words."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.2f} {unit}" if unit == "GB" else f"{count / factor:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"


def _words(found: Plan, method: Method, division: Division, limit: int | None) -> str:
    batch, c = found.batch, division.clusters(method).per_batch
    taken = f"{c} parts a batch" if isinstance(method, ClusterMethod) else "the whole graph at once"
    text = (
        f"{taken}, {found.num_batches} steps an epoch; the largest batch seen has {batch.core:,} core and "
        f"{batch.halo:,} halo rows; memory at the peak of a step: {size(found.device)}"
    )
    return text if limit is None else f"{text} of {size(limit)}"


def _refuse(
    division: Division,
    model: Model,
    method: Method,
    device: torch.device,
    placement: Placement,
    limit: int,
    found: Plan | None = None,
) -> None:
    found = found or plan(division, model, method, device, placement)
    if not isinstance(method, ClusterMethod):
        advice = "a full batch has no option that makes it smaller: train by parts, e.g. --method cmc --clusters auto"
        raise ConfigError(f"expected a run within {size(limit)} (got a plan of {size(found.device)}): {advice}")
    better = remedy(division, model, method, limit, device, placement)
    advice = (
        "no option of this method makes it fit: use more parts, a narrower model or more memory"
        if better is None
        else f"{' '.join(better.options)} would take {size(better.plan.device)}"
    )
    raise ConfigError(f"expected a run within {size(limit)} (got a plan of {size(found.device)}): {advice}")


def _easy(graph: Graph, model: Model, limit: int) -> bool:
    item = next(model.parameters()).element_size()
    rows = graph.num_nodes * (2 * graph.num_features + 4 * sum(model.widths)) * item
    return rows + graph.adj.nnz * 24 < _EASY * limit
