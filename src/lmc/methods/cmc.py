"""CMC, complete message compensation: the library's own step beyond LMC.

LMC mends a halo row by mixing a stale value with an incomplete one. CMC stores, beside the rows, their AGGREGATES, so
that a halo row gets its complete message: fresh from every neighbour in ext, historical from all others, without
touching the 2-hop ring. There is no beta.

A ledger is a pair of tables, rows T and sums M, with the invariant M = P T at all times. One reading of it, on ext:

    O = M[ext] - P[ext, ext] T[ext]               what comes from outside ext, as old as the tables
    m = P[ext, ext] t + a O                       complete for every row of ext
    push: T[core] = t_core;  M[ext] += P[ext, core] (t_core - T[core])

a, one number a column, is the drift of the tables: rows age because the parameters move, which moves all of them alike.
It is the least-squares fit of the halo's fresh rows to their stored ones, t_halo ~ a T[halo]; 1 where nothing is stale,
and under batch norm, which holds every column where it is.

The forward pass reads a ledger of messages. The backward pass is P^T of the adjoints: the same reading of a second
ledger (V, U) with ``adjoints=True``; by default P^T on ext alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmc.engine.exact import chunks_of, exact_adjoints, exact_messages
from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, Batch, Extractor, accumulate, spmm
from lmc.kernels import ledger as fused
from lmc.kernels.sums import column_sums
from lmc.methods.base import EXACT_ON_ONE_PART, HistoryMethod, Kept, Layout
from lmc.models import Operator, Pass, evaluating
from lmc.models.rows import as_rows, outer
from lmc.sampling import Clusters
from lmc.stores import Rows, Table

SUMMED = {"M": "T", "U": "V"}
"""The tables of sums, and what they sum."""

SAMPLE = 1024
"""Rows, at most about so many, from which the drift and the trust are measured."""

MANY = 10
"""Halo rows a core row from which on the trust is not raised under batch norm."""


@dataclass(frozen=True, eq=False)
class Ledger:
    """Rows and their sums, sums = P rows, for one layer and one direction.

    Sums are kept by increments. In bfloat16 each would round a sum by 2^-8 of itself, and changes smaller than that
    would be lost for good, so sums, and the products that change them, are float32; rows are overwritten, and round
    once. The difference of two bfloat16 rows is a float32, so sums = P rows holds to float32's rounding.
    """

    rows: Table
    sums: Table

    def read(self, batch: Batch, P: CSR, t: Tensor, clean: Tensor, keep: bool, drifts: bool) -> Reading:
        """The complete sums for rows ``t`` of ext, in two terms.

        Args:
            t: what is summed; ``clean``: the same before dropout. The ledger keeps clean rows: a dropped row tells its
                neighbours of today something that is not true tomorrow.
            keep: write the core's rows, and what they change in the sums of ext.
            drifts: measure the drift; else a = 1.
        """
        c, core = batch.num_core, P.columns(batch.num_core)[0]
        if fused.available(self.rows, self.sums):
            T, M = self.rows.data(), self.sums.data()
            a, R2 = fused.measure(clean, T, batch.ext, c, SAMPLE, drifts)
            news, change = fused.news(t, clean, T, batch.ext, a, c, keep)
            known = fused.known(M, spmm(core, change) if keep else None, batch.ext, a, t.dtype)
            return Reading(known, news, R2)
        found = fused.delivered(batch, self.rows, self.sums)
        if found is not None:  # the same on rows that travelled here: they stand in the order of ext
            T, M, ext = found
            a, R2 = fused.measure(clean, T, ext, c, SAMPLE, drifts)
            news, change = fused.news(t, clean, T, ext, a, c, keep)
            known = fused.known(M, spmm(core, change) if keep else None, ext, a, t.dtype)
            if keep:
                self.rows.push(batch.rows, T[:c])
                self.sums.push(batch.rows, M[:c])
                self.sums.push(batch.halo, M[c:])
            return Reading(known, news, R2)
        T_core, T_halo = self.rows.pull(batch.rows), self.rows.pull(batch.halo)
        M_core, M_halo = self.sums.pull(batch.rows), self.sums.pull(batch.halo)
        a, R2 = measure(clean, c, sampled(T_core), sampled(T_halo), drifts)
        news, known = torch.empty_like(t), torch.empty_like(t)
        torch.addcmul(t[:c], a, T_core, value=-1, out=news[:c])
        torch.addcmul(t[c:], a, T_halo, value=-1, out=news[c:])
        torch.mul(a, M_core, out=known[:c])
        torch.mul(a, M_halo, out=known[c:])
        if keep:
            A = spmm(core, clean[:c].to(M_core.dtype) - T_core)
            self.rows.push(batch.rows, clean[:c])
            self.sums.add(batch.rows, A[:c])
            self.sums.add(batch.halo, A[c:])
        return Reading(known, news, R2)


@dataclass(frozen=True)
class Reading:
    """m = a M + P (t - a T): what the tables know, and the news whose sums are to be added.

    R2: the share of the core's fresh rows that the stored ones explain (1: all of it).
    """

    known: Tensor
    news: Tensor
    R2: Tensor


def sampled(rows: Tensor) -> Tensor:
    """About ``SAMPLE`` rows, evenly spaced."""
    return rows[:: max(1, rows.shape[0] // SAMPLE)]


def measure(clean: Tensor, num_core: int, T_core: Tensor, T_halo: Tensor, drifts: bool) -> tuple[Tensor, Tensor]:
    """The drift a, on the halo, and R2, on the core, from samples of the stored rows; in float32 at least."""
    wide = torch.promote_types(clean.dtype, torch.float32)
    one = clean.new_ones(clean.shape[1], dtype=wide)
    a = drift(sampled(clean[num_core:]).to(wide), T_halo.to(wide)) if drifts else one
    return a, explained(sampled(clean[:num_core]).to(wide), a * T_core)


def drift(fresh: Tensor, stored: Tensor) -> Tensor:
    """a_k, column by column, with which a_k stored is nearest to fresh; in [0, 2]; 1 where nothing is stored."""
    size = stored.square().sum(0)
    return torch.where(size > 0, (fresh * stored).sum(0) / size, 1).clamp(0, 2)


def explained(fresh: Tensor, predicted: Tensor) -> Tensor:
    """R2 = 1 - |fresh - predicted|^2 / |fresh|^2, in [0, 1]."""
    missed, size = (fresh - predicted).square().sum(), fresh.square().sum()
    return torch.where(size > 0, 1 - missed / size, 1).clamp(0, 1)


class _Complete(torch.autograd.Function):
    """m = the complete sums of t."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, clean: Tensor, op: Completion) -> Tensor:
        ctx.op = op
        reading = op.read("T", "M", t, clean)
        return accumulate(reading.known, op.P.forward, reading.news)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.op.adjoint(grads[0]), None, None


