"""Checkpoints: one file (:mod:`lmc.train.sealed`) holds everything that the next step depends on.

The last two checkpoints are kept.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmc.engine import Run
from lmc.engine.run import check_state
from lmc.errors import CheckpointError, RunWarning
from lmc.files import RESTORE
from lmc.stores import Table
from lmc.train.sealed import Damaged, FileMatrix, matrices_in, on_host, read_sealed, write_sealed

FILE, PREVIOUS, DAMAGED = (f"checkpoint{kind}.safetensors" for kind in ("", ".previous", ".damaged"))
_ELEMENTWISE = (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad)
"""Optimisers whose state is numbers, and tensors of the shape of their parameter."""


@dataclass
class Position:
    """The progress of training: ``step`` batches of ``epoch`` are done, and the sum of their losses is ``loss``.

    ``seconds`` is the time spent in training steps since the beginning of the run. ``extras`` is what else training
    continues from, by name: tensors, numbers, texts, and lists, tuples and dicts of these.
    """

    epoch: int = 0
    step: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    extras: dict[str, Any] = field(default_factory=dict)


Content = tuple[dict[str, Tensor | Table], dict[str, str]]
"""The entries of a file, and its metadata."""


def save(run_dir: Path, run: Run, optimizer: torch.optim.Optimizer, position: Position) -> None:
    """Write parameters, buffers, optimiser, histories, partition and generators; the checkpoint before it is kept."""
    (entries, metadata), (rows, more) = shared_content(run, optimizer, position), row_content(run)
    write_sealed(run_dir / FILE, entries | rows, more | metadata, run_dir / PREVIOUS)


def shared_content(run: Run, optimizer: torch.optim.Optimizer, position: Position) -> Content:
    """What is the same on all ranks: parameters, buffers, optimiser and position."""
    tensors = {f"model.{k}": v for k, v in run.problem.model.state_dict().items()}
    return _packed(tensors, {"position": vars(position), "optimizer": optimizer.state_dict()})


def row_content(run: Run) -> Content:
    """What one rank has of its own: histories, partition and generators."""
    tensors = {f"run.{k}": v for k, v in run.state_dict(tables=False).items()}
    values = {"generators": _global_generators(run), "per_batch": run.clusters.per_batch}
    entries, metadata = _packed(tensors, values)
    return entries | {f"run.{k}": t for k, t in run.named_tables().items()}, metadata


def _packed(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Content:
    metadata = {name: json.dumps(pack(value, name, tensors)) for name, value in values.items()}
    return {**on_host(tensors)}, metadata


def load(
    run_dir: Path, run: Run, optimizer: torch.optim.Optimizer, recorded: float = math.inf,
    files: tuple[str, str, str] = (FILE, PREVIOUS, DAMAGED), read: Reader | None = None,
) -> Position | None:  # fmt: skip
    """Restore the newest checkpoint that is whole, after a warning where it is the older one; None where there is none.

    Everything is checked before the run, its model or the optimiser change.

    Args:
        recorded: the number of epochs that have a record; a checkpoint of a later epoch is not used.
        files: names of the newest checkpoint, of the one before it, and of one that is found damaged.
        read: reads one of them; by default as :func:`save` writes it.
    """
    read = read or _read
    newest, previous, damaged = (run_dir / name for name in files)
    problems: list[str] = []
    none = not (newest.exists() or previous.exists())
    for path in (newest, previous):
        with together(run):
            saved, problem = _tried(read, path, run, recorded)
        problem = problem if run.sync is None else next(filter(None, run.sync.world.texts(problem)), "")
        if saved is None or problem:
            problems.append(problem)
            continue
        with together(run):
            saved.agree(run)
            saved.check(path, run, optimizer)
        older = bool(problems) and run.is_first_rank
        if older:
            warnings.warn(f"{problems[0]}: continuing from the checkpoint before it", RunWarning, stacklevel=2)
        saved.restore(run, optimizer)
        if older:
            _set_aside(newest, damaged, path)
        return saved.position
    if none:
        return None
    raise CheckpointError(f"expected a whole checkpoint in {run_dir} (got none: {'; '.join(problems)}): {RESTORE}")


def _tried(read: Reader, path: Path, run: Run, recorded: float) -> tuple[Saved | None, str]:
    """What a checkpoint holds, or why it cannot be used."""
    if not path.exists():
        return None, f"{path} is missing"
    try:
        return read(path, run, recorded), ""
    except Damaged as error:
        return None, str(error)


def _set_aside(newest: Path, damaged: Path, whole: Path) -> None:
    """Rename the newest checkpoint, so that the next one does not take the place of the one that is whole."""
    if newest.exists():
        os.replace(newest, damaged)
    os.replace(whole, newest)


def together(run: Run) -> AbstractContextManager[None]:
    """Within, an error of one rank is raised on all of them."""
    return nullcontext() if run.sync is None else run.sync.world.together()


@dataclass
class Saved:
    """What a checkpoint holds; the rows of ``tables`` stay in the files. ``moved``: other ranks have written it."""

    tensors: dict[str, Tensor]
    tables: Mapping[str, Any]
    position: Position
    optimizer: dict[str, Any]
    generators: dict[str, Tensor]
    moved: bool = False

    @property
    def state(self) -> dict[str, Any]:
        return _prefixed(self.tensors, "run.") | dict(self.tables)

    def agree(self, run: Run) -> None:
        """Treat the files alike on all ranks. Other ranks have other batches, so an epoch that was interrupted begins
        again."""
        self.moved = self.moved if run.sync is None else run.sync.world.any(self.moved)
        if self.moved:
            self.position.step, self.position.loss = 0, 0.0

    def check(self, path: Path, run: Run, optimizer: torch.optim.Optimizer) -> None:
        """Refuse what does not belong to such a run, model and optimiser."""
        if _signature(_prefixed(self.tensors, "model.")) != _signature(run.problem.model.state_dict()):
            raise CheckpointError(
                f"expected the model that {path} was saved from (got parameters of other shape or type): use the same"
            )
        check_state(run, self.state)
        if _signature(self.generators) != _signature(_global_generators(run)):
            raise CheckpointError(f"expected the states of torch's generators in {path} (got others): {RESTORE}")
        _check_optimizer(path, optimizer, self.optimizer)
        p = self.position
        whole = all(type(k) is int and k >= 0 for k in (p.epoch, p.step)) and p.step <= run.num_batches
        finite = all(isinstance(v, float | int) and math.isfinite(v) for v in (p.loss, p.seconds)) and p.seconds >= 0
        if not (whole and finite and isinstance(p.extras, dict)):
            raise CheckpointError(
                f"expected a position of this run in {path} (got epoch {p.epoch}, step {p.step}, loss {p.loss}, "
                f"{p.seconds} s): {RESTORE}"
            )

    def restore(self, run: Run, optimizer: torch.optim.Optimizer) -> None:
        run.problem.model.load_state_dict(_prefixed(self.tensors, "model."))
        run.load_state_dict(self.state)
        optimizer.load_state_dict(self.optimizer)
        if "cpu" in self.generators:
            torch.set_rng_state(self.generators["cpu"])
        if "cuda" in self.generators:
            torch.cuda.set_rng_state(self.generators["cuda"], run.problem.device)
        if run.sync is not None:
            run.sync.resumed(self.position.epoch, self.position.step)
        if self.moved:
            self._settle_in(run)

    def _settle_in(self, run: Run) -> None:
        """Complete what other ranks have written: what this rank mirrors, or everything where a method sweeps."""
        if run.method.traits.sweeps:
            run.refresh()
        elif run.sync is not None:
            run.sync.publish()


Reader = Callable[[Path, Run, float], Saved]


def _read(path: Path, run: Run, recorded: float) -> Saved:
    return decoded(path, *read_rows(path, run), recorded)


def read_rows(path: Path, run: Run) -> tuple[dict[str, Tensor], dict[str, FileMatrix], dict[str, str]]:
    """The tensors, tables and metadata of a file that is whole."""
    names = run.named_tables()
    tensors, metadata = read_sealed(path, but={f"run.{name}" for name in names})
    return tensors, {k: v for k, v in _prefixed(matrices_in(path), "run.").items() if k in names}, metadata


def decoded(
    path: Path, tensors: dict[str, Tensor], tables: Mapping[str, Any], metadata: Mapping[str, str], recorded: float
) -> Saved:
    """What these tensors and metadata mean."""
    try:
        values = {k: unpack(json.loads(metadata[k]), tensors) for k in ("position", "optimizer", "generators")}
        position = Position(**values["position"])
        unrecorded = position.epoch > recorded
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} lacks a value ({error})") from error
    if unrecorded:
        raise Damaged(f"{path} is of epoch {position.epoch}, but only {recorded} epochs have a record")
    return Saved(tensors, tables, position, values["optimizer"], values["generators"])


def _check_optimizer(path: Path, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Refuse the state of an optimiser of other parameters."""
    groups = [len(group["params"]) for group in optimizer.param_groups]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    fits = [len(group["params"]) for group in state["param_groups"]] == groups
    fits &= all(isinstance(index, int) and 0 <= index < len(parameters) for index in state["state"])
    if fits and isinstance(optimizer, _ELEMENTWISE):
        fits = not any(_other_shapes(values, parameters[index]) for index, values in state["state"].items())
    if not fits:
        raise CheckpointError(
            f"expected the optimiser that {path} was saved with (got parameters of other shapes): use the same"
        )


