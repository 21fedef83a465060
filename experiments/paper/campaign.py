"""``python -m experiments paper all``: a scaled version of every table and figure within a budget of time."""

import datetime
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, cast

import torch
import typer

from experiments.paper.catalogue import ITEMS
from experiments.paper.item import SCALE_HELP, Item
from experiments.paper.page import Page, section_of
from experiments.paper.training import Trained, Training, method_of, one_line, preset_of
from lmc.cli.console import STOPPED, TextTable, console, device_name
from lmc.cli.study import DataDir
from lmc.errors import CheckpointError, ConfigError, LmcError
from lmc.files import read_json
from lmc.files import replace as replace_file
from lmc.methods import ClusterMethod
from lmc.train.run_folder import interval

COSTS = {"gcn": 1.5, "gcnii": 2.0, "recgcn": 3.0}
"""About how long an epoch takes, relative to a GCN's: the time is divided in these proportions."""
FACTS = "page.json"
"""How and where the trainings of a folder ran."""
PAGE_SECONDS = 20.0
"""The time that is kept for drawing the page, at most a tenth of the budget."""
WARMUP = 3
"""Epochs before the first group, in which kernels are compiled and steps recorded."""
MINUTES_PER_SEED = 4
MOST_SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class All:
    """Run a scaled version of every table and figure within a budget of time, and write report.html and report.md.

    The time is divided over the tables and figures by the number and the kind of their trainings; trainings that
    several of them show run once. The same command continues in the same folder with what is missing.
    """

    budget: Annotated[str, typer.Option(help="Time for everything: 90s, 30min, 2h.")] = "30min"
    scale: Annotated[str, typer.Option(help=SCALE_HELP)] = "auto"
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.", show_default="one for 4 minutes, at most 5")] = (
        None
    )
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs.", show_default="the presets'")] = None
    only: Annotated[str | None, typer.Option(help="Names, comma-separated.", show_default="all")] = None
    max_width: Annotated[int | None, typer.Option(help="Largest hidden width.", show_default="by scale")] = None
    data_dir: DataDir = None
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto"
    run_dir: Annotated[Path | None, typer.Option(help="Folder for lines and report.", show_default=False)] = None
    report_only: Annotated[bool, typer.Option("--report-only", help="Train nothing; write the report anew.")] = False

    @property
    def seconds(self) -> float:
        """The budget in seconds."""
        seconds, unit = interval(self.budget) if self.budget != "auto" else (0.0, "")
        if unit != "s" or seconds <= 0:
            raise ConfigError(f"expected a budget such as 90s, 30min or 2h (got {self.budget!r}): use one")
        return seconds

    def items(self) -> list[Item]:
        """All items in the paper's order, with these options."""
        wanted = None if self.only is None else self.only.split(",")
        known = {cls.name: cls for cls in ITEMS}
        unknown = [name for name in wanted or () if name not in known]
        if unknown:
            raise ConfigError(f"expected names of {', '.join(known)} for --only (got {', '.join(unknown)})")
        seeds = self.seeds or min(MOST_SEEDS, max(1, round(self.seconds / 60 / MINUTES_PER_SEED)))
        return [
            cls(
                scale=self.scale, seeds=seeds, epochs=self.epochs, max_width=self.max_width, data_dir=self.data_dir,
                device=self.device, run_dir=self.run_dir,
            )
            for name, cls in known.items()
            if wanted is None or name in wanted
        ]  # fmt: skip

    def run(self) -> None:
        """Work until everything is done or the time is over, and write the page in any case."""
        campaign = Campaign(self.items(), self.seconds, time.monotonic())
        out, folder = console(), campaign.items[0].folder
        interrupted = False
        try:
            if not self.report_only:
                campaign.save_facts(self, folder)
                interrupted = campaign.work(lambda text: out.print(text, soft_wrap=True, markup=False))
        finally:
            if not self.report_only:
                campaign.save_facts(self, folder)
            campaign.page(folder).write(folder)
            out.print(f"report.html, report.md in {folder}", soft_wrap=True)
        if interrupted:
            raise typer.Exit(STOPPED)


def cost(cells: Iterable[Training]) -> float:
    """What cells take, relative to an epoch of a GCN; a measurement of memory is short, and many steps take longer."""
    return sum(COSTS[c.model] * len(c.specs) * ((1.0 + steps(c) / 50) if c.epochs else 0.5) for c in cells)


def steps(cell: Training) -> float:
    """The steps of an epoch on the graph of the paper."""
    method = cast(ClusterMethod, preset_of(cell.model, cell.dataset).method)
    return (cell.parts or method.num_parts or 1) / (cell.clusters or method.clusters_per_batch or 1)


