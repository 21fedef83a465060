"""``lmc predict``: the predictions of the model in a run folder, as a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lmc.cli.console import console, device_name, facts
from lmc.cli.options import Predict
from lmc.cli.plan import parse_memory
from lmc.errors import ConfigError
from lmc.files import replacing, writable
from lmc.graph import SPLITS, Graph
from lmc.stores import check_device
from lmc.train import load_run, predict

COLUMNS = {"logits": "logit", "probabilities": "probability", "classes": "label", "states": "state"}
"""What the columns of a file of comma-separated values are named after, before their number."""


def predict_command(options: Predict) -> None:
    """Write the predictions of the model in a run folder to a file."""
    out, write, device = console(), _writer(options.out), check_device(options.device)
    memory = None if options.memory is None else parse_memory(options.memory)
    model, config, record = load_run(options.run_dir)
    graph = options.load()
    graph = replace(graph, task=config.get("task", graph.task))
    nodes = _nodes(graph, options.nodes)
    found = predict(model.to(device), graph, nodes, options.output, layer=options.layer, memory=memory)
    values = found.cpu().numpy()
    with writable(options.out.parent, "choose another --out"), replacing(options.out) as file:
        write(file, nodes, options.output, values)
    best = f", best epoch {record.best_epoch}" if record.best_val is not None else ""
    columns = f", {values.shape[1]} columns" if values.ndim == 2 else ""
    out.print(
        facts(
            [
                ("run", f"{options.run_dir}: {model!r}{best}"),
                ("graph", repr(graph)),
                ("device", device_name(device)),
                ("written", f"{options.out}: {options.output} of {nodes.size:,} nodes{columns}"),
            ]
        )
    )


def _nodes(graph: Graph, which: str) -> np.ndarray:
    """The numbers of all nodes, or of those of a split."""
    if which not in ("all", *SPLITS):
        raise ConfigError(f"expected --nodes all, {', '.join(SPLITS)} (got {which!r})")
    mask = np.ones(graph.num_nodes, dtype=bool) if which == "all" else getattr(graph, which).cpu().numpy()
    if not mask.any():
        raise ConfigError(f"expected a graph with {which} nodes (got none in {graph.name!r}): use --nodes all")
    return np.flatnonzero(mask)


def _writer(path: Path) -> Callable[[BinaryIO, np.ndarray, str, np.ndarray], None]:
    """How a file of this name is written."""
    writers = {".npz": _write_npz, ".csv": _write_csv}
    if path.suffix not in writers:
        raise ConfigError(f"expected --out with a name that ends in .npz or .csv (got {path})")
    return writers[path.suffix]


def _write_npz(file: BinaryIO, nodes: np.ndarray, output: str, values: np.ndarray) -> None:
    arrays: dict[str, Any] = {"nodes": nodes, output: values}
    np.savez(file, **arrays)


def _write_csv(file: BinaryIO, nodes: np.ndarray, output: str, values: np.ndarray) -> None:
    columns = ["class"] if values.ndim == 1 else [f"{COLUMNS[output]}_{k}" for k in range(values.shape[1])]
    rows = np.column_stack([nodes, values])  # node numbers are exact in float64, up to 2^53
    number = "%d" if output == "classes" else "%.9g" if values.dtype == np.float32 else "%.17g"
    header = ",".join(["node", *columns])
    np.savetxt(file, rows, fmt=["%d"] + [number] * len(columns), delimiter=",", header=header, comments="")
