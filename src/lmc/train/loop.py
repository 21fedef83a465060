"""The one training loop."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmc.engine.exact import FEW_ELEMENTS, MAX_ELEMENTS
from lmc.errors import CheckpointError, ConfigError, Interrupted
from lmc.graph import Batch, Graph
from lmc.methods import Method, Run
from lmc.models import Model
from lmc.results import EpochRecord, RunRecord, append_line, read_lines, replace, write_lines
from lmc.stores import Placement
from lmc.train import checkpoint
from lmc.train.checkpoint import Position
from lmc.train.evaluate import evaluate_problem
from lmc.train.interrupt import Stop, never, stop_on_interrupt
from lmc.train.optimiser import adam
from lmc.train.progress import progress_bar


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to optimise.

    Args:
        epochs: passes over the parts.
        lr, weight_decay: of Adam.
        clip: largest norm of the gradient; None: no clipping.
        eval_every: epochs between evaluations; the last epoch is always evaluated; 0: never.
        checkpoint_seconds: time between two checkpoints at the end of an epoch.
    """

    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 0.0
    clip: float | None = None
    eval_every: int = 1
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.epochs != int(self.epochs):
            raise ConfigError(f"expected at least 1 epoch, a whole number (got {self.epochs})")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"expected a positive lr (got {self.lr})")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"expected weight_decay of at least 0 (got {self.weight_decay})")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"expected a positive clip, or None (got {self.clip})")
        if self.eval_every < 0:
            raise ConfigError(f"expected eval_every of at least 0 (got {self.eval_every})")


def fit(
    graph: Graph,
    model: Model,
    method: Method,
    epochs: int = 100,
    lr: float = 0.01,
    *,
    weight_decay: float = 0.0,
    clip: float | None = None,
    eval_every: int = 1,
    parts: Tensor | None = None,
    seed: int = 0,
    run_dir: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    checkpoint_seconds: float = 30.0,
    placement: Placement | None = None,
    on_epoch: Callable[[EpochRecord], None] | None = None,
    progress: bool = False,
) -> RunRecord:
    """Train ``model`` on ``graph`` by ``method`` and return the record; the model keeps the last parameters.

    Args:
        epochs, lr, weight_decay, clip, eval_every, checkpoint_seconds: see :class:`Settings`.
        parts: an assignment of nodes to parts instead of the method's own partition.
        seed: of batches and dropout; the model's initial parameters are the model's.
        run_dir: where to write config.json, epochs.jsonl, checkpoint.safetensors and best.safetensors (the parameters
            of the best validation epoch).
        resume: continue the run in ``run_dir``; on a CPU it ends bit-identical to one that never stopped.
        placement: where to train, and what is kept where; by default everything on the GPU where there is one.
        device: a shorthand for ``placement=Placement(device=device)``.
        on_epoch: called with every epoch's record as it comes.
        progress: show a bar on standard error.

    Ctrl-C finishes the step, saves where there is a ``run_dir``, and raises :class:`lmc.errors.Interrupted`.
    """
    settings = Settings(epochs, lr, weight_decay, clip, eval_every, checkpoint_seconds)
    if not isinstance(method, Method):
        raise ConfigError(f"expected a method such as lmc.methods.LMC4Conv() (got {method!r})")
    run = method.bind(graph, model, parts, placement, device=device, seed=seed)
    folder = None if run_dir is None else Path(run_dir)
    records: list[EpochRecord] = []
    with stop_on_interrupt() as stop, progress_bar(epochs) if progress else nullcontext(_ignore) as show:
        for record in train(run, settings, folder, resume, stop):
            records.append(record)
            show(record)
            (on_epoch or _ignore)(record)
        if stop():  # during the last epoch: all is done and saved, but a sweep of runs must not go on
            raise Interrupted("stopped after the last epoch")
    if folder is not None:
        records = read_lines(folder / "epochs.jsonl")
    return RunRecord(config_of(run, settings), tuple(records), None if folder is None else str(folder))


def _ignore(record: EpochRecord) -> None:
    """For nobody who listens."""


def train_step(run: Run, optimizer: torch.optim.Optimizer, batch: Batch, clip: float | None = None) -> Tensor:
    """One training step on ``batch``; returns the loss, which stays on the device."""
    model = run.problem.model
    optimizer.zero_grad(set_to_none=True)
    loss = run.accumulate(batch).loss
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    model.project()
    return loss


def train_epoch(
    run: Run,
    optimizer: torch.optim.Optimizer,
    *,
    clip: float | None = None,
    epoch: int | None = None,
    start: int = 0,
    stop: Stop = never,
) -> list[Tensor]:
    """The training steps of one epoch; returns the loss of each step, on the device.

    No step waits for the device: the caller reads the losses when the epoch is over.

    Args:
        clip: largest norm of the gradient; None: no clipping.
        epoch: number of the epoch, counted from 0; by default the run's next one.
        start: number of the first batch, greater than 0 where an interrupted epoch is continued.
        stop: asked after every step; the epoch ends early where it returns True.
    """
    losses = []
    for batch in run.batches(epoch, start):
        losses.append(train_step(run, optimizer, batch, clip))
        if stop():
            break
    return losses


