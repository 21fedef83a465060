"""The options of ``lmc train`` and ``lmc compare``, each declared once as a field of a dataclass.

Nothing here imports torch when the module is loaded, so that ``lmc --help`` is quick.
"""

# Annotations are not postponed in this file: the fields become command-line options, and Typer reads their types.
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from lmc.errors import ConfigError

if TYPE_CHECKING:
    from lmc.engine import Distributed
    from lmc.graph import Graph
    from lmc.losses import RowLoss
    from lmc.stores import Placement
    from lmc.train import Settings

T = TypeVar("T")


def under(heading: str) -> Callable[..., Any]:
    """Options that the help lists under one heading."""
    return lambda help, *flag, **more: typer.Option(*flag, help=help, rich_help_panel=heading, **more)


_data, _method, _model, _loop = under("Data"), under("Method"), under("Model"), under("Optimiser")
_place, _run, _ranks = under("Placement"), under("Run"), under("Ranks (torchrun)")


def folder_of(text: str) -> Path:
    """The path of a folder that is written. As a ``Path`` an empty text, such as that of a shell variable that is not
    set, would be the current folder."""
    if not text:
        raise typer.BadParameter(
            "expected the path of a folder (got an empty text): name one, or . for the current folder"
        )
    return Path(text)


DataDir = Annotated[Path | None, _data("Folder to look in first, before $LMC_DATA.")]
Epochs = Annotated[int, _loop("Passes over the parts.")]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The graph that a command reads."""

    dataset: Annotated[
        str,
        typer.Argument(
            help="A name (`lmc datasets` lists them; arxiv-like@0.1 is scaled) or the path of an .npz; `lmc train` "
            "also takes a folder of `lmc shard`."
        ),
    ]
    data_dir: DataDir = None
    scale: Annotated[float | None, _data("Factor on a lookalike's nodes and edges.")] = None
    symmetrise: Annotated[bool, _data("Repair one-way edges, duplicates and self-loops.", "--symmetrise")] = False
    directed: Annotated[bool, _data("The file holds a directed graph, source to target.", "--directed")] = False
    task: Annotated[
        str | None, _data("Meaning of the targets of a file: classes, labels (several per node) or regression.")
    ] = None

    def load(self, mapped: bool = False) -> "Graph":
        """The graph; ``mapped``: read in pieces, where :func:`lmc.load` can."""
        from lmc.data import load

        return load(
            self.dataset, data_dir=self.data_dir, scale=self.scale, symmetrise=self.symmetrise,
            directed=self.directed or None, task=self.task, mapped=mapped,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Training(Source):
    """What both commands have."""

    inductive: Annotated[
        bool | None,
        _data(
            "Whether training sees the training nodes and the edges between them alone. Default: only on ppi and "
            "ppi-like, and where a file says so.",
            "--inductive/--transductive",
        ),
    ] = None
    parts: Annotated[
        int | None, _method("Parts the graph is divided into. Default: one per 2,000 nodes, 10 to 1,500.")
    ] = None
    clusters: Annotated[
        str | None,
        _method(
            "Parts in a batch; auto (`lmc train` alone): as many as fit in memory. Default: an eighth, at least 2."
        ),
    ] = None
    partition: Annotated[
        str | None,
        _method(
            "Partitioner: metis, metis-work (equal work), kaminpar or kaminpar-fast (need that package), "
            "label-propagation, stream, random, or auto: metis, and from 15 million edges on kaminpar-fast where that "
            "package is installed.",
            show_default="auto",
        ),
    ] = None
    model: Annotated[
        str,
        _model(
            "A name and its options, e.g. gcn:layers=3:hidden=256; `lmc models` lists the names, `lmc models gcn` the "
            "options of one."
        ),
    ] = "gcn"
    loss: Annotated[
        str | None,
        _loop(
            "cross-entropy:weight=1/5/1:smoothing=0.1, binary-cross-entropy:pos_weight=3, mse or huber:delta=0.5. "
            "Default: by the task of the graph."
        ),
    ] = None
    epochs: Epochs = 100
    optimizer: Annotated[
        str,
        _loop(
            "adam, adamw, sgd, rmsprop, nadam, radam or adagrad, with the options of torch.optim, e.g. "
            "adamw:weight_decay=5e-4 or sgd:momentum=0.9."
        ),
    ] = "adam"
    lr: Annotated[float, _loop("Learning rate.")] = 0.01
    scheduler: Annotated[
        str | None,
        _loop(
            "cosine:floor=0:epochs=N, step:size=30:gamma=0.1 or constant, each with warmup=EPOCHS and every=epoch or "
            "step; or plateau:factor=0.5:patience=10, by the validation score. Default: a constant learning rate."
        ),
    ] = None
    weight_decay: Annotated[float | None, _loop("Weight decay. Default: that of the optimiser, 0 for adam.")] = None
    clip: Annotated[float | None, _loop("Largest norm of the gradient.")] = None
    patience: Annotated[int | None, _loop("Stop after so many evaluations without a better validation score.")] = None
    steps: Annotated[int | None, _loop("Stop after so many steps, also within an epoch.")] = None
    minutes: Annotated[float | None, _loop("Stop after so many minutes of training steps.")] = None
    eval_every: Annotated[int, _loop("Epochs between evaluations; 0: never.")] = 1
    seed: Annotated[int, _run("Seed of parameters, partition and batches.")] = 0
    run_dir: Annotated[
        Path | None,
        _run("Where results go. Default: runs/NAME-K, with the next number K.", parser=folder_of, metavar="PATH"),
    ] = None
    name: Annotated[str | None, _run("NAME of the folder under runs/. Default: graph, method and model.")] = None
    overwrite: Annotated[
        bool, _run("Delete the run in the folder first; without --run-dir, in the newest of this name.", "--overwrite")
    ] = False
    checkpoint_every: Annotated[
        str, _run("Interval of checkpoints: 30s, 10min, 2h, 500steps, 1epochs; auto: 30s, longer if they are large.")
    ] = "auto"
    resume: Annotated[
        bool, _run("Continue the run in the folder; without --run-dir, in the newest of this name.", "--resume")
    ] = False
    device: Annotated[str, _place("cpu, cuda, or auto: the GPU where there is one.")] = "auto"
    history: Annotated[
        str, _place("Where histories are kept: device, host, disk (disk:FOLDER), or auto: by free memory.")
    ] = "device"
    features: Annotated[str, _place("Where features are kept: as for --history.")] = "device"
    structure: Annotated[str, _place("Where edges are kept: device, host or disk.")] = "device"
    precision: Annotated[str, _place("Number format of rows and tables: float32, or bfloat16 in half the bytes.")] = (
        "float32"
    )
    rebuild_batches: Annotated[
        bool, _place("Build every batch when it is needed and keep none.", "--rebuild-batches")
    ] = False

    def load(self, mapped: bool = False) -> "Graph":
        graph = super().load(mapped or self.structure.startswith("disk"))
        return graph if self.inductive is None else replace(graph, inductive=self.inductive)

    def settings(self) -> "Settings":
        from lmc.train import Settings

        shared = {f.name for f in fields(Settings)} & {f.name for f in fields(self)}
        return Settings(**{name: getattr(self, name) for name in shared})

    def row_loss(self) -> "RowLoss | None":
        """The loss of ``--loss``; None: that of the task."""
        from lmc.cli.spec import parse_loss

        return None if self.loss is None else parse_loss(self.loss)

    def placement(self) -> "Placement":
        """Where to train, and what is kept where; a device that this machine does not have is refused."""
        from lmc.stores import Placement, check_device

        check_device(self.device)
        keep = not self.rebuild_batches
        return Placement(self.device, self.history, self.features, self.structure, self.precision, keep_batches=keep)

    def shared(self) -> dict[str, int | str | None]:
        """The options that go to every method that has them."""
        try:
            clusters = None if self.clusters in (None, "auto") else int(self.clusters)
        except ValueError as error:
            raise ConfigError(f"expected a whole number or auto for --clusters (got {self.clusters!r})") from error
        return {"parts": self.parts, "clusters": clusters, "partition": self.partition}


@dataclass(frozen=True, kw_only=True)
class Train(Training):
    """The options of ``lmc train``."""

    preset: Annotated[
        str | None,
        _method(
            "Settings of the paper, e.g. lmc/gcn/ogbn-arxiv; `lmc presets` lists them. Other options replace them."
        ),
    ] = None
    method: Annotated[
        str,
        _method(
            "A name and its options, e.g. lmc:alpha=0.4:score=x; `lmc methods` lists the names, `lmc methods lmc` the "
            "options of one. auto: the one that lmc.recommended chooses, which is shown with the reason."
        ),
    ] = "auto"
    metrics: Annotated[
        str | None,
        _loop(
            "The score that chooses the best epoch: accuracy, roc-auc; micro-f1, top-k-micro-f1; r2, mae, rmse. "
            "Default: by the task of the graph.",
            "--metric",
        ),
    ] = None
    restore_best: Annotated[
        bool,
        _run(
            "Keep the parameters of the best epoch for later use, or those of the last.",
            "--restore-best/--no-restore-best",
        ),
    ] = True
    tensorboard: Annotated[
        bool, _run("Log to the folder tensorboard in the run folder; needs that package.", "--tensorboard")
    ] = False
    sync: Annotated[
        str | None, _ranks("When ranks exchange rows: step (default), after every step, or layer, at every layer.")
    ] = None
    sync_every: Annotated[int | None, _ranks("Steps between two exchanges of --sync step. Default: 1.")] = None
    wire: Annotated[
        str | None, _ranks("Rows are sent as they are kept (exact, the default), or as bfloat16 in half the bytes.")
    ] = None
    timeout: Annotated[
        float | None, _ranks("Seconds after which a rank that waits for another one ends. Default: 120.")
    ] = None
    memory: Annotated[
        str | None,
        _place("Memory of the device to stay within, e.g. 4GB; on a GPU CUDA's own, about 0.5 GB, is not counted."),
    ] = None
    dry_run: Annotated[
        bool, _place("Show what would be kept where and the memory of a step; train nothing.", "--dry-run")
    ] = False

    def distributed(self) -> "Distributed | bool":
        """How ranks exchange rows, where torchrun has started this process."""
        from lmc.engine.distributed import Distributed, launched

        given: dict[str, Any] = {name: getattr(self, name) for name in ("sync", "sync_every", "wire", "timeout")}
        given = {name: value for name, value in given.items() if value is not None}
        if given and not launched():
            name = next(iter(given)).replace("_", "-")
            raise ConfigError(
                f"expected a process of torchrun for --{name} (got one that was started alone): use torchrun "
                "--nproc-per-node 2 -m lmc train, or drop it"
            )
        return Distributed(**given) if launched() else False


@dataclass(frozen=True, kw_only=True)
class Compare(Training):
    """The options of ``lmc compare``."""

    methods: Annotated[
        str,
        _method(
            "Comma-separated, each as for `lmc train --method`: gas,lmc,lmc:alpha=0.8:score=x^2. auto: several that "
            "train the model. With --resume: those of the comparison, and further ones."
        ),
    ] = "auto"
    epochs: Epochs = 50
    error_every: Annotated[
        int | None,
        _run(
            "Epochs between measurements of the gradient error, the last one with the bias; 0: never. "
            "Default: so that there are about 6 of them."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Predict(Source):
    """The options of ``lmc predict``."""

    run_dir: Annotated[Path, typer.Argument(help="A run folder of `lmc train`, or of lmc.fit with a native model.")]
    out: Annotated[Path, typer.Option(help="The file to write: predictions.npz or predictions.csv.")]
    output: Annotated[
        str, typer.Option(help="logits, probabilities, classes, or states: what a layer gives to the next one.")
    ] = "logits"
    layer: Annotated[int | None, typer.Option(help="The layer of --output states. Default: the last.")] = None
    nodes: Annotated[str, typer.Option(help="all, train, val or test.")] = "all"
    memory: Annotated[
        str | None, _place("Memory that may be needed beside the graph, the model and the result, e.g. 4GB.")
    ] = None
    device: Annotated[str, _place("cpu, cuda, or auto: the GPU where there is one.")] = "auto"


@dataclass(frozen=True, kw_only=True)
class Shard(Source):
    """The options of ``lmc shard``."""

    ranks: Annotated[int, typer.Option(help="Processes of the distributed run.")]
    out: Annotated[
        Path,
        typer.Option(
            help="The folder to write: rank-0, rank-1, ... and manifest.json.", parser=folder_of, metavar="PATH"
        ),
    ]
    parts: Annotated[
        int | None, typer.Option(help="Number of parts of all ranks together. Default: as for `lmc train`.")
    ] = None
    partition: Annotated[
        str, typer.Option(help="stream (bounded memory), or metis, kaminpar, label-propagation, random.")
    ] = "stream"
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0


def takes(
    options: type[T], last: Collection[str] = (), complete: Callable[[T, Collection[str]], T] = lambda given, _: given
) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """A command whose options are the fields of a dataclass, and which takes one of these.

    Args:
        last: fields that the help lists after all others.
        complete: the options from those of the command line and the names of those that are written there.
    """

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        @wraps(command)
        def run(context: typer.Context, **values: Any) -> None:
            sources = {name: context.get_parameter_source(name) for name in values}
            written = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
            command(complete(options(**values), written))

        parameters = inspect.signature(options).parameters.values()
        ordered = sorted(parameters, key=lambda p: p.name in last)
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        run.__signature__ = inspect.Signature([context, *ordered])  # type: ignore[attr-defined]
        return run

    return decorate