def _other_shapes(values: Mapping[str, Any], parameter: Tensor) -> bool:
    """Whether an optimiser keeps tensors that are neither numbers nor shaped as their parameter."""
    tensors = (v for v in values.values() if isinstance(v, Tensor))
    return any(v.numel() != 1 and v.shape != parameter.shape for v in tensors)


def _global_generators(run: Run) -> dict[str, Tensor]:
    """The state of torch's own generators, which a wrapped network may use; models of this library do not."""
    device = run.problem.device
    if not run.problem.model.owns_forward:
        return {}
    return {"cpu": torch.get_rng_state()} | (
        {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    )


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; its tensors go to ``tensors``, named after their place in the value."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[k, pack(v, f"{name}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [pack(v, f"{name}.{k}", tensors) for k, v in enumerate(value)]}
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no token for it
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"expected tensors and plain values in a checkpoint (got {type(value).__name__} as {name}): keep other "
        "objects out of the state that is saved"
    )


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that :func:`pack` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content].clone()  # into aligned memory: a dot product may depend on the alignment
    if kind == "float":
        return float(content)
    if kind == "dict":
        return {k: unpack(v, tensors) for k, v in content}
    return {"list": list, "tuple": tuple}[kind](unpack(v, tensors) for v in content)


def _signature(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in state.items()}


def _prefixed(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
