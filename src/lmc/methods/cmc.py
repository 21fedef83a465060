"""CMC, complete message compensation: the library's own step beyond LMC.

LMC mends a halo row by mixing a stale value with an incomplete one. CMC stores, beside the rows, their AGGREGATES, so
that a halo row gets its complete message: fresh from every neighbour in ext, historical from all others, without
touching the 2-hop ring. There is no beta.

A ledger is a pair of tables, rows T and sums M, with the invariant M = P T at all times. One reading of it, on ext:

    A = P[ext, core] (t_core - T[core])           what the core's fresh rows change
    B = P[ext, halo] (t_halo - T[halo])           what the halo's change, for this step alone
    m = M[ext] + A + B                            complete for every row of ext
    push: T[core] = t_core;  M[ext] += A          halo rows of M too: that is what keeps the invariant

The forward pass reads a ledger of messages. The backward pass is P^T of the adjoints: the same reading of a second
ledger (V, U) with ``adjoints=True``; by default P^T on ext alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import Aggregation, Batch, spmm
from lmc.history import Rows, Table
from lmc.methods.base import EXACT_ON_ONE_PART, HistoryMethod, Kept, Layout
from lmc.methods.exact import Evaluating, cut, exact_adjoints, exact_states
from lmc.methods.problem import Problem
from lmc.methods.run import Run
from lmc.models import Operator, Pass
from lmc.sampling import Clusters


@dataclass(frozen=True, eq=False)
class Ledger:
    """Rows and their sums, sums = P rows, for one layer and one direction."""

    rows: Table
    sums: Table

    def read(self, batch: Batch, P: Aggregation, t: Tensor, clean: Tensor, keep: bool, gamma: Tensor | None) -> Reading:
        """The complete sums for rows ``t`` of ext.

        Args:
            t: what is summed; ``clean``: the same before dropout. The ledger keeps clean rows: a dropped row tells its
                neighbours of today something that is not true tomorrow.
            keep: write the core's rows, and what they change in the sums of ext.
            gamma: trust in what comes from outside ext; None: full.
        """
        c, ext = batch.num_core, batch.ext
        core, halo = P.forward.columns(c)
        stored, sums = self.rows.pull(ext), self.sums.pull(ext)
        change = clean[:c] - stored[:c]
        A = spmm(core, change)
        m = sums + A + spmm(halo, t[c:] - stored[c:])
        if t is not clean:
            m += spmm(core, t[:c] - clean[:c])
        if gamma is not None:
            inside = spmm(P.forward, t)
            m = torch.lerp(inside, m, gamma)
        R2 = (1 - change.square().sum() / clean[:c].square().sum().clamp(min=1e-30)).clamp(0, 1)
        if keep:
            self.rows.push(batch.rows, clean[:c])
            self.sums.push(ext, sums.add_(A))
        return Reading(m, R2)


@dataclass(frozen=True)
class Reading:
    """Complete sums, and R2: how well the stored rows of the core predicted the fresh ones (1: perfectly)."""

    sums: Tensor
    R2: Tensor


class _Complete(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, clean: Tensor | None, op: Completion) -> Tensor:
        ctx.op = op
        return op.forward(t, t if clean is None else clean)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.op.backward(grads[0]), None, None


@dataclass(frozen=True, eq=False)
class Completion:
    """The operator of one layer in one step: forward and backward are one reading each."""

    run: Run
    batch: Batch
    l: int
    keep: bool
    P: Aggregation

    @property
    def num_inputs(self) -> int:
        return self.P.num_inputs

    @property
    def num_outputs(self) -> int:
        return self.P.num_outputs

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        # without dropout the layer passes the same rows twice, and there is no difference to send
        return _Complete.apply(t, None if clean is None or clean is t else clean.detach(), self)

    def forward(self, t: Tensor, clean: Tensor) -> Tensor:
        return self._read("T", "M", t, clean, None)

    def backward(self, v: Tensor) -> Tensor:
        if "V" not in self.run.tables:
            return self.P.adjoint(v)
        return self._read("V", "U", v, v, trust(self.run, self.batch, "V", self.l))

    def _read(self, rows: str, sums: str, t: Tensor, clean: Tensor, gamma: Tensor | None) -> Tensor:
        ledger = Ledger(self.run.tables[rows][self.l], self.run.tables[sums][self.l])
        reading = ledger.read(self.batch, self.P, t, clean, self.keep, gamma)
        if self.keep:
            self.run.memo[f"R2.{rows}"][self.l, self.batch.slot] = reading.R2
        return reading.sums


def trust(run: Run, batch: Batch, rows: str, l: int) -> Tensor:
    """R2^8 of layer l, with R2 the lesser of this batch's newest measurement and the mean over all batches.

    A steep power: tables that predict well are trusted nearly fully (0.98 gives 0.85), poor ones hardly at all (0.7
    gives 0.06). With R2^2, training without norm on many fine clusters followed adjoints it should not have.
    """
    R2 = run.memo[f"R2.{rows}"][l]
    return torch.minimum(R2[batch.slot], R2.mean()) ** 8


class _ScaleHaloAdjoint(torch.autograd.Function):
    """Nothing forward; backward, the halo rows' adjoint times tau."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, tau: Tensor, num_core: int) -> Tensor:
        ctx.save_for_backward(tau)
        ctx.num_core = num_core
        return s.view_as(s)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (tau,) = ctx.saved_tensors
        v = grads[0].clone()
        v[ctx.num_core :] *= tau
        return v, None, None


