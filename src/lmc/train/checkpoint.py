"""Checkpoints: one safetensors file holds everything that the next step depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from lmc.engine import Run
from lmc.errors import CheckpointError
from lmc.results import replacing
from lmc.stores import Table
from lmc.train import tensorfile

FILE = "checkpoint.safetensors"


@dataclass
class Position:
    """The progress of training: ``step`` batches of ``epoch`` are done, and the sum of their losses is ``loss``.

    ``seconds`` is the time spent in training steps since the beginning of the run.
    """

    epoch: int = 0
    step: int = 0
    loss: float = 0.0
    seconds: float = 0.0


def save(run_dir: Path, run: Run, optimizer: torch.optim.Optimizer, position: Position) -> None:
    """Write parameters, buffers, optimiser, histories, partition and generators; the old file is replaced at once."""
    entries: dict[str, Tensor | Table] = {f"run.{k}": t for k, t in run.named_tables().items()}
    with replacing(run_dir / FILE) as file:
        tensorfile.write(file, entries | _tensors(run, optimizer), {"position": json.dumps(vars(position))})


def load(run_dir: Path, run: Run, optimizer: torch.optim.Optimizer) -> Position | None:
    """Restore what :func:`save` wrote; None where nothing was saved yet."""
    path = run_dir / FILE
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tables = {f"run.{name}" for name in run.named_tables()}
            tensors = {key: file.get_tensor(key) for key in file.keys() if key not in tables}  # noqa: SIM118
            position = Position(**json.loads(file.metadata()["position"]))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"expected a checkpoint in {path} (got a damaged file: {error}): start again in another folder"
        ) from error
    model, saved = run.problem.model, _prefixed(tensors, "model.")
    if _signature(saved) != _signature(model.state_dict()):
        raise CheckpointError(f"expected the model that {path} was saved from (got parameters of other shape or type)")
    model.load_state_dict(saved)
    histories = {key: matrix for key, matrix in tensorfile.matrices_in(path).items() if key in tables}
    run.load_state_dict(_prefixed(tensors | histories, "run."))
    _load_optimizer(optimizer, _prefixed(tensors, "optimizer."))
    return position


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """These tensors as safetensors writes them."""
    return {k: v.detach().cpu().contiguous() for k, v in tensors.items()}


def _tensors(run: Run, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"model.{k}": v for k, v in run.problem.model.state_dict().items()}
    tensors |= {f"run.{k}": v for k, v in run.small_state().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": torch.as_tensor(value) for key, value in state.items()}
    return on_host(tensors)


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _signature(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in state.items()}


def _prefixed(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
