"""Records of training runs, as values and as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lmc.errors import CheckpointError, ConfigError, typed
from lmc.files import RESTORE, parse_json, read_json, replace, writable

if TYPE_CHECKING:
    import pandas
    from _typeshed import DataclassInstance

__all__ = ["EpochRecord", "ErrorRecord", "RunRecord", "read_run"]

R = TypeVar("R")

SHARES = ("accuracy", "micro-f1", "top-k-micro-f1", "roc-auc")
"""Metrics between 0 and 1, whose scores are shown as percentages."""


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

    def flat(self) -> dict[str, float | None]:
        """All values by name: ``epoch loss seconds``, the scores, ``solver.*`` and ``logged.*``."""
        values: dict[str, float | None] = {"epoch": self.epoch, "loss": self.loss, "seconds": self.seconds}
        values |= self.scores or {}
        for prefix, more in (("solver", self.solver), ("logged", self.logged)):
            values |= {f"{prefix}.{name}": value for name, value in (more or {}).items()}
        return values


@dataclass(frozen=True)
class RunRecord:
    """The record of a run: its settings and its epochs."""

    config: Mapping[str, Any]
    epochs: tuple[EpochRecord, ...]
    run_dir: str | None = None

    def __repr__(self) -> str:
        found = {split: self._at_best(split) for split in ("val", "test")}
        scores = "".join(f", {split} {score:.4g}" for split, score in found.items() if score is not None)
        where = "" if self.run_dir is None else f", {self.run_dir}"
        return f"RunRecord({len(self.epochs)} epochs, best epoch {self.best_epoch}{scores}{where})"

    @property
    def metric(self) -> str:
        """The metric that chooses the best epoch."""
        return str((self.config.get("metrics") or ["accuracy"])[0])

    @property
    def smaller_is_better(self) -> bool:
        """Whether the metric is an error."""
        return self.config.get("direction") == "min"

    @property
    def best(self) -> EpochRecord | None:
        """The first epoch with the best validation score; the last epoch where there are no validation scores."""
        scored = [e for e in self.epochs if e.scores and "val" in e.scores]
        last = self.epochs[-1] if self.epochs else None
        choose = min if self.smaller_is_better else max
        return choose(scored, key=lambda e: (e.scores or {})["val"], default=last)

    def reached(self, target: float) -> EpochRecord | None:
        """The first epoch whose test score is at least as good as ``target``."""
        sign = -1 if self.smaller_is_better else 1
        scored = (e for e in self.epochs if e.scores and "test" in e.scores)
        return next((e for e in scored if sign * (e.scores or {})["test"] >= sign * target), None)

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

    def to_pandas(self) -> pandas.DataFrame:
        """A table with one row per epoch: the columns are those of :meth:`EpochRecord.flat`."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("expected the package pandas (got none): pip install pandas, or use to_csv") from error
        return pandas.DataFrame([epoch.flat() for epoch in self.epochs])

    @typed
    def to_csv(self, path: str | Path) -> Path:
        """Write the epochs to a file of comma-separated values, with the columns of :meth:`EpochRecord.flat`."""
        rows, path = [epoch.flat() for epoch in self.epochs], Path(path)
        columns = dict.fromkeys(name for row in rows for name in row)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        with writable(path.parent, "choose another path"):
            replace(path, text.getvalue().encode())
        return path


def target_score(runs: Collection[RunRecord]) -> float | None:
    """A test score a little worse than the best one of these runs, which each of them may reach at some time: 0.5
    percentage points worse, or 1 % where the metric is no share. None where no run has a test score."""
    scores = [(run.test, run) for run in runs if run.test is not None]
    if not scores:
        return None
    first = scores[0][1]
    best = (min if first.smaller_is_better else max)(score for score, _ in scores)
    slack = 0.005 if first.metric.lower() in SHARES else 0.01 * abs(best)
    return best + slack if first.smaller_is_better else best - slack


def seconds_to(target: float | None, runs: Mapping[str, RunRecord]) -> dict[str, float | None]:
    """The seconds in which each run first reaches a test score, the fastest first; None where it does not."""
    found = {label: None if target is None else run.reached(target) for label, run in runs.items()}
    seconds = {label: None if epoch is None else epoch.seconds for label, epoch in found.items()}
    return dict(sorted(seconds.items(), key=lambda item: math.inf if item[1] is None else item[1]))


@dataclass(frozen=True)
class ErrorRecord:
    """The relative gradient error against backward SGD after an epoch, per layer, and its mean over the parameters.

    ``bias`` is that of the mean gradient of an epoch against the full gradient, mean over the parameters; None where it
    was not measured.
    ``staleness`` is the relative distance of the histories from exact values: "H 1" is that of the states of layer 1.
    """

    epoch: int
    layers: Mapping[str, float]
    mean: float
    bias: float | None = None
    staleness: Mapping[str, float] | None = None


ABOUT = "about.json"


