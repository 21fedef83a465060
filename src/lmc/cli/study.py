"""A study: many measurements, one after the other, that can be stopped and continued.

``lmc bench`` and ``python -m experiments`` run studies. A file about one study says what a cell is, how a cell is
measured and which tables and figure come out; :class:`Study` does the rest.
"""

# Annotations are not postponed in this file and in those of the studies: the fields become command-line options, and
# typer reads their types.
import inspect
import json
import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

import torch
import typer
from rich.console import Console

import lmc.data
from lmc.bench.epoch import matmul_precision
from lmc.cli.console import STOPPED, TextTable, console, device_name, facts, file_name, new_app
from lmc.cli.options import folder_of, takes
from lmc.errors import CheckpointError, ConfigError
from lmc.files import locked, read_json, replace, writable
from lmc.graph import Graph
from lmc.report import save
from lmc.results import append_lines, read_records, write_lines
from lmc.stores import check_device
from lmc.train import stop_on_interrupt
from lmc.train.progress import progress_bar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from matplotlib.figure import Figure

C = TypeVar("C", bound="DataclassInstance")
R = TypeVar("R", bound="DataclassInstance")
FORMAT = 2
"""The form of a study's folder; folders of another form are refused."""

Dataset = Annotated[str, typer.Argument(help="Name of a graph, or path to one.")]
Configs = Annotated[str, typer.Option(help="parts/clusters, comma-separated.")]
Methods = Annotated[str, typer.Option(help="Comma-separated; options after colons, e.g. gas,lmc,lmc:alpha=1:score=1.")]
Dropout = Annotated[float, typer.Option(help="Dropout rate between layers.")]
Seed = Annotated[int, typer.Option(help="Seed of parameters, partition and batches.")]
Hidden = Annotated[int, typer.Option(help="Width of the hidden layers.")]
Layers = Annotated[int, typer.Option(help="Number of layers.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with graphs.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class Study(ABC, Generic[C, R]):
    """Measures cells one after the other and writes the lines of each as soon as it is measured.

    The fields of a subclass are its command-line options, and its docstring is their help. The folder of a study holds
    NAME.json (settings that all lines share), NAME.jsonl (the lines), NAME.md and NAME.png. A cell that has a line
    there is not measured again, and a folder with other settings is refused. Ctrl-C or ``--limit`` stops the study
    after a cell; the same command continues it.

    A subclass declares ``name``, ``cell``, a frozen dataclass that identifies a measurement, and ``record``, a subclass
    of ``cell`` with the results.
    """

    name: ClassVar[str]
    cell: ClassVar[type[Any]]
    record: ClassVar[type[Any]]
    store: ClassVar[str | None] = None
    """The name of the lines, where several studies share them in one folder; None: the study's own."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Options whose values all lines of a folder share."""
    tf32: ClassVar[bool] = True
    """Whether products on a GPU use TF32, as training there does."""

    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto"
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the lines; cells with lines there are not measured again.",
            show_default=False,
            parser=folder_of,
            metavar="PATH",
        ),
    ] = None
    limit: Annotated[
        float | None, typer.Option(help="Seconds after which no further cell is started.", show_default="none")
    ] = None
    summary_only: Annotated[bool, typer.Option("--summary-only", help="Measure nothing; show what is done.")] = False

    @abstractmethod
    def cells(self) -> list[C]:
        """All cells in the order in which they are measured; wrong options are refused here."""

    def settings(self) -> dict[str, Any]:
        """The settings that all lines of a folder share."""
        return {"device": self.on.type} | {name: getattr(self, name) for name in self.shared}

    def facts(self) -> list[tuple[str, str]]:
        """What is measured, shown before the first cell."""
        return []

    @abstractmethod
    def measure(self, cell: C) -> Sequence[R]:
        """Measure one cell; the lines about it."""

    def measure_within(self, cell: C, seconds: float | None) -> Sequence[R]:
        """Measure one cell, in about ``seconds`` where a study can do that: the cell's share of what is left."""
        return self.measure(cell)

    def is_done(self, record: R) -> bool:
        """Whether the cell of this line need not be measured again."""
        return True

    @abstractmethod
    def describe(self, record: R) -> str:
        """One line of progress about a measurement."""

    @abstractmethod
    def tables(self, records: Sequence[R]) -> list[TextTable]:
        """The tables of all lines; none where the lines do not suffice for one."""

    def figure(self, records: Sequence[R]) -> "Figure | None":
        """The figure of all lines; None where a study has none."""
        return None

    def missing(self) -> str:
        """What is shown where there is no table yet."""
        return "no cell is done yet"

    def subject(self) -> str:
        """What the default folder is named after, beside the study."""
        return self.on.type

    @cached_property
    def on(self) -> torch.device:
        return check_device(self.device)

    @property
    def device_text(self) -> str:
        """The device in words, with the precision of its products."""
        products = "TF32" if self.tf32 and self.on.type == "cuda" else "float32"
        return f"{device_name(self.on)}, {products} products, torch {torch.__version__}"

    @cached_property
    def folder(self) -> Path:
        """The folder of the lines."""
        return self.run_dir or Path("runs/bench") / file_name(f"{self.name}-{self.subject()}")

    @cached_property
    def out(self) -> Console:
        """Where progress and tables are shown."""
        return console()

    def work(self) -> tuple[int, bool]:
        """Measure what is left; how many cells are left then, and whether Ctrl-C stopped the work."""
        started = time.monotonic()
        if self.limit is not None and not self.limit > 0:
            raise ConfigError(f"expected a positive number of seconds for --limit (got {self.limit:g})")
        cells = self.cells()
        with locked(self.folder), matmul_precision(self.on, self.tf32):
            open_study(self)
            waiting = self.waiting()
            done = len(cells) - len(waiting)
            state = [("device", self.device_text), ("cells", f"{len(cells)}, of which {done} are done")]
            self.out.print(facts([*self.facts(), *state, ("run folder", str(self.folder))]))
            progress = progress_bar(len(cells), "cell", self.out, done, lines=len(cells))
            with progress as show, stop_on_interrupt() as stop:
                for k, cell in enumerate(waiting):
                    left = None if self.limit is None else self.limit - (time.monotonic() - started)
                    if stop() or (left is not None and left <= 0):
                        break
                    records = self.measure_within(cell, left and left / (len(waiting) - k))
                    with writable(self.folder):
                        append_lines(self.file("jsonl"), records)
                    done += 1
                    for text in map(self.describe, records):
                        show(done, text)
                return len(cells) - done, stop()

    def waiting(self, records: Sequence[R] | None = None) -> list[C]:
        """The cells without a line, and those with a line that is not done; ``records``: all lines, read before."""
        names, read = [f.name for f in fields(self.cell)], self.lines() if records is None else records
        lines = [(self.cell(**{name: getattr(r, name) for name in names}), self.is_done(r)) for r in read]
        measured = {cell for cell, _ in lines} - {cell for cell, done in lines if not done}
        return [cell for cell in self.cells() if cell not in measured]

    def saved(self) -> Mapping[str, Any]:
        """The settings of the folder; empty where there are none yet."""
        path = self.file("json")
        saved = read_json(path) if path.exists() else {"format": FORMAT}
        if saved.pop("format", None) != FORMAT:
            raise CheckpointError(
                f"expected a folder of this version (got {self.folder}, which an older version wrote): use another "
                "--run-dir"
            )
        return saved

    def file(self, kind: str) -> Path:
        """The file of the folder with this suffix."""
        shared = self.store if kind.startswith("json") else None
        return self.folder / f"{shared or self.name}.{kind}"

    def lines(self) -> list[R]:
        """The lines of the folder."""
        return read_records(self.file("jsonl"), self.record)


