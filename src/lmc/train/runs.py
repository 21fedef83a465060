"""Run folders: load the model of a run, and name, find and clear folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lmc.errors import CheckpointError, ConfigError, typed
from lmc.files import RESTORE, locked, writable
from lmc.models import MODELS, Model
from lmc.results import RunRecord, read_run
from lmc.train import checkpoint, manifest
from lmc.train.run_folder import BEST, FORMAT, RUN_FILES, holds_run
from lmc.train.sealed import Damaged, matrices_in, read_sealed


@typed
def load_run(run_dir: str | Path, model: Model | None = None) -> tuple[Model, dict[str, Any], RunRecord]:
    """The model of a run folder in evaluation mode, the settings of the run and its record.

    The model has the parameters of the best epoch, or of the last checkpoint where the run did not choose a best epoch.

    Args:
        model: a model to load the parameters into; needed where the folder does not say how the model was made, such as
            for a wrapped network.
    """
    path = Path(run_dir)
    record = read_run(path)
    config = dict(record.config)
    if config.get("format") != FORMAT:
        raise CheckpointError(
            f"expected a run folder of format {FORMAT} (got {path} of format {config.get('format', 1)}): train again"
        )
    parameters = _parameters(path, record)
    model = _made(path, config) if model is None else model
    model.to(dtype=next(value.dtype for value in parameters.values() if value.is_floating_point()))
    own = {name: value.shape for name, value in model.state_dict().items()}
    saved = {name: value.shape for name, value in parameters.items()}
    if own != saved:
        name = next(name for name in {**own, **saved} if own.get(name) != saved.get(name))
        raise ConfigError(
            f"expected the model of the run in {path} (got another one: {name} has shape "
            f"{list(own.get(name, ())) or 'none'} there and {list(saved.get(name, ())) or 'none'} in the folder): make "
            "it as the model of the run was made"
        )
    model.load_state_dict(parameters)
    model.eval()
    return model, config, record


def _parameters(path: Path, record: RunRecord) -> Mapping[str, Tensor]:
    """The parameters and buffers that a run ended with."""
    best, last = path / BEST, manifest.shared_file(path) or path / checkpoint.FILE
    chose = record.config.get("restore_best") and record.best_val is not None
    try:
        if best.exists():
            return read_sealed(best)[0]
        if last.exists() and not chose:
            tables = [name for name in matrices_in(last) if not name.startswith("model.")]
            tensors, _ = read_sealed(last, but=tables)
            return {name.removeprefix("model."): value for name, value in tensors.items()}
    except Damaged as error:
        raise CheckpointError(f"expected parameters in {path} (got damage: {error}): {RESTORE}") from error
    raise CheckpointError(f"expected {BEST} in {path} (got none): train to the end of an epoch, or name another folder")


def _made(path: Path, config: Mapping[str, Any]) -> Model:
    """A model like that of the run."""
    written = config.get("model")
    described = written if isinstance(written, dict) else {}
    classes = {cls.__name__: cls for cls in MODELS.values()}
    name, arguments = described.get("name"), described.get("arguments")
    if name not in classes or not isinstance(arguments, dict):
        raise ConfigError(
            f"expected a run of a model of lmc.models (got {name} in {path}, whose code is not in the folder): make it "
            "in Python, pass it to lmc.load_run(run_dir, model=...) and use lmc.predict"
        )
    try:
        return classes[name](**arguments)
    except TypeError as error:
        raise CheckpointError(f"expected the arguments of {name} in {path} (got {error}): {RESTORE}") from error


def new_folder(root: Path, name: str) -> Path:
    """Make and return the folder ``root/name-K`` with the next free number K."""
    number = max(_numbers(root, name), default=0) + 1
    with writable(root):
        while True:  # another process may take the number at the same time
            try:
                (root / f"{name}-{number}").mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return root / f"{name}-{number}"


def latest_folder(root: Path, name: str) -> Path | None:
    """The folder ``root/name-K`` with the largest number K, apart from empty ones, which refused runs leave behind."""
    used = [number for number in _numbers(root, name) if any((root / f"{name}-{number}").iterdir())]
    return root / f"{name}-{max(used)}" if used else None


def _numbers(root: Path, name: str) -> list[int]:
    found = (re.fullmatch(rf"{re.escape(name)}-([1-9]\d*)", path.name) for path in root.glob("*") if path.is_dir())
    return [int(match[1]) for match in found if match]


def clear_folder(path: Path, also: tuple[str, ...] = ()) -> None:
    """Delete the files of a run, and those named ``also``, which no process may be using; other files stay."""
    if not holds_run(path):
        return
    with locked(path), writable(path):
        for name in (*RUN_FILES, checkpoint.DAMAGED, *also):
            (path / name).unlink(missing_ok=True)
        manifest.clear(path)