@dataclass(frozen=True)
class CMC(HistoryMethod):
    """Complete messages for core and halo rows alike, forward; backward, adjoints as far as the tables can be trusted.

    Every step sees, on the core rows, both the stored and the fresh value of T, so how well the tables predict is known
    for free: R2 = 1 - |fresh - stored|^2 / |fresh|^2 per layer. The adjoints of halo rows, which are computed at states
    that the tables predicted, are multiplied by tau = R2^8 (:func:`trust`). There is no knob.

    Args:
        adjoints: keep V and U too, and add the adjoints from outside ext, trusted likewise: exact at fixed
            parameters, for twice the memory. Without it the one bias is the adjoint that halo rows miss from outside
            ext; it touches layers l <= L - 2 alone.
    """

    adjoints: bool = False

    name: ClassVar[str] = "cmc"
    title: ClassVar[str] = "CMC"
    paper: ClassVar[str] = "this library"
    outside: ClassVar[str] = "complete forward; backward within core and halo (complete with adjoints=True)"
    step_rows: ClassVar[str] = "core and halo"
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART})
    accepts: ClassVar[str] = "linear aggregation"

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        ext = torch.cat([core, halo])
        P = Aggregation.exact(problem.blocks.induced(ext))
        return halo, self.operators(problem, ext.numel(), P), None

    def keeps(self, problem: Problem) -> Kept:
        """T and M (V and U) for every aggregation that is neither constant nor one of features."""
        if not problem.model.linear:
            raise ConfigError(
                f"expected a model with a linear aggregation (got {type(problem.model).__name__}, whose aggregation "
                "depends on the rows): CMC stores sums of messages; use LMC4Conv"
            )
        layers = {l + 1: width for l, width in enumerate(problem.model.widths[:-1], start=1)}
        if problem.model.lin_in is not None:
            layers[1] = problem.model.lin_in.weight.shape[0]
        names = ("T", "M", "V", "U") if self.adjoints else ("T", "M")
        return {name: dict(layers) for name in names}

    def memo(self, problem: Problem, clusters: Clusters) -> dict[str, Tensor]:
        ones = torch.ones(problem.model.num_layers + 1, clusters.num_batches, dtype=problem.dtype)
        return {f"R2.{name}": ones.clone() for name in (("T", "V") if self.adjoints else ("T",))}

    def reads(self, batch: Batch) -> Rows:
        return batch.ext

    def operator(self, run: Run, batch: Batch, l: int, keep: bool) -> Operator:
        P = batch.operators[l - 1]
        if l not in run.tables["T"]:
            return P
        assert isinstance(P, Aggregation)
        return Completion(run, batch, l, keep, P)

    def compensate(self, run: Run, batch: Batch, l: int, s: Tensor, keep: bool) -> Tensor:
        if l not in run.tables["T"]:
            return s
        return _ScaleHaloAdjoint.apply(s, trust(run, batch, "T", l), batch.num_core)

    def fill(self, run: Run, chunks: list[Rows]) -> None:
        """T exact, M = P T; V and U likewise; trust 1."""
        problem, model = run.problem, run.problem.model
        T, M = run.tables["T"], run.tables["M"]
        states: list[Table] = []
        with Evaluating(problem), torch.no_grad():
            for l, table in exact_states(problem, chunks, lambda _, width: run.table(width)):
                states.append(table)
                for rows in chunks if l + 1 in T else ():
                    T[l + 1].push(rows, model.layer(l).activate(table.pull(rows), Pass()))
            for rows in chunks if 1 in T else ():
                h0 = model.encode(problem.inputs(rows), Pass())
                assert isinstance(h0, Tensor)  # T[1] is kept only where the features are encoded
                T[1].push(rows, h0)
            for l in T:
                _sum(problem, chunks, l, T[l], M[l])
        if self.adjoints:
            V, U = run.tables["V"], run.tables["U"]
            with Evaluating(problem):
                for l, table in exact_adjoints(problem, chunks, states, lambda _, width: run.table(width)):
                    for rows in chunks if l in V else ():
                        V[l].push(rows, _through(problem, l, rows, M[l], T[l], table))
                    if l in V:
                        _sum(problem, chunks, l, V[l], U[l])
        for R2 in run.memo.values():
            R2.fill_(1)


def _sum(problem: Problem, chunks: list[Rows], l: int, rows: Table, sums: Table) -> None:
    """sums <- P rows (P is its own transpose)."""
    for chunk in (cut(problem, rows, l) for rows in chunks):
        sums.push(chunk.rows, chunk.operator(rows.pull(chunk.ext)))


@dataclass(frozen=True, eq=False)
class _Given:
    """An operator whose sums are known."""

    sums: Tensor

    @property
    def num_inputs(self) -> int:
        return self.sums.shape[0]

    @property
    def num_outputs(self) -> int:
        return self.sums.shape[0]

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return self.sums


def _through(problem: Problem, l: int, rows: Rows, M: Table, T: Table, V: Table) -> Tensor:
    """The adjoint of layer l's sums from that of its state: back through the affine map."""
    m = M.pull(rows).detach().requires_grad_()
    h0 = problem.model.encode(problem.inputs(rows), Pass())
    s = problem.model.layer(l)(T.pull(rows).detach(), _Given(m), Pass(), h0)
    return torch.autograd.grad(s, m, V.pull(rows))[0]