@dataclass(eq=False)
class Campaign:
    """All items and the time that is left for them."""

    items: Sequence[Item]
    seconds: float
    started: float
    failures: dict[str, str] = field(default_factory=dict)

    def left(self) -> float:
        """Seconds that are left, without those for the page."""
        kept = min(PAGE_SECONDS, 0.1 * self.seconds)
        return self.seconds - kept - (time.monotonic() - self.started)

    def work(self, say: Callable[[str], None]) -> bool:
        """Measure the items one after the other, each in its share of the time; whether Ctrl-C stopped it."""
        self.prepare(say)
        for k, item in enumerate(self.items):
            lines = item.lines()
            open_cells = {cell for later in self.items[k:] for cell in later.waiting(lines)}
            own, left = item.waiting(lines), self.left()
            if not own:
                continue
            if left <= 0:
                say(f"{item.name}: the time is over")
                continue
            share = left * cost(own) / cost(open_cells)
            spent = time.monotonic() - self.started
            say(f"{spent:.0f} s: {item.name}: {item.title}; {len(own)} groups of trainings in about {share:.0f} s")
            try:
                _, interrupted = replace(item, limit=share).work()
                if interrupted:
                    return True
            except Exception as error:  # the other items go on
                self.failures[item.name] = one_line(error)
                say(f"{item.name}: {self.failures[item.name]}")
        return False

    def prepare(self, say: Callable[[str], None]) -> None:
        """Load and partition the graphs first, in at most a third of the time, so that no item pays for another.

        On a GPU a few epochs of every model follow, which compile its kernels.
        """
        lines = self.items[0].lines()
        self.load(lines, say)
        first = {cell.model: (item, cell) for item in reversed(self.items) for cell in item.waiting(lines)}
        for item, cell in first.values():
            if item.on.type == "cuda" and self.left() > 0.66 * self.seconds:
                item.measure_within(replace(cell, epochs=WARMUP), self.left() / 4)
                say(f"{cell.model}: kernels are compiled")

    def load(self, lines: Sequence[Trained], say: Callable[[str], None]) -> None:
        """Load and partition the graphs."""
        for item in self.items:
            for cell in item.waiting(lines):
                if self.left() < 0.66 * self.seconds:
                    return
                try:
                    graph, _, known = item.graphs.load(cell.dataset)
                    before = len(known)
                    method, _ = method_of(cell, cell.specs[-1], graph)
                    item.graphs.parts(cell.dataset, method)
                    if len(known) > before:
                        say(f"{cell.dataset}: {graph!r}, {method.num_parts} parts")  # type: ignore[attr-defined]
                except LmcError:
                    continue  # the trainings on it say why

    def save_facts(self, options: All, folder: Path) -> None:
        """Write down how and where the trainings run, for a page that is written later or elsewhere."""
        first = self.items[0]
        command = f"`python -m experiments paper all --budget {options.budget} --scale {options.scale}`"
        facts = {
            "command": f"{command}, device {first.on.type}",
            "date": datetime.date.today().isoformat(),
            "device": f"{device_name(first.on)}, torch {torch.__version__}",
            "seeds": f"at most {first.seeds}; mean ± standard deviation over seeds",
            "time": f"{(time.monotonic() - self.started) / 60:.1f} minutes; trainings end early where their share of "
            "the time is over, the methods of one group after the same number of epochs",
        }  # fmt: skip
        names = dict.fromkeys(cell.dataset for each in self.items for cell in each.cells())
        graphs = [[name, *first.graphs.source(name)] for name in names]
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / FACTS, json.dumps({"facts": facts, "graphs": graphs}, indent=1).encode())

    def page(self, folder: Path) -> Page:
        """The page of what there is."""
        if not (folder / FACTS).exists():
            raise CheckpointError(f"expected {FACTS} in {folder} (got none): run `paper all` with this --run-dir first")
        saved, lines = read_json(folder / FACTS), self.items[0].lines()
        sections = [section_of(item, lines, self.failures.get(item.name)) for item in self.items]
        return Page(saved["facts"], self.graphs(saved["graphs"]), sections)

    @staticmethod
    def graphs(rows: list[list[str]]) -> TextTable | None:
        """The graphs of this page."""
        caption = "A lookalike is a synthetic graph with the statistics of the real one; its accuracies are its own."
        return TextTable(["data set of the paper", "graph here", "kind"], rows, caption, named=3) if rows else None
