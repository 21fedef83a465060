"""DropEdge: "DropEdge: Towards Deep Graph Convolutional Networks on Node Classification"."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from lmc.engine.problem import Cut, Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import CSR, Batch, Graph
from lmc.methods.base import Kept, Layout, Method
from lmc.methods.full import FullBatch
from lmc.models import Model
from lmc.sampling import Clusters, Thinner, generator
from lmc.stores import Rows


@dataclass(frozen=True)
class DropEdge(Method):
    """Another method on a graph that lacks a share ``p`` of its edges, drawn anew every epoch.

    The aggregation matrix is normalised on the graph that is left, as in the paper. Histories, where the inner method
    keeps some, go on from epoch to epoch, and ``refresh`` fills them on the whole graph; evaluation is exact on the
    whole graph too. P X is not computed once: it is another one in every epoch.

    Args:
        inner: any method for models with layers but SIGN, whose aggregation lies before training.
        p: the chance of an edge to be left out.
    """

    inner: Method = field(default_factory=FullBatch)
    p: float = 0.2

    name: ClassVar[str] = "dropedge"
    title: ClassVar[str] = "DropEdge"
    paper: ClassVar[str] = "DropEdge: Towards Deep Graph Convolutional Networks on Node Classification"
    outside: ClassVar[str] = "those of the method it wraps, on a graph with edges left out"
    step_rows: ClassVar[str] = "as the method it wraps"
    facts: ClassVar[frozenset[str]] = frozenset()
    looks_ahead: ClassVar[bool] = False  # an epoch's graph is another one

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Method):
            raise ConfigError(f"expected a method to wrap, such as GAS() (got {self.inner!r})")
        if isinstance(self.inner, DropEdge):
            raise ConfigError("expected a method that drops no edges yet (got DropEdge): wrap once, with a larger p")
        if self.inner.name == "sign":
            raise ConfigError("expected a method that aggregates in every step (got SIGN): its features are fixed")
        if not 0 <= self.p < 1:
            raise ConfigError(f"expected p in [0, 1) (got {self.p})")

    def prepare(self, problem: Problem, seed: int) -> Any:
        if problem.stored is not None:
            raise ConfigError(
                f'expected features="device" for DropEdge (got {problem.features!r}): every epoch sums them anew'
            )
        return Thinner(problem.graph.adj)

    def draw(self, run: Run, epoch: int, start: int) -> Iterator[Batch]:
        thin = self.thinned(run, epoch)
        self.inner.regraph(thin)
        for batch in self.inner.draw(thin, epoch, start):
            yield dataclasses.replace(batch, fixed=False)

    def thinned(self, run: Run, epoch: int) -> Run:
        """The run as the inner method sees it in one epoch: the same tables and chance on another graph."""
        problem = run.problem
        assert isinstance(problem.X, Tensor | CSR)  # prepare refuses others
        adj = run.prepared(self.p, generator(problem.device, run.seed, "edges", epoch))
        graph = dataclasses.replace(problem.graph, adj=adj, x=problem.X)
        thin = Problem.of(graph, problem.model, problem.placement, False, problem.cut)
        return run.seen_by(self.inner, thin)

    def num_batches(self, run: Run) -> int:
        return self.inner.num_batches(run)

    def check(self, model: Model) -> None:
        self.inner.check_kind(model)
        self.inner.check(model)

    def clusters(self, graph: Graph, parts: Tensor | None, seed: int) -> Clusters:
        return self.inner.clusters(graph, parts, seed)

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        return self.inner.layout(problem, core)

    def keeps(self, problem: Problem) -> Kept:
        return self.inner.keeps(problem)

    def fill(self, run: Run, chunks: list[Rows]) -> None:
        self.inner.fill(run, chunks)

    def memo(self, problem: Problem, clusters: Clusters) -> dict[str, Tensor]:
        return self.inner.memo(problem, clusters)

    def estimate(self, run: Run, batch: Batch, keep: bool, dropout: bool) -> tuple[list[Tensor], Tensor]:
        return self.inner.estimate(run, batch, keep, dropout)

    @property
    def grad_from_all_rows(self) -> bool:
        return self.inner.grad_from_all_rows

    @property
    def several_matrices(self) -> bool:
        return self.inner.several_matrices

    @property
    def aggregates_once(self) -> bool:
        return False

    @property
    def state_cut(self) -> Cut:
        return self.inner.state_cut

    @property
    def supports_bfloat16(self) -> bool:
        return self.inner.supports_bfloat16

    @property
    def accumulated_tables(self) -> frozenset[str]:
        return self.inner.accumulated_tables

    @property
    def bundles(self) -> tuple[frozenset[str], ...]:
        return self.inner.bundles
