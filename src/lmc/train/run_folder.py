"""The settings of training, and the folder of a run: what is written there, and when it may be continued."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from lmc.engine import Run
from lmc.errors import CheckpointError, ConfigError, check_fields
from lmc.methods import Method
from lmc.results import EpochRecord, append_lines, read_lines, replace, write_lines
from lmc.train import checkpoint
from lmc.train.checkpoint import Position

FORMAT = 3
"""Version of the files in a run folder. Folders of other versions are refused; format 1 had no number."""

MAY_DIFFER = {"epochs", "eval_every", "checkpoint_seconds", "patience", "steps", "minutes"}
"""Settings that a resumed run may change."""


@dataclass(frozen=True)
class Settings:
    """The settings of the training loop.

    Args:
        epochs: passes over the parts.
        lr, weight_decay: of Adam.
        clip: largest norm of the gradient; None: no clipping.
        eval_every: epochs between evaluations; the last epoch is always evaluated; 0: never.
        checkpoint_seconds: shortest time between two checkpoints at the end of an epoch.
        patience: evaluations without a better validation score after which training stops; None: it does not.
        steps, minutes: training stops after so many steps, or so much time spent in training steps, also within an
            epoch; a resumed run continues that epoch. None: no limit but ``epochs``.
        restore_best: keep the parameters of the epoch with the best validation score, and restore them at the end.
    """

    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 0.0
    clip: float | None = None
    eval_every: int = 1
    checkpoint_seconds: float = 30.0
    patience: int | None = None
    steps: int | None = None
    minutes: float | None = None
    restore_best: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.epochs < 1:
            raise ConfigError(f"expected at least 1 epoch, a whole number (got {self.epochs})")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"expected a positive lr (got {self.lr})")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"expected weight_decay of at least 0 (got {self.weight_decay})")
        for name in ("patience", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"expected {name} of at least 1, or None (got {value})")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ConfigError(f"expected positive minutes, or None (got {self.minutes})")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ConfigError(f"expected a positive clip, or None (got {self.clip})")
        if self.eval_every < 0:
            raise ConfigError(f"expected eval_every of at least 0 (got {self.eval_every})")

    def evaluates(self, epoch: int) -> bool:
        """Whether the ``epoch``-th epoch, counted from 1, ends with an evaluation."""
        return self.eval_every > 0 and (epoch % self.eval_every == 0 or epoch == self.epochs)


class RunFolder:
    """What a run writes and continues from: config.json, epochs.jsonl, checkpoint.safetensors, best.safetensors."""

    def __init__(self, path: Path, run: Run, optimizer: torch.optim.Optimizer) -> None:
        self.path, self._epochs = path, path / "epochs.jsonl"
        self._run, self._optimizer = run, optimizer
        self._saved_at = time.monotonic()
        self.saved = (0, 0)  # epoch and step of the last checkpoint

    def load(self) -> Position | None:
        """Restore the state of the checkpoint; None where there is none.

        Records of later epochs are dropped, since those epochs are trained again.
        """
        position = checkpoint.load(self.path, self._run, self._optimizer)
        done = [r for r in read_lines(self._epochs) if position is not None and r.epoch <= position.epoch]
        write_lines(self._epochs, done)
        self._saved_at = time.monotonic()
        if position is not None:
            self.saved = position.epoch, position.step
        return position

    def records(self) -> list[EpochRecord]:
        """The epochs that were written."""
        return read_lines(self._epochs)

    def save(self, position: Position) -> None:
        """Write a checkpoint."""
        checkpoint.save(self.path, self._run, self._optimizer, position)
        self._saved_at, self.saved = time.monotonic(), (position.epoch, position.step)

    def seconds_since_save(self) -> float:
        """Time since the last checkpoint, or since the folder was opened."""
        return time.monotonic() - self._saved_at

    def append(self, record: EpochRecord) -> None:
        """Write the record of an epoch."""
        append_lines(self._epochs, [record])

    def save_best(self, epoch: int, parameters: Mapping[str, Tensor]) -> None:
        """Write the parameters of the best epoch, with its number."""
        content = safetensors.torch.save(checkpoint.on_host(parameters), {"epoch": str(epoch)})
        replace(self.path / "best.safetensors", content)


def open_folder(
    path: Path | None, resume: bool, run: Run, config: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> RunFolder | None:
    """Create or reopen the folder of a run, and write its config.json; None where no folder is given."""
    if path is None:
        if resume:
            raise ConfigError("expected a run_dir to resume from (got none): pass the folder of the run to continue")
        return None
    file = path / "config.json"
    if file.exists() and not resume:
        raise ConfigError(
            f"expected a new run folder (got {path}, which holds a run): pass resume=True (--resume) to continue "
            "it, or choose another folder"
        )
    written = {"format": FORMAT, **config, "data": run.graph.checksum}
    text = json.dumps(written, indent=1, default=lambda number: number.item())  # of numpy or torch
    if file.exists():
        _check_same(file, json.loads(text))
    try:
        path.mkdir(parents=True, exist_ok=True)
        replace(file, text.encode())
    except OSError as error:
        raise ConfigError(f"expected a run folder that can be written (got {path}: {error.strerror})") from error
    return RunFolder(path, run, optimizer)


def config_of(run: Run, settings: Settings) -> dict[str, Any]:
    """The settings of a run as plain values, for its record and for resuming it."""
    model = run.problem.model
    return {
        "graph": run.graph.name,
        "nodes": run.graph.num_nodes,
        "method": _method_settings(run.schedule or run.method),
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
    plain = {k: _method_settings(v) if isinstance(v, Method) else v for k, v in settings.items()}
    return {"name": method.traits.name} | plain


def _check_same(file: Path, new: dict[str, Any]) -> None:
    """Refuse to continue a run of another format or with other settings."""
    path = file.parent
    try:
        old = dict(json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"expected JSON in {file} (got a damaged file: {error}): start again in another folder"
        ) from error
    if old.get("format") != FORMAT:
        raise CheckpointError(
            f"expected a run folder of format {FORMAT} (got {path} of format {old.get('format', 1)}, which another "
            "version of lmc wrote): start again in another folder"
        )
    differing = [k for k in new if k not in MAY_DIFFER and old.get(k) != new[k]]
    if differing:
        what = ", ".join(f"{k}: {old.get(k)} there, {new[k]} here" for k in differing)
        raise CheckpointError(f"expected the settings of the run in {path} (got others: {what}): use the same")
