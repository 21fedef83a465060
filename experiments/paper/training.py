"""Several methods trained in turn, one epoch each, by the presets: all have the same number of epochs at any time."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, cast

import torch

from experiments.paper.graphs import Graphs
from lmc import presets
from lmc.bench.compare import PROBED, has_error, layer_of
from lmc.bench.epoch import free, wait
from lmc.cli.spec import method_options, parse_method
from lmc.data.catalog import REAL
from lmc.diagnostics import EstimateProbe, messages_kept, peak_bytes
from lmc.engine import Run
from lmc.errors import ConfigError, DivergenceError
from lmc.grammar import split_spec
from lmc.graph import Batch, Graph
from lmc.methods import ClusterMethod, FullBatch, LMC4Conv, Method
from lmc.models import MODELS, Model
from lmc.train import adam, train_epoch
from lmc.train.evaluate import evaluate_problem

EPOCHS = {"gcn": 300, "gcnii": 400, "recgcn": 300}
"""Epochs where a preset has none."""
LEAST_PARTS = 20
"""A lookalike has at least so many parts, or the preset's number where that is less."""
NO_TIME = "no time: its share of the time was over before its first epoch"
LEAST_EPOCHS, LEAST_SHARE, LEVEL_SHARE, GAIN = 60, 0.2, 0.45, 0.001
"""A training has settled after at least so many epochs and this share of its epochs, when the validation score has
gained no more than ``GAIN`` during the share ``LEVEL_SHARE`` of the epochs that it has."""
TIME, TIMED = "time", 6
"""The probe of groups that measure the time of an epoch, and their epochs."""
SEED_BATCH = 4096
"""Seeds in a batch of the methods that sample neighbours."""
OWN_MODELS = {"sign": "sign", "ignn": "full"}
"""Rows of the paper's tables with a model of their own, of the same name, and the method that trains it."""
SMALL_GCN = presets.Preset(
    "lmc/gcn/planetoid",
    LMC4Conv(num_parts=40, clusters_per_batch=10),
    "gcn",
    {"num_layers": 2, "hidden": 16, "dropout": 0.5, "input_dropout": True},
    {"lr": 0.01, "epochs": 200, "weight_decay": 5e-4},
)
"""GCN on cora, citeseer and pubmed, which the paper shows without its settings: those common for these sets."""


@dataclass(frozen=True)
class Training:
    """One group of methods that are trained in turn on one graph.

    Args:
        dataset, model: as in the paper; they choose the preset.
        methods: specs, comma-separated; options replace those of the preset, and ``lr`` its rate.
        parts, clusters: 0: the preset's.
        dropout: negative: the preset's.
        probe: what is measured besides: "gradient", "estimates" (of recurrent models), "memory", or nothing. "time":
            only the time of an epoch is measured, and nothing is evaluated.
        epochs: at most so many; 0: nothing is trained, for measurements of memory.
    """

    dataset: str
    model: str
    methods: str
    epochs: int
    parts: int = 0
    clusters: int = 0
    partition: str = "metis"
    dropout: float = -1.0
    probe: str = ""
    seed: int = 0

    @property
    def specs(self) -> list[str]:
        return self.methods.split(",")


@dataclass(frozen=True, kw_only=True)
class Trained(Training):
    """What one method of a group did; ``error`` says in one line why it did no more."""

    method: str
    graph: str = ""  # name and kind: "cora, real" or "arxiv-like@0.1, lookalike"
    at: list[int] = field(default_factory=list)  # epochs done at each evaluation
    seconds: list[float] = field(default_factory=list)  # time of training steps until then
    loss: list[float] = field(default_factory=list)  # mean of the batches of that epoch
    val: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    epoch_ms: float | None = None  # median, without the first epochs
    errors: list[Mapping[str, float]] = field(default_factory=list)  # by layer, or of "H" and "V", at each evaluation
    step_bytes: int | None = None
    forward: float | None = None  # share of messages kept
    backward: float | None = None
    error: str | None = None

    @property
    def chosen(self) -> float | None:
        """Test score at the best validation score."""
        return self.test[max(range(len(self.val)), key=self.val.__getitem__)] if self.val else None

    def reaches(self, target: float) -> tuple[float, float]:
        """Epochs and seconds until the test score first reaches the target; infinite where it never does."""
        found = ((e, s) for e, s, t in zip(self.at, self.seconds, self.test, strict=True) if t >= target)
        return next(found, (math.inf, math.inf))

    @property
    def ended(self) -> bool:
        """Whether all epochs are done or the validation score has stopped growing."""
        return bool(self.at) and (self.at[-1] >= self.epochs or has_settled(self.at, self.val, self.epochs))

    @property
    def cut_short(self) -> bool:
        """Whether the time of its group was over before the training had ended."""
        return self.error == NO_TIME or (self.error is None and bool(self.at) and not self.ended)

    def at_pace(self, epoch_ms: float) -> "Trained":
        """The same training with ``epoch_ms`` as the time of each epoch."""
        return dataclasses.replace(self, seconds=[e * epoch_ms / 1000 for e in self.at], epoch_ms=epoch_ms)

    def mean_error(self, name: str) -> float | None:
        """The mean of one error along training."""
        found = [errors[name] for errors in self.errors if name in errors]
        return fmean(found) if found else None


