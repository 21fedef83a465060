"""The one training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lmc.engine import Run
from lmc.engine.exact import FEW_ELEMENTS, MAX_ELEMENTS
from lmc.errors import ConfigError, DivergenceError, Interrupted
from lmc.graph import Batch, Graph
from lmc.heap import release_freed
from lmc.results import EpochRecord, RunRecord
from lmc.train.best import Best
from lmc.train.callbacks import Callback
from lmc.train.checkpoint import Position
from lmc.train.evaluate import evaluate_problem
from lmc.train.metrics import metrics_of
from lmc.train.optimizers import make_optimizer, make_schedule, settings_of
from lmc.train.run_folder import RunFolder, Settings, config_of, open_folder
from lmc.train.signals import Stop, never

OnEpoch = Callable[["Training"], object]
"""A function that is called as :meth:`Callback.on_epoch`."""


def train(
    run: Run, settings: Settings, run_dir: Path | None = None, resume: bool = False, stop: Stop = never,
    callbacks: Sequence[Callback | OnEpoch] = (),
) -> Generator[EpochRecord, None, None]:  # fmt: skip
    """Train and yield the record of every epoch; the caller may advance several of these loops in turn.

    The folder is locked until the generator ends or is closed.

    Args:
        run_dir: where the run is saved; None: nowhere.
        resume: continue the run in ``run_dir``.
        stop: called after every step; where it returns True, the run is saved and :class:`Interrupted` raised.
        callbacks: see :class:`lmc.train.Callback`.
    """
    yield from Training(run, settings, run_dir, resume, stop, callbacks).epochs()


class Training:
    """The state of one training loop; callbacks read it, log to it and stop it.

    Args:
        run, settings, run_dir, resume, stop, callbacks: see :func:`train`.

    Attributes:
        run, model, optimizer: what is trained, and by what.
        config: the settings as plain values.
        records: one :class:`lmc.EpochRecord` per epoch so far.
        best: the best epoch so far.
        schedule: what changes the learning rate.
    """

    def __init__(
        self, run: Run, settings: Settings, run_dir: Path | None = None, resume: bool = False, stop: Stop = never,
        callbacks: Sequence[Callback | OnEpoch] = (),
    ) -> None:  # fmt: skip
        self.run, self.settings, self.model = run, settings, run.problem.model
        self._metrics = metrics_of(settings.metrics, run.graph)
        self.optimizer = make_optimizer(settings.optimizer, self.model, settings.lr, settings.weight_decay)
        self.schedule = make_schedule(
            settings.scheduler, self.optimizer, epochs=settings.epochs, steps=run.num_batches,
            direction=self._metrics.direction,
        )  # fmt: skip
        chosen = {"metrics": list(self._metrics.names), "direction": self._metrics.direction}
        optimizer = settings_of(self.optimizer) | {"scheduler": self.schedule.settings}
        self.config = config_of(run, settings) | optimizer | chosen
        self.records: list[EpochRecord] = []
        self.best = Best(self.model, settings.restore_best, self._metrics.better)
        self._callbacks, self._interrupt, self._stopped = _by_name(callbacks), stop, False
        self._step_hooks = [c.on_step for c in self._callbacks.values() if type(c).on_step is not Callback.on_step]
        self._position = Position()
        self._check_validation()
        self._run_dir, self._resume = run_dir, resume
        if run.sync is not None:
            if settings.minutes is not None:
                raise ConfigError(
                    "expected epochs or steps for a distributed run (got minutes): clocks of ranks differ"
                )
            own = ("setup_seconds", "threads", "seed", "device")  # the seed of the run is compared at bind
            run.sync.world.check_same({k: v for k, v in self.config.items() if k not in own})
            self._interrupt = run.sync.agreement(stop)
            self._asked_to_save = run.sync.agreement(self._wants_to_save)
        self._folder: RunFolder | None = None

    @property
    def record(self) -> EpochRecord:
        """The record of the last epoch."""
        return self.records[-1]

    def log(self, **values: float) -> None:
        """Add values to the record of the epoch that has just ended; one that is not finite is recorded as None."""
        found = {name: float(value) for name, value in values.items()}
        plain = {name: value if math.isfinite(value) else None for name, value in found.items()}
        self.records[-1] = replace(self.record, logged={**(self.record.logged or {}), **plain})

    def stop(self) -> None:
        """Stop after the current step or epoch, as if training were over."""
        self._stopped = True

    def result(self) -> RunRecord:
        """The record of the run so far."""
        return RunRecord(self.config, tuple(self.records), None if self._run_dir is None else str(self._run_dir))

    def epochs(self) -> Generator[EpochRecord, None, None]:
        """Train to the end and yield the record of every epoch; the folder is locked until then."""
        with open_folder(
            self._run_dir, self._resume, self.run, self.config, self.optimizer, self.settings.checkpoint_every
        ) as self._folder:
            yield from self._epochs()

    def _epochs(self) -> Generator[EpochRecord, None, None]:
        self._start()
        while not self._is_over():
            self._train_rest_of_epoch()
            if self._position.step < self.run.num_batches and (self._interrupt() or not self.ended_early):
                if self._interrupt():
                    raise self._interrupted()
                self._save()
                continue
            self._end_epoch()
            yield self.record
            if self._interrupt() and not self._is_over():
                raise self._interrupted()
        self.best.restore()
        self.model.eval()
        for callback in self._callbacks.values():
            callback.on_end(self)

    def _start(self) -> None:
        """Restore the run from its checkpoint, or fill its histories where there is none."""
        position = None if self._folder is None else self._folder.load()
        if self._folder is None or position is None:
            self.run.refresh()
            if self._folder is not None:  # the initial parameters are the caller's: a later start may not have them
                self._save()
        else:
            self._position, self.records = position, list(self._folder.records)
            self.best.load_state_dict(position.extras["best"])
            self.schedule.load_state_dict(position.extras["scheduler"])
            for name, callback in self._callbacks.items():
                if name in position.extras["callbacks"]:
                    callback.load_state_dict(position.extras["callbacks"][name])
            if self.best.parameters is not None:  # the file may be of an epoch after the checkpoint
                self._folder.save_best(self.best.epoch, self.best.parameters)
        for callback in self._callbacks.values():
            callback.on_start(self)

    @property
    def ended_early(self) -> str:
        """Why training ended before its last epoch; empty where it did not."""
        settings, position = self.settings, self._position
        if position.epoch >= settings.epochs:
            return ""
        if settings.patience is not None and self.best.since >= settings.patience:
            return f"stopped after {self.best.since} evaluations without a better validation score"
        done = position.epoch * self.run.num_batches + position.step
        if done >= (settings.steps or math.inf):
            return f"stopped after {done} steps"
        if position.seconds >= 60 * (settings.minutes or math.inf):
            return f"stopped after {position.seconds / 60:.2g} minutes"
        return "stopped by a callback" if self._stopped else ""

    def _is_over(self) -> bool:
        """Whether there is nothing left to train; an epoch that a limit cut off has yet to be recorded."""
        position = self._position
        recorded = position.step == 0 or len(self.records) > position.epoch
        return position.epoch >= self.settings.epochs or (recorded and bool(self.ended_early))

    def _train_rest_of_epoch(self) -> None:
        """Train from the position to the end of its epoch, or until the loop is to stop, and advance the position."""
        position, settings, started = self._position, self.settings, time.perf_counter()
        if self.ended_early or position.step == self.run.num_batches:  # a callback raised after the last step
            return
        first_step, seconds_before = position.step, position.seconds
        raised: list[BaseException] = []

        def after_step() -> bool:
            position.step += 1
            self.schedule.after_step()
            position.seconds = seconds_before + time.perf_counter() - started
            try:
                for hook in self._step_hooks:
                    hook(self)
            except BaseException as error:  # raised again below, when the losses are read and the run is saved
                raised.append(error)
            return self._is_due(steps=1) or bool(raised) or self._interrupt() or bool(self.ended_early)

        losses = train_epoch(
            self.run, self.optimizer, clip=settings.clip, epoch=position.epoch, start=position.step, stop=after_step
        )
        # Reading the losses waits for the device, so the time below includes all of its work. They are added in their
        # order and in float64: the sum must not depend on where an epoch was interrupted.
        *values, largest = torch.cat([torch.stack(losses).double(), _largest(self.model)]).tolist()
        position.seconds = seconds_before + time.perf_counter() - started
        for number, loss in enumerate(values, start=first_step + 1):
            if not math.isfinite(loss):
                raise self._diverged(f"loss of {loss}", number)
            position.loss += loss
        if not math.isfinite(largest):
            raise self._diverged(f"parameter of {largest}", position.step)
        if raised:
            if self.run.sync is None:  # other ranks do not know of it
                self._save()
            raise raised[0]

    def _end_epoch(self) -> None:
        """Record the epoch, with scores where they are due, call the callbacks and write what is due.

        An epoch that a limit cut off is saved before it is evaluated: a resumed run trains its rest and records it
        anew.
        """
        position, settings = self._position, self.settings
        epoch, complete, is_last = position.epoch + 1, position.step == self.run.num_batches, bool(self.ended_early)
        if not complete:
            self._save()
        evaluates = settings.evaluates(epoch) or (settings.eval_every > 0 and is_last)
        scores = self._evaluate() if evaluates else None
        record = EpochRecord(epoch, position.loss / position.step, position.seconds, scores, self.run.solves())
        self.records.append(record)
        score = None if scores is None else scores.get("val", math.nan)
        improved = self._validated and score is not None and self.best.update(epoch, score)
        if self.schedule.scheduler is not None:
            self.log(lr=self.optimizer.param_groups[0]["lr"])
        if complete:
            position.epoch, position.step, position.loss = epoch, 0, 0.0
            self.schedule.after_epoch(score)
        save = self.run.sync is None  # where a callback raises, other ranks do not know of it
        try:
            for callback in self._callbacks.values():
                callback.on_epoch(self)
            checkpoint_due = complete and self._is_due(epochs=1)  # asked first: it counts the epoch
            save = checkpoint_due or self._is_over() or self._interrupt()
        finally:
            self._write(improved, save and complete)

    def _evaluate(self) -> dict[str, float]:
        """The exact scores of the model; undefined ones are left out."""
        # small chunks where rows are kept off the device, because memory is short
        size = MAX_ELEMENTS if set(self.run.tiers.values()) == {"device"} else FEW_ELEMENTS
        problem = self.run.evaluated
        if self.run.sync is not None:  # the tables of the pass need other pages than those that steps have freed
            release_freed()
        # the tables of an inductive run hold no rows of the other nodes
        start = problem.kind.solver_start(self.run.tables) if problem is self.run.problem else None
        scores = evaluate_problem(problem, size, start, self._metrics)
        return {split: score for split, score in scores.items() if math.isfinite(score)}

    def _write(self, improved: bool, save: bool) -> None:
        """Write the record of the epoch, the parameters if they are the best so far, and a checkpoint where due."""
        folder = self._folder
        if folder is None:
            return
        folder.append(self.record)
        if improved and self.best.parameters is not None:
            folder.save_best(self.best.epoch, self.best.parameters)
        if save:
            self._save()

    def _is_due(self, steps: int = 0, epochs: int = 0) -> bool:
        """Whether it is time for a checkpoint, after so many more steps or epochs; all ranks have the same answer."""
        if self._folder is None:
            return False
        due = self._folder.due(steps, epochs)
        if self.run.sync is None or not self._folder.timed:
            return due
        # on a GPU, the answer that is read after the first step is that from before the last checkpoint
        return self._asked_to_save() and self._folder.steps_since > 1

    def _wants_to_save(self) -> bool:
        """What the first rank answers where the time decides."""
        return self.run.is_first_rank and self._folder is not None and self._folder.timed and self._folder.due()

    def _save(self) -> None:
        """Write a checkpoint where there is a folder."""
        if self._folder is not None:
            largest = float(_largest(self.model))  # a callback may have changed the parameters
            if not math.isfinite(largest):
                raise self._diverged(f"parameter of {largest}", self._position.step)
            callbacks = {name: callback.state_dict() for name, callback in self._callbacks.items()}
            self._position.extras = {
                "best": self.best.state_dict(),
                "scheduler": self.schedule.state_dict(),
                "callbacks": callbacks,
            }
            self._folder.save(self._position)

    def _interrupted(self) -> Interrupted:
        """Save the run where it has a folder; the error that says so."""
        if self._folder is None:
            return Interrupted("stopped; nothing was saved, since no run folder was given")
        self._save()
        position = self._position
        return Interrupted(f"stopped after epoch {position.epoch}, step {position.step}; saved in {self._folder.path}")

    def _diverged(self, what: str, step: int) -> DivergenceError:
        """The error of a value that is not finite; nothing is written."""
        if self._folder is None:
            last = "nothing was saved, since no run folder was given"
        else:
            last = "the last good checkpoint, after epoch {}, step {}, is in {}".format(
                *self._folder.saved, self._folder.path
            )
        return DivergenceError(
            f"expected finite losses and parameters (got a {what} in epoch {self._position.epoch + 1}, step {step}): "
            f"lower the learning rate or clip the gradient; {last}"
        )

    def _check_validation(self) -> None:
        """Refuse what reads validation scores where there are none."""
        run = self.run
        shared = run.whole is run.graph or run.sync is not None  # known without making another matrix P, or needed
        self._validated = "val" in (run.evaluated if shared else run.whole).splits
        reader = self.settings.score_reader or "the scheduler" * self.schedule.reads_score
        self.settings.check_scores(reader, _missing_scores(run.graph, self._validated))


def check_settings(settings: Settings, graph: Graph, splits: Sequence[str]) -> None:
    """Refuse settings that do not fit a graph, which takes no partition and no binding to know.

    Args:
        splits: the splits that have nodes; for a shard, those of the whole graph.
    """
    metrics_of(settings.metrics, graph)
    settings.check_scores(settings.score_reader, _missing_scores(graph, "val" in splits))


def _missing_scores(graph: Graph, validated: bool) -> str:
    """Why a graph gives no validation scores; empty where it has validation nodes."""
    return "" if validated else f"graph {graph.name!r} without validation nodes"


def train_step(run: Run, optimizer: torch.optim.Optimizer, batch: Batch, clip: float | None = None) -> Tensor:
    """One training step on ``batch``; returns the loss, which stays on the device."""
    return run.step(batch, optimizer, clip).loss


def train_epoch(
    run: Run, optimizer: torch.optim.Optimizer, *, clip: float | None = None, epoch: int | None = None,
    start: int = 0, stop: Stop = never,
) -> list[Tensor]:  # fmt: skip
    """The training steps of one epoch; returns the loss of each step, on the device.

    No step waits for the device: the caller reads the losses when the epoch is over.

    Args:
        clip: largest norm of the gradient; None: no clipping.
        epoch: number of the epoch, counted from 0; by default the run's next one.
        start: number of the first batch, greater than 0 where an interrupted epoch is continued.
        stop: called after every step; the epoch ends early where it returns True.
    """
    losses = []
    for batch in run.batches(epoch, start):
        losses.append(train_step(run, optimizer, batch, clip))
        if stop():
            break
    return losses


def _by_name(callbacks: Sequence[Callback | OnEpoch]) -> dict[str, Callback]:
    """The callbacks by class and number, as a checkpoint names their states; functions become callbacks."""
    named: dict[str, Callback] = {}
    for given in callbacks:
        if isinstance(given, type) or not (isinstance(given, Callback) or callable(given)):
            got = f"{given.__name__}, a class" if isinstance(given, type) else type(given).__name__
            raise ConfigError(
                f"expected callbacks that are functions or objects of lmc.train.Callback (got {got}): pass an object"
            )
        callback = given if isinstance(given, Callback) else Callback()
        if not isinstance(given, Callback):
            callback.on_epoch = given  # type: ignore[method-assign, assignment]
        kind = type(callback).__name__
        named[f"{kind}.{sum(type(c).__name__ == kind for c in named.values())}"] = callback
    return named


def _largest(model: nn.Module) -> Tensor:
    """[1], the largest absolute value of the parameters and buffers; NaN and infinity are kept."""
    values = [v for v in model.state_dict().values() if v.is_floating_point()]
    return torch.nn.utils.get_total_norm(values, math.inf).double().view(1)
