"""Records of training runs, as values and as JSON lines, and files that are written atomically."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from lmc.errors import CheckpointError, typed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R")


@dataclass(frozen=True)
class EpochRecord:
    """The record of one epoch.

    For recurrent models ``solver`` has the mean steps of a forward and of a backward solve, the number of solves that
    were ``unconverged``, and the largest residual.
    """

    epoch: int
    loss: float  # the mean of the batches' estimates
    seconds: float  # time of training steps since the start of the run, without evaluation
    scores: Mapping[str, float] | None = None  # train, val and test accuracy (micro-F1 for multi-label), if evaluated
    solver: Mapping[str, float] | None = None
    logged: Mapping[str, float | None] | None = None  # what callbacks logged; None: not a finite number


@dataclass(frozen=True)
class RunRecord:
    """The record of a run: its settings and its epochs."""

    config: Mapping[str, Any]
    epochs: tuple[EpochRecord, ...]
    run_dir: str | None = None

    @property
    def best(self) -> EpochRecord | None:
        """The first epoch with the best validation score; the last epoch where there are no validation scores."""
        scored = [e for e in self.epochs if e.scores and "val" in e.scores]
        last = self.epochs[-1] if self.epochs else None
        return max(scored, key=lambda e: (e.scores or {})["val"], default=last)

    @property
    def best_epoch(self) -> int | None:
        """The number of the best epoch, whose parameters :func:`lmc.fit` restores by default."""
        return self.best.epoch if self.best else None

    @property
    def best_val(self) -> float | None:
        """The best validation score."""
        return self._at_best("val")

    @property
    def test(self) -> float | None:
        """The test score of the best epoch."""
        return self._at_best("test")

    def _at_best(self, split: str) -> float | None:
        return (self.best.scores or {}).get(split) if self.best else None

    @property
    def loss(self) -> float | None:
        """The last epoch's training loss."""
        return self.epochs[-1].loss if self.epochs else None

    @property
    def seconds(self) -> float:
        """Time of all training steps, in seconds."""
        return self.epochs[-1].seconds if self.epochs else 0.0


@dataclass(frozen=True)
class ErrorRecord:
    """The relative gradient error against backward SGD after an epoch, per layer, and its mean over the parameters."""

    epoch: int
    layers: Mapping[str, float]
    mean: float


def mean_errors(records: Iterable[ErrorRecord]) -> dict[str, float]:
    """The mean error of every layer over the measurements."""
    measured = [r.layers for r in records]
    return {layer: sum(m[layer] for m in measured) / len(measured) for layer in (measured[0] if measured else ())}


def write_lines(path: Path, records: Iterable[DataclassInstance]) -> None:
    """Replace the file by these records, atomically."""
    replace(path, _as_lines(records).encode())


def append_lines(path: Path, records: Iterable[DataclassInstance]) -> None:
    """Append records to the file, in one write."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_as_lines(records))


def _as_lines(records: Iterable[DataclassInstance]) -> str:
    return "".join(json.dumps(asdict(record), allow_nan=False) + "\n" for record in records)


def read_lines(path: Path) -> list[EpochRecord]:
    """The epochs in a file."""
    return read_records(path, EpochRecord)


def read_errors(path: Path) -> list[ErrorRecord]:
    """The measurements in a file; of an epoch that was trained twice, after an interruption, the last one counts."""
    return list({record.epoch: record for record in read_records(path, ErrorRecord)}.values())


def read_records(path: Path, kind: Callable[..., R]) -> list[R]:
    """The records in a file, without a last line that was written incompletely."""
    records = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(kind(**json.loads(line)))
        except (ValueError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise CheckpointError(
                f"expected one JSON record per line in {path} (got line {number}: {error})"
            ) from error
    return records


@typed
def read_run(run_dir: str | Path) -> RunRecord:
    """The record of a run folder."""
    run_dir = Path(run_dir)
    config = run_dir / "config.json"
    if not config.exists():
        raise CheckpointError(f"expected a run folder with a config.json (got {run_dir}): name one that lmc wrote")
    return RunRecord(json.loads(config.read_text()), tuple(read_lines(run_dir / "epochs.jsonl")), str(run_dir))


def user_cache() -> Path:
    """The user's folder for what can be made again: $XDG_CACHE_HOME (or ~/.cache) /lmc."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lmc"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, atomically."""
    with replacing(path) as file:
        file.write(content)