class _CompleteLinear(torch.autograd.Function):
    """m W^T + b without m: products run on the narrow side, s = known W^T + P (news W^T) + b.

    dW = v_core^T m_core = v_core^T known_core + (P^T v_core)^T news.
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor, W: Tensor, b: Tensor | None, clean: Tensor, op: Completion) -> Tensor:
        reading = op.read("T", "M", t, clean)
        W = as_rows(W, t)
        ctx.op = op
        ctx.save_for_backward(W, reading.known[: op.batch.num_core], reading.news)
        s = reading.known @ W.t() if b is None else torch.addmm(as_rows(b, t), reading.known, W.t())
        return accumulate(s, op.P.forward, reading.news @ W.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        (v,) = grads
        W, known_core, news = ctx.saved_tensors
        c = known_core.shape[0]
        core, halo = ctx.op.P.backward.columns(c)
        q_core = spmm(core, v[:c])
        dW = outer(v[:c], known_core).add_(outer(q_core, news))
        dt = accumulate(q_core, halo, v[c:]) @ W
        return dt, dW, column_sums(v[:c]) if ctx.needs_input_grad[2] else None, None, None


@dataclass(frozen=True, eq=False)
class Completion:
    """The operator of one layer in one step: forward and backward are one reading each."""

    run: Run
    batch: Batch
    l: int
    keep: bool
    P: Aggregation
    drifts: bool

    @property
    def num_inputs(self) -> int:
        return self.P.num_inputs

    @property
    def num_outputs(self) -> int:
        return self.P.num_outputs

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return _Complete.apply(t, t.detach() if clean is None else clean.detach(), self)

    def linear_first(self, W: Tensor, b: Tensor | None, t: Tensor, clean: Tensor | None) -> Tensor | None:
        """(P t) W^T + b with the weights first; None where the adjoints of the sums themselves are kept."""
        if "V" in self.run.tables:
            return None
        return _CompleteLinear.apply(t, W, b, t.detach() if clean is None else clean.detach(), self)

    def adjoint(self, v: Tensor) -> Tensor:
        if "V" not in self.run.tables:
            return self.P.adjoint(v)
        reading = self.read("V", "U", v, v)
        return accumulate(reading.known, self.P.backward, reading.news)

    def read(self, rows: str, sums: str, t: Tensor, clean: Tensor) -> Reading:
        ledger = Ledger(self.run.tables[rows][self.l], self.run.tables[sums][self.l])
        P = self.P.forward if rows == "T" else self.P.backward
        reading = ledger.read(self.batch, P, t, clean, self.keep, self.drifts)
        if self.keep and rows == "T":
            self.run.memo["R2"][self.l, self.batch.slot] = reading.R2
        return reading


def trust(R2: Tensor, slot: int, part: Tensor) -> Tensor:
    """tau of every halo row, in [0, 1]: how much of its adjoint, computed at a state the tables predicted, is believed.

    The tables miss a share 1 - R2 of a row (R2 the lesser of this batch's newest measurement and the mean over all
    batches), and a halo row takes 1 - x of its message from them, x = deg_local / deg_global. With part = (1 - x)^2 its
    state misses e = part (1 - R2): believed up to e = 0.1, not from 0.15 on. A ramp, not a power: where the tables
    predict well nothing is given up, and where following stale adjoints would make the tables worse it stops.
    """
    e = part * (1 - torch.minimum(R2[slot], R2.mean()))
    return (3 - 20 * e).clamp(0, 1)


def normalised_by_batch(model: nn.Module) -> bool:
    """Whether rows are normalised with statistics of their batch. They then change from visit to visit with those, too,
    which R2 takes for staleness."""
    return any(isinstance(module, nn.BatchNorm1d) for module in model.modules())


class _Distrust(torch.autograd.Function):
    """Nothing forward; backward, the halo rows' adjoint times tau."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, R2: Tensor, batch: Batch) -> Tensor:
        ctx.R2, ctx.batch = R2, batch
        return s.view_as(s)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        v, batch = grads[0], ctx.batch
        c = batch.num_core
        if fused.triton is not None and v.is_cuda:
            return fused.scale(v, batch.beta, ctx.R2, batch.slot, c), None, None
        scaled = torch.empty_like(v)  # v may be shared with another branch of the graph: it is not ours to change
        scaled[:c] = v[:c]
        torch.mul(v[c:], trust(ctx.R2, batch.slot, batch.beta), out=scaled[c:])
        return scaled, None, None


