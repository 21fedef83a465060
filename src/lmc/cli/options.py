"""The options several commands share, declared once.

Options that only some methods or models have are None unless given, so that one which does not apply can be refused
instead of silently ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_DATA, _MODEL, _OPTIMISER, _METHOD, _RUN = "Data", "Model", "Optimiser", "Method", "Run"

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

Model = Annotated[
    str, typer.Option("--model", help="gcn, gcnii, sage, gin, gat, appnp, pna, sign or recgcn.", rich_help_panel=_MODEL)
]
Hidden = Annotated[int, typer.Option("--hidden", help="Width of the hidden layers.", rich_help_panel=_MODEL)]
Layers = Annotated[
    int | None,
    typer.Option("--layers", help="Aggregations. Default: 2 (gcnii 4, appnp 10).", rich_help_panel=_MODEL),
]
Dropout = Annotated[
    float | None,
    typer.Option("--dropout", help="Rate on the input of every layer but the first.", rich_help_panel=_MODEL),
]
InputDropout = Annotated[
    float | None, typer.Option("--input-dropout", help="Rate on the features.", rich_help_panel=_MODEL)
]
Norm = Annotated[str | None, typer.Option("--norm", help="none, layer or batch.", rich_help_panel=_MODEL)]
Residual = Annotated[
    bool | None,
    typer.Option("--residual", help="Add a layer's hidden input to its output.", rich_help_panel=_MODEL),
]
LinearIn = Annotated[
    bool | None,
    typer.Option("--linear-in", help="gcn: a Linear before the first aggregation.", rich_help_panel=_MODEL),
]
LinearOut = Annotated[
    bool | None,
    typer.Option("--linear-out", help="gcn: a Linear after the last aggregation.", rich_help_panel=_MODEL),
]
InitialShare = Annotated[
    float | None,
    typer.Option("--gcnii-alpha", help="gcnii: share of the encoded input in every layer.", rich_help_panel=_MODEL),
]
Theta = Annotated[
    float | None, typer.Option("--gcnii-theta", help="gcnii: strength of the weights.", rich_help_panel=_MODEL)
]
Kappa = Annotated[
    float | None,
    typer.Option("--kappa", help="recgcn: bound of the weights' norm, below 1.", rich_help_panel=_MODEL),
]
BoundedNorm = Annotated[
    str | None,
    typer.Option("--bounded-norm", help="recgcn: which norm kappa bounds, 1 or inf.", rich_help_panel=_MODEL),
]
FixedPointSolver = Annotated[
    str | None, typer.Option("--solver", help="recgcn: picard or anderson.", rich_help_panel=_MODEL)
]
Tolerance = Annotated[
    float | None, typer.Option("--tol", help="recgcn: relative residual to solve to.", rich_help_panel=_MODEL)
]
Heads = Annotated[int | None, typer.Option("--heads", help="gat: attention heads.", rich_help_panel=_MODEL)]
Teleport = Annotated[
    float | None, typer.Option("--teleport", help="appnp: teleport probability.", rich_help_panel=_MODEL)
]

Epochs = Annotated[int, typer.Option("--epochs", help="Passes over the parts.", rich_help_panel=_OPTIMISER)]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate of Adam.", rich_help_panel=_OPTIMISER)]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="Weight decay of Adam.", rich_help_panel=_OPTIMISER)]
Clip = Annotated[float | None, typer.Option("--clip", help="Largest norm of the gradient.", rich_help_panel=_OPTIMISER)]
EvalEvery = Annotated[
    int,
    typer.Option("--eval-every", help="Epochs between evaluations; 0: never.", rich_help_panel=_OPTIMISER),
]

Parts = Annotated[
    int | None,
    typer.Option("--parts", help="Parts the graph is cut into. Default: by its size.", rich_help_panel=_METHOD),
]
ClustersPerBatch = Annotated[
    int | None,
    typer.Option("--clusters", help="Parts in a batch. Default: an eighth, at least 2.", rich_help_panel=_METHOD),
]
ClustersOrAuto = Annotated[
    str | None,
    typer.Option(
        "--clusters",
        help="Parts in a batch; auto: as many as fit. Default: a quarter of them.",
        rich_help_panel=_METHOD,
    ),
]
Redraw = Annotated[bool | None, typer.Option("--redraw", help="Draw new batches every epoch.", rich_help_panel=_METHOD)]
Partition = Annotated[
    str | None,
    typer.Option("--partition", help="metis, random or label-propagation.", rich_help_panel=_METHOD),
]
History = Annotated[
    str,
    typer.Option(
        "--history",
        help="Where histories live: device, host, disk (disk:FOLDER), or auto: by free memory.",
        rich_help_panel=_RUN,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option("--alpha", help="lmc: trust in up-to-date halo values, 0 to 1.", rich_help_panel=_METHOD),
]
Score = Annotated[str | None, typer.Option("--score", help="lmc: x, x^2, 2x-x^2, 1 or sin.", rich_help_panel=_METHOD)]
Cut = Annotated[
    str | None,
    typer.Option("--cut", help="lmc: state before or after the activation.", rich_help_panel=_METHOD),
]
FirstLayer = Annotated[
    str | None, typer.Option("--first-layer", help="complete, pruned (lmc) or sampled.", rich_help_panel=_METHOD)
]
Adjoints = Annotated[
    bool | None,
    typer.Option(
        "--adjoints", help="cmc: keep the tables of adjoints too.", show_default=False, rich_help_panel=_METHOD
    ),
]
Momentum = Annotated[
    float | None, typer.Option("--momentum", help="fm, fm-ib, sse: weight of the new message.", rich_help_panel=_METHOD)
]
Update = Annotated[
    str | None,
    typer.Option("--update", help="lmc4rec: histories take the solution, or one step.", rich_help_panel=_METHOD),
]
CalmShare = Annotated[
    float | None,
    typer.Option("--q", help="lmc4rec, sse: share of steps without dropout.", rich_help_panel=_METHOD),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", help="Training nodes a batch grows from.", rich_help_panel=_METHOD),
]
Fanouts = Annotated[
    str | None,
    typer.Option("--fanouts", help="Neighbours drawn per row, e.g. 10 or 10,10,5.", rich_help_panel=_METHOD),
]
LayerSize = Annotated[
    int | None,
    typer.Option("--layer-size", help="fastgcn, ladies: nodes drawn for a layer.", rich_help_panel=_METHOD),
]
Sampler = Annotated[
    str | None, typer.Option("--sampler", help="graphsaint: walk, edge or node.", rich_help_panel=_METHOD)
]
DropEdge = Annotated[
    float | None,
    typer.Option("--drop-edge", help="Share of edges left out, anew every epoch.", rich_help_panel=_METHOD),
]
NoForward = Annotated[
    bool, typer.Option("--no-forward", help="lmc: without forward compensation.", rich_help_panel=_METHOD)
]
NoBackward = Annotated[
    bool, typer.Option("--no-backward", help="lmc: without backward compensation.", rich_help_panel=_METHOD)
]

Seed = Annotated[int, typer.Option("--seed", help="Of parameters, partition and batches.", rich_help_panel=_RUN)]
Device = Annotated[
    str, typer.Option("--device", help="cpu, cuda, or auto: the GPU where there is one.", rich_help_panel=_RUN)
]
Features = Annotated[
    str,
    typer.Option("--features", help="Where features live: as for --history.", rich_help_panel=_RUN),
]
Structure = Annotated[
    str,
    typer.Option("--structure", help="Where edges live: device, or host.", rich_help_panel=_RUN),
]
RebuildBatches = Annotated[
    bool,
    typer.Option("--rebuild-batches", help="Build batches for every step, keep none.", rich_help_panel=_RUN),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision", help="Of rows and tables: float32, or bfloat16 in half the bytes.", rich_help_panel=_RUN
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory of the device to stay within, e.g. 4GB; on a GPU CUDA's own, about 0.5 GB, is not counted.",
        rich_help_panel=_RUN,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Say what would be kept where and what a step takes; no training.", rich_help_panel=_RUN
    ),
]
RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", help="Where results go. Default: a folder under runs/.", rich_help_panel=_RUN),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what is in the run folder.", rich_help_panel=_RUN)]
