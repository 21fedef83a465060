"""Algorithm 2 as the paper writes it, against other updates of the histories, over optimisers and rates."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from lmc.bench.compare import Partitions, shared_parts
from lmc.bench.epoch import free
from lmc.cli.console import TextTable, number
from lmc.cli.lists import at_least_one
from lmc.cli.study import Dataset, GraphStudy, Hidden, Seed
from lmc.diagnostics import EstimateProbe, GradientProbe
from lmc.diagnostics.errors import relative_error
from lmc.engine import Run
from lmc.engine.exact import chunks_of, exact_adjoints, exact_states
from lmc.errors import ConfigError
from lmc.graph import spmm
from lmc.methods import LMC4Rec
from lmc.methods.protocol import Step
from lmc.methods.recurrent import LocalSolution, encoded, operator_of, outside
from lmc.models import RecGCN, recurrent_model
from lmc.train import train_epoch
from lmc.train.optimizers import make_optimizer

CAPTION = (
    "loss: of the last epoch; worst loss: largest of an epoch from the fifth on; moves Z, V: |Z - Z'| / |Z| of the "
    "exact states, or adjoints, in one epoch; error H, V, gradient: relative errors on two batches; left: the error "
    "of the stored V after one more epoch at fixed parameters over the error before; all but the losses are means over "
    "the measurements"
)


@dataclass(frozen=True)
class Repeated(LMC4Rec):
    """LMC4Rec whose histories take ``steps`` message-passing steps on the core, (20) and (22) repeated.

    ``steps=1`` is ``update="step"``, and many steps are ``update="solution"``. With ``paper_masks`` the table V holds
    dL/dH, as in the paper, and a row is masked by its stored state when it is read.
    """

    steps: int = 1
    paper_masks: bool = False

    def outer_adjoints(self, step: Step) -> Tensor | None:
        P_out = outside(operator_of(step.batch).backward, step.batch)
        return None if P_out is None else spmm(P_out, self._masked(step, step.H[1].pull(step.batch.halo), halo=True))

    def _masked(self, step: Step, z: Tensor, halo: bool) -> Tensor:
        """The stored adjoints of the halo, or of the core, as dL/dZ at the states ``z``."""
        V = step.V[1].pull(step.batch.halo if halo else step.batch.rows)
        return V * (z > 0) if self.paper_masks else V

    def solve(self, step: Step) -> LocalSolution:
        found = super().solve(step)
        problem, batch, model = step.problem, step.batch, recurrent_model(step.problem.model)
        P, W = operator_of(batch), recurrent_model(step.problem.model).W.detach()
        z, Z_halo = step.H[1].pull(batch.rows), step.H[1].pull(batch.halo)
        with torch.no_grad():
            b, p = encoded(step, dropout=False)
            for _ in range(self.steps):
                z = torch.addmm(b, spmm(P.forward, torch.cat([z, Z_halo]).clamp_min(0)), W.t())  # (20)
        h = z.clamp_min(0).requires_grad_()
        (G,) = torch.autograd.grad(problem.losses(model.decode(h, p), batch).sum(), h)
        v, V_halo = self._masked(step, z, halo=False), self._masked(step, Z_halo, halo=True)
        for _ in range(self.steps):
            V = torch.addmm(G, spmm(P.backward, torch.cat([v, V_halo])), W)  # (22)
            v = V * (z > 0)
        return replace(found, kept={"H": z, "V": V if self.paper_masks else v})


UPDATES: dict[str, LMC4Rec] = {
    "solution": LMC4Rec(undo_drift=False),
    "step": LMC4Rec(update="step", undo_drift=False),
    "paper-masks": Repeated(undo_drift=False, paper_masks=True),
    **{f"steps={k}": Repeated(undo_drift=False, steps=k) for k in (2, 4, 8)},
}
"""What the histories become. "step" is Algorithm 2 by ``lmc4rec:update=step:undo_drift=no``."""


@dataclass(frozen=True)
class LiteralCell:
    """One training. ``optimizer`` is a spec with its learning rate."""

    partition: str
    optimizer: str
    update: str
    tol: float


@dataclass(frozen=True)
class LiteralRecord(LiteralCell):
    """The results of one training. ``seen`` has by epoch: moves of Z and V; errors of H, V and gradient, means of two
    batches; and the share of the error of the stored V that is left after one more epoch."""

    loss: float
    worst: float
    seen: Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Literal(GraphStudy[LiteralCell, LiteralRecord]):
    """Train a RecGCN by Algorithm 2 as written and with other updates of its histories, and measure the errors."""

    name, cell, record = "literal", LiteralCell, LiteralRecord
    shared = ("parts", "clusters", "hidden", "epochs", "every", "seed")

    dataset: Dataset = "cora"
    partitions: Annotated[str, typer.Option(help="metis, random; comma-separated.")] = "metis"
    optimizers: Annotated[str, typer.Option(help="Optimisers with their rates, comma-separated.")] = (
        "adam:lr=0.003,adam:lr=0.001,adam:lr=0.0003,sgd:lr=1,sgd:lr=0.3"
    )
    updates: Annotated[str, typer.Option(help=f"Of {', '.join(UPDATES)}; comma-separated.")] = "step,solution"
    tols: Annotated[str, typer.Option(help="Tolerances of the solver, comma-separated.")] = "1e-4"
    parts: Annotated[int, typer.Option(help="Parts of the graph.")] = 10
    clusters: Annotated[int, typer.Option(help="Parts in a batch.")] = 2
    hidden: Hidden = 128
    epochs: Annotated[int, typer.Option(help="Epochs of training.")] = 40
    every: Annotated[int, typer.Option(help="Epochs between measurements.")] = 4
    seed: Seed = 0

    def cells(self) -> list[LiteralCell]:
        at_least_one("--epochs", self.epochs)
        at_least_one("--every", self.every)
        updates = self.updates.split(",")
        if not set(updates) <= set(UPDATES):
            raise ConfigError(f"expected --updates among {', '.join(UPDATES)} (got {self.updates!r})")
        return [
            LiteralCell(partition, optimizer, update, float(tol))
            for partition in self.partitions.split(",")
            for tol in self.tols.split(",")
            for optimizer in self.optimizers.split(",")
            for update in updates
        ]

    def facts(self) -> list[tuple[str, str]]:
        return [*super().facts(), ("model", f"RecGCN, width {self.hidden}"), ("epochs", f"{self.epochs}")]

    def measure(self, cell: LiteralCell) -> list[LiteralRecord]:
        graph, known = self.graph, Partitions()
        model = RecGCN(graph.num_features, self.hidden, graph.num_classes, tol=cell.tol, seed=self.seed)
        divided: dict[str, Any] = {"num_parts": self.parts, "clusters_per_batch": self.clusters}
        method = replace(UPDATES[cell.update], partition=cell.partition, **divided)
        run = method.bind(graph, model, shared_parts(method, graph, self.seed, known), device=self.on, seed=self.seed)
        optimizer = make_optimizer(cell.optimizer, model, 0.01, None)
        run.refresh()
        probe, losses, seen = GradientProbe(run), list[float](), dict[str, Sequence[float]]()
        before = _exact(run)
        for epoch in range(1, self.epochs + 1):
            losses.append(fmean(float(loss) for loss in train_epoch(run, optimizer, epoch=epoch - 1)))
            if (epoch + 1) % self.every == 0:
                before = _exact(run)
            if epoch % self.every == 0:
                seen[str(epoch)] = _seen(run, probe, before)
        free(self.on)
        worst = max(losses[min(4, len(losses) - 1) :])
        return [LiteralRecord(**asdict(cell), loss=losses[-1], worst=worst, seen=seen)]

    def describe(self, record: LiteralRecord) -> str:
        return " | ".join(_line(record))

    def tables(self, records: Sequence[LiteralRecord]) -> list[TextTable]:
        headers = ["partition, optimiser, update", "loss", "worst loss", "moves Z", "moves V", "error H"]
        return [TextTable([*headers, "error V", "gradient", "left"], [_line(r) for r in records], CAPTION)]


def _line(r: LiteralRecord) -> list[str]:
    name = f"{r.partition}, {r.optimizer}, {r.update}" + ("" if r.tol == 1e-4 else f", tol {r.tol:g}")
    means = [number(fmean(each), 3) for each in zip(*r.seen.values(), strict=True)]
    return [name, number(r.loss, 4), number(r.worst, 2), *means]


def _seen(run: Run, probe: GradientProbe, before: tuple[Tensor, Tensor]) -> list[float]:
    """One row of ``LiteralRecord.seen``; ``before`` are the exact Z and dL/dZ one epoch ago."""
    now, exact = _exact(run), EstimateProbe(run)
    moves = [relative_error(old, new) for old, new in zip(before, now, strict=True)]
    batches = list(run.source.epoch(0, 0))[:2]
    found = [(e.H, e.V, probe(batch).mean) for batch in batches for e in (exact(batch),)]
    return [*moves, *(fmean(each[k] for each in found) for k in range(3)), _left(run, now[1])]


def _exact(run: Run) -> tuple[Tensor, Tensor]:
    """The exact Z and dL/dZ of all nodes."""
    problem, chunks = run.problem, chunks_of(run.problem)
    ((_, Z),) = exact_states(problem, chunks, lambda _, width: problem.table(width))
    ((_, V),) = exact_adjoints(problem, chunks, [Z], lambda _, width: problem.table(width))
    return Z.data(), V.data()


def _left(run: Run, V: Tensor) -> float:
    """The share of the error of the stored V that is left after one more epoch at fixed parameters."""
    kept = {name: value.clone() for name, value in run.state_dict().items()}
    errors = []
    for _ in range(2):
        errors.append(float((run.V[1].data() * (run.H[1].data() > 0) - V).norm()))
        for batch in run.source.epoch(0, 0):
            run.accumulate(batch)
    run.load_state_dict(kept)
    run.problem.model.zero_grad()
    return errors[1] / errors[0] if errors[0] > 0 else 0.0
