"""Small training runs over methods and tiers that the campaigns stop, damage and compare."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import safetensors
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import lmc
from campaigns.harness import Wrong, folder, forked
from helpers import random_graph
from lmc import methods as m
from lmc.methods import Method
from lmc.models import Model
from lmc.train import checkpoint

EPOCHS = 3
LIBRARY = Path(lmc.__file__).parent
WATCHED = tuple(str(LIBRARY / name) for name in ("train", "results.py", "files.py", "engine/run.py"))
"""Where stops are injected: what saves and counts, and the steps between."""
WRITES = {"replace", "fsync", "write", "unlink", "flush", "truncate", "mkdir", "writelines", "open"}
"""Calls of the operating system at which faults are injected."""

Result = dict[str, str]
"""Digests of what a run ended with, by name."""


class Network(nn.Module):
    """A network of PyG convolutions with dropout from torch's global generator."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(in_width, 6), GCNConv(6, out_width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(self.first(x, edge_index).relu(), 0.3, self.training)
        return self.second(h, edge_index)


def layered(g: lmc.Graph) -> Model:
    return lmc.models.GCN(g.num_features, 6, g.num_classes, num_layers=3, dropout=0.3, norm="batch")


def plain(g: lmc.Graph) -> Model:
    return lmc.models.GCN(g.num_features, 6, g.num_classes, num_layers=2, dropout=0.3)


def recurrent(g: lmc.Graph) -> Model:
    return lmc.models.RecGCN(g.num_features, 6, g.num_classes)


def wrapped(g: lmc.Graph) -> Model:
    torch.manual_seed(5)
    return lmc.wrap(Network(g.num_features, g.num_classes))


@dataclass(frozen=True, eq=False)
class Setting:
    """A training run."""

    name: str
    method: Method
    model: Callable[[lmc.Graph], Model] = layered
    history: str = "device"
    options: dict[str, Any] = field(default_factory=dict)


SCHEDULED = {
    "optimizer": "adamw:weight_decay=0.01",
    "scheduler": "cosine",
    "patience": 30,
    "checkpoint_every": "1steps",
}
SETTINGS = (
    Setting("CMC, device", m.CMC(6, 2)),
    Setting("LMC4Conv, redrawn, host", m.LMC4Conv(6, 2, redraw=True), history="host"),
    Setting("GAS, disk", m.GAS(6, 1), plain, history="disk"),
    Setting("CMC with dropped edges, device", m.DropEdge(m.CMC(4, 1), 0.3), plain),
    Setting("GraphSAINT, device", m.GraphSAINT(size=12), plain),
    Setting("VRGCN, host", m.VRGCN(2, batch_size=24), plain, history="host"),
    Setting("LMC4Rec, device", m.LMC4Rec(4, 2), recurrent),
    Setting("Cluster-GCN, weight decay and clipping", m.ClusterGCN(4, 1), options={"clip": 0.5, "weight_decay": 1e-3}),
    Setting("LMC4Conv on a wrapped network, host", m.LMC4Conv(4, 2), wrapped, "host", {"checkpoint_every": "2steps"}),
    Setting("IMC, AdamW, cosine, patience", m.IMC(4, 1), plain, "device", SCHEDULED),
)


@cache
def graph() -> lmc.Graph:
    """The graph of all runs, in single precision."""
    g = random_graph(72)
    return dataclasses.replace(g, x=g.x.float())  # type: ignore[union-attr]


MOVED = "moved"
"""The name of a run folder that a campaign has moved away."""


def train(setting: Setting, run_dir: Path | None, epochs: int = EPOCHS, **more: Any) -> Result:
    """Start or continue a run, and give the digests of what it ends with; a checkpoint is due after every epoch."""
    torch.manual_seed(1)
    model = setting.model(graph())
    placement = lmc.Placement("cpu", history=setting.history)
    given = {"run_dir": run_dir, "resume": run_dir is not None, "checkpoint_every": "1epochs"} | setting.options | more
    record = lmc.fit(graph(), model, setting.method, epochs, seed=3, placement=placement, **given)
    return result(model, record, run_dir)


def result(model: Model, record: lmc.RunRecord, run_dir: Path | None) -> Result:
    """Digests of the parameters, the records and the last checkpoint; times are left out."""
    found = {f"parameter {k}": digest(v) for k, v in model.state_dict().items()}
    found |= {f"epoch {r.epoch}": repr((r.loss, r.scores, r.solver)) for r in record.epochs}
    if run_dir is not None:
        # a run cannot notice that its folder is moved after the last write; what it wrote has to be right
        place = run_dir if run_dir.exists() else run_dir.with_name(MOVED)
        with safetensors.safe_open(place / checkpoint.FILE, framework="pt") as file:
            found |= {f"checkpoint {k}": digest(file.get_tensor(k)) for k in file.keys()}  # noqa: SIM118
    return found


def digest(tensor: Tensor) -> str:
    """A hash of the bytes of a tensor."""
    content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def check_same(got: Result, want: Result) -> None:
    """Raise :class:`Wrong` where two runs did not end bit for bit alike."""
    differing = [key for key in {**got, **want} if got.get(key) != want.get(key)]
    if differing:
        raise Wrong(f"differs from the undisturbed run in {', '.join(differing[:4])} ({len(differing)} values)")


@cache
def undisturbed(setting: Setting) -> Result:
    """What a run ends with when nothing happens to it."""
    with folder() as path:
        return train(setting, path / "run")


def finished(setting: Setting, run_dir: Path) -> None:
    """Continue a run in a process of its own; raises :class:`Wrong` unless it ends as the undisturbed one."""
    want = undisturbed(setting)

    def work() -> None:
        check_same(train(setting, run_dir), want)

    code, message = forked(work)
    if code != 0:
        raise Wrong(f"continued with exit code {code}: {' '.join(message.split())[-300:]}")


@cache
def events(setting: Setting, writes: bool) -> int:
    """How many events of :func:`at_event` an undisturbed run has."""
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    with folder() as path:
        try:
            watch(count, writes)
            train(setting, path / "run")
        finally:
            sys.setprofile(None)
    return counted


def at_event(number: int, writes: bool, action: Callable[[], None]) -> None:
    """Do something before the ``number``-th call or return in the watched files or, with ``writes``, before the
    ``number``-th call that writes. It is injected from outside: the library has no hook for it."""
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            sys.setprofile(None)
            action()

    watch(count, writes)


def watch(count: Callable[[], None], writes: bool) -> None:
    """Call ``count`` at every event; an exception that it raises is raised in the library."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if not frame.f_code.co_filename.startswith(WATCHED):
            return
        if (writes and event in ("c_call", "c_return") and argument.__name__ in WRITES) or (
            not writes and event in ("call", "return")
        ):
            count()

    sys.setprofile(profile)


def kill_self(number: int) -> Callable[[], None]:
    """An action that sends this process a signal."""
    return lambda: os.kill(os.getpid(), number)
