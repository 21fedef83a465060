"""VR-GCN: "Stochastic Training of Graph Convolutional Networks with Variance Reduction"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmc.graph import CSR, Aggregation, Around, spmm
from lmc.methods.protocol import BatchSource, ExactPasses, ProblemView, Setup, Step, Traits, Widths, check_linear
from lmc.methods.seeded import EXACT_WITH_ALL_NEIGHBOURS, UNBIASED_AGGREGATION, NodeWise, SampledTraits
from lmc.models import Model, Operator
from lmc.sampling import Hop
from lmc.stores import Table

UNBIASED_WITH_EXACT_HISTORIES = "unbiased with exact histories"


@dataclass(frozen=True, eq=False)
class Sampled(Aggregation):
    """A sampled operator with what the control variate needs.

    Args:
        damp: sqrt(k / d) of every row [rows, 1], which turns the factor d / k into sqrt(d / k).
        diagonal: P_ii of every row [rows, 1], which has no factor.
        whole: the rows of P itself, over the columns ``read``; None: over all nodes.
    """

    damp: Tensor
    diagonal: Tensor
    whole: CSR
    read: Tensor | None

    def noise(self, t: Tensor) -> Tensor:
        """The sampled sum with sqrt(d / k) in the place of d / k: what dropout adds to d terms, from k of them."""
        return self.damp * self(t) + (1 - self.damp) * self.diagonal * t[: self.num_outputs]


@dataclass(frozen=True, eq=False)
class ControlVariate(Around):
    """P t from a sample and the history T:  noise(t - mean) + P_hat (mean - T) + P T."""

    P: Sampled
    T: Table
    rows: Tensor
    keep: bool

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        mean = t if clean is None else clean
        history = spmm(self.P.whole, self.T.data() if self.P.read is None else self.T.pull(self.P.read))
        m = self.P(mean - self.T.pull(self.rows)) + history
        if t is not mean:
            m = m + self.P.noise(t - mean)
        if self.keep:
            self.T.push(self.rows, mean.detach())
        return m


@dataclass(frozen=True)
class VRGCN(NodeWise):
    """Sampled neighbours contribute only their change since their history T was written:

        m = P_hat (t - T) + P T

    The mean is P t whatever T holds, and the variance grows with the distance of T from t. A step writes every row that
    it computes to T. With dropout (the paper's CVD) the histories hold rows before dropout, and what dropout adds is
    sampled with the factor sqrt(d / k), which keeps its variance: m = noise(t - mean) + P_hat (mean - T) + P T.

    Departure: the mean of a row is conditioned on the dropout masks of the layers below it. The paper computes a second
    forward pass without dropout.

    Args:
        first_layer: "complete" is the paper's preprocessing: P X once, with the features' dropout, where there is one,
            falling on P X. "sampled" samples layer 1 without a control variate.
    """

    fanouts: int | tuple[int, ...] = 2
    first_layer: Literal["complete", "sampled"] = field(default="complete", kw_only=True)

    traits: ClassVar[Traits] = SampledTraits(
        "vrgcn", "VR-GCN", outside="sampled neighbours, with the history of all neighbours as control variate",
        step_rows="batch_size * prod(fanouts + 1) at most; neighbours read", accepts="linear aggregation",
        facts=frozenset({EXACT_WITH_ALL_NEIGHBOURS, UNBIASED_AGGREGATION, UNBIASED_WITH_EXACT_HISTORIES}),
        draws_concurrently=True,
    )  # fmt: skip
    reads_whole_rows: ClassVar[bool] = True

    @property
    def setup(self) -> Setup:
        complete = self.first_layer == "complete"
        return Setup(precompute=complete, swap_dropout=complete)

    def check(self, model: Model) -> None:
        super().check(model)
        check_linear(model, self.traits.title, "sums the histories of all neighbours", "GraphSAGE")

    def tables(self, problem: ProblemView) -> Widths:
        """T[l], the rows that layer l aggregates, except the features, which are sampled as they are."""
        return {"T": problem.model.message_widths}

    def operator_of(self, source: BatchSource, l: int, rows: Tensor, found: Hop) -> Aggregation:
        P, blocks = Aggregation.exact(found.matrix), source.problem.blocks
        if l not in source.tables["T"]:
            return P
        read = None if source.problem.placement.tier.name == "device" else torch.cat([rows, blocks.halo(rows)])
        whole = blocks.P.select_rows(rows, found.whole) if read is None else blocks.block(rows, read)
        diagonal = source.prepared.diagonal[rows]
        return Sampled(P.forward, P.backward, found.scale.rsqrt()[:, None], diagonal[:, None], whole, read)

    def operator(self, step: Step, l: int) -> Operator:
        P = step.batch.operators[l - 1]
        if l not in step.tables["T"]:
            return P
        assert isinstance(P, Sampled)
        return ControlVariate(P, step.tables["T"][l], step.batch.ext[: P.num_inputs], step.keep)

    def fill(self, exact: ExactPasses) -> None:
        exact.fill_messages()
