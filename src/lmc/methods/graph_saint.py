"""GraphSAINT: "GraphSAINT: Graph Sampling Based Inductive Learning Method"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.errors import ConfigError, check_at_least
from lmc.graph import CSR, Aggregation, Batch, Extractor, Graph
from lmc.graph.csr import row_entries
from lmc.methods.protocol import (
    BatchSource,
    Layout,
    ProblemView,
    SamplingMethod,
    Setup,
    Traits,
    check_linear,
    operators,
)
from lmc.methods.seeded import UNBIASED_AGGREGATION, SampledTraits
from lmc.models import Model
from lmc.sampling import Edges, Nodes, NodeSampler, Walks, generator

SAMPLERS = ("walk", "edge", "node")
SHARE = 4
"""A batch aims at one node in so many, unless its size is given."""


@dataclass(frozen=True, eq=False)
class Normalised:
    """A sampler and the coefficients that make its subgraphs unbiased.

    Args:
        blocks: cuts subgraphs out of P with every entry divided by alpha_uv, the chance of u given v.
        importance: 1 / lambda_v, one over the chance of v.
    """

    sampler: NodeSampler
    blocks: Extractor
    importance: Tensor


@dataclass(frozen=True)
class GraphSAINT(SamplingMethod):
    """The model runs on a sampled subgraph. Messages from outside are dropped; messages inside, and the losses, are
    divided by the probability of being sampled:

        m_v = sum over u in the subgraph of (P_vu / alpha_uv) t_u,   alpha_uv = C_uv / C_v
        L   = sum over v in the subgraph of loss_v / (|V_L| lambda_v),   lambda_v = C_v / N

    C_v and C_uv count how often node v and edge (u, v) occur in N subgraphs that are drawn before training.

    Departure: 1 / alpha_uv and 1 / lambda_v are estimated by (C_v + 1) / (C_uv + 1) and (N + 1) / (C_v + 1). The means
    of C_v / C_uv and N / C_v are too large, for messages by 3 to 9 % at the default coverage.

    Departure: on a recurrent model the matrix of a subgraph is scaled down where a fixed point may not exist
    (:meth:`lmc.models.Model.well_posed`): divided by small probabilities, its eigenvalues may exceed those of P.

    Args:
        sampler: "walk" (random walks from uniform roots), "edge" (by 1 / deg(u) + 1 / deg(v)), "node" (by |P[:, v]|^2).
            Edges never draw a node without edges, whose loss is then left out.
        size: roots, edges or nodes drawn for a subgraph; by default as many as give about a quarter of the nodes.
        walk_length: steps of a walk.
        coverage: subgraphs are drawn in advance until a node has occurred this many times on average.
    """

    sampler: str = "walk"
    size: int | None = None
    walk_length: int = 2
    coverage: int = 50

    traits: ClassVar[Traits] = SampledTraits(
        "graphsaint", "GraphSAINT", outside="dropped; messages and losses inside divided by their probability",
        step_rows="the subgraph", accepts="linear aggregation", facts=frozenset({UNBIASED_AGGREGATION}),
        trains=frozenset({"layered", "recurrent"}), reads=("halo",), draws_concurrently=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler not in SAMPLERS:
            raise ConfigError(f"expected sampler in {list(SAMPLERS)} (got {self.sampler!r})")
        check_at_least(1, size=self.size, walk_length=self.walk_length, coverage=self.coverage)

    @property
    def setup(self) -> Setup:
        """A subgraph has messages of its own: P X of the whole graph would contain messages from outside."""
        return Setup(precompute=False)

    def check(self, model: Model) -> None:
        check_linear(model, self.traits.title, "divides messages by their chance", "ClusterGCN")

    def prepare(self, problem: ProblemView, seed: int) -> Any:
        return normalised(problem.P, self.sampler_of(problem), self.coverage, seed)

    def sampler_of(self, problem: ProblemView) -> NodeSampler:
        """The sampler on this graph."""
        size, adj = self.size_for(problem.graph.num_nodes), problem.graph.adj
        if self.sampler == "node":
            return Nodes(problem.P, size)
        if self.sampler == "edge":
            return Edges(adj, size)
        return Walks(adj, size, self.walk_length)

    @property
    def nodes_each(self) -> int:
        """The largest number of nodes that one root, edge or node adds."""
        return {"node": 1, "edge": 2, "walk": self.walk_length + 1}[self.sampler]

    def size_for(self, num_nodes: int) -> int:
        """``size``, or its default."""
        return self.size or max(1, num_nodes // (SHARE * self.nodes_each))

    def num_batches(self, graph: Graph) -> int:
        """So many that an epoch draws as many nodes as there are."""
        n = graph.num_nodes
        return max(1, round(n / (self.size_for(n) * self.nodes_each)))

    def draw(self, source: BatchSource, epoch: int, start: int) -> Iterator[Batch]:
        problem, prepared = source.problem, source.prepared
        for slot in range(start, self.num_batches(problem.graph)):
            nodes = prepared.sampler(generator(problem.device, source.seed, "subgraph", epoch, slot))
            P = Aggregation.exact(problem.model.well_posed(prepared.blocks.block(nodes, nodes)))
            layout = Layout(nodes[:0], operators(problem, nodes.numel(), P))
            # every subgraph estimates the whole loss by itself
            yield source.assemble(nodes, layout, 1.0, slot, prepared.importance[nodes])


def normalised(P: CSR, sampler: NodeSampler, coverage: int, seed: int) -> Normalised:
    """Draw subgraphs in advance and count what they meet."""
    n, device = P.num_rows, P.device
    C_v = torch.zeros(n, dtype=torch.int64, device=device)
    C_uv = torch.zeros(P.nnz, dtype=torch.int64, device=device)
    inside = torch.zeros(n, dtype=torch.bool, device=device)
    met = N = 0
    while met < coverage * n:
        nodes = sampler(generator(device, seed, "in advance", N))
        inside[nodes] = True
        entries, _ = row_entries(P, nodes)
        C_uv[entries[inside[P.indices[entries]]]] += 1
        inside[nodes] = False
        C_v[nodes] += 1
        met, N = met + nodes.numel(), N + 1
    C_v, C_uv = C_v.to(P.dtype), C_uv.to(P.dtype)
    over_alpha = one_over_chance(C_uv, C_v[P.row_index()])
    # not symmetric: the chance of u given v is not that of v given u
    blocks = Extractor(CSR(P.indptr, P.indices, P.data * over_alpha, P.num_cols))
    return Normalised(sampler, blocks, one_over_chance(C_v, N))


def one_over_chance(times: Tensor, trials: Tensor | int) -> Tensor:
    """1 / p of events that were met so many times in these trials.

    Of a binomial count C of N trials, (N + 1) / (C + 1) has the mean (1 - (1 - p)^(N + 1)) / p: it is 1 / p but for
    what is hardly ever met. N / C would be too large by the share (1 - p) / (N p).
    """
    return (trials + 1) / (times + 1)