@dataclass(frozen=True)
class About:
    """How a run was made, for its report.

    Args:
        label: the spec of the method.
        command: what was typed.
        environment: the machine and the versions.
        partition: the figures of :class:`lmc.partition.Quality`, parts in a batch and steps in an epoch.
        memory: bytes on the training device, planned and measured, in all and of a step alone.
        methods: of a comparison, the folders of its methods in their order.
    """

    label: str
    command: str
    environment: Mapping[str, str]
    partition: Mapping[str, float] | None = None
    memory: Mapping[str, float] | None = None
    methods: Sequence[str] = ()


def read_about(folder: Path) -> About | None:
    """What a run folder says about its run; None where it says nothing."""
    return next(iter(read_records(folder / ABOUT, About)), None)


def mean_errors(records: Iterable[ErrorRecord]) -> dict[str, float]:
    """The mean error of every layer over the measurements."""
    measured = [r.layers for r in records]
    return {layer: sum(m[layer] for m in measured) / len(measured) for layer in (measured[0] if measured else ())}


def write_lines(path: Path, records: Iterable[DataclassInstance]) -> None:
    """Replace the file by these records, atomically."""
    replace(path, as_lines(records))


def append_lines(path: Path, records: Iterable[DataclassInstance]) -> None:
    """Append records to the file, in one write; a last line that a crash cut off is removed before."""
    with path.open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            *whole, last = file.read().split(b"\n")
            if _parses(last):
                file.write(b"\n")
            else:
                file.truncate(sum(len(line) + 1 for line in whole))
        file.write(as_lines(records))


def as_lines(records: Iterable[DataclassInstance]) -> bytes:
    """Records as JSON lines."""
    return "".join(json.dumps(finite(asdict(record)), allow_nan=False) + "\n" for record in records).encode()


def finite(value: Any) -> Any:
    """The value with None in place of numbers that JSON does not have; they are read as NaN."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parses(line: bytes) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def read_lines(path: Path) -> list[EpochRecord]:
    """The epochs in a file; they must be those from 1 on, in order."""
    records = read_records(path, EpochRecord)
    for number, record in enumerate(records, start=1):
        if record.epoch != number or not math.isfinite(record.loss):
            raise CheckpointError(
                f"expected epoch {number} and its loss in line {number} of {path} (got epoch {record.epoch}, loss "
                f"{record.loss}): {RESTORE}"
            )
    return records


def read_errors(path: Path) -> list[ErrorRecord]:
    """The measurements in a file; of an epoch that was trained twice, after an interruption, the last one counts."""
    records = read_records(path, ErrorRecord)
    if any(record.layers.keys() != records[0].layers.keys() for record in records):
        raise CheckpointError(f"expected the same layers in every line of {path} (got others): {RESTORE}")
    return list({record.epoch: record for record in records}.values())


def read_records(path: Path, kind: type[R]) -> list[R]:
    """The records in a file, without a last line that was written incompletely."""
    try:
        *whole, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"expected a file of records (got {path}: {error.strerror}): {RESTORE}") from error
    hints, records = typing.get_type_hints(kind), []
    for number, line in enumerate([*whole, last] if _parses(last) else whole, start=1):
        try:
            fields = parse_json(line)
            if not isinstance(fields, dict):
                raise TypeError("no object")
            checked = {k: _checked(v, hints[k], k) if k in hints else v for k, v in fields.items()}
            records.append(kind(**checked))
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"expected one JSON record per line in {path} (got line {number}: {error}): {RESTORE}"
            ) from error
    return records


def _checked(value: Any, hint: Any, name: str) -> Any:
    """The value of a field, as its annotation says; a missing number is NaN."""
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):  # a type, or None
        return None if value is None else _checked(value, inner[0], name)
    if _is_plain(value, origin):
        return math.nan if value is None else value
    is_mapping = isinstance(value, dict) and issubclass(origin, Mapping)
    if not is_mapping and not (isinstance(value, list) and origin in (list, tuple, Sequence)):
        raise TypeError(f"{type(value).__name__} {value!r:.40} as {name}")
    entries = value.items() if is_mapping else enumerate(value)
    found = {k: _checked(v, inner[is_mapping], f"{name}[{k!r}]") for k, v in entries}
    return found if is_mapping else list(found.values())


def _is_plain(value: Any, kind: Any) -> bool:
    """Whether the value is a number, a text or a flag of this type; whole numbers, and None, are floats too."""
    if kind is float:
        return value is None or (type(value) in (float, int) and math.isfinite(value))
    return kind in (int, str, bool) and type(value) is kind


@typed
def read_run(run_dir: str | Path) -> RunRecord:
    """The record of a run folder."""
    run_dir = Path(run_dir)
    config = run_dir / "config.json"
    if not config.exists():
        raise CheckpointError(f"expected a run folder with a config.json (got {run_dir}): name one that lmc wrote")
    return RunRecord(read_json(config), tuple(read_lines(run_dir / "epochs.jsonl")), str(run_dir))