def has_settled(at: Sequence[int], val: Sequence[float], epochs: int) -> bool:
    """Whether the validation scores of a training of at most ``epochs``, at the epochs ``at``, have stopped growing."""
    best, since, done = -math.inf, 0, at[-1] if at else 0
    for epoch, score in zip(at, val, strict=True):
        if score > best + GAIN:
            best, since = score, epoch
    return done >= max(LEAST_EPOCHS, LEAST_SHARE * epochs) and done - since >= LEVEL_SHARE * done


def preset_of(model: str, dataset: str, method: str = "", random: bool = False) -> presets.Preset:
    """The preset of a model on a data set, of LMC where no method is named."""
    method = method or ("lmc4rec" if model == "recgcn" else "lmc")
    name = f"{method}{presets.presets.RANDOM if random else ''}/{model}/{dataset}"
    if model == "gcn" and f"lmc/gcn/{dataset}" not in presets.names():
        return SMALL_GCN
    return presets.get(name)


def method_of(cell: Training, spec: str, graph: Graph) -> tuple[Method, float | None]:
    """The method of a spec with the settings of its preset, and its own learning rate where it has one."""
    name, written = split_spec(spec)
    rate = written.pop("lr", None)
    text = ":".join([OWN_MODELS.get(name, name), *(f"{option}={value}" for option, value in written.items())])
    base = cast(ClusterMethod, preset_of(cell.model, cell.dataset).method)
    parts, clusters = divided(cell, base, graph.num_nodes)
    shared = {"parts": parts, "clusters": clusters, "partition": cell.partition, "batch_size": SEED_BATCH}
    if name == base.traits.name:
        own = {o.name: getattr(base, o.argument) for o in method_options(name) if hasattr(base, o.argument)}
        shared = own | shared
    return parse_method(text, **shared), None if rate is None else float(rate)


def divided(cell: Training, base: ClusterMethod, nodes: int) -> tuple[int, int]:
    """Parts and clusters of a cell on a graph of so many nodes.

    A smaller lookalike has fewer parts, of the same size. A batch has as many of them as the cell says, or the share of
    them that it has in the preset.
    """
    parts, share = cell.parts or base.num_parts or 10, min(1.0, nodes / REAL[cell.dataset].nodes)
    fewer = max(min(parts, LEAST_PARTS), round(parts * share))
    clusters = cell.clusters or max(1, round((base.clusters_per_batch or 2) * fewer / parts))
    return fewer, min(fewer, clusters)


def model_of(cell: Training, spec: str, graph: Graph, max_width: int | None) -> Model:
    """A new model of the preset, or the model of the spec's own with the same sizes."""
    preset = preset_of(cell.model, cell.dataset)
    arguments: dict[str, Any] = dict(preset.model_arguments)
    arguments["hidden"] = min(arguments["hidden"], max_width or arguments["hidden"])
    if cell.dropout >= 0:
        arguments |= {"dropout": cell.dropout, "input_dropout": False}
    name = preset.model_name
    if split_spec(spec)[0] in OWN_MODELS:
        name = split_spec(spec)[0]
        arguments = {k: arguments[k] for k in ("hidden", "num_layers", "dropout", "norm") if k in arguments}
    cls = cast(Any, MODELS[name])
    return cls(graph.num_features, out_width=graph.num_classes, seed=cell.seed, **arguments)


CURVES = ("at", "seconds", "loss", "val", "test", "errors")