@dataclass(frozen=True)
class CMC(HistoryMethod):
    """Complete messages for core and halo rows alike, forward; backward, adjoints as far as the tables can be trusted.

    Every step sees, on the core rows, both the stored and the fresh value of T, so how well the tables predict is known
    for free, and the adjoints of halo rows are believed accordingly (:func:`trust`). There is no knob.

    Args:
        adjoints: keep V and U too, and add the adjoints from outside ext: exact at fixed parameters, for twice the
            memory. Without it the one bias is the adjoint that halo rows miss from outside ext; it touches layers
            l <= L - 2 alone.
    """

    adjoints: bool = False

    name: ClassVar[str] = "cmc"
    title: ClassVar[str] = "CMC"
    paper: ClassVar[str] = "this library"
    outside: ClassVar[str] = "complete forward; backward within core and halo (complete with adjoints=True)"
    step_rows: ClassVar[str] = "core and halo"
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART})
    accepts: ClassVar[str] = "linear aggregation"
    steady_statistics: ClassVar[bool] = True

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        ext = torch.cat([core, halo])
        P = problem.blocks.induced(ext)
        part = (1 - problem.completeness(P, halo)).square()
        if normalised_by_batch(problem.model):
            part = part * min(1.0, halo.numel() / core.numel() / MANY)
        return halo, self.operators(problem, ext.numel(), Aggregation.exact(P)), part

    def keeps(self, problem: Problem) -> Kept:
        """T and M (V and U) for every aggregation that is neither constant nor one of features."""
        if not problem.model.linear:
            raise ConfigError(
                f"expected a model with a linear aggregation (got {type(problem.model).__name__}, whose aggregation "
                "depends on the rows): CMC stores sums of messages; use LMC4Conv"
            )
        layers = problem.model.message_widths
        names = ("T", "M", "V", "U") if self.adjoints else ("T", "M")
        return {name: dict(layers) for name in names}

    def memo(self, problem: Problem, clusters: Clusters) -> dict[str, Tensor]:
        return {"R2": torch.ones(problem.model.num_layers + 1, clusters.num_batches, dtype=problem.accumulate_dtype)}

    @property
    def accumulated_tables(self) -> frozenset[str]:
        return frozenset(SUMMED)

    @property
    def bundles(self) -> tuple[frozenset[str], ...]:
        """Rows are written at the core, sums at the halo, too."""
        return frozenset(SUMMED.values()), frozenset(SUMMED)

    def reads(self, batch: Batch) -> tuple[Rows, ...]:
        return batch.rows, batch.halo

    def operator(self, run: Run, batch: Batch, l: int, keep: bool) -> Operator:
        P = batch.operators[l - 1]
        if l not in run.tables["T"]:
            return P
        assert isinstance(P, Aggregation)
        # a batch norm holds every column where it is
        return Completion(run, batch, l, keep, P, not normalised_by_batch(run.problem.model))

    def compensate(self, run: Run, batch: Batch, l: int, s: Tensor, keep: bool) -> Tensor:
        if l not in run.tables["T"]:
            return s
        return _Distrust.apply(s, run.memo["R2"][l], batch)

    def fill(self, run: Run, chunks: list[Rows]) -> None:
        """T exact, M = P T; V and U likewise; trust 1."""
        problem = run.problem
        T, M = run.tables["T"], run.tables["M"]
        states = exact_messages(problem, chunks, T, lambda _, width: run.table(width))
        self._sum_up(run, chunks, "M")
        if self.adjoints:
            V, wide = run.tables["V"], problem.accumulate_dtype
            with evaluating(problem.model):
                for l, table in exact_adjoints(problem, chunks, states, lambda _, w: run.table(w, wide)):
                    for rows in chunks if l in V else ():
                        V[l].push(rows, _through(problem, l, rows, M[l], T[l], table))
            self._sum_up(run, chunks, "U")
        run.memo["R2"].fill_(1)

    def regraph(self, run: Run) -> None:
        """M = P T and U = P^T V with the new P."""
        for sums in run.tables.keys() & SUMMED:
            self._sum_up(run, list(chunks_of(run.problem)), sums)

    def _sum_up(self, run: Run, chunks: list[Rows], sums: str) -> None:
        for l, table in run.tables[sums].items():
            problem = run.problem.of_layer(l)
            _sum(problem.blocks if sums == "M" else problem.transposed, chunks, run.tables[SUMMED[sums]][l], table)


def _sum(blocks: Extractor, chunks: list[Rows], rows: Table, sums: Table) -> None:
    """sums <- P rows, with the matrix that ``blocks`` cuts."""
    n = blocks.P.num_rows
    for out in chunks:
        index = torch.arange(*out.indices(n), device=blocks.P.device) if isinstance(out, slice) else out
        ext = torch.cat([index, blocks.halo(index)])
        sums.push(out, spmm(blocks.block(index, ext), rows.pull(ext).to(sums.data().dtype)))


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
    if problem.model.owns_forward:  # its states are the sums
        return V.pull(rows)
    m = M.pull(rows).detach().to(problem.dtype).requires_grad_()
    h0 = problem.encode(problem.inputs(rows), Pass())
    s = problem.model.layer(l)(T.pull(rows).detach(), _Given(m), Pass(), h0)
    return torch.autograd.grad(s, m, V.pull(rows).to(s.dtype))[0]
