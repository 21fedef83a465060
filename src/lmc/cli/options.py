"""The options that several commands share, declared once. Nothing here imports torch when the module is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmc.errors import ConfigError

if TYPE_CHECKING:
    from lmc.stores import Placement

_DATA, _METHOD, _MODEL, _OPTIMISER = "Data", "Method", "Model", "Optimiser"
_PLACEMENT, _RUN = "Placement", "Run"

Dataset = Annotated[
    str, typer.Argument(help="A name (`lmc datasets` lists them; arxiv-like@0.1 is scaled) or the path of an .npz.")
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder to look in first, before $LMC_DATA.", rich_help_panel=_DATA),
]
Scale = Annotated[
    float | None,
    typer.Option("--scale", help="Factor on a lookalike's nodes and edges.", rich_help_panel=_DATA),
]
Symmetrise = Annotated[
    bool,
    typer.Option("--symmetrise", help="Repair one-way edges, duplicates and self-loops.", rich_help_panel=_DATA),
]

Method = Annotated[
    str,
    typer.Option(
        "--method",
        help="A name and its options, e.g. lmc:alpha=0.4:score=x; `lmc methods` lists the names, `lmc methods lmc` the "
        "options of one. auto: cmc, or lmc where the model's aggregation is not linear, or lmc4rec for a fixed point.",
        rich_help_panel=_METHOD,
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        help="Comma-separated, each as for `lmc train --method`: gas,lmc,lmc:alpha=0.8:score=x^2. auto: several that "
        "train the model.",
        rich_help_panel=_METHOD,
    ),
]
Parts = Annotated[
    int | None,
    typer.Option(
        "--parts",
        help="Parts the graph is divided into. Default: one per 2,000 nodes, at least 10.",
        rich_help_panel=_METHOD,
    ),
]
Clusters = Annotated[
    str | None,
    typer.Option(
        "--clusters",
        help="Parts in a batch; auto (`lmc train` alone): as many as fit in memory. Default: an eighth, at least 2.",
        rich_help_panel=_METHOD,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="A name and its options, e.g. gcn:layers=3:hidden=256; `lmc models` lists the names, `lmc models gcn` the "
        "options of one.",
        rich_help_panel=_MODEL,
    ),
]

Epochs = Annotated[int, typer.Option("--epochs", help="Passes over the parts.", rich_help_panel=_OPTIMISER)]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate of Adam.", rich_help_panel=_OPTIMISER)]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="Weight decay of Adam.", rich_help_panel=_OPTIMISER)]
Clip = Annotated[float | None, typer.Option("--clip", help="Largest norm of the gradient.", rich_help_panel=_OPTIMISER)]
EvalEvery = Annotated[
    int,
    typer.Option("--eval-every", help="Epochs between evaluations; 0: never.", rich_help_panel=_OPTIMISER),
]

Device = Annotated[
    str, typer.Option("--device", help="cpu, cuda, or auto: the GPU where there is one.", rich_help_panel=_PLACEMENT)
]
History = Annotated[
    str,
    typer.Option(
        "--history",
        help="Where histories are kept: device, host, disk (disk:FOLDER), or auto: by free memory.",
        rich_help_panel=_PLACEMENT,
    ),
]
Features = Annotated[
    str,
    typer.Option("--features", help="Where features are kept: as for --history.", rich_help_panel=_PLACEMENT),
]
Structure = Annotated[
    str,
    typer.Option("--structure", help="Where edges are kept: device or host.", rich_help_panel=_PLACEMENT),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision", help="Of rows and tables: float32, or bfloat16 in half the bytes.", rich_help_panel=_PLACEMENT
    ),
]
RebuildBatches = Annotated[
    bool,
    typer.Option(
        "--rebuild-batches", help="Build every batch when it is needed and keep none.", rich_help_panel=_PLACEMENT
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory of the device to stay within, e.g. 4GB; on a GPU CUDA's own, about 0.5 GB, is not counted.",
        rich_help_panel=_PLACEMENT,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Show what would be kept where and the memory of a step; train nothing.",
        rich_help_panel=_PLACEMENT,
    ),
]

Seed = Annotated[int, typer.Option("--seed", help="Of parameters, partition and batches.", rich_help_panel=_RUN)]
RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", help="Where results go. Default: a folder under runs/.", rich_help_panel=_RUN),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what is in the run folder.", rich_help_panel=_RUN)]
ErrorEvery = Annotated[
    int | None,
    typer.Option(
        "--error-every",
        help="Epochs between measurements of the gradient error; 0: never. Default: about 6 measurements in all.",
        rich_help_panel=_RUN,
    ),
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
