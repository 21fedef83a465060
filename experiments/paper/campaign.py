"""``python -m experiments paper all``: a scaled version of every table and figure within a budget of time."""

import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import torch
import typer

from experiments.paper.catalogue import ITEMS
from experiments.paper.costs import cost, level, paces_of
from experiments.paper.groups import PLANETOID
from experiments.paper.item import SCALE_HELP, Item, pace_key
from experiments.paper.page import Page, section_of
from experiments.paper.training import TIME, TIMED, Training
from experiments.paper.workers import Outcome, Task, Workers
from lmc.cli.console import STOPPED, TextTable, console, device_name
from lmc.cli.lists import at_least_one
from lmc.cli.study import DataDir, open_study
from lmc.errors import CheckpointError, ConfigError
from lmc.files import locked, read_json
from lmc.files import replace as replace_file
from lmc.train import stop_on_interrupt
from lmc.train.run_folder import interval

FACTS = "page.json"
"""How and where the trainings of a folder ran."""
PAGE_SECONDS = 20.0
"""The time that is kept for drawing the page, at most a tenth of the budget."""
STOP_SECONDS = 5.0
"""The time in which trainings that end write their records, at most a twentieth of the budget."""
LEAST_SECONDS = 1.0
"""Where there is less time, no further group is begun."""
TIMING_SHARE = 0.25
"""The share of the budget in which the time of an epoch is measured alone, before the trainings."""
AHEAD = 1.5
"""Groups get so many times the time that is there for them, since many end early and leave theirs to the others."""
MINUTES_PER_SEED = 3
MOST_SEEDS, MORE_SEEDS = 5, 2
"""Small graphs have so many seeds more than large ones."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class All:
    """Run a scaled version of every table and figure within a budget of time, and write report.html and report.md.

    All groups of trainings get the same time, where they need it; trainings that several tables show run once, and end
    early when no accuracy grows any more. With several --jobs the time of an epoch is measured first, alone on the
    device. The same command continues in the same folder: it trains what is missing, and anew what was cut short.
    """

    budget: Annotated[str, typer.Option(help="Time for everything: 90s, 30min, 2h.")] = "30min"
    scale: Annotated[str, typer.Option(help=SCALE_HELP)] = "auto"
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds.", show_default="one for 3 minutes, 2 more on small graphs, at most 5"),
    ] = None
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs.", show_default="the presets'")] = None
    only: Annotated[str | None, typer.Option(help="Names, comma-separated.", show_default="all")] = None
    max_width: Annotated[int | None, typer.Option(help="Largest hidden width.", show_default="by scale")] = None
    data_dir: DataDir = None
    jobs: Annotated[int, typer.Option(help="Processes that train at the same time on the device.")] = 1
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto"
    run_dir: Annotated[Path | None, typer.Option(help="Folder for lines and report.", show_default=False)] = None
    plan: Annotated[bool, typer.Option("--plan", help="Train nothing; show the groups and their time.")] = False
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
        return [
            cls(
                scale=self.scale, seeds=self.seeds_of(cls), epochs=self.epochs, max_width=self.max_width,
                data_dir=self.data_dir, device=self.device, run_dir=self.run_dir,
            )
            for name, cls in known.items()
            if wanted is None or name in wanted
        ]  # fmt: skip

    def seeds_of(self, cls: type[Item]) -> int:
        """The seeds of an item, which has more of them where all of its graphs are small."""
        by_time = max(1, round(self.seconds / 60 / MINUTES_PER_SEED))
        small = all(group.dataset in PLANETOID for group in cls().groups().values())
        return self.seeds or min(MOST_SEEDS, by_time + MORE_SEEDS * small)

    def run(self) -> None:
        """Work until everything is done or the time is over, and write the page in any case."""
        campaign = Campaign(self.items(), self.seconds, time.monotonic(), at_least_one("--jobs", self.jobs))
        out, folder = console(), campaign.items[0].folder
        if self.plan:
            out.print(campaign.plan().rich())
            return
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


@dataclass(eq=False)
class Campaign:
    """All items and the time that is left for them."""

    items: Sequence[Item]
    seconds: float
    started: float
    jobs: int = 1
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def deadline(self) -> float:
        """When trainings must have ended, as a value of ``time.monotonic``."""
        return self.started + self.seconds - min(PAGE_SECONDS, 0.1 * self.seconds)

    @property
    def last_step(self) -> float:
        """When the last step of a training begins."""
        return self.deadline - min(STOP_SECONDS, 0.05 * self.seconds)

    def left(self) -> float:
        """Seconds that are left for steps."""
        return self.last_step - time.monotonic()

    @cached_property
    def wants(self) -> dict[Training, float]:
        """The seconds that every group would take."""
        paces = paces_of(self.items[0].lines())
        found = {cell: cost(cell, item.graphs, paces) for item in self.items for cell in item.cells()}
        return found | {cell: cost(cell, item.graphs, {}) for cell, item in self.timings().items()}

    def waiting(self) -> dict[Training, Item]:
        """The groups that have no lines or were cut short, all of one seed after those of the other.

        Several processes begin with the longest ones, so that they end together; one begins with the shortest.
        """
        lines, sign = self.items[0].lines(), 1 if self.jobs == 1 else -1
        found = {cell: item for item in reversed(self.items) for cell in item.waiting(lines)}
        return dict(sorted(found.items(), key=lambda pair: (pair[0].seed, sign * self.wants[pair[0]])))

    def timings(self) -> dict[Training, Item]:
        """Short groups that measure the time of an epoch alone, without methods whose time is known."""
        lines = self.items[0].lines()
        known = {pace_key(r, r.method) for r in lines if r.probe == TIME and r.epoch_ms}
        found = {}
        timed = [(cell, item) for item in self.items for cell in item.timings()]
        for cell, item in timed:
            new = [spec for spec in cell.specs if pace_key(cell, spec) not in known]
            known |= {pace_key(cell, spec) for spec in new}
            if new:
                found[replace(cell, methods=",".join(new))] = item
        return found

    def plan(self) -> TextTable:
        """The groups that are to be trained with their time, on the device alone."""
        groups: dict[Training, list[Training]] = {}
        waiting, timings = self.waiting(), self.timings() if self.jobs > 1 else {}
        timing = sum(self.wants[cell] for cell in timings)
        time_left = self.jobs * (self.left() - timing)
        wants = [self.wants[cell] for cell in waiting]
        most = level(wants, AHEAD * time_left) if wants else 0.0
        for cell in waiting:
            groups.setdefault(replace(cell, seed=0), []).append(cell)
        rows = [
            [
                waiting[cells[0]].name, group.dataset, group.model, f"{group.parts}/{group.clusters} {group.partition}",
                group.methods, str(len(cells)), str(group.epochs), f"{self.wants[cells[0]]:.0f}",
                f"{sum(min(most, self.wants[cell]) for cell in cells):.0f}",
            ]
            for group, cells in groups.items()
        ]  # fmt: skip
        caption = (
            f"{len(waiting)} groups want {sum(wants):.0f} s, of which no group gets more than {most:.0f} s; "
            f"{self.jobs} processes have {time_left:.0f} s after {timing:.0f} s for {len(timings)} groups that measure "
            "the time of an epoch"
        )
        headers = ["item", "data set", "model", "parts", "methods", "seeds", "epochs", "s of a seed", "s of all seeds"]
        return TextTable(headers, rows, caption, named=5)

    def work(self, say: Say) -> bool:
        """Train everything, each group in its share of the time; whether Ctrl-C stopped it."""
        first = self.items[0]
        with locked(first.folder), Workers(self.jobs) as workers, stop_on_interrupt() as stop:
            open_study(first)
            if self.jobs > 1:
                until = min(self.last_step, time.monotonic() + TIMING_SHARE * self.seconds)
                self.measure(workers, self.timings(), until, say, stop, at_once=1)
            self.measure(workers, self.waiting(), self.last_step, say, stop)
            return stop()

    def measure(
        self, workers: Workers, waiting: dict[Training, Item], until: float, say: Say, stop: Callable[[], bool],
        at_once: int | None = None,
    ) -> None:  # fmt: skip
        """Train groups until their time is over, ``at_once`` of them at the same time."""
        while not stop():
            self.begin(workers, waiting, until, at_once or self.jobs)
            if waiting and until - time.monotonic() < LEAST_SECONDS:
                say(f"{len(waiting)} groups are not begun: the time is over")
                waiting = {}
            outcomes = workers.finished(min(self.deadline, time.monotonic() + 1))
            for outcome in outcomes:
                self.take(outcome, say)
            if not workers.running and not waiting and not outcomes:
                return
            if time.monotonic() >= self.deadline:
                for task in workers.running:
                    say(f"{task.item.name}: {task.cell.dataset} {task.cell.model} did not end in time")
                return

    def begin(self, workers: Workers, waiting: dict[Training, Item], until: float, at_once: int) -> None:
        """Start the first of the waiting groups where workers are free and there is time."""
        while waiting and workers.can_start() and len(workers.running) < at_once:
            if until - time.monotonic() < LEAST_SECONDS:
                return
            cell = next(iter(waiting))
            seconds = self.share(waiting, workers.running, until)
            workers.start(Task(waiting.pop(cell), cell, seconds, until))

    def share(self, waiting: dict[Training, Item], running: Sequence[Task], until: float) -> float:
        """The most seconds of a group, of what the workers have left."""
        now = time.monotonic()
        ends = [min(task.ends, task.started + self.wants[task.cell]) for task in running]
        free = self.jobs * (until - now) - sum(max(0.0, end - now) for end in ends)
        return max(LEAST_SECONDS, level([self.wants[cell] for cell in waiting], AHEAD * free))

    def take(self, outcome: Outcome, say: Say) -> None:
        """Write the lines of a group."""
        item, spent = outcome.task.item, time.monotonic() - self.started
        if outcome.failure is not None:
            self.failures[item.name] = outcome.failure
            say(f"{item.name}: {outcome.failure}")
        item.keep(outcome.records)
        for record in outcome.records:
            say(f"{spent:.0f} s: {item.describe(record)}")

    @cached_property
    def earlier(self) -> list[str]:
        """The commands that trained in this folder before, with their time."""
        path = self.items[0].folder / FACTS
        return read_json(path).get("runs", []) if path.exists() else []

    def save_facts(self, options: All, folder: Path) -> None:
        """Write down how and where the trainings run, for a page that is written later or elsewhere."""
        first = self.items[0]
        chosen = f"--budget {options.budget} --scale {options.scale}" + f" --jobs {options.jobs}" * (options.jobs > 1)
        chosen += f" --only {options.only}" * (options.only is not None)
        minutes = (time.monotonic() - self.started) / 60
        runs = [*self.earlier, f"`python -m experiments paper all {chosen}` ({minutes:.1f} minutes)"]
        facts = {
            "command": f"{', then '.join(runs)}, device {first.on.type}",
            "date": datetime.date.today().isoformat(),
            "device": f"{device_name(first.on)}, torch {torch.__version__}",
            "seeds": f"at most {max(item.seeds for item in self.items)}; mean ± standard deviation over seeds",
            "time": "trainings end early where their time is over or no accuracy grows any more, the methods of one "
            "group after the same number of epochs",
            "seconds": "those of training steps" if self.jobs == 1 else
            f"epochs times the median time of an epoch, measured over {TIMED} epochs with the device alone; the "
            f"trainings ran in {self.jobs} processes at the same time",
        }  # fmt: skip
        names = dict.fromkeys(cell.dataset for each in self.items for cell in each.cells())
        graphs = [[name, *first.graphs.source(name)] for name in names]
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / FACTS, json.dumps({"runs": runs, "facts": facts, "graphs": graphs}, indent=1).encode())

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
