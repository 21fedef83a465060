"""The settings of training, and the folder of a run: what is written there, and when it may be continued."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lmc.engine import Run
from lmc.engine.distributed import begin_folder, begun_folders
from lmc.errors import (
    CheckpointError,
    ConfigError,
    RunWarning,
    check_at_least,
    check_fields,
    check_positive,
    check_within,
)
from lmc.files import RESTORE, locked, read_json, replace, sync, writable
from lmc.losses import describe
from lmc.methods import ClusterMethod, Method
from lmc.results import EpochRecord, append_lines, as_lines, read_about, read_lines, write_lines
from lmc.train import checkpoint, manifest
from lmc.train.checkpoint import Position
from lmc.train.optimizers import (
    OptimizerFactory,
    PerStep,
    Plateau,
    SchedulerFactory,
    check_factories,
    read_optimizer,
    read_scheduler,
)
from lmc.train.sealed import on_host, write_sealed

FORMAT = 3
"""Version of the files in a run folder. Folders of other versions are refused; format 1 had no number."""

MAY_DIFFER = {
    "epochs", "eval_every", "checkpoint_every", "threads", "patience", "steps", "minutes", "setup_seconds", "ranks",
    "distributed", "clusters_per_batch",
}  # fmt: skip
"""Settings that a resumed run may change. ``clusters_per_batch`` is that of the run, since ranks with few parts have
smaller batches; the setting of the method, of the same name, may not change."""
BEST = "best.safetensors"
RUN_FILES = (
    "config.json", "epochs.jsonl", checkpoint.FILE, checkpoint.PREVIOUS, manifest.FILE, manifest.PREVIOUS, BEST,
)  # fmt: skip
_UNITS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Settings:
    """The settings of the training loop.

    Args:
        epochs: passes over the parts.
        lr, weight_decay: of the optimiser, where it is not a factory or a finished object. None: its own default, which
            is 0 for Adam.
        clip: largest norm of the gradient; None: no clipping.
        eval_every: epochs between evaluations; the last epoch is always evaluated; 0: never.
        checkpoint_every: time, steps or epochs between two checkpoints: "30s", "10min", "2h", "500steps" or "1epochs";
            "auto": 30 s, and at least 20 times as long as the last one took to write. The last epoch always has one.
        patience: evaluations without a better validation score after which training stops; None: it does not.
        steps, minutes: training stops after so many steps, or so much time spent in training steps, also within an
            epoch; a resumed run continues that epoch. None: no limit but ``epochs``.
        restore_best: keep the parameters of the epoch with the best validation score, and restore them at the end.
        optimizer: None: Adam. A spec such as "adamw:weight_decay=5e-4", a function from a list of parameters to an
            optimiser of torch, or an optimiser of the model's parameters.
        scheduler: None: a constant learning rate. A spec such as "cosine:warmup=5", a function from the optimiser to a
            scheduler of torch, or a scheduler. It advances after every epoch; in a :class:`lmc.train.PerStep`, after
            every step. ``ReduceLROnPlateau`` reads the validation score.
        metrics: see :func:`lmc.evaluate`; the first one is the score that chooses the best epoch.
    """

    epochs: int = 100
    lr: float = 0.01
    weight_decay: float | None = None
    clip: float | None = None
    eval_every: int = 1
    checkpoint_every: str = "auto"
    patience: int | None = None
    steps: int | None = None
    minutes: float | None = None
    restore_best: bool = True
    optimizer: str | Optimizer | OptimizerFactory | None = None
    scheduler: str | LRScheduler | SchedulerFactory | PerStep | None = None
    metrics: object = None

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.optimizer, str):
            read_optimizer(self.optimizer)
        if isinstance(self.scheduler, str):
            read_scheduler(self.scheduler)
        check_factories(self.optimizer, self.scheduler)
        check_within("(0, 1e30]", lr=self.lr)  # optimisers refuse or overflow with larger ones
        check_positive(clip=self.clip, minutes=self.minutes)
        check_at_least(0, weight_decay=self.weight_decay, eval_every=self.eval_every)
        check_at_least(1, epochs=self.epochs, patience=self.patience, steps=self.steps)
        interval(self.checkpoint_every)
        self.check_scores(self.score_reader)

    @property
    def score_reader(self) -> str:
        """What reads validation scores, as far as the settings tell; empty where nothing does."""
        plateau = isinstance(self.scheduler, str) and isinstance(read_scheduler(self.scheduler), Plateau)
        return "patience" if self.patience is not None else "the scheduler" * plateau

    def check_scores(self, reader: str, missing: str = "") -> None:
        """Refuse a reader of validation scores where there are none.

        Args:
            reader: what reads them; empty: nothing.
            missing: why a graph gives none; empty where it has validation nodes.
        """
        got = missing or "eval_every=0" * (self.eval_every == 0)
        if reader and got:
            raise ConfigError(f"expected validation scores for {reader} (got {got}): drop it, or provide them")

    def evaluates(self, epoch: int) -> bool:
        """Whether the ``epoch``-th epoch, counted from 1, ends with an evaluation."""
        return self.eval_every > 0 and (epoch % self.eval_every == 0 or epoch == self.epochs)


def interval(text: str) -> tuple[float, str]:
    """What ``checkpoint_every`` says: how many, and of what: "s", "step", "epoch" or "auto"."""
    if text == "auto":
        return 30.0, text
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|step|epoch)s?", text)
    number, unit = (float(found[1]), found[2]) if found else (0.0, "")
    if not found or (unit in ("step", "epoch") and (number < 1 or number != int(number))):
        raise ConfigError(
            f"expected checkpoint_every such as 30s, 10min, 2h, 500steps, 1epochs or auto (got {text!r}): use one"
        )
    return (number * _UNITS[unit], "s") if unit in _UNITS else (number, unit)


class RunFolder:
    """What a run writes and continues from; see :data:`RUN_FILES`. Of several ranks, the first one writes the files
    that are not checkpoints."""

    def __init__(
        self, path: Path, run: Run, optimizer: torch.optim.Optimizer, config: str, checkpoint_every: str = "auto"
    ) -> None:
        self.path, self._epochs = path, path / "epochs.jsonl"
        self._run, self._optimizer, self._config = run, optimizer, config
        self._every, self._unit = interval(checkpoint_every)
        self._write_seconds = 0.0
        self._recorded = hashlib.sha256()
        """The digest of the records so far. A checkpoint contains it, since their file is text that can be edited."""
        self._mark_saved(Position())
        self.records: list[EpochRecord] = []
        """The epochs that were written before."""

    def load(self) -> Position | None:
        """Restore the state of the checkpoint; None where there is none. Then write config.json.

        Records of later epochs are dropped, since those epochs are trained again.
        """
        records = read_lines(self._epochs)
        with writable(self.path):
            position = manifest.load(self.path, self._run, self._optimizer, len(records))
            if position is None and (records or (self.path / BEST).exists()):
                raise CheckpointError(
                    f"expected a checkpoint in {self.path} (got {len(records)} recorded epochs without one): {RESTORE}"
                )
            self.records = records = records[: 0 if position is None else position.epoch]
            self._recorded.update(as_lines(records))
            if position is not None and position.extras.get("records") != self._recorded.hexdigest():
                raise CheckpointError(
                    f"expected the records that were written to {self._epochs} (got others: the file was changed): "
                    f"{RESTORE}"
                )
            if self._run.is_first_rank:
                replace(self.path / "config.json", self._config.encode())
                write_lines(self._epochs, records)
        if position is not None:
            self._mark_saved(position)
        return position

    def save(self, position: Position) -> None:
        """Write a checkpoint; the records of its epochs reach the disk before it."""
        started = time.monotonic()
        position.extras["records"] = self._recorded.hexdigest()
        with self._writing():
            sync(self._epochs)
            manifest.save(self.path, self._run, self._optimizer, position)
        self._write_seconds = time.monotonic() - started
        self._mark_saved(position)

    def _mark_saved(self, position: Position) -> None:
        self.saved = position.epoch, position.step  # of the last checkpoint
        self._saved_at, self._since = time.monotonic(), {"step": 0, "epoch": 0}

    @property
    def timed(self) -> bool:
        """Whether the time decides when a checkpoint is due; clocks of ranks differ."""
        return self._unit not in self._since

    @property
    def steps_since(self) -> int:
        """Steps since the last checkpoint."""
        return self._since["step"]

    def due(self, steps: int = 0, epochs: int = 0) -> bool:
        """Count steps and epochs since the last checkpoint; whether it is time for the next one."""
        self._since["step"] += steps
        self._since["epoch"] += epochs
        if self._unit in self._since:
            return self._since[self._unit] >= self._every
        shortest = max(self._every, 20 * self._write_seconds) if self._unit == "auto" else self._every
        return time.monotonic() - self._saved_at >= shortest

    def append(self, record: EpochRecord) -> None:
        """Append the record of an epoch."""
        if self._run.is_first_rank:
            with self._writing():
                append_lines(self._epochs, [record])
        self._recorded.update(as_lines([record]))

    def save_best(self, epoch: int, parameters: Mapping[str, Tensor]) -> None:
        """Write the parameters of the best epoch, with its number."""
        if not self._run.is_first_rank:
            return
        with self._writing():
            write_sealed(self.path / BEST, on_host(parameters), {"epoch": str(epoch)})

    def _writing(self) -> AbstractContextManager[None]:
        """Turn an error of the disk into a line that says where to continue."""
        return writable(
            self.path, "repair that, then resume from the checkpoint of epoch {}, step {}".format(*self.saved)
        )


def holds_run(path: Path) -> bool:
    """Whether a folder has files of a run."""
    return any((path / name).exists() for name in RUN_FILES)


@contextmanager
def open_folder(
    path: Path | None, resume: bool, run: Run, config: Mapping[str, Any], optimizer: torch.optim.Optimizer,
    checkpoint_every: str = "auto",
) -> Iterator[RunFolder | None]:  # fmt: skip
    """Create or reopen the folder of a run and hold its lock; None where no folder is given. Of several ranks, the
    first one does so, and what it refuses is refused by all."""
    if path is None:
        if resume:
            raise ConfigError("expected a run_dir to resume from (got none): pass the folder of the run to continue")
        yield None
        return
    exchange = run.evaluated.exchange if run.sync else None
    written = {"format": FORMAT, **config, "data": (exchange.shard if exchange else run.whole).checksum}
    text = json.dumps(written, indent=1, default=lambda number: number.item())  # of numpy or torch
    with ExitStack() as held:
        with checkpoint.together(run):
            if run.is_first_rank:
                held.enter_context(locked(path))
                again = run.sync is not None and str(path.absolute()) in begun_folders()
                check_unused(path, resume or again)
                _check_config(path, json.loads(text))
                if run.sync is not None:
                    begin_folder(path)
        yield RunFolder(path, run, optimizer, text, checkpoint_every)


def check_unused(path: Path, resume: bool) -> None:
    """Refuse a folder that a new run may not use, or with ``resume`` one that no run may use."""
    if holds_run(path) and not resume:
        raise ConfigError(
            f"expected a new run folder (got {path}, which holds a run): pass resume=True (--resume) to continue "
            "it, or choose another folder (--overwrite replaces the run)"
        )
    about = None if holds_run(path) else read_about(path)
    if about and about.methods:
        raise ConfigError(f"expected a folder for a run (got {path}, which holds a comparison): choose another folder")


def _check_config(path: Path, config: dict[str, Any]) -> None:
    """Refuse a folder whose run has other settings."""
    file = path / "config.json"
    if holds_run(path) and not file.exists():
        raise CheckpointError(f"expected a config.json in {path} (got files of a run without it): {RESTORE}")
    if file.exists():
        _check_same(file, config)


def config_of(run: Run, settings: Settings) -> dict[str, Any]:
    """The settings of a run as plain values, for its record and for resuming it."""
    model = run.problem.model
    return {
        "graph": run.graph.name,
        "nodes": run.problem.num_nodes,
        "task": run.graph.task,
        "method": _method_settings(run.schedule or run.method),
        "num_parts": run.clusters.num_parts,
        "clusters_per_batch": run.clusters.per_batch,
        "first_layer": run.first_layer,
        "loss": describe(run.problem.loss),
        "model": {"name": type(model).__name__, **model.settings, "arguments": model.arguments},
        "parameters": {name: list(p.shape) for name, p in model.named_parameters()},
        "dtype": str(run.problem.dtype),
        "history": run.problem.placement.tier.name,
        "seed": int(run.seed),
        "device": run.problem.device.type,
        "threads": torch.get_num_threads(),
        **({"inductive": True} if run.whole is not run.graph else {}),
        "setup_seconds": run.setup_seconds,
        **{k: v for k, v in vars(settings).items() if k not in ("optimizer", "scheduler", "metrics")},
        **_ranks(run),
    }


def _ranks(run: Run) -> dict[str, Any]:
    """The settings of a distributed run; it has the parts of all ranks, and batches as the largest rank has them."""
    if run.sync is None:
        return {}
    return {
        "num_parts": run.sync.schedule.num_parts if isinstance(run.method, ClusterMethod) else 1,
        "clusters_per_batch": run.sync.schedule.per_batch,
        "ranks": run.sync.world.ranks,
        "distributed": dataclasses.asdict(run.sync.world.options),
    }


def _method_settings(method: Method) -> dict[str, Any]:
    settings = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    plain = {k: _method_settings(v) if isinstance(v, Method) else v for k, v in settings.items()}
    return {"name": method.traits.name} | plain


def _check_same(file: Path, new: dict[str, Any]) -> None:
    """Refuse to continue a run of another format or with other settings."""
    path, old = file.parent, read_json(file)
    if old.get("format") != FORMAT:
        raise CheckpointError(
            f"expected a run folder of format {FORMAT} (got {path} of format {old.get('format', 1)}, which another "
            "version of lmc wrote): start again in another folder"
        )
    # the checksum of one process is that of the graph in run order, which no rank holds
    ignored = MAY_DIFFER | ({"data"} if ("ranks" in old) != ("ranks" in new) else set())
    differing = [d for k in new if k not in ignored for d in _differences(k, old.get(k), new[k])]
    if differing:
        what = ", ".join(differing[:5]) + f", and {len(differing) - 5} more" * (len(differing) > 5)
        raise CheckpointError(f"expected the settings of the run in {path} (got others: {what}): use the same")
    if new["device"] == "cpu" and old.get("threads") != new["threads"]:
        warnings.warn(
            f"the run in {path} used {old.get('threads')} threads, and this process uses {new['threads']}: sums may "
            "differ in their last digits",
            RunWarning,
            stacklevel=2,
        )


def _differences(name: str, old: Any, new: Any) -> Iterator[str]:
    """What differs between two settings, in words; of two dicts only the entries that do."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**new, **old}:
            if key != "num_parts":  # the method has none where shards are given; those of the run are compared
                yield from _differences(f"{name}: {key}", old.get(key), new.get(key))
    elif old != new:
        yield f"{name}: {str(old)[:80]} there, {str(new)[:80]} here"
