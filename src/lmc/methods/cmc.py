"""CMC, complete message compensation: this library's own extension of LMC.

LMC repairs a halo row by mixing a stale value with an incomplete one. CMC stores, beside the rows, their AGGREGATES, so
that a halo row gets its complete message: fresh from every neighbour in ext, historical from all others, without
touching the 2-hop neighbourhood. There is no beta.

Two tables hold rows T and their sums M, with the invariant M = P T at all times. A step on ext computes from them:

    O = M[ext] - P[ext, ext] T[ext]               messages from outside of ext, as old as the tables
    m = P[ext, ext] t + a O                       complete for every row of ext
    push: T[core] = t_core;  M[ext] += P[ext, core] (t_core - T[core])

a, one number per column, is the drift of the tables: rows age because the parameters move, which moves all rows alike.
It is the least-squares fit of the halo's fresh rows to their stored ones, t_halo ~ a T[halo]; it is 1 where nothing is
stale, and under batch norm, which keeps the scale of every column.

The forward pass reads the tables of messages, T and M. The backward pass is P^T of the adjoints: with
``adjoints=True`` the same equations on the tables V and U of adjoints; by default P^T on ext alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.graph import CSR, Aggregation, Around, Batch, accumulate, rows_split, spmm
from lmc.kernels import complete_sums as kernel
from lmc.kernels.availability import triton_available
from lmc.kernels.sums import column_sums
from lmc.methods.protocol import (
    ExactPasses,
    HistoryMethod,
    Layout,
    ProblemView,
    Step,
    Traits,
    Widths,
    check_linear,
    operators,
)
from lmc.models import Model, Operator
from lmc.models.activation import normalised_by_batch
from lmc.models.rows import as_rows, outer, weigh_adjoints
from lmc.stores import Table, in_place

SAMPLE = 1024
"""The drift and R2 are measured on about this many rows at most."""

Sum = Callable[[Tensor], Tensor]

LARGE_HALO = 10
"""Halo rows per core row from which on the trust is not raised under batch norm."""


@dataclass(frozen=True, eq=False)
class SumTerms:
    """m = a M + P (t - a T), before the product with P.

    Args:
        base: a M[ext].
        delta: t - a T[ext].
    """

    base: Tensor
    delta: Tensor


@dataclass(frozen=True, eq=False)
class RowsAndSums:
    """Rows T and their sums M = P T, for one layer and one direction.

    Sums are kept by increments. In bfloat16 each would round a sum by 2^-8 of itself, and changes smaller than that
    would be lost for good, so sums, and the products that change them, are float32; rows are overwritten, and round
    once. The difference of two bfloat16 rows is a float32, so M = P T holds to float32's rounding.
    """

    T: Table
    M: Table
    num_nodes: int

    def read(
        self, batch: Batch, P: CSR, t: Tensor, clean: Tensor, keep: bool, drifts: bool, R2: Tensor | None
    ) -> SumTerms:
        """The complete sums for rows ``t`` of ext, in two terms.

        Args:
            t: the rows to sum, [ext, d].
            clean: the same before dropout. The tables keep clean rows, since other steps read them.
            keep: write the core's rows, and what they change in the sums of ext.
            drifts: measure the drift; else a = 1.
            R2: where the share of the core's fresh rows that the stored ones explain is kept for every batch, [b].
        """
        c, P_core = batch.num_core, P.columns(batch.num_core)[0]
        T_core, T_halo = self.T.pull(batch.rows), self.T.pull(batch.halo)
        M_core, M_halo = self.M.pull(batch.rows), self.M.pull(batch.halo)
        a, share = measure(
            clean, c, sampled(T_core), sampled(T_halo), (batch.ext < self.num_nodes).unsqueeze(1), drifts
        )
        if R2 is not None:
            R2.index_copy_(0, batch.place, share.view(1))
        delta, base = torch.empty_like(t), torch.empty_like(t)
        torch.addcmul(t[:c], a, T_core, value=-1, out=delta[:c])
        torch.addcmul(t[c:], a, T_halo, value=-1, out=delta[c:])
        torch.mul(a, M_core, out=base[:c])
        torch.mul(a, M_halo, out=base[c:])
        if keep:
            A = spmm(P_core, clean[:c].to(M_core.dtype) - T_core)
            self.T.push(batch.rows, clean[:c])
            self.M.add(batch.rows, A[:c])
            self.M.add(batch.halo, A[c:])
        return SumTerms(base, delta)

    def read_fused(
        self, batch: Batch, P: CSR, t: Tensor, clean: Tensor, keep: bool, drifts: bool, R2: Tensor | None
    ) -> SumTerms | None:
        """:meth:`read` on a GPU, where every row is read once and written once; None elsewhere."""
        memory = in_place((self.T, self.M), batch.rows, batch.halo, batch.ext)
        if memory is None:
            return None
        (T, M), c = memory.tensors, batch.num_core
        sums = _core_sums(P.columns(c)[0], memory.core_of(M), c) if keep else (None, None)
        stored = None if R2 is None else (R2, batch.place)
        found = kernel.read(T, M, memory.rows, t, clean, c, SAMPLE, drifts, stored, *sums)
        if keep:
            memory.write_back(with_halo=self.M)
        return SumTerms(*found)


def _core_sums(P_core: CSR, M_core: Tensor | None, num_core: int) -> tuple[Sum, Sum | None]:
    """How A = P[ext, core] x is computed and added to M, as :func:`lmc.kernels.complete_sums.read` takes it.

    Where P[ext, core] was split by rows (:func:`lmc.engine.batches.convert_matrices`), core rows are added up where
    they are, M[core] += P[core, core] x, which saves writing A and reading it again. For a core that is smaller than
    the halo, two products instead of one take longer than that.
    """
    if M_core is None or ("rows_split", num_core) not in P_core._cache:
        return partial(spmm, P_core), None
    P_inside, P_halo = rows_split(P_core, num_core)
    return partial(spmm, P_halo), partial(accumulate, M_core, P_inside)


def sampled(rows: Tensor) -> Tensor:
    """About ``SAMPLE`` rows, evenly spaced."""
    return rows[:: max(1, rows.shape[0] // SAMPLE)]


def measure(
    clean: Tensor, num_core: int, T_core: Tensor, T_halo: Tensor, real: Tensor, drifts: bool
) -> tuple[Tensor, Tensor]:
    """The drift a, on the halo, and R2, on the core, from samples of the stored rows; in float32 at least. ``real`` is
    whether a row of ext is no padding, [ext, 1]."""
    dtype, core, halo = torch.promote_types(clean.dtype, torch.float32), slice(num_core), slice(num_core, None)
    one, real_core = clean.new_ones(clean.shape[1], dtype=dtype), sampled(real[core])
    a = drift(sampled(clean[halo]).to(dtype), T_halo.to(dtype) * sampled(real[halo])) if drifts else one
    return a, explained(sampled(clean[core]).to(dtype) * real_core, a * T_core * real_core)


def drift(fresh: Tensor, stored: Tensor) -> Tensor:
    """a_k, column by column, with which a_k stored is nearest to fresh; in [0, 2]; 1 where nothing is stored."""
    size = stored.square().sum(0)
    return torch.where(size > 0, (fresh * stored).sum(0) / size, 1).clamp(0, 2)


def explained(fresh: Tensor, predicted: Tensor) -> Tensor:
    """R2 = 1 - |fresh - predicted|^2 / |fresh|^2, in [0, 1]."""
    missed, size = (fresh - predicted).square().sum(), fresh.square().sum()
    return torch.where(size > 0, 1 - missed / size, 1).clamp(0, 1)


def trust(R2: Tensor, place: Tensor, part: Tensor) -> Tensor:
    """tau of every halo row, in [0, 1]: the weight of its adjoint, which was computed at a predicted state.

    The tables miss a share 1 - R2 of a row (R2 is the lesser of this batch's newest measurement and the mean over all
    batches), and a halo row takes 1 - x of its message from them, x = deg_local / deg_global. With part = (1 - x)^2 its
    state misses e = part (1 - R2): tau is 1 up to e = 0.1 and 0 from 0.15 on. A ramp is used and not a power of e, so
    that adjoints keep their full weight where the tables predict well, and have none where stale adjoints would make
    the tables worse.
    """
    e = part * (1 - torch.minimum(R2[place], R2.mean()))
    return (3 - 20 * e).clamp(0, 1)


def trust_of_rows(R2: Tensor, place: Tensor, part: Tensor, num_core: int) -> Tensor:
    """tau of core rows, which is 1, and of halo rows, [rows, 1]."""
    if triton_available(part):
        return kernel.trust(R2, place, part, num_core)
    return torch.cat([R2.new_ones(num_core, 1), trust(R2, place, part)])


class _Complete(torch.autograd.Function):
    """m = the complete sums of t."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, clean: Tensor, op: Completion) -> Tensor:
        ctx.op = op
        terms = op.read("T", "M", t, clean)
        return accumulate(terms.base, op.P.forward, terms.delta)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.op.adjoint(grads[0]), None, None