@dataclass(eq=False)
class Contender:
    """One method in training, and what was measured of it so far."""

    cell: Training
    spec: str
    run: Run
    optimizer: torch.optim.Optimizer
    clip: float | None
    record: dict[str, Any] = field(default_factory=lambda: {k: [] for k in CURVES})
    times: list[float] = field(default_factory=list)
    last_loss: float = math.nan

    def train(self, epoch: int, stop: Callable[[], bool]) -> None:
        """One epoch; only the time of its steps counts. An epoch that ``stop`` cut off does not count."""
        device = self.run.problem.device
        start = time.perf_counter()
        losses = train_epoch(self.run, self.optimizer, clip=self.clip, epoch=epoch, stop=stop)
        wait(device)
        if len(losses) < self.run.num_batches:
            if not self.times:
                raise TimeoutError(NO_TIME)
            return
        self.times.append(time.perf_counter() - start)
        self.last_loss = float(torch.stack(losses).mean())
        if not math.isfinite(self.last_loss):
            raise DivergenceError(f"expected a finite loss (got {self.last_loss} in epoch {epoch + 1})")

    def evaluate(self) -> None:
        """Add a point to the curves."""
        if not self.times or self.record["at"][-1:] == [len(self.times)]:
            return
        problem = self.run.evaluated
        # the tables of an inductive run hold no rows of the other nodes
        start = problem.kind.solver_start(self.run.tables) if problem is self.run.problem else None
        scores = evaluate_problem(problem, start=start)
        point = {
            "at": len(self.times), "seconds": sum(self.times), "loss": self.last_loss,
            # without validation nodes the last evaluation counts
            "val": scores.get("val", float(len(self.times))), "test": scores["test"], "errors": self.probe(),
        }  # fmt: skip
        for name, value in point.items():
            self.record[name].append(value)

    def settled(self) -> bool:
        """Whether the validation score has stopped growing."""
        return has_settled(self.record["at"], self.record["val"], self.cell.epochs)

    def probe(self) -> Mapping[str, float]:
        """The errors that the cell asks for, mean over the first batches of an epoch."""
        run, kind = self.run, self.cell.probe
        evaluations = len(self.record["at"]) + 1
        if kind not in ("gradient", "estimates") or (kind == "estimates" and not has_error(run.method)):
            return {}
        if evaluations & (evaluations - 1):  # at the 1st, 2nd, 4th, 8th evaluation and so on: exact values take long
            return {}
        count = run.epoch
        batches = list(itertools.islice(run.batches(count), PROBED))
        run.epoch = count  # the run's own count of epochs stays as it is
        if kind == "estimates":
            estimates = EstimateProbe(run)
            found = [estimates(batch) for batch in batches]
            return {"H": fmean(e.H for e in found), "V": fmean(e.V for e in found)}
        found_by_layer = [self.gradient_errors(batch) for batch in batches]
        return {layer: fmean(errors[layer] for errors in found_by_layer) for layer in found_by_layer[0]}

    def gradient_errors(self, batch: Batch) -> dict[str, float]:
        """|g - g_full| / |g_full| of a batch's gradient for all parameters of a layer together, without dropout."""
        problem = self.run.problem
        whole = FullBatch().bind(problem.graph, problem.model, device=problem.device, loss=problem.loss)
        full, estimate = whole.gradient(next(whole.batches())), self.run.gradient(batch)
        sums: dict[str, list[float]] = {}
        for name, truth in full.items():
            total = sums.setdefault(layer_of(name), [0.0, 0.0])
            total[0] += float((estimate[name] - truth).square().sum())
            total[1] += float(truth.square().sum())
        return {layer: math.sqrt(error / size) for layer, (error, size) in sums.items() if size}

    def measure_memory(self) -> dict[str, Any]:
        """The peak of a step on the largest batch beyond what lives between steps, and the messages kept."""
        run = self.run
        batches = list(itertools.islice(run.batches(run.epoch), 8))
        largest = max(batches, key=lambda b: b.num_core + b.num_halo)
        self.optimizer.zero_grad(set_to_none=True)
        # a fixed batch would be a recorded step on a GPU, whose memory is not the peak of a step
        step = largest.unrecorded()
        run.accumulate(step)  # whatever is made once and kept is made now
        self.optimizer.zero_grad(set_to_none=True)
        found: dict[str, Any] = {"step_bytes": peak_bytes(lambda: run.accumulate(step), run.problem.device)}
        if isinstance(run.method, ClusterMethod | FullBatch):
            kept = messages_kept(run)
            found |= {"forward": kept.forward, "backward": kept.backward}
        return found

    def result(self, graph: str, error: str | None) -> Trained:
        """The record of this method."""
        timed = self.times[min(3, len(self.times) - 1) :] if self.times else []
        more: dict[str, Any] = {"epoch_ms": 1000 * median(timed) if timed else None, "error": error, "graph": graph}
        if self.cell.probe == "memory" and error is None:
            more |= self.measure_memory()
        return Trained(**asdict(self.cell), method=self.spec, **self.record, **more)


