"""``lmc compare``."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lmc.bench import ComparedRun, compare
from lmc.bench.about import about, write_about
from lmc.bench.compare import Partitions, has_error, shared_parts
from lmc.cli.console import console, error_figure, facts, file_name, finish_on_broken_pipe, number, seconds
from lmc.cli.options import Compare
from lmc.cli.spec import AUTO, parse_methods, parse_model, read_model
from lmc.cli.train import RUNS, check_folder, division_facts, run_facts, run_folder
from lmc.errors import ConfigError
from lmc.files import check_writable, locked, replace, writable
from lmc.grammar import split_spec
from lmc.methods import ClusterMethod
from lmc.models import Model
from lmc.report import compare_figure, save
from lmc.results import (
    EpochRecord,
    ErrorRecord,
    RunRecord,
    mean_errors,
    read_about,
    read_errors,
    read_run,
    seconds_to,
    target_score,
)
from lmc.train import Settings, stop_on_interrupt
from lmc.train.loop import check_settings
from lmc.train.metrics import default_metric
from lmc.train.progress import progress_bar, score_text
from lmc.train.run_folder import holds_run
from lmc.train.runs import clear_folder

MEASUREMENTS = 6
"""How often the gradient error is measured by default."""


def compare_command(options: Compare) -> None:
    """Train all methods in turns under a live table, then write the summary and the figure."""
    out, settings, placement, shared = console(), options.settings(), options.placement(), options.shared()
    resume, error_every = options.resume, options.error_every
    if error_every is None:
        error_every = max(1, settings.epochs // MEASUREMENTS)
    if error_every < 0:
        raise ConfigError(f"expected --error-every of at least 0 (got {error_every})")
    if options.clusters == AUTO:
        raise ConfigError("expected a whole number for --clusters (got auto): every method would take another one")
    check_folder(options)
    check_writable(options.run_dir or RUNS)
    if options.run_dir is not None:
        _check_root(options.run_dir, resume or options.overwrite)
    read_model(options.model)  # wrong options are refused before a graph is loaded
    loss = options.row_loss()
    chosen = {} if options.methods == AUTO else parse_methods(options.methods, **shared)
    graph = options.load()
    check_settings(settings, graph, graph.splits)
    initial = parse_model(options.model, graph, options.seed)
    chosen = chosen or parse_methods(_suited(initial), **shared)
    name = split_spec(options.model)[0]
    root = run_folder(options, f"compare-{graph.name}-{name}")
    folders = _folders(root, list(chosen))
    _check_root(root, resume or options.overwrite, folders.values())
    if resume:
        _check_methods(root, folders)
    compared, partitions = [], Partitions()
    for label, method in chosen.items():
        parts = shared_parts(method, graph, options.seed, partitions)
        run = method.bind(graph, copy.deepcopy(initial), parts, placement, loss=loss, seed=options.seed)
        compared.append(ComparedRun(label, run, folders[label]))
    out.print(facts([*_facts(compared), ("run folder", str(root))]))
    with locked(root), finish_on_broken_pipe(out) as broken:
        for folder in folders.values() if options.overwrite else ():
            clear_folder(folder, also=("errors.jsonl",))
        whole = dataclasses.replace(
            about(compared[0].run, ""), partition=None, methods=[f.name for f in folders.values()]
        )
        write_about(root, whole)
        _train(out, compared, settings, error_every, resume, broken)
        runs = {c.label: read_run(c.folder) for c in compared}
        errors = {c.label: read_errors(c.folder / "errors.jsonl") for c in compared}
        out.print(_table(compared, runs, errors, settings.epochs))
        if len(runs) > 1:
            out.print(first_text(runs), soft_wrap=True)
        by_layer = {label: mean_errors(records) for label, records in errors.items()}
        depth = initial.num_layers
        layers = "" if initial.recurrent else f" with {depth} layer{'s' * (depth > 1)}"
        title = f"{graph.name} ({graph.num_nodes:,} nodes), {type(initial).__name__}{layers}"
        figure = compare_figure(runs, by_layer, title, default_metric(graph))
        with writable(root):
            target = target_score(runs.values())
            times = seconds_to(target, runs)
            methods = {label: _summary(run, errors[label], times[label]) for label, run in runs.items()}
            found = {"graph": graph.name, "model": name, "target": target, "methods": methods}
            summary = json.dumps(found, indent=1)
            replace(root / "summary.json", summary.encode())
            for kind in ("png", "svg"):
                save(figure, root / f"compare.{kind}")
    out.print(f"summary  {root / 'summary.json'}", soft_wrap=True)
    out.print(f"figure   {root / 'compare.png'} (and compare.svg)", soft_wrap=True)


def _suited(model: Model) -> str:
    """The methods that are compared on a model by default."""
    if model.recurrent:
        return "full,cluster,gas,sse,lmc4rec"
    return "full,cluster,gas,fm,lmc,cmc" if model.linear else "full,cluster,gas,fm,lmc"


def _folders(root: Path, labels: Sequence[str]) -> dict[str, Path]:
    """The folder of every method."""
    folders = {label: root / file_name(label) for label in labels}
    if len(set(folders.values())) < len(folders):
        raise ConfigError(f"expected methods whose labels differ in letters or digits (got {', '.join(labels)})")
    return folders


def _check_root(root: Path, may_hold_runs: bool, folders: Iterable[Path] = ()) -> None:
    """Refuse a folder that holds a run, and one that holds a comparison where there may be none.

    Args:
        folders: those of the methods, where they are known.
    """
    if holds_run(root):
        raise ConfigError(
            f"expected a folder for a comparison (got {root}, which holds a run of lmc train): choose another --run-dir"
        )
    if not may_hold_runs and any(map(holds_run, (*_compared_before(root), *folders))):
        raise ConfigError(
            f"expected a new run folder (got {root}, which holds a comparison): "
            "use --resume to continue it, --overwrite to replace it, or another --run-dir"
        )


def _check_methods(root: Path, folders: Mapping[str, Path]) -> None:
    """Refuse to continue a comparison without all of its methods, which its summary, figure and report would lose."""
    left_out = [folder for folder in _compared_before(root) if holds_run(folder) and folder not in folders.values()]
    if left_out:
        known = [read_about(folder) for folder in left_out]
        missing = [folder.name if about is None else about.label for folder, about in zip(left_out, known, strict=True)]
        raise ConfigError(
            f"expected all methods of the comparison in {root} (got {','.join(folders)} without {','.join(missing)}): "
            f"use --methods {','.join([*missing, *folders])}, or another --run-dir"
        )


def _compared_before(root: Path) -> list[Path]:
    """The folders of the methods of an earlier comparison."""
    known = read_about(root)
    return [] if known is None else [root / name for name in known.methods]


def _facts(compared: Sequence[ComparedRun]) -> list[tuple[str, str]]:
    first = dict(run_facts(compared[0].run))
    divided = next((c.run for c in compared if isinstance(c.run.method, ClusterMethod)), None)
    division = [] if divided is None else division_facts(divided)
    return [("graph", first["graph"]), *division, ("model", first["model"]), ("device", first["device"])]


def _train(
    out: Console, compared: Sequence[ComparedRun], settings: Settings, error_every: int, resume: bool,
    broken: Callable[[], bool],
) -> None:  # fmt: skip
    runs: dict[str, RunRecord] = {}
    errors: dict[str, list[ErrorRecord]] = {}
    if resume:  # the table shows the epochs of earlier runs too
        runs = {c.label: read_run(c.folder) for c in compared if (c.folder / "config.json").exists()}
        errors = {c.label: read_errors(c.folder / "errors.jsonl") for c in compared}
    with progress_bar(settings.epochs, console=out, lines=5) as show, stop_on_interrupt() as interrupted:

        def stop() -> bool:
            return interrupted() or broken()

        for label, epoch, error in compare(compared, settings, error_every=error_every, resume=resume, stop=stop):
            runs[label] = _with_epoch(runs.get(label, RunRecord({}, ())), epoch)
            errors.setdefault(label, []).extend([] if error is None else [error])
            if out.is_terminal:
                show(epoch.epoch, label, _table(compared, runs, errors, settings.epochs))
            elif label == compared[-1].label:
                show(epoch.epoch, ", ".join(f"{other} {number(run.loss, 4)}" for other, run in runs.items()))


def _with_epoch(run: RunRecord, epoch: EpochRecord) -> RunRecord:
    """The record with one more epoch; one that was trained before, and those after it, are replaced."""
    return RunRecord(run.config, (*(e for e in run.epochs if e.epoch < epoch.epoch), epoch))


def _table(
    compared: Sequence[ComparedRun],
    runs: Mapping[str, RunRecord],
    errors: Mapping[str, Sequence[ErrorRecord]],
    epochs: int,
) -> Table:
    caption = (
        "gradient error: relative, against the exact gradient of the same batch; mean of the measurements\n"
        "bias: of the mean gradient of an epoch, against the full gradient; at the last measurement"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, caption=caption, caption_justify="left")
    table.add_column("method", overflow="fold", min_width=8)  # all columns fit into 80 characters
    metric = default_metric(compared[0].run.graph)
    unit = " %" if score_text(0.0, metric).endswith("%") else ""
    scored = (f"val{unit}", f"test{unit}", f"best\nval{unit}", "test\nthen")
    for column in ("epoch", "loss", *scored, "train\ntime", "gradient\nerror", "bias"):
        table.add_column(column, justify="right", no_wrap=True)
    for c in compared:
        run = runs.get(c.label, RunRecord({}, ()))
        last = next((e.scores for e in reversed(run.epochs) if e.scores), {})
        each = (last.get("val"), last.get("test"), run.best_val, run.test)
        scores = [score_text(score, metric).removesuffix(" %") for score in each]
        done = f"{run.epochs[-1].epoch if run.epochs else 0}/{epochs}"
        found = _errors(c, errors.get(c.label, ()))
        table.add_row(c.label, done, number(run.loss, 4), *scores, seconds(run.seconds), *found)
    return table


def _errors(compared: ComparedRun, measured: Sequence[ErrorRecord]) -> tuple[str, str]:
    """The gradient error and the bias; a full batch has neither, and backward SGD has unbiased batches."""
    if not has_error(compared.run.schedule or compared.run.method):
        return "exact", "exact"
    mean = sum(m.mean for m in measured) / len(measured) if measured else None
    return error_figure(mean), error_figure(_bias(measured))


def _bias(measured: Sequence[ErrorRecord]) -> float | None:
    return measured[-1].bias if measured else None


def first_text(runs: Mapping[str, RunRecord]) -> str:
    """The seconds in which every method reaches a score a little below the best one, the fastest method first."""
    target = target_score(runs.values())
    if target is None:
        return "no test score to compare seconds with"
    metric = next(iter(runs.values())).metric
    found = seconds_to(target, runs)
    missed = [label for label, spent in found.items() if spent is None]
    text = f"seconds to a test {metric} of {score_text(target, metric)}: "
    text += ", ".join(f"{label} {seconds(spent)}" for label, spent in found.items() if spent is not None)
    return text + (f"; not reached by {', '.join(missed)}" if missed else "")


def _summary(run: RunRecord, errors: Sequence[ErrorRecord], to_target: float | None) -> dict[str, object]:
    """What summary.json says of one method."""
    return {
        "epochs": run.epochs[-1].epoch if run.epochs else 0,
        "loss": run.loss,
        "best_epoch": run.best_epoch,
        "val": run.best_val,
        "test": run.test,
        "seconds": run.seconds,
        "seconds_to_target": to_target,
        "gradient_error": mean_errors(errors),
        "bias": _bias(errors),
        "folder": Path(run.run_dir or "").name,
    }
