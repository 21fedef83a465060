"""``lmc.fit``: train a model on a graph in one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from lmc.errors import Interrupted, typed
from lmc.graph import Graph
from lmc.methods import Method
from lmc.models import Model
from lmc.results import EpochRecord, RunRecord, read_lines
from lmc.stores import Placement
from lmc.train.loop import stop_on_interrupt, train
from lmc.train.progress import epoch_bar
from lmc.train.run_folder import Settings, config_of


@typed
def fit(
    graph: Graph, model: Model, method: Method, epochs: int = 100, lr: float = 0.01, *, weight_decay: float = 0.0,
    clip: float | None = None, eval_every: int = 1, parts: Tensor | None = None, seed: int = 0,
    run_dir: str | Path | None = None, resume: bool = False, device: str | torch.device | None = None,
    checkpoint_seconds: float = 30.0, placement: Placement | None = None,
    on_epoch: Callable[[EpochRecord], None] | None = None, progress: bool = False,
) -> RunRecord:  # fmt: skip
    """Train ``model`` on ``graph`` by ``method`` and return the record; the model keeps the last parameters.

    Args:
        epochs, lr, weight_decay, clip, eval_every, checkpoint_seconds: see :class:`Settings`.
        parts: [num_nodes], the part of every node, instead of the method's own partition.
        seed: of batches and dropout; the initial parameters are those of ``model``.
        run_dir: where to write config.json, epochs.jsonl, checkpoint.safetensors and best.safetensors (the parameters
            of the best validation epoch).
        resume: continue the run in ``run_dir``; on a CPU it ends bit-identical to one that never stopped.
        placement: where to train, and what is kept where; by default everything on the GPU where there is one.
        device: a shorthand for ``placement=Placement(device=device)``.
        on_epoch: called with the record of every epoch when the epoch is complete.
        progress: show a progress bar on standard error.

    Ctrl-C finishes the step, saves where there is a ``run_dir``, and raises :class:`lmc.errors.Interrupted`.
    """
    settings = Settings(epochs, lr, weight_decay, clip, eval_every, checkpoint_seconds)
    run = method.bind(graph, model, parts, placement, device=device, seed=seed)
    folder = None if run_dir is None else Path(run_dir)
    records: list[EpochRecord] = []
    with stop_on_interrupt() as stop, epoch_bar(epochs) if progress else nullcontext() as show:
        for record in train(run, settings, folder, resume, stop):
            records.append(record)
            for callback in (show, on_epoch):
                if callback is not None:
                    callback(record)
        if stop():  # in the last epoch: everything is done and saved, but a sweep of runs must stop here
            raise Interrupted("stopped after the last epoch")
    if folder is not None:
        records = read_lines(folder / "epochs.jsonl")
    return RunRecord(config_of(run, settings), tuple(records), None if folder is None else str(folder))