def train(
    run: Run, settings: Settings, run_dir: Path | None = None, resume: bool = False, stop: Stop = never
) -> Iterator[EpochRecord]:
    """The loop itself: yields every epoch's record. Several of these may be run in turns."""
    model = run.problem.model
    optimizer = adam(model, settings.lr, settings.weight_decay)
    position = _open(run_dir, resume, run, settings, optimizer)
    if position is None:
        position = Position()
        run.refresh()
        if run_dir is not None:  # the initial parameters are the caller's: a later start may not have them
            checkpoint.save(run_dir, run, optimizer, position)
    saved = time.monotonic()
    best = max((r.scores["val"] for r in _written(run_dir) if r.scores), default=float("-inf"))

    while position.epoch < settings.epochs:
        started = time.perf_counter() - position.seconds
        losses = train_epoch(run, optimizer, clip=settings.clip, epoch=position.epoch, start=position.step, stop=stop)
        position.step += len(losses)
        position.loss += float(sum(losses))  # waits for the device, so the time below includes all of its work
        position.seconds = time.perf_counter() - started
        if stop() and position.step < run.num_batches:
            _interrupt(run_dir, run, optimizer, position)

        epoch = position.epoch + 1
        due = settings.eval_every and (epoch % settings.eval_every == 0 or epoch == settings.epochs)
        scores = _evaluate(run) if due else None
        record = EpochRecord(epoch, position.loss / run.num_batches, position.seconds, scores, run.solves())
        position.epoch, position.step, position.loss = epoch, 0, 0.0
        if run_dir is not None:
            append_line(run_dir / "epochs.jsonl", record)
            if scores is not None and scores["val"] > best:
                best = scores["val"]
                checkpoint.save_parameters(run_dir / "best.safetensors", model)
            if epoch == settings.epochs or stop() or time.monotonic() - saved >= settings.checkpoint_seconds:
                checkpoint.save(run_dir, run, optimizer, position)
                saved = time.monotonic()
        yield record
        if stop() and epoch < settings.epochs:
            _interrupt(run_dir, run, optimizer, position)


def _evaluate(run: Run) -> dict[str, float]:
    """Scores of the run's model; in small pieces where memory is short enough to keep rows elsewhere."""
    roomy = set(run.tiers.values()) == {"device"}
    size = MAX_ELEMENTS if roomy else FEW_ELEMENTS
    return evaluate_problem(run.problem, run.problem.placement.tier, size, start=run.H.get(1))


def config_of(run: Run, settings: Settings) -> dict[str, Any]:
    """The settings of a run as plain values, for its record and for resuming it."""
    model = run.problem.model
    return {
        "graph": run.graph.name,
        "nodes": run.graph.num_nodes,
        "method": _method_settings(run.method),
        "num_parts": run.clusters.num_parts,
        "clusters_per_batch": run.clusters.per_batch,
        "first_layer": run.first_layer,
        "model": {"name": type(model).__name__, **model.settings},
        "parameters": {name: list(p.shape) for name, p in model.named_parameters()},
        "dtype": str(run.problem.dtype),
        "history": run.problem.placement.tier.name,
        "seed": int(run.seed),
        "device": run.problem.device.type,
        **dataclasses.asdict(settings),
    }


def _method_settings(method: Method) -> dict[str, Any]:
    settings = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    return {"name": method.name} | {k: _method_settings(v) if isinstance(v, Method) else v for k, v in settings.items()}


def _open(
    run_dir: Path | None, resume: bool, run: Run, settings: Settings, optimizer: torch.optim.Optimizer
) -> Position | None:
    """Make or reopen the run folder; the position to go on from, None at the beginning."""
    if run_dir is None:
        if resume:
            raise ConfigError("expected a run_dir to resume from (got none): pass the folder of the run to continue")
        return None
    config, path = {**config_of(run, settings), "data": run.graph.checksum}, run_dir / "config.json"
    if path.exists() and not resume:
        raise ConfigError(
            f"expected a new run folder (got {run_dir}, which holds a run): pass resume=True (--resume) to continue "
            "it, or choose another folder"
        )
    if path.exists():
        _check_same(json.loads(path.read_text()), config, run_dir)
    text = json.dumps(config, indent=1, default=_plain).encode()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        replace(path, text)
    except OSError as error:
        raise ConfigError(f"expected a run folder that can be written (got {run_dir}: {error.strerror})") from error
    position = checkpoint.load(run_dir, run, optimizer)
    # what was written after the checkpoint will be written again
    done = [r for r in _written(run_dir) if position is not None and r.epoch <= position.epoch]
    write_lines(run_dir / "epochs.jsonl", done)
    return position


def _check_same(old: dict[str, Any], new: dict[str, Any], run_dir: Path) -> None:
    free = {"epochs", "eval_every", "checkpoint_seconds"}
    new = json.loads(json.dumps(new, default=_plain))
    differing = [k for k in new if k not in free and old.get(k) != new[k]]
    if differing:
        what = ", ".join(f"{k}: {old.get(k)} there, {new[k]} here" for k in differing)
        raise CheckpointError(f"expected the settings of the run in {run_dir} (got others: {what}): use the same")


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's own."""
    return value.item()


def _written(run_dir: Path | None) -> list[EpochRecord]:
    return [] if run_dir is None else read_lines(run_dir / "epochs.jsonl")


def _interrupt(run_dir: Path | None, run: Run, optimizer: torch.optim.Optimizer, position: Position) -> None:
    if run_dir is None:
        raise Interrupted("stopped; nothing was saved, since no run folder was given")
    checkpoint.save(run_dir, run, optimizer, position)
    raise Interrupted(f"stopped after epoch {position.epoch}, step {position.step}; saved in {run_dir}")