class _CompleteLinear(torch.autograd.Function):
    """m W^T + b without m: products run on the narrow side, s = base W^T + P (delta W^T) + b.

    dW = v_core^T m_core = v_core^T base_core + (P^T v_core)^T delta.
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor, W: Tensor, b: Tensor | None, clean: Tensor, op: Completion) -> Tensor:
        terms = op.read("T", "M", t, clean)
        W = as_rows(W, t)
        ctx.op = op
        ctx.save_for_backward(W, terms.base[: op.step.batch.num_core], terms.delta)
        s = terms.base @ W.t() if b is None else torch.addmm(as_rows(b, t), terms.base, W.t())
        return accumulate(s, op.P.forward, terms.delta @ W.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        (v,) = grads
        W, base_core, delta = ctx.saved_tensors
        c = base_core.shape[0]
        core, halo = ctx.op.P.backward.columns(c)
        q_core = spmm(core, v[:c])
        dW = outer(v[:c], base_core).add_(outer(q_core, delta))
        dt = accumulate(q_core, halo, v[c:]) @ W
        return dt, dW, column_sums(v[:c]) if ctx.needs_input_grad[2] else None, None, None


@dataclass(frozen=True, eq=False)
class Completion(Around):
    """The operator of one layer in one step: forward and backward are one :meth:`read` each."""

    step: Step
    l: int
    drifts: bool

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return _Complete.apply(t, t.detach() if clean is None else clean.detach(), self)

    def linear_first(self, W: Tensor, b: Tensor | None, t: Tensor, clean: Tensor | None) -> Tensor | None:
        """(P t) W^T + b with the weights first; None where the adjoints of the sums themselves are kept."""
        if "V" in self.step.tables:
            return None
        return _CompleteLinear.apply(t, W, b, t.detach() if clean is None else clean.detach(), self)

    def adjoint(self, v: Tensor) -> Tensor:
        if "V" not in self.step.tables:
            return self.P.adjoint(v)
        terms = self.read("V", "U", v, v)
        return accumulate(terms.base, self.P.backward, terms.delta)

    def read(self, rows: str, sums: str, t: Tensor, clean: Tensor) -> SumTerms:
        step = self.step
        tables = RowsAndSums(step.tables[rows][self.l], step.tables[sums][self.l], step.problem.graph.num_nodes)
        P = self.P.forward if rows == "T" else self.P.backward
        R2 = step.numbers["R2"][self.l] if step.keep and rows == "T" else None
        arguments = step.batch, P, t, clean, step.keep, self.drifts, R2
        return tables.read_fused(*arguments) or tables.read(*arguments)


@dataclass(frozen=True)
class CMC(HistoryMethod):
    """Complete messages of core and halo rows in the forward pass, and adjoints weighted by trust in the backward pass.

    Every step sees, on the core rows, both the stored and the fresh value of T, so how well the tables predict is
    measured without extra products, and the adjoints of halo rows are weighted accordingly (:func:`trust`). There is no
    hyper-parameter.

    Args:
        adjoints: keep V and U too, and add the adjoints from outside of ext: exact at fixed parameters, for twice the
            memory. Without it the one bias is the adjoint that halo rows miss from outside of ext; it touches layers
            l <= L - 2 alone.
    """

    adjoints: bool = False

    traits: ClassVar[Traits] = Traits(
        "cmc", "CMC", outside="complete forward; backward within core and halo (complete with adjoints=True)",
        step_rows="core and halo", accepts="linear aggregation", reads=("rows", "halo"),
        bundles=(frozenset({"T", "V"}), frozenset({"M", "U"})),  # written at the core; at the core and the halo
        accumulated_tables=frozenset({"M", "U"}), batch_norm="renormalised",
        sync=("step",), pads_batches="all", sums=(("M", "T", False), ("U", "V", True)), shared_numbers=("R2",),
    )  # fmt: skip

    def check(self, model: Model) -> None:
        check_linear(model, self.traits.title, "stores sums of messages")

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        halo = problem.halo(core)
        ext = torch.cat([core, halo])
        P = problem.blocks.induced(ext)
        for matrix in (P, P.t()):
            matrix.columns(core.numel())  # made with the batch: counting their entries waits for the GPU
        part = (1 - problem.completeness(P, halo)).square()
        if normalised_by_batch(problem.model):
            # rows of padding have the number of no node
            num_halo, num_core = ((rows < problem.graph.num_nodes).sum() for rows in (halo, core))
            part = part * (num_halo.to(part.dtype) / num_core / LARGE_HALO).clamp(max=1)
        return Layout(halo, operators(problem, ext.numel(), Aggregation.exact(P)), part)

    def tables(self, problem: ProblemView) -> Widths:
        """T and M (V and U) for every aggregation that is neither constant nor one of features."""
        names = ("T", "M", "V", "U") if self.adjoints else ("T", "M")
        return {name: dict(problem.model.message_widths) for name in names}

    def numbers(self, problem: ProblemView, num_batches: int) -> dict[str, Tensor]:
        return {"R2": torch.ones(problem.model.num_layers + 1, num_batches, dtype=problem.accumulate_dtype)}

    def operator(self, step: Step, l: int) -> Operator:
        P = step.batch.operators[l - 1]
        if l not in step.tables["T"]:
            return P
        assert isinstance(P, Aggregation)
        # batch norm keeps the scale of every column
        return Completion(P, step, l, not normalised_by_batch(step.problem.model))

    def compensate(self, step: Step, l: int, s: Tensor) -> Tensor:
        if l not in step.tables["T"]:
            return s
        R2, batch = step.numbers["R2"][l], step.batch
        assert batch.coefficients is not None
        return weigh_adjoints(s, partial(trust_of_rows, R2, batch.place, batch.coefficients, batch.num_core))

    def fill(self, exact: ExactPasses) -> None:
        """T exact, M = P T; V and U likewise; trust 1."""
        states, (messages, adjoints) = exact.fill_messages(), self.traits.sums
        _fill_sums(exact, *messages)
        if self.adjoints:
            T, M, V = (exact.tables[name] for name in "TMV")
            for l, v in exact.adjoints(states):
                for rows in exact.chunks if l in V else ():
                    V[l].push(rows, exact.affine_adjoint(l, rows, M[l], T[l], v))
            _fill_sums(exact, *adjoints)
        exact.numbers["R2"].fill_(1)

    def regraph(self, exact: ExactPasses) -> None:
        """M = P T and U = P^T V with the new P."""
        for sums in self.traits.sums:  # in one order, since ranks exchange their rows
            _fill_sums(exact, *sums)


def _fill_sums(exact: ExactPasses, sums: str, rows: str, transposed: bool) -> None:
    """These tables of sums, where they are kept, from the tables of their rows."""
    for l, table in exact.tables.get(sums, {}).items():
        exact.fill_sums(l, exact.tables[rows][l], table, transposed=transposed)
