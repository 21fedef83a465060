"""Benchmarks of many cells: each leaves one line in a folder, and what has a line is not worked again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lmc.errors import CheckpointError, ConfigError
from lmc.results import append_line, read_records, replace, write_lines

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
R = TypeVar("R", bound="DataclassInstance")


@dataclass(frozen=True)
class Book(Generic[C, R]):
    """The lines of one benchmark.

    Args:
        folder: holds NAME.json, the settings all lines share, and NAME.jsonl, the lines.
        name: of the benchmark.
        cell: a frozen dataclass that says what is worked.
        record: the same with what came of it; its first fields are the cell's.
    """

    folder: Path
    name: str
    cell: type[C]
    record: type[R]

    @property
    def lines(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the folder, or take it up again: a setting that it holds with another value is refused, one that it
        does not hold yet is added."""
        path = self.folder / f"{self.name}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            old = json.loads(path.read_text()) if path.exists() else {}
            differing = [f"{k}: {old[k]} there, {v} here" for k, v in settings.items() if k in old and old[k] != v]
            if differing:
                raise CheckpointError(
                    f"expected the settings of {self.folder} (got others: {'; '.join(differing)}): "
                    "use the same, or another --run-dir"
                )
            replace(path, json.dumps({**old, **settings}, indent=1).encode())
            write_lines(self.lines, self.read())  # without a last line that was cut off: the next is appended to it
        except OSError as error:
            raise ConfigError(
                f"expected a run folder that can be written (got {self.folder}: {error.strerror}): choose another"
            ) from error

    def read(self) -> list[R]:
        """What was worked so far."""
        return read_records(self.lines, self.record)

    def left(self, cells: Sequence[C]) -> list[C]:
        """The cells without a line, in their order."""
        names = [f.name for f in fields(self.cell)]
        done = {self.cell(**{name: getattr(record, name) for name in names}) for record in self.read()}
        return [cell for cell in cells if cell not in done]

    def work(self, cells: Sequence[C], work: Callable[[C], R], stop: Callable[[], bool]) -> Iterator[R]:
        """Work the cells that are left and write each down as it comes; ends before a cell where ``stop()`` is true."""
        for cell in self.left(cells):
            if stop():
                return
            record = work(cell)
            append_line(self.lines, record)
            yield record
