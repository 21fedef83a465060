"""What a run folder says about a run beside its settings and epochs: :class:`lmc.results.About`."""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
import sys
import time
from itertools import islice
from pathlib import Path

import torch

from lmc.bench.memory import SEEN, holds
from lmc.diagnostics import Plan, peak_bytes, plan
from lmc.diagnostics.plan import Division, has_plan
from lmc.engine import Run
from lmc.files import writable
from lmc.methods import ClusterMethod
from lmc.partition import quality
from lmc.results import ABOUT, About, write_lines
from lmc.train import adam


def about(run: Run, label: str, found: Plan | None = None) -> About:
    """What is known when a run begins."""
    partition = None
    if isinstance(run.method, ClusterMethod) and run.sync is None:  # a rank sees its own share of the graph
        figures = dataclasses.asdict(quality(run.graph, run.clusters.parts))
        partition = {**figures, "parts_per_batch": run.clusters.per_batch, "steps": run.num_batches}
    memory = None if found is None else {"planned": found.device, "planned step": found.step}
    command = shlex.join(["lmc", *sys.argv[1:]])
    return About(label, command, environment(run.problem.device), partition, memory)


def with_memory(known: About, run: Run, alone: bool = False) -> About:
    """The same with the measured memory of a step, after training, and its prediction where a method has one.

    Where the run is ``alone`` on a GPU, which it may fill, the largest sum of allocations so far is taken instead.
    """
    device, memory = run.problem.device, dict(known.memory or {})
    if alone and device.type == "cuda":
        return dataclasses.replace(known, memory={**memory, "measured": torch.cuda.max_memory_allocated(device)})
    largest = max(islice(run.batches(), SEEN), key=lambda b: b.num_core + b.num_halo)
    # a fixed batch may be recorded on a GPU, and the memory of a recording is not the peak of a step
    eager = largest.unrecorded()
    step = peak_bytes(lambda: run.accumulate(eager), device)
    run.problem.model.zero_grad(set_to_none=True)
    moments = 2 * sum(p.nbytes for p in run.problem.model.parameters())  # of Adam, which a plan counts too
    lives = holds(run, adam(run.problem.model, 0.01))[0] + moments
    memory |= {"measured": lives + step, "measured step": step}
    if has_plan(run.method):
        division = Division(run.graph, run.clusters.parts, int(run.seed))
        expected = plan(division, run.problem.model, run.method, run.problem.placement)
        memory |= {"planned": expected.device, "planned step": expected.step}
    return dataclasses.replace(known, memory=memory)


def write_about(folder: Path, known: About) -> None:
    """Write what is known about a run into its folder."""
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_lines(folder / ABOUT, [known])


def environment(device: torch.device) -> dict[str, str]:
    """The versions and the machine, in words."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {
        "device": name,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "lmc": sys.modules["lmc"].__version__,  # subpackages do not import the front of the package
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