def one_line(error: BaseException) -> str:
    """An error as one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError | TimeoutError) else f"{type(error).__name__}: {text[:200]}"


def due(epoch: int, often: bool = True) -> bool:
    """Whether the ``epoch``-th epoch ends with an evaluation: every one at first, then at steps of about 5 %.

    Without ``often``: the first ten, then at steps of about 10 %.
    """
    if often:
        return epoch % max(1, int(epoch / 20)) == 0
    return epoch <= 10 or int(math.log(epoch, 1.1)) > int(math.log(epoch - 1, 1.1))


@dataclass(eq=False)
class Group:
    """The methods of a cell, from binding to records.

    Args:
        seconds: the time of this group; None: as long as its epochs take.
        until: the value of ``time.monotonic`` after which no step begins.
        settle: whether the group saves time: it ends early when all of its trainings have settled, and evaluates less
            often.
    """

    cell: Training
    graphs: Graphs
    max_width: int | None
    seconds: float | None
    until: float = math.inf
    settle: bool = False
    started: float = field(default_factory=time.monotonic)
    failed: dict[str, str] = field(default_factory=dict)

    def over(self, factor: float = 1.0) -> bool:
        """Whether ``factor`` times the time of this group is over, or the time of everything."""
        now = time.monotonic()
        return now >= self.until or (self.seconds is not None and now - self.started >= factor * self.seconds)

    @contextlib.contextmanager
    def kept(self, spec: str) -> Iterator[None]:
        """Whatever a method raises ends this method alone."""
        try:
            yield
        except Exception as error:
            self.failed[spec] = one_line(error)

    def bind(self, spec: str) -> Contender:
        """A method bound to a new model, with exact histories."""
        cell = self.cell
        graph, on_device, _ = self.graphs.load(cell.dataset)
        method, rate = method_of(cell, spec, graph)
        model = model_of(cell, spec, graph, self.max_width)
        run = method.bind(
            on_device, model, parts=self.graphs.parts(cell.dataset, method), device=self.graphs.device, seed=cell.seed
        )
        run.refresh()
        fit = preset_of(cell.model, cell.dataset, random=cell.partition == "random").fit_options
        optimizer = adam(run.problem.model, rate or fit["lr"], fit.get("weight_decay", 0.0))
        return Contender(cell, spec, run, optimizer, fit.get("clip"))

    def train(self) -> list[Trained]:
        """Train all methods until their epochs are done or the time is over; one record for each."""
        bound = self.bind_all()
        for epoch in range(self.cell.epochs):
            alive = [c for spec, c in bound.items() if spec not in self.failed]
            self.round(alive, epoch)
            last = self.over() or epoch + 1 == self.cell.epochs
            if self.cell.probe != TIME and (last or due(epoch + 1, often=not self.settle)):
                self.evaluate(alive)
                last = last or (self.settle and all(c.settled() for c in alive))
            if last:
                break
        records = [self.record(spec, bound.get(spec)) for spec in self.cell.specs]
        bound.clear()
        free(self.graphs.device)
        return records

    def evaluate(self, alive: list[Contender]) -> None:
        """Add a point to the curves of every method."""
        for contender in alive:
            with self.kept(contender.spec):
                contender.evaluate()

    def bind_all(self) -> dict[str, Contender]:
        """The methods that can be bound in time."""
        bound = {}
        for spec in self.cell.specs:
            if self.over(2):
                self.failed[spec] = NO_TIME
                continue
            with self.kept(spec):
                bound[spec] = self.bind(spec)
        return bound

    def record(self, spec: str, contender: Contender | None) -> Trained:
        """The record of a method, with the reason where it failed."""
        graph = ", ".join(self.graphs.source(self.cell.dataset))
        if contender is not None:
            with self.kept(spec):
                return contender.result(graph, self.failed.get(spec))
        return Trained(**asdict(self.cell), method=spec, graph=graph, error=self.failed[spec])

    def round(self, alive: list[Contender], epoch: int) -> None:
        """One epoch of every method; after the time is over no further epoch begins, except the first of each."""
        for contender in alive:
            if self.over(2 if epoch == 0 else 1):
                if epoch == 0:
                    self.failed[contender.spec] = NO_TIME
                continue
            with self.kept(contender.spec):
                contender.train(epoch, lambda: self.over(3))
