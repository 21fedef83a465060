"""``lmc train``: one run, its folder, and what is shown about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table

from lmc.bench.about import about, with_memory, write_about
from lmc.cli.console import console, device_name, facts, file_name, finish_on_broken_pipe, number, percent, seconds
from lmc.cli.options import Compare, Train
from lmc.cli.plan import held_to, parse_memory, planned
from lmc.cli.spec import AUTO, check_shared, parse_method, parse_model, read_model
from lmc.data import is_sharded
from lmc.diagnostics.choice import recommended
from lmc.engine import Distributed, Run
from lmc.engine.distributed import begun_folders, own_shard
from lmc.errors import ConfigError
from lmc.files import check_writable
from lmc.grammar import split_spec
from lmc.graph import Graph, Shard
from lmc.losses import describe
from lmc.methods import ClusterMethod, DropEdge, FullBatch, Method
from lmc.models import Model
from lmc.partition import is_cached, quality
from lmc.partition.dispatch import chosen
from lmc.results import About, RunRecord, read_run
from lmc.stores import Placement
from lmc.train import Training, stop_on_interrupt
from lmc.train.loop import check_settings
from lmc.train.progress import epoch_bar, score_text
from lmc.train.run_folder import check_unused, holds_run
from lmc.train.runs import clear_folder, latest_folder, new_folder
from lmc.train.tensorboard import TensorBoard, writer_class

OF_WHOLE_GRAPHS = (
    "data_dir", "scale", "symmetrise", "directed", "task", "inductive", "partition", "memory", "dry_run",
)  # fmt: skip
"""Options that have no meaning for a rank that holds a part of a graph."""
RUNS = Path("runs")
"""Where run folders are made by default."""


def train_command(options: Train) -> None:
    """Train one run in its folder, or show its plan where ``--dry-run`` asks for it."""
    out, settings, placement, shared = console(), options.settings(), options.placement(), options.shared()
    distributed, loss = options.distributed(), options.row_loss()
    _check_options(options, shared)
    started = time.perf_counter()
    sharded = is_sharded(Path(options.dataset).expanduser())
    given = _own_shard(options, distributed, placement) if sharded else options.load()
    graph = given.graph if isinstance(given, Shard) else given
    spent = {"load": time.perf_counter() - started}
    check_settings(settings, graph, given.splits)
    model = parse_model(options.model, graph, options.seed)
    spec, reason = suited(options, model, graph, placement)
    method = _method(spec, shared)
    parts, cached, found = None, False, None
    if not sharded:
        parts, spent["partition"], cached = divided(method, graph, options.seed)
        method, found = planned(out, graph, model, method, placement, options, parts)
    if options.dry_run:
        return
    name = f"{graph.name}-{split_spec(spec)[0]}-{split_spec(options.model)[0]}"
    with held_to(options.memory, placement.training_device, found):
        run = method.bind(given, model, parts, placement, loss=loss, seed=options.seed, distributed=distributed)
        run.setup_seconds |= spent
        del graph, given  # the run has a copy in another order, which may be kept on another tier
        run_dir, resume = ranks_folder(run, options, name)
        callbacks = [TensorBoard(run_dir / "tensorboard")] if options.tensorboard and run.is_first_rank else []
        lines = dict(run_facts(run))
        lines["method"] += reason
        out.print(facts([*lines.items(), ("set up", setup_text(run, cached)), ("run folder", str(run_dir))]))
        if resume and not holds_run(run_dir):
            out.print(f"nothing to resume in {run_dir}: starting a new run", soft_wrap=True)
        with finish_on_broken_pipe(out) as broken:
            with stop_on_interrupt() as stop:
                if options.overwrite and not resume and run.is_first_rank:
                    clear_folder(run_dir)
                training = Training(run, settings, run_dir, resume, lambda: stop() or broken(), callbacks)
                known = _train(training, out, run_dir, partial(about, run, spec, found))
            if known is not None and run.sync is None:  # it runs further steps, for which other ranks do not wait
                write_about(run_dir, with_memory(known, run, alone=True))
    if run.is_first_rank:
        out.print(_summary(read_run(run_dir)))
    if training.ended_early:
        out.print(training.ended_early, soft_wrap=True)
    elif known is None and run.is_first_rank:
        out.print(f"nothing was left to train: more than --epochs {settings.epochs} continue the run", soft_wrap=True)


def _check_options(options: Train, shared: Mapping[str, int | str | None]) -> None:
    """Refuse wrong options before a graph is loaded."""
    if options.memory is not None:
        parse_memory(options.memory)
    read_model(options.model)
    check_folder(options)
    if not options.dry_run:
        check_writable(options.run_dir or RUNS)
        if options.run_dir is not None:  # ranks that torchrun has started again continue the run in the folder
            check_unused(options.run_dir, options.resume or options.overwrite or bool(begun_folders()))
    if options.tensorboard:
        writer_class()
    if split_spec(options.method)[0] != AUTO:
        _method(options.method, shared)


def _train(training: Training, out: Console, run_dir: Path, facts_of: Callable[[], About]) -> About | None:
    """Train under a progress bar; what is known about the run, which the process that shows results writes."""
    known: About | None = None
    bar = epoch_bar(training.settings.epochs, out, training.config["metrics"][0])
    with bar as show, closing(training.epochs()) as records:
        for record in records:
            if known is None and training.run.is_first_rank:  # the folder is this run's now
                known = facts_of()
                write_about(run_dir, known)
            show(record)
    return known


def _own_shard(options: Train, distributed: Distributed | bool, placement: Placement) -> Shard:
    """The shard of this rank; options that concern a whole graph are refused."""
    for name in OF_WHOLE_GRAPHS:
        if getattr(options, name) not in (None, False):
            raise ConfigError(
                f"expected no --{name.replace('_', '-')} for a folder of shards (got one): lmc shard has loaded and "
                "divided the graph; drop it"
            )
    for name in ("method", "clusters"):
        if split_spec(getattr(options, name) or "")[0] == AUTO:
            raise ConfigError(
                f"expected --{name} for a folder of shards (got auto, which reads the whole graph): name it, e.g. "
                "--method cmc --clusters 2"
            )
    ranks = distributed if isinstance(distributed, Distributed) else None
    return own_shard(options.dataset, ranks, placement.training_device)


def check_folder(options: Train | Compare) -> None:
    """Refuse options of the run folder that contradict each other."""
    for a, b in (("resume", "overwrite"), ("run_dir", "name")):
        if getattr(options, a) and getattr(options, b):
            raise ConfigError(f"expected --{a.replace('_', '-')} or --{b} (got both): drop one")


def ranks_folder(run: Run, options: Train, name: str) -> tuple[Path, bool]:
    """The folder of a run, which rank 0 chooses, and whether a run in it is continued: where ``--resume`` says so, or
    where torchrun has started the ranks again after a failure."""
    if run.sync is None:
        return run_folder(options, name), options.resume
    world, chosen, begun = run.sync.world, "", begun_folders() if run.is_first_rank else []
    with world.together():
        if run.is_first_rank:
            chosen = begun[-1] if begun else str(run_folder(options, name).absolute())
    return Path(world.texts(chosen)[0]), options.resume or world.any(bool(begun))


def run_folder(options: Train | Compare, name: str) -> Path:
    """The folder of ``--run-dir``, or runs/NAME-K: the newest to resume or overwrite a run, else a new one."""
    if options.run_dir is not None:
        return options.run_dir
    name = file_name(options.name or name)
    latest = latest_folder(RUNS, name) if options.resume or options.overwrite else None
    return latest or new_folder(RUNS, name)


def suited(options: Train, model: Model, graph: Graph, placement: Placement) -> tuple[str, str]:
    """The spec of ``--method``, with the recommended method in the place of "auto", and the reason for it; its options
    stay."""
    name, colon, written = options.method.partition(":")
    if name.strip() != AUTO:
        return options.method, ""
    shared: dict[str, Any] = options.shared()
    partition = shared["partition"] or (AUTO if options.clusters == AUTO else None)
    found = recommended(
        model, graph, placement, num_parts=shared["parts"], clusters_per_batch=shared["clusters"], partition=partition,
        seed=options.seed, memory=parse_memory(options.memory) if options.memory else None,
    )  # fmt: skip
    given = split_spec(options.method)[1]
    settings = [f"{name}={value}" for name, value in found.settings.items() if name not in given]
    spec = ":".join([found.method.traits.name, *settings, *([written] if colon else [])])
    setting = f" with {', '.join(settings)}" if settings else ""
    return spec, f" (recommended{setting}: {found.reason})"


def _method(spec: str, shared: Mapping[str, int | str | None]) -> Method:
    check_shared([spec], **shared)
    return parse_method(spec, **shared)


def divided(method: Method, graph: Graph, seed: int) -> tuple[torch.Tensor | None, float, bool]:
    """The parts that a method divides the graph into, the seconds that took, and whether they were in the cache."""
    inner = method.inner if isinstance(method, DropEdge) else method
    if not isinstance(inner, ClusterMethod):
        return None, 0.0, False
    started, graph = time.perf_counter(), graph.training_graph
    cached = is_cached(graph, inner.parts_in(graph), inner.partition, seed)
    parts = inner.parts_of(graph, seed)
    return parts, time.perf_counter() - started, cached


def setup_text(run: Run, cached: bool) -> str:
    """How long a run took to set up."""
    spent = {name: seconds(value) for name, value in run.setup_seconds.items()}
    partition = f"partitioned in {spent['partition']}{' (cached)' * cached}, " if run.clusters.num_parts > 1 else ""
    return f"loaded in {spent['load']}, {partition}bound in {spent['bind']}"


def run_facts(run: Run) -> list[tuple[str, str]]:
    """Names and values that describe a bound run."""
    model = run.problem.model
    dropped = "" if run.schedule is None else f", {percent(run.schedule.p)} of the edges left out anew every epoch"
    seen = [("training sees", repr(run.graph))] if run.whole is not run.graph else []
    lines = [("graph", repr(run.whole)), *seen, ("method", run.method.traits.title + dropped)]
    if isinstance(run.method, ClusterMethod):
        lines += division_facts(run)
    elif not isinstance(run.method, FullBatch):
        lines.append(("batches", f"{run.num_batches} steps an epoch"))
    widths = " > ".join(map(str, [run.graph.num_features, *model.widths]))
    count = sum(p.numel() for p in model.parameters())
    lines += [
        ("first layer", run.first_layer),
        ("model", f"{type(model).__name__}, {widths}, {count:,} parameters"),
        ("device", device_name(run.problem.device)),
    ]
    if run.problem.loss is not None:
        lines.append(("loss", str(describe(run.problem.loss))))
    if run.problem.dtype != run.problem.accumulate_dtype:
        lines.append(("precision", run.problem.placement.precision))
    if set(run.tiers.values()) != {"device"}:
        lines.append(("tiers", _tiers(run.tiers)))
    return lines


def _tiers(tiers: Mapping[str, str]) -> str:
    names: dict[str, list[str]] = {}
    for name, tier in tiers.items():
        names.setdefault(tier, []).append(name)
    return "; ".join(f"{', '.join(those)} on {tier}" for tier, those in names.items())


def division_facts(run: Run) -> list[tuple[str, str]]:
    """How the graph is divided into parts and batches, and the quality of the partition."""
    clusters = run.clusters
    if run.sync is not None:
        world, shard = run.sync.world, run.sync.exchange.shard
        each = f"{clusters.num_parts} parts, {clusters.per_batch} a batch, {run.num_batches} steps an epoch"
        mirrors = shard.num_local - shard.num_owned
        rows = f"{world.ranks}; rank 0 owns {shard.num_owned:,} of {shard.num_nodes:,} nodes and mirrors {mirrors:,}"
        return [("ranks", f"{rows}; sync={world.options.sync}"), ("batches", f"of rank 0: {each}")]
    figures = quality(run.graph, clusters.parts)
    batches = f"{clusters.num_parts} parts, {clusters.per_batch} a batch, {clusters.num_batches} steps an epoch"
    partitioner = chosen(getattr(run.method, "partition", "given"), run.graph)
    kept = f"{percent(figures.kept)} of edges inside parts, largest part {figures.balance:.2f} times the mean"
    return [("batches", batches + ", redrawn every epoch" * clusters.redraw), ("partition", f"{partitioner}: {kept}")]


def _summary(record: RunRecord) -> Table:
    names = ("epochs", "last loss", "best epoch", "val", "test at best val", "training time")
    columns, metric = [Column(name, justify="right") for name in names], record.config["metrics"][0]
    table = Table(*columns, title="Result", title_justify="left", caption_justify="left")
    table.add_row(
        str(record.epochs[-1].epoch if record.epochs else 0),
        number(record.loss, 4),
        "-" if record.best is None else str(record.best.epoch),
        score_text(record.best_val, metric),
        score_text(record.test, metric),
        seconds(record.seconds),
    )
    best = "best.safetensors, " if record.config["restore_best"] and record.best_val is not None else ""
    checkpoint = "checkpoint.json and its files" if "ranks" in record.config else "checkpoint.safetensors"
    table.caption = f"in {record.run_dir}: epochs.jsonl, config.json, {best}{checkpoint}"
    failed = sum(int(e.solver["unconverged"]) for e in record.epochs if e.solver)
    if failed:
        table.caption += (
            f"\n{failed} fixed points were not solved to the tolerance: lower kappa or raise tol of the model, e.g. "
            "--model recgcn:kappa=0.9:tol=1e-4"
        )
    return table
