"""``lmc train``."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lmc.cli.build import AUTO, build_method, build_model, chosen, load_graph, settings_of
from lmc.cli.choices import DataChoice, MethodChoice, ModelChoice, OptimiserChoice, PlanChoice, RunChoice
from lmc.cli.console import console, facts, file_name, percent, seconds
from lmc.cli.planning import held_to, placement_of, planned
from lmc.methods import ClusterMethod, DropEdge, FullBatch, Method, Run
from lmc.partition import quality
from lmc.results import EpochRecord, RunRecord, read_run
from lmc.stores import check_device
from lmc.train import Settings, stop_on_interrupt, train


def train_command(
    data: DataChoice,
    model: ModelChoice,
    method: MethodChoice,
    optimiser: OptimiserChoice,
    where: RunChoice,
    plan: PlanChoice = PlanChoice(),  # noqa: B008
) -> None:
    """Train, showing progress, and say what came of it."""
    out = console()
    settings = settings_of(optimiser)
    if method.name != AUTO:
        build_method(method)  # a wrong option is told before a graph is loaded
    graph = load_graph(data)
    network = build_model(model, graph, where.seed)
    method = chosen(method, network)
    built, parts, found = planned(out, graph, network, build_method(method), where, plan)
    if plan.dry_run:
        return
    label = file_name(f"{graph.name}-{method.name}-{model.name}-s{where.seed}")
    run_dir = where.run_dir or Path("runs") / label
    with held_to(plan.memory, check_device(where.device), found):
        run = built.bind(graph, network, parts, placement_of(where), seed=where.seed)
        del graph  # the run has its own, in another order and perhaps elsewhere
        out.print(facts([*run_facts(run), ("run folder", str(run_dir))]))
        if where.resume and not (run_dir / "config.json").exists():
            out.print(f"nothing to resume in {run_dir}: starting a new run", soft_wrap=True)
        _train(out, run, settings, run_dir, where.resume)
    out.print(_summary(read_run(run_dir)))


def run_facts(run: Run) -> list[tuple[str, str]]:
    """What a bound run is, line by line."""
    model = run.problem.model
    count = sum(p.numel() for p in model.parameters())
    lines = [("graph", repr(run.graph)), ("method", _title(run.method))]
    if isinstance(run.method, ClusterMethod):
        lines += division_facts(run)
    elif not isinstance(run.method, FullBatch):
        lines.append(("batches", f"{run.num_batches} steps an epoch"))
    widths = " > ".join(map(str, [run.graph.num_features, *model.widths]))
    return [
        *lines,
        ("first layer", run.first_layer),
        ("model", f"{type(model).__name__}, {widths}, {count:,} parameters"),
        ("device", device_name(run.problem.device)),
        *(
            []
            if run.problem.dtype == run.problem.accumulate_dtype
            else [("precision", run.problem.placement.precision)]
        ),
        *([] if set(run.tiers.values()) == {"device"} else [("tiers", tier_names(run.tiers))]),
    ]


def _title(method: Method) -> str:
    if isinstance(method, DropEdge):
        return f"{method.inner.title}, {percent(method.p)} of the edges left out anew every epoch"
    return method.title


def tier_names(tiers: dict[str, str]) -> str:
    """What lies where, tier by tier."""
    lines = {tier: [name for name, where in tiers.items() if where == tier] for tier in dict.fromkeys(tiers.values())}
    return "; ".join(f"{', '.join(names)} on {tier}" for tier, names in lines.items())


def division_facts(run: Run) -> list[tuple[str, str]]:
    """How the graph is divided, and how well."""
    clusters = run.clusters
    sizes = torch.tensor(clusters.offsets).diff()
    figures = quality(run.graph, torch.arange(clusters.num_parts).repeat_interleave(sizes))
    return [
        (
            "batches",
            f"{clusters.num_parts} parts, {clusters.per_batch} a batch, {clusters.num_batches} steps an epoch"
            + (", redrawn every epoch" if clusters.redraw else ""),
        ),
        (
            "partition",
            f"{getattr(run.method, 'partition', 'given')}: {percent(figures.kept)} of edges inside parts, "
            f"largest part {figures.balance:.2f} x the mean",
        ),
    ]


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({torch.get_num_threads()} threads)"


def _train(out: Console, run: Run, settings: Settings, run_dir: Path, resume: bool) -> None:
    columns = (
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out, transient=True) as progress, stop_on_interrupt() as stop:
        task = progress.add_task("", total=settings.epochs)
        scores = ""
        for record in train(run, settings, run_dir, resume, stop):
            scores = _scores(record) or scores
            line = f"loss {record.loss:.4f}  {scores}{_solver(record)}"
            progress.update(task, completed=record.epoch, description=line)
            if not out.is_terminal and record.epoch % max(1, settings.epochs // 10) == 0:
                progress.print(f"epoch {record.epoch:>4}/{settings.epochs}  {line}")


def _solver(record: EpochRecord) -> str:
    """Recurrent models: steps of a forward and a backward solve, and the solves that did not reach the tolerance."""
    if not record.solver:
        return ""
    steps = f"  solver {record.solver['forward_steps']:.0f}+{record.solver['backward_steps']:.0f} steps"
    failed = int(record.solver["unconverged"])
    return steps + (f", {failed} unconverged" if failed else "")


def _scores(record: EpochRecord) -> str:
    if not record.scores:
        return ""
    return f"val {percent(record.scores['val'])}  test {percent(record.scores['test'])}"


def _summary(record: RunRecord) -> Table:
    table = Table(title="Result", title_justify="left")
    for column in ("epochs", "last loss", "best epoch", "val", "test at best val", "training time"):
        table.add_column(column, justify="right")
    table.add_row(
        str(record.epochs[-1].epoch if record.epochs else 0),
        "-" if record.loss is None else f"{record.loss:.4f}",
        "-" if record.best is None else str(record.best.epoch),
        percent(record.best_val),
        percent(record.test),
        seconds(record.seconds),
    )
    table.caption = f"in {record.run_dir}: epochs.jsonl, config.json, best.safetensors, checkpoint.safetensors"
    failed = sum(int(e.solver["unconverged"]) for e in record.epochs if e.solver)
    if failed:
        table.caption += f"\n{failed} fixed points were not solved to the tolerance: lower --kappa or raise --tol"
    table.caption_justify = "left"
    return table
