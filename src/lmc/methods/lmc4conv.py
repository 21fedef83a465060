"""LMC4Conv: "Provably Convergent Subgraph-wise Sampling for Fast GNN Training", Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmc.engine.problem import Cut, Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, Batch, WithStoredHalo
from lmc.methods.base import EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES, HistoryMethod, Kept, Layout
from lmc.methods.compensation import compensate
from lmc.models import Operator

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "x": lambda x: x,
    "x^2": lambda x: x**2,
    "2x-x^2": lambda x: 2 * x - x**2,
    "1": torch.ones_like,
    "sin": lambda x: torch.sin(x * (math.pi / 2)),
}
"""Quality of an incomplete message by x = deg_local / deg_global; each is 1 for a complete one."""


@dataclass(frozen=True)
class LMC4Conv(HistoryMethod):
    """Messages between core and halo are compensated in both directions, (12)-(19).

    A step computes core and halo rows on the subgraph induced on both. Halo rows mix their history with what the
    subgraph gives them, with beta_i = alpha * score(deg_local(i) / deg_global(i)), forward (13) and backward (16).

    Args:
        alpha: in [0, 1]; 0 trusts the histories alone, 1 the incomplete up-to-date values as far as the score does.
        score: "x", "x^2", "2x-x^2", "1" or "sin".
        forward: the compensation C_f; False reads halo states from the history alone, as GAS does.
        backward: the compensation C_b; False drops halo adjoints, as GAS does.
        cut: the state lies "before" the activation, so that the Jacobian of a halo row does not depend on its
            incomplete aggregate and the method is exact with exact histories; "after" is the literal reading.
        first_layer: "complete" computes P X once on the whole graph where the model's first aggregation is constant:
            halo rows of layer 1 are then exact and need no history. "pruned" cuts their neighbours off, as the paper
            does. A model whose first aggregation changes has nothing to precompute; ``run.first_layer`` says what
            holds.
    """

    alpha: float = 0.8
    score: str = "x"
    forward: bool = True
    backward: bool = True
    cut: Cut = "before"
    first_layer: Literal["complete", "pruned"] = "complete"

    name: ClassVar[str] = "lmc"
    title: ClassVar[str] = "LMC4Conv"
    paper: ClassVar[str] = "Provably Convergent Subgraph-wise Sampling for Fast GNN Training"
    outside: ClassVar[str] = "compensated in both directions"
    step_rows: ClassVar[str] = "core and halo"
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"expected alpha in [0, 1] (got {self.alpha})")
        if self.score not in SCORES:
            raise ConfigError(f"expected score in {list(SCORES)} (got {self.score!r})")
        if self.cut not in ("before", "after"):
            raise ConfigError(f'expected cut "before" or "after" (got {self.cut!r})')
        if self.first_layer not in ("complete", "pruned"):
            raise ConfigError(f'expected first_layer "complete" or "pruned" (got {self.first_layer!r})')

    @property
    def aggregates_once(self) -> bool:
        return self.first_layer == "complete"

    @property
    def state_cut(self) -> Cut:
        return self.cut

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        ext = torch.cat([core, halo])
        P = problem.blocks.induced(ext)
        beta = self.alpha * SCORES[self.score](problem.completeness(P, halo))
        operator = Aggregation(self._forward(problem, P, core), self._backward(problem, P, core))
        return halo, self.operators(problem, ext.numel(), operator), beta.to(problem.dtype)

    def _forward(self, problem: Problem, P: CSR, core: Tensor) -> CSR:
        """P on core and halo rows.

        With beta = 0 halo states come from the history; their own aggregate is needed only where their Jacobian depends
        on it, and is otherwise not computed.
        """
        unused = not (self.forward and self.alpha > 0) and self.cut == "before" and problem.model.affine
        return P.leading(core.numel()).extended(P.num_rows) if unused else P

    def _backward(self, problem: Problem, P: CSR, core: Tensor) -> CSR:
        """P^T, without the halo's rows where beta = 0 replaces them, and without its adjoints where dropped."""
        if not self.backward:
            return problem.blocks.induced(core).t()
        return P.t() if self.alpha > 0 else P.t().leading(core.numel())

    def keeps(self, problem: Problem) -> Kept:
        """H[l] up to the last layer, where the halo's loss gradient starts; V[l] up to the one before.

        Where layer 1 is complete its halo rows are exact, and their adjoints reach no parameter: no history for it.
        """
        model = problem.model
        if self.cut == "after" and (
            model.owns_forward or any(model.completes_halo(l) for l in range(1, model.num_layers + 1))
        ):
            raise ConfigError(
                f'expected cut="before" for {type(model).__name__} (got "after"): its states lie before the activation'
            )
        L, first = problem.model.num_layers, 2 if problem.aggregated else 1
        H = {l: width for l, width in enumerate(problem.model.widths, start=1) if l >= first}
        return {"H": H, "V": {l: width for l, width in H.items() if l < L and self.backward}}

    def operator(self, run: Run, batch: Batch, l: int, keep: bool) -> Operator:
        """P; for a layer that asks, with the stored states of the halo rows, from which it completes what the batch
        does not show it (attention: the softmax normaliser)."""
        P = batch.operators[l - 1]
        if isinstance(P, Aggregation) and l in run.H and self.cut == "before" and run.problem.model.completes_halo(l):
            return WithStoredHalo(P.forward, P.backward, run.H[l].pull(batch.halo))
        return P

    def compensate(self, run: Run, batch: Batch, l: int, s: Tensor, keep: bool) -> Tensor:
        if l not in run.H:
            return s
        c = batch.num_core
        H_halo = run.H[l].pull(batch.halo)
        if keep:
            run.H[l].push(batch.rows, s[:c].detach())

        def adjoint(v_core: Tensor) -> Tensor | None:
            if not self.backward:
                return torch.zeros_like(H_halo)
            if l not in run.V:
                return None
            V_halo = run.V[l].pull(batch.halo)
            if keep:
                run.V[l].push(batch.rows, v_core)
            return V_halo

        assert batch.beta is not None
        return compensate(
            s,
            num_core=c,
            H_halo=H_halo,
            adjoint=adjoint,
            beta_forward=batch.beta if self.forward and self.alpha > 0 else 0.0,
            beta_backward=batch.beta if self.alpha > 0 else 0.0,
            # an affine map does not keep its result for the backward pass; other operations may
            in_place=self.cut == "before" and run.problem.model.affine,
        )
