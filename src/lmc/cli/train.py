"""``lmc train``."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.table import Column, Table

from lmc.cli.console import console, device_name, facts, file_name, number, percent, seconds
from lmc.cli.options import Train
from lmc.cli.planning import held_to, parse_memory, planned
from lmc.cli.spec import AUTO, check_shared, parse_method, parse_model, read_model, replace_auto, split_spec
from lmc.engine import Run
from lmc.methods import ClusterMethod, FullBatch, Method
from lmc.partition import quality
from lmc.results import RunRecord, read_run
from lmc.train import stop_on_interrupt, train
from lmc.train.progress import epoch_bar


def train_command(options: Train) -> None:
    """Train under a progress bar and print the result."""
    out, settings, placement, shared = console(), options.settings(), options.placement(), options.shared()
    if options.memory is not None:
        parse_memory(options.memory)
    read_model(options.model)
    if split_spec(options.method)[0] != AUTO:
        _method(options.method, shared)  # a wrong option is refused before a graph is loaded
    graph = options.load()
    model = parse_model(options.model, graph, options.seed)
    spec = replace_auto(options.method, model)
    method, parts, plan = planned(out, graph, model, _method(spec, shared), placement, options)
    if options.dry_run:
        return
    names = f"{graph.name}-{split_spec(spec)[0]}-{split_spec(options.model)[0]}-s{options.seed}"
    run_dir = options.run_dir or Path("runs") / file_name(names)
    with held_to(options.memory, placement.training_device, plan):
        run = method.bind(graph, model, parts, placement, seed=options.seed)
        del graph  # the run has a copy in another order, which may be kept on another tier
        out.print(facts([*run_facts(run), ("run folder", str(run_dir))]))
        if options.resume and not (run_dir / "config.json").exists():
            out.print(f"nothing to resume in {run_dir}: starting a new run", soft_wrap=True)
        with epoch_bar(settings.epochs, out) as show, stop_on_interrupt() as stop:
            for record in train(run, settings, run_dir, options.resume, stop):
                show(record)
    out.print(_summary(read_run(run_dir)))


def _method(spec: str, shared: dict[str, int | None]) -> Method:
    check_shared([spec], **shared)
    return parse_method(spec, **shared)


def run_facts(run: Run) -> list[tuple[str, str]]:
    """Names and values that describe a bound run."""
    model = run.problem.model
    dropped = "" if run.schedule is None else f", {percent(run.schedule.p)} of the edges left out anew every epoch"
    lines = [("graph", repr(run.graph)), ("method", run.method.traits.title + dropped)]
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
    if run.problem.dtype != run.problem.accumulate_dtype:
        lines.append(("precision", run.problem.placement.precision))
    tiers = dict.fromkeys(run.tiers.values())
    if set(tiers) != {"device"}:
        on = {tier: ", ".join(name for name, where in run.tiers.items() if where == tier) for tier in tiers}
        lines.append(("tiers", "; ".join(f"{names} on {tier}" for tier, names in on.items())))
    return lines


def division_facts(run: Run) -> list[tuple[str, str]]:
    """How the graph is divided into parts and batches, and the quality of the partition."""
    clusters = run.clusters
    sizes = torch.tensor(clusters.offsets).diff()
    figures = quality(run.graph, torch.arange(clusters.num_parts).repeat_interleave(sizes))
    batches = f"{clusters.num_parts} parts, {clusters.per_batch} a batch, {clusters.num_batches} steps an epoch"
    partition = (
        f"{getattr(run.method, 'partition', 'given')}: {percent(figures.kept)} of edges inside parts, "
        f"largest part {figures.balance:.2f} times the mean"
    )
    return [("batches", batches + ", redrawn every epoch" * clusters.redraw), ("partition", partition)]


def _summary(record: RunRecord) -> Table:
    names = ("epochs", "last loss", "best epoch", "val", "test at best val", "training time")
    columns = [Column(name, justify="right") for name in names]
    table = Table(*columns, title="Result", title_justify="left", caption_justify="left")
    table.add_row(
        str(record.epochs[-1].epoch if record.epochs else 0),
        number(record.loss, 4),
        "-" if record.best is None else str(record.best.epoch),
        percent(record.best_val),
        percent(record.test),
        seconds(record.seconds),
    )
    table.caption = f"in {record.run_dir}: epochs.jsonl, config.json, best.safetensors, checkpoint.safetensors"
    failed = sum(int(e.solver["unconverged"]) for e in record.epochs if e.solver)
    if failed:
        table.caption += (
            f"\n{failed} fixed points were not solved to the tolerance: lower kappa or raise tol of the model, e.g. "
            "--model recgcn:kappa=0.9:tol=1e-4"
        )
    return table
