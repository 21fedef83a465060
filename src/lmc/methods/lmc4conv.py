"""LMC4Conv: "Provably Convergent Subgraph-wise Sampling for Fast GNN Training", Algorithm 1.

Three files hold its equations: this one lays out the matrices and keeps the histories, :mod:`lmc.methods.compensation`
mixes, and :mod:`lmc.models.rows` multiplies with the weights and forms the gradients. The number of an equation is at
the line that computes it.

| equation | what | where |
|---|---|---|
| (12) | states of core rows, every message present | core rows of P, ``layout``; ``Linear.aggregate`` of ``rows`` |
| (13) | states of halo rows, mixed | ``_Compensate.forward`` of ``compensation`` |
| (14) | partial states of halo rows | halo rows of P, ``layout``; ``Linear.aggregate`` of ``rows`` |
| (15) | adjoints of core rows | core rows of P^T, ``_backward``; backward of ``rows`` |
| (16) | adjoints of halo rows, mixed | ``_Compensate.backward`` of ``compensation`` |
| (17) | partial adjoints of halo rows | halo rows of P^T, ``_backward``; backward of ``rows`` |
| (18) (19) | gradients, from core rows alone | backward of ``rows`` |

The factor b/c of (18) and (19) is that of every method and applied by :meth:`lmc.engine.Run.accumulate`.

The states are s^l, before the activation; autograd multiplies adjoints with the derivative of the activation between
two layers. docs/methods/lmc4conv.md lists every departure from the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmc.errors import ConfigError, check_within
from lmc.graph import CSR, Aggregation, WithStoredHalo
from lmc.graph.csr import with_empty_rows
from lmc.methods.compensation import compensate
from lmc.methods.protocol import EXACT, Cut, HistoryMethod, Layout, ProblemView, Setup, Step, Traits, Widths, operators
from lmc.models import Model, Operator

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "x": lambda x: x,
    "x^2": lambda x: x**2,
    "2x-x^2": lambda x: 2 * x - x**2,
    "1": torch.ones_like,
    "sin": torch.sin,
    "sin(x)": torch.sin,
}
"""Quality of an incomplete message by x = deg_local / deg_global, as in the paper's table of scores. Each but sin(x) is
1 for a complete message. "sin" is the name of sin(x) that a shell reads without quotes."""


@dataclass(frozen=True)
class LMC4Conv(HistoryMethod):
    """Messages between core and halo are compensated in both directions, (12)-(19).

    A step computes core and halo rows on the subgraph induced on both. Halo rows mix their history with what the
    subgraph gives them, with beta_i = alpha * score(deg_local(i) / deg_global(i)), forward (13) and backward (16).

    Args:
        alpha: in [0, 1]; 0 uses the histories alone, 1 weighs the incomplete up-to-date values by their score.
        score: "x", "x^2", "2x-x^2", "1" or "sin(x)" ("sin" for short).
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

    traits: ClassVar[Traits] = Traits(
        "lmc", "LMC4Conv", outside="compensated in both directions", step_rows="core and halo", facts=EXACT,
        sync=("step", "layer"), pads_batches="all",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("[0, 1]", alpha=self.alpha)
        if self.score not in SCORES:
            raise ConfigError(f"expected score in {list(SCORES)} (got {self.score!r})")

    def check(self, model: Model) -> None:
        completes = any(model.completes_halo(l) for l in range(1, model.num_layers + 1))
        if self.cut == "after" and (model.owns_forward or completes):
            raise ConfigError(
                f'expected cut="before" for {type(model).__name__} (got "after"): its states lie before the activation'
            )

    @property
    def setup(self) -> Setup:
        return Setup(precompute=self.first_layer == "complete", cut=self.cut)

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        halo = problem.halo(core)
        ext = torch.cat([core, halo])
        P = problem.blocks.induced(ext)  # rows of the core are complete, (12); rows of the halo are not, (14)
        operator = Aggregation(self._forward(problem, P, core), self._backward(problem, P, core))
        return Layout(halo, operators(problem, ext.numel(), operator), self.coefficients(problem, P, halo))

    def coefficients(self, problem: ProblemView, P: CSR, halo: Tensor) -> Tensor:
        """beta_i of (13) and (16), appendix."""
        beta = self.alpha * SCORES[self.score](problem.completeness(P, halo))
        return beta.to(problem.dtype)

    def _forward(self, problem: ProblemView, P: CSR, core: Tensor) -> CSR:
        """P on core and halo rows, (12) and (14).

        With beta = 0 halo states come from the history; their own aggregate is needed only where their Jacobian depends
        on it, and is otherwise not computed.
        """
        unused = not (self.forward and self.alpha > 0) and self.cut == "before" and problem.model.affine
        return with_empty_rows(P.leading(core.numel()), P.num_rows) if unused else P

    def _backward(self, problem: ProblemView, P: CSR, core: Tensor) -> CSR:
        """P^T, (15) and (17): without the rows of the halo where beta = 0 replaces them, and without its adjoints where
        they are dropped."""
        if not self.backward:
            return problem.blocks.induced(core).t()
        return P.t() if self.alpha > 0 else P.t().leading(core.numel())  # rows of the core (15), of the halo (17)

    def tables(self, problem: ProblemView) -> Widths:
        """H[l] up to the last layer, where the loss gradient of the halo starts; V[l] up to the one before.

        Where layer 1 is complete its halo rows are exact, and their adjoints reach no parameter: it needs no history.
        """
        model = problem.model
        L, first = model.num_layers, 2 if problem.aggregated else 1
        H = {l: width for l, width in enumerate(model.widths, start=1) if l >= first}
        return {"H": H, "V": {l: width for l, width in H.items() if l < L and self.backward}}

    def operator(self, step: Step, l: int) -> Operator:
        """P; a layer that completes halo rows by itself also gets their stored states (attention: the normaliser of
        the softmax)."""
        P = step.batch.operators[l - 1]
        completes = self.cut == "before" and step.problem.model.completes_halo(l)
        if isinstance(P, Aggregation) and l in step.H and completes:
            return WithStoredHalo(P.forward, P.backward, step.H[l].pull(step.batch.halo))
        return P

    def compensate(self, step: Step, l: int, s: Tensor) -> Tensor:
        """(13) and (16); the histories of the core become its states (12) and its adjoints (15)."""
        if l not in step.H:
            return s
        batch, beta = step.batch, step.batch.coefficients
        assert beta is not None
        H_halo = step.H[l].pull(batch.halo)
        if step.keep:
            step.H[l].push(batch.rows, s[: batch.num_core].detach())  # (12)

        def adjoint(v_core: Tensor) -> Tensor | None:
            if not self.backward:
                return torch.zeros_like(H_halo)
            if l not in step.V:  # l = L: the loss gives the adjoints, Algorithm 1, lines 11 and 12
                return None
            V_halo = step.V[l].pull(batch.halo)
            if step.keep:
                step.V[l].push(batch.rows, v_core)  # (15)
            return V_halo

        return compensate(
            s,
            num_core=batch.num_core,
            H_halo=H_halo,
            adjoint=adjoint,
            beta_forward=beta if self.forward and self.alpha > 0 else 0.0,
            beta_backward=beta if self.alpha > 0 else 0.0,
            # an affine map does not keep its result for the backward pass; other operations may
            in_place=self.cut == "before" and step.problem.model.affine,
        )
