"""The options that several commands share, declared once. Nothing here imports torch when the module is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmc.errors import ConfigError

if TYPE_CHECKING:
    from lmc.stores import Placement


def _under(heading: str) -> Callable[[str, str], Any]:
    """Options that the help lists under one heading."""
    return lambda flag, help: typer.Option(flag, help=help, rich_help_panel=heading)


_data, _method, _model, _loop = _under("Data"), _under("Method"), _under("Model"), _under("Optimiser")
_place, _run = _under("Placement"), _under("Run")

Dataset = Annotated[
    str, typer.Argument(help="A name (`lmc datasets` lists them; arxiv-like@0.1 is scaled) or the path of an .npz.")
]
DataDir = Annotated[Path | None, _data("--data-dir", "Folder to look in first, before $LMC_DATA.")]
Scale = Annotated[float | None, _data("--scale", "Factor on a lookalike's nodes and edges.")]
Symmetrise = Annotated[bool, _data("--symmetrise", "Repair one-way edges, duplicates and self-loops.")]

Method = Annotated[
    str,
    _method(
        "--method",
        "A name and its options, e.g. lmc:alpha=0.4:score=x; `lmc methods` lists the names, `lmc methods lmc` the "
        "options of one. auto: cmc, or lmc where the model's aggregation is not linear, or lmc4rec for a fixed point.",
    ),
]
Methods = Annotated[
    str,
    _method(
        "--methods",
        "Comma-separated, each as for `lmc train --method`: gas,lmc,lmc:alpha=0.8:score=x^2. auto: several that train "
        "the model.",
    ),
]
Parts = Annotated[
    int | None, _method("--parts", "Parts the graph is divided into. Default: one per 2,000 nodes, at least 10.")
]
Clusters = Annotated[
    str | None,
    _method(
        "--clusters",
        "Parts in a batch; auto (`lmc train` alone): as many as fit in memory. Default: an eighth, at least 2.",
    ),
]
Model = Annotated[
    str,
    _model(
        "--model",
        "A name and its options, e.g. gcn:layers=3:hidden=256; `lmc models` lists the names, `lmc models gcn` the "
        "options of one.",
    ),
]

Epochs = Annotated[int, _loop("--epochs", "Passes over the parts.")]
Rate = Annotated[float, _loop("--lr", "Learning rate of Adam.")]
WeightDecay = Annotated[float, _loop("--weight-decay", "Weight decay of Adam.")]
Clip = Annotated[float | None, _loop("--clip", "Largest norm of the gradient.")]
EvalEvery = Annotated[int, _loop("--eval-every", "Epochs between evaluations; 0: never.")]

Device = Annotated[str, _place("--device", "cpu, cuda, or auto: the GPU where there is one.")]
History = Annotated[
    str, _place("--history", "Where histories are kept: device, host, disk (disk:FOLDER), or auto: by free memory.")
]
Features = Annotated[str, _place("--features", "Where features are kept: as for --history.")]
Structure = Annotated[str, _place("--structure", "Where edges are kept: device or host.")]
Precision = Annotated[str, _place("--precision", "Of rows and tables: float32, or bfloat16 in half the bytes.")]
RebuildBatches = Annotated[bool, _place("--rebuild-batches", "Build every batch when it is needed and keep none.")]
Memory = Annotated[
    str | None,
    _place(
        "--memory",
        "Memory of the device to stay within, e.g. 4GB; on a GPU CUDA's own, about 0.5 GB, is not counted.",
    ),
]
DryRun = Annotated[bool, _place("--dry-run", "Show what would be kept where and the memory of a step; train nothing.")]

Seed = Annotated[int, _run("--seed", "Of parameters, partition and batches.")]
RunDir = Annotated[Path | None, _run("--run-dir", "Where results go. Default: a folder under runs/.")]
Resume = Annotated[bool, _run("--resume", "Continue what is in the run folder.")]
ErrorEvery = Annotated[
    int | None,
    _run("--error-every", "Epochs between measurements of the gradient error; 0: never. Default: about 6 in all."),
]


def placement_of(
    device: str = "auto",
    history: str = "device",
    features: str = "device",
    structure: str = "device",
    precision: str = "float32",
    rebuild_batches: bool = False,
) -> Placement:
    """The placement that the options describe; a device that this machine does not have is refused."""
    from lmc.stores import Placement

    placement = Placement(device, history, features, structure, precision, keep_batches=not rebuild_batches)
    _ = placement.training_device
    return placement


def clusters_of(text: str | None) -> int | None:
    """The number of parts in a batch that ``--clusters`` gives; None for "auto", or where it is not given."""
    if text is None or text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"expected a whole number or auto for --clusters (got {text!r})") from error