def run_study(study: Study[C, R], program: str) -> None:
    """Measure what is left, show everything, and say how to continue where something is still left."""
    if study.summary_only:
        if not study.file("jsonl").exists():
            raise CheckpointError(
                f"expected a folder with a {study.name}.jsonl (got {study.folder}): name one with --run-dir"
            )
        _show(study)
        return
    left, interrupted = study.work()
    _show(study)
    if left:
        why = "stopped" if interrupted else f"the limit of {study.limit:g} s is reached"
        study.out.print(f"{why}; {left} of {len(study.cells())} cells are left, continue with:", soft_wrap=True)
        study.out.print(f"{program} {shlex.join(sys.argv[1:])}", soft_wrap=True, markup=False)
    if interrupted:
        raise typer.Exit(STOPPED)


def open_study(study: Study[C, R]) -> None:
    """Make the folder or continue in it: a setting that it has with another value is refused, a new one added."""
    settings = study.settings()
    with writable(study.folder):
        old = study.saved()
        differing = [f"{k}: {old[k]} there, {v} here" for k, v in settings.items() if k in old and old[k] != v]
        if differing:
            raise CheckpointError(
                f"expected the settings of {study.folder} (got others: {'; '.join(differing)}): "
                "use the same, or another --run-dir"
            )
        replace(study.file("json"), json.dumps({"format": FORMAT, **old, **settings}, indent=1).encode())
        write_lines(study.file("jsonl"), study.lines())


