"""``lmc.fit``: train a model on a graph in one call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lmc.engine import Distributed
from lmc.engine.distributed import launched
from lmc.errors import ConfigError, Interrupted, typed
from lmc.graph import Graph, Shard
from lmc.heap import keep_memory as keep_freed_memory
from lmc.losses import Loss
from lmc.methods import Method
from lmc.models import Model
from lmc.results import RunRecord
from lmc.stores import Placement
from lmc.train.callbacks import Callback
from lmc.train.loop import OnEpoch, Training
from lmc.train.optimizers import OptimizerFactory, PerStep, SchedulerFactory
from lmc.train.progress import epoch_bar
from lmc.train.run_folder import Settings
from lmc.train.signals import stop_on_interrupt


@typed
def fit(
    graph: Graph | Shard | str | Path, model: Model, method: Method, epochs: int = 100, lr: float = 0.01, *,
    loss: Loss | None = None, optimizer: str | Optimizer | OptimizerFactory | None = None,
    scheduler: str | LRScheduler | SchedulerFactory | PerStep | None = None, weight_decay: float | None = None,
    patience: int | None = None, clip: float | None = None, metrics: object = None,
    callbacks: Sequence[Callback | OnEpoch] = (), restore_best: bool = True, steps: int | None = None,
    minutes: float | None = None, eval_every: int = 1,
    parts: Tensor | None = None, seed: int = 0, run_dir: str | Path | None = None, resume: bool = False,
    device: str | torch.device | None = None, checkpoint_every: str = "auto", placement: Placement | None = None,
    progress: bool = False, keep_memory: bool = True, inductive: bool | None = None,
    distributed: bool | Distributed | None = None,
) -> RunRecord:  # fmt: skip
    """Train ``model`` on ``graph`` by ``method`` and return the record; the model ends in evaluation mode.

    The best epoch is the one with the best validation score; without validation nodes it is the last one. By default
    the model has its parameters at the end, so that ``lmc.evaluate(model, graph)["test"] == record.test``.

    Args:
        graph: a graph; under torchrun also the shard of this rank, or the folder of ``lmc shard``, of which every rank
            reads its own file.
        loss: a function (outputs, targets) -> losses [rows], such as those of :mod:`lmc.losses`; by default that of the
            graph's task.
        epochs, lr, optimizer, scheduler, weight_decay, clip, patience, metrics, steps, minutes, restore_best,
            eval_every, checkpoint_every: see :class:`Settings`. Training ends at the first limit that is reached.
        callbacks: objects of :class:`lmc.train.Callback`, or functions that get the :class:`lmc.train.Training` at the
            end of every epoch.
        parts: [num_nodes], the part of every node, instead of the method's own partition.
        seed: of the partition, batches and dropout; the initial parameters are those of ``model``.
        run_dir: where to write config.json, epochs.jsonl, checkpoint.safetensors and best.safetensors (the parameters
            of the best epoch).
        resume: continue the run in ``run_dir``; on a CPU it ends bit-identical to one that never stopped.
        placement: where to train, and what is kept where; by default everything on the GPU where there is one.
        device: a shorthand for ``placement=Placement(device=device)``.
        progress: show a progress bar on standard error.
        inductive: whether training sees the training nodes and the edges between them alone, and every score is of the
            whole graph; by default as the graph says (``graph.inductive``).
        distributed: train together with the other processes that torchrun started; :class:`lmc.Distributed` says how.
            None: where torchrun has started this process. Rank 0 writes the run folder and shows the progress bar.
        keep_memory: when training on a CPU, call :func:`lmc.keep_memory`, which concerns the whole process.

    Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 finish the step, save where there is a ``run_dir``, and raise
    :class:`lmc.errors.Interrupted`. A loss or a parameter that is not finite raises
    :class:`lmc.errors.DivergenceError`, and the last checkpoint stays.
    """
    if run_dir == "":  # as a Path it is the current folder
        raise ConfigError("expected run_dir to name a folder (got an empty text): name one, or pass None")
    settings = Settings(
        epochs, lr, weight_decay, clip, eval_every, checkpoint_every, patience, steps, minutes, restore_best,
        optimizer, scheduler, metrics,
    )  # fmt: skip
    distributed = launched() if distributed is None else distributed
    run = method.bind(
        graph, model, parts, placement, device=device, loss=loss, seed=seed, inductive=inductive,
        distributed=distributed,
    )  # fmt: skip
    if keep_memory and run.problem.device.type == "cpu":
        keep_freed_memory()
    folder = None if run_dir is None else Path(run_dir)
    with stop_on_interrupt() as stop:
        training = Training(run, settings, folder, resume, stop, callbacks)
        shown = progress and run.is_first_rank
        bar = epoch_bar(epochs, metric=training.config["metrics"][0]) if shown else nullcontext()
        # closed: the lock of the folder is released after an error too
        with bar as show, closing(training.epochs()) as records:
            for record in records:
                if show is not None:
                    show(record)
        # in the last epoch everything is done and saved, but a sweep of runs must stop here
        if run.sync is None and stop():
            raise Interrupted("stopped after the last epoch")
    return training.result()