def _show(study: Study[C, R]) -> None:
    """Show and write the tables, and draw the figure."""
    study.saved()  # a folder of another form is refused
    records = study.lines()
    tables = study.tables(records) if records else []
    if not tables:
        study.out.print(study.missing())
        return
    for table in tables:
        study.out.print(table.rich())
    written, figure = ["jsonl", "md"], study.figure(records)
    with writable(study.folder):
        replace(study.file("md"), "\n".join(table.markdown() for table in tables).encode())
        if figure is not None:
            save(figure, study.file("png"))
            written.append("png")
    study.out.print(f"{', '.join(study.file(k).name for k in written)} in {study.folder}", soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class GraphStudy(Study[C, R]):
    """A study on one graph, which is loaded when it is first used."""

    dataset: Dataset = "arxiv-like"
    data_dir: DataDir = None
    scale: Annotated[
        float | None, typer.Option(help="Size of a lookalike, as a share of the original.", show_default="1")
    ] = None

    @property
    def source(self) -> str:
        """The name of the graph; "auto" is one that suits the device."""
        if self.dataset != "auto":
            return self.dataset
        return "arxiv-like" if self.on.type == "cuda" or self.scale else "arxiv-like@0.1"

    @cached_property
    def loaded(self) -> tuple[Graph, float]:
        """The graph, loaded when it is first used, and the seconds that took."""
        started = time.perf_counter()
        graph = lmc.data.load(self.source, data_dir=self.data_dir, scale=self.scale).training_graph
        return graph, time.perf_counter() - started

    @property
    def graph(self) -> Graph:
        return self.loaded[0]

    def settings(self) -> dict[str, Any]:
        return {"graph": self.graph.name, "data": self.graph.checksum} | super().settings()

    def facts(self) -> list[tuple[str, str]]:
        return [*super().facts(), ("graph", repr(self.graph))]

    def subject(self) -> str:
        graph = self.source if self.scale is None else f"{self.source}@{self.scale:g}"
        return f"{graph}-{self.on.type}"


def app_of(
    studies: Sequence[type[Study[Any, Any]]], program: str, help: str,
    choose: Callable[[Study[Any, Any]], Study[Any, Any]] = lambda study: study,
) -> typer.Typer:  # fmt: skip
    """One command for each study: its fields are the options, those that all studies have come last.

    Args:
        choose: the study that the options of a command ask for, where that is another one.
    """
    app, common = new_app(program, help), {f.name for f in fields(Study)}
    for study in studies:

        def run(chosen: Study[Any, Any]) -> None:
            run_study(choose(chosen), program)

        run.__doc__ = f"{inspect.getdoc(study)}\n\nCtrl-C finishes the cell; the same command continues from there."
        app.command(study.name)(takes(study, last=common)(run))
    return app
