"""IMC, invariant message compensation: a linear map of core rows replaces messages from outside; and TOP.

Messages from outside of a batch are nearly a linear function of the rows inside of it ("Accurate and Scalable Graph
Neural Networks via Message Invariance", which is TOP). IMC keeps that function up to date: every few epochs a *sweep*,
one exact forward pass over the whole graph, stores for every layer the rows Q that it aggregates, and of their sums

    M = P Q

what the steps need.

In a step on the core rows B, with t the rows to sum, h the same rows before dropout, and P restricted to B x B,

    C = K (Q^T h + lambda J),   K = (Q^T Q + lambda I)^-1     the map from the rows of the sweep to today's rows
    S = M - P Q                                               what came from outside at the sweep
    m = P t + S C                                             inside exactly, outside by the map

J selects the columns of Q that hold the aggregated rows T. C minimises |Q C - h|^2 + lambda |C - J|^2. At a fresh
sweep, where h = T = Q J, C is J for every lambda, so that m is exact. (The Q of TOP does not hold T, and TOP has no J.)
Large batches have more rows than a map of r columns needs: in C, K and dh, Q and h are then every k-th row
(:mod:`lmc.methods.maps`, which computes K and lambda J).

The sweep stores S of every fixed batch, which is a product of Q with the entries of P between batches. For redrawn
batches, whose P changes, it stores M, and the same m is M C + P (t - Q C), with one sparse product.

The map predicts today's rows of all nodes, Q C, and their sums, M C. So the sweep also stores mean and covariance over
all nodes of what a layer reads, M or [M, Q], from which a step computes those of its state, for the batch norm that
follows (:class:`lmc.models.statistics.Distribution`); their adjoint is added to dC. Other batch norms read the
statistics of the batch, corrected towards the running ones (:func:`lmc.models.activation.batch_renorm`).

The gradient flows through C, so the adjoints that come from outside are compensated by the same formula:

    g = P^T v,   dt = g,   dC = S^T v = M^T v - Q^T g,   dh = Q K dC

Steps on large batches compute core rows alone: no halo is computed, read or written. Where batches have few rows for
each column of Q, a step also computes some of their halo rows (``halo``). B are then core and halo rows in all of the
above, and the loss is that of the core rows. Batches overlap, so that the sweep stores M as for redrawn batches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, Batch, spmm
from lmc.kernels.beside import beside
from lmc.kernels.copies import unwritten
from lmc.kernels.dropout import dropout
from lmc.methods import maps
from lmc.methods.invariance import Invariance, KnownInputs, KnownSums, Swept, unexplained
from lmc.methods.moments import Moments, columns_read
from lmc.methods.protocol import (
    ExactPasses,
    HistoryMethod,
    Layout,
    ProblemView,
    Setup,
    Step,
    Traits,
    Widths,
    check_linear,
    operators,
)
from lmc.models import Model, Operator
from lmc.sampling import generator
from lmc.stores import Rows, Table

BASES = ("auto", "T", "T+X1", "random")

FEW_ROWS_PER_COLUMN = 16
"""Core rows of a mean batch per column of Q below which ``halo="auto"`` computes halo rows."""

MAX_RIDGE = 1e6
"""With a larger ridge the map is J at every step, to the precision of float32."""

FEW_COLUMNS = 128
"""``basis="auto"`` adds columns of P X up to this many columns in all, which cost little."""

GROWTH, HELPED, NOISE, UNEXPLAINED = 1.25, 0.5, 0.02, 0.002
"""``sweep_every="auto"`` sweeps where the unexplained share |h - Q C|^2 / |h|^2 exceeds GROWTH times a baseline, plus
UNEXPLAINED. The baseline is the least share of an epoch since the last sweep, which is the noise of dropout and batch
statistics. The baseline is 0 in two cases: after the first epoch of a training, and if the last sweep reduced the share
below HELPED times its value before, and below NOISE. In the second case the age of the rows caused the share."""


def _pull(table: Table, batch: Batch) -> Tensor:
    """The rows of a table for the core rows of a batch, and for the halo rows that it computes."""
    core = table.pull(batch.rows)
    return torch.cat([core, table.pull(batch.halo)]) if batch.num_halo else core


def _drawn_halo(problem: ProblemView, core: Tensor, room: int) -> Tensor:
    """The halo rows that a step computes, at most ``room``."""
    if room <= 0:
        return core[:0]
    halo = problem.halo(core)
    if halo.numel() <= room:
        return halo
    # all layers have the same halo rows, also where their matrices have other values
    P = problem.of_layer(1).blocks.block(core, torch.cat([core, halo]))
    weight = spmm(P.t(), P.data.new_ones(core.numel(), 1))[core.numel() :, 0].abs().double().cpu()
    source = generator(torch.device("cpu"), 0, "halo", int(core[0]))
    drawn = torch.multinomial(weight.clamp_min(1e-12), room, generator=source)
    return halo[drawn.sort().values.to(halo.device)]


def _store_basis(exact: ExactPasses, l: int, rows: Rows, t: Tensor) -> None:
    """These rows of Q[l] <- the rows t that layer l aggregates, and columns of X1 = P X where Q has more columns."""
    table, d, r = exact.tables["Q"][l], t.shape[1], maps.columns_of(exact.numbers, l)
    if d < r:
        in_place = table.tier == "device" and isinstance(rows, slice)
        wide = table.pull(rows) if in_place else t.new_empty(len(t), r)
        wide[:, :d] = t
        if not in_place or unwritten(wide[:, d:]):  # X1 is constant
            _first_sums(exact.problem, rows, wide[:, d:])
        t = wide
    table.push(rows, t)


def _first_sums(problem: ProblemView, rows: Rows, out: Tensor) -> None:
    """``out`` <- columns of X1 = P X; a random projection where it has more."""
    x1, k, width = problem.inputs(rows), problem.graph.num_features, out.shape[1]
    if isinstance(x1, Tensor) and width == k:
        out.copy_(x1[:, :k])
        return
    R = _projection(x1.shape[1], k, width, problem.device, x1.dtype)
    if isinstance(x1, Tensor) and x1.dtype == out.dtype:
        torch.mm(x1, R, out=out)
    else:
        out.copy_(spmm(x1, R) if isinstance(x1, CSR) else x1 @ R)


@cache  # a recorded sweep reads its memory, and transfers nothing from the host
def _projection(rows: int, k: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A matrix [rows, width] that projects the first k of ``rows`` columns at random; the identity for width k."""
    source = generator(torch.device("cpu"), 0, "projection", k, width)
    R = torch.zeros(rows, width, dtype=torch.float64)  # a model may read X beside P X
    R[:k] = torch.eye(k) if width == k else torch.randn(k, width, generator=source, dtype=torch.float64) / width**0.5
    return R.to(device, dtype)


def _fill_feature_sums(exact: ExactPasses) -> None:
    """M[1] = P X, where the first layer aggregates features."""
    for l in exact.tables.get("M", {}).keys() - exact.tables["Q"].keys():
        exact.fill_feature_sums(exact.tables["M"][l])


def _columns(basis: str, model: Model, features: int) -> dict[int, int]:
    """r, the number of columns of Q, by layer; up to ``features`` columns of P X may join the basis."""
    widths = model.message_widths
    few = max(0, FEW_COLUMNS - max(widths.values(), default=0))
    most = {"T+X1": features, "auto": min(few, features)}.get(basis, 0)
    return {l: width + min(width, most) for l, width in widths.items()}


def _moved(numbers: dict[str, Tensor], epoch: int) -> bool:
    """Whether the last epoch left more unexplained than a sweep would (:data:`GROWTH`)."""
    (least, before), last = numbers["unexplained"].tolist(), unexplained(numbers["explained"].cpu())
    least = min(least, last) if last > 0 else least
    baseline = 0 if least < min(HELPED * before, NOISE) or epoch == 1 else GROWTH * least
    moved = last > baseline + UNEXPLAINED
    known = numbers["unexplained"]
    known.copy_(torch.tensor([least, last if moved else before], dtype=known.dtype))
    return moved


@dataclass(frozen=True)
class IMC(HistoryMethod):
    """Messages from outside as a linear function of the rows inside, which follows the parameters.

    Args:
        sweep_every: epochs between two sweeps, steps between them as in "50steps", "auto", or 0 for no sweep after the
            first. "auto" sweeps before an epoch when the share of the rows that the last sweep does not explain has
            grown.
        ridge: lambda over the mean of the Gram matrix' diagonal, for batches with at least 20 rows for each column of
            Q.
        halo: halo rows that a step computes beside the core rows, at most this many for each core row, and at most so
            many that an average batch has 20 rows for each column of Q. They are drawn once for a graph, with
            probabilities proportional to the sum of their entries in P. "auto" is 1 for fixed batches with fewer than
            16 core rows for each column, else 0.
        basis: the columns of Q: "T", the rows that the layer aggregates; "T+X1", with the first aggregation P X beside
            them, projected to at most as many columns; "auto", the latter up to 128 columns in all; or "random", the
            rows of a model with random parameters.
    """

    sweep_every: int | str = "auto"
    ridge: float = 1e-3
    basis: str = "auto"
    halo: float | str = "auto"

    traits: ClassVar[Traits] = Traits(
        "imc", "IMC", outside="by a linear map of the core rows in both directions, fitted to the last sweep",
        step_rows="core; some halo rows of small batches", accepts="linear aggregation", reads=("rows",),
        bundles=(frozenset({"Q", "S", "M"}),), grad_from_all_rows=True,
        batch_norm="renormalised", sweeps=True, sync=("step",), pads_batches="all", measures_every=4,
        shared_numbers=("explained",),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self.period  # noqa: B018 - refuses a wrong one
        if not 0 < self.ridge <= MAX_RIDGE:
            raise ConfigError(f"expected a positive ridge of at most {MAX_RIDGE:g} (got {self.ridge})")
        if self.basis not in BASES:
            raise ConfigError(f"expected basis in {list(BASES)} (got {self.basis!r})")
        if self.halo != "auto" and (isinstance(self.halo, str) or self.halo < 0 or (self.halo and self.redraw)):
            raise ConfigError(
                f'expected halo >= 0 or "auto", and 0 or "auto" with redraw=True (got halo={self.halo!r}, '
                f"redraw={self.redraw}): change one"
            )

    @property
    def _fit(self) -> maps.Fit:
        """How maps are fitted. With a random basis, no column of Q is a row of the sweep."""
        return maps.Fit(self.ridge, towards_sweep=self.basis != "random")

    @property
    def setup(self) -> Setup:
        """Dropout on the features falls on P X, since their messages from outside are not computed in a step."""
        return Setup(swap_dropout=True, records_fill=self.basis != "random", draws_halo=self._halo_per_row > 0)

    @property
    def period(self) -> tuple[int, str]:
        """(3, "epochs"), (50, "steps"), (0, "epochs") for never, or (0, "auto")."""
        every = self.sweep_every
        if every == "auto":
            return 0, "auto"
        if isinstance(every, int) and every >= 0:
            return every, "epochs"
        found = re.fullmatch(r"(\d+)(steps?|epochs?)?", str(every))
        if found is None:
            raise ConfigError(f'expected sweep_every as in 3, "50steps" or "auto" (got {every!r})')
        return int(found[1]), "steps" if (found[2] or "").startswith("step") else "epochs"

    def check(self, model: Model) -> None:
        check_linear(model, self.traits.title, "maps sums of messages")

    def settled(self, model: Model, features: int, num_nodes: int, num_parts: int) -> IMC:
        if not isinstance(self.halo, str):
            return self
        columns = max(_columns(self.basis, model, features).values(), default=0)
        rows = num_nodes * self.parts_in_batch(num_parts) / num_parts
        few = not self.redraw and rows < FEW_ROWS_PER_COLUMN * columns
        # of an average batch, no more than are computed
        return replace(self, halo=min(1.0, maps.ROWS_PER_COLUMN * columns / rows - 1) if few else 0.0)

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        columns = max(self.tables(problem)["Q"].values(), default=0)
        room = int(min(self._halo_per_row * core.numel(), maps.ROWS_PER_COLUMN * columns - core.numel()))
        return self.layout_with(problem, core, _drawn_halo(problem, core, room))

    def layout_with(self, problem: ProblemView, core: Tensor, halo: Tensor) -> Layout:
        ext = torch.cat([core, halo]) if halo.numel() else core
        return Layout(halo, operators(problem, ext.numel(), Aggregation.exact(problem.blocks.induced(ext))))

    def tables(self, problem: ProblemView) -> Widths:
        """Q and S, or M, for every aggregation that is neither constant nor one of features; M = P X for one of
        features."""
        widths = _columns(self.basis, problem.model, problem.graph.num_features * problem.aggregated)
        tables = {"Q": widths, self._sums: dict(widths)}
        if 1 not in widths and not problem.aggregated:
            if isinstance(problem.graph.x, CSR):
                raise ConfigError(
                    f"expected dense features for {self.traits.title} where the first aggregation is not constant "
                    "(got sparse ones): use CMC, or features without dropout"
                )
            tables.setdefault("M", {})[1] = problem.graph.num_features
        return tables

    @property
    def _sums(self) -> str:
        """The table of sums."""
        return "M" if self._overlapping else "S"

    @property
    def _overlapping(self) -> bool:
        """Whether a row belongs to several batches, so that what comes from outside is no property of the row."""
        return self.redraw or self._halo_per_row > 0

    @property
    def _halo_per_row(self) -> float:
        """``halo``; 0 where it is not settled yet."""
        return 0.0 if isinstance(self.halo, str) else self.halo

    def numbers(self, problem: ProblemView, num_batches: int) -> dict[str, Tensor]:
        """K and lambda J of every fixed batch, by layer; the scale of the columns of Q where batches overlap; mean and
        covariance of what layers read before a batch norm; and what "auto" watches."""
        new = partial(torch.zeros, dtype=problem.accumulate_dtype)
        # "unexplained": the least share of an epoch since the last sweep, and that of the epoch before the sweep
        found = {"explained": new(problem.model.num_layers + 1, num_batches, 2), "unexplained": new(2)}
        for l, r in self.tables(problem)["Q"].items():
            found |= {f"scale{l}": new(r)} if self._overlapping else {}
            found |= {} if self.redraw else {f"K{l}": new(num_batches, r, r), f"prior{l}": new(num_batches, r)}
        # the batch norms of TOP read the statistics of the batch
        read = {} if self.basis == "random" else columns_read(problem, self.tables(problem)["Q"])
        return found | {f"moments{l}": new(1 + k, k) for l, k in read.items()}

    def operator(self, step: Step, l: int) -> Operator:
        P, batch, numbers = step.batch.operators[l - 1], step.batch, step.numbers
        Q, M = step.tables["Q"], step.tables.get("M", {})
        if batch.num_core == step.problem.num_nodes:
            return P
        # on a graph of DropEdge other halo rows are drawn than at the sweep
        stored = not self.redraw and (batch.graph is step.problem.graph or not self._overlapping)
        if not stored and Q and not step.scratch:  # when the first layer asks, so that it is computed meanwhile
            step.scratch["swept"] = beside(step.problem.device, partial(self._computed, step))
        moments = numbers.get(f"moments{l}")
        if not (l in Q or l in M):
            return P if moments is None else KnownInputs(P.num_outputs, moments)
        assert isinstance(P, Aggregation)
        if l not in Q:
            rate = step.problem.model.input_dropout if step.dropout else 0.0
            return KnownSums(P, dropout(_pull(M[l], batch), rate, step.generator))
        measured = step.keep and self.sweep_every == "auto" and batch.slot % self.traits.measures_every == 0
        explained = (numbers["explained"][l], batch.place) if measured else None
        if stored:
            read = beside(step.problem.device, partial(self._stored, step, l))
        else:
            swept = step.scratch["swept"]
            read = lambda: swept()[l]  # noqa: E731
        pull_sums, k = partial(_pull, step.tables[self._sums][l], batch), maps.stride(step.problem, numbers, l)
        return Invariance(P, read, pull_sums, k, self._overlapping, explained, moments)

    def _stored(self, step: Step, l: int) -> Swept:
        """What the map of a fixed batch reads. In a step that is recorded for several batches, rows may be padding."""
        batch, k, Q = step.batch, maps.stride(step.problem, step.numbers, l), step.tables["Q"][l]
        K, prior = (step.numbers[f"{name}{l}"] for name in ("K", "prior"))
        rows = _pull(Q, batch) if self._overlapping else None
        if isinstance(batch.rows, slice):
            fitted = Q.pull(batch.rows)[::k] if rows is None else rows[::k]
            return Swept(fitted, K[batch.slot], prior[batch.slot], None, rows)
        numbers = batch.ext[::k].contiguous()
        real = (numbers < step.problem.graph.num_nodes).unsqueeze(1)
        K, prior = (each.index_select(0, batch.place)[0] for each in (K, prior))
        return Swept(Q.pull(numbers) if rows is None else rows[::k], K, prior, real, rows)

    def _computed(self, step: Step) -> dict[int, Swept]:
        """What the maps of a redrawn batch, or of one with a halo on a graph of DropEdge, read by layer; K of layers of
        one width is computed at once."""
        rows, numbers, problem, found = step.batch.ext, step.numbers, step.problem, dict[int, Swept]()
        # a redrawn batch may have rows of padding, so that it counts as an average one
        size = maps.mean_size(problem, numbers) if self.redraw else rows.numel()
        Q = {l: _pull(table, step.batch) for l, table in step.tables["Q"].items()}
        for layers in maps.by_width(numbers, Q):
            k, scale = maps.stride(problem, numbers, layers[0]), maps.scales(numbers, layers)
            assert scale is not None
            real = (rows[::k] < problem.graph.num_nodes).unsqueeze(1)
            grams = maps.gram_matrices((Q[l][::k] for l in layers), scale.dtype)
            K, prior = self._fit.inverses(grams, scale, [size / k])
            found |= {l: Swept(Q[l][::k], K[i], prior[i], real, Q[l]) for i, l in enumerate(layers)}
        return found

    def due(self, numbers: dict[str, Tensor], epoch: int, step: int, num_batches: int) -> bool:
        every, unit = self.period
        if unit == "auto":
            return step == 0 and (epoch == 0 or _moved(numbers, epoch))
        if every == 0:
            return epoch == step == 0
        return (epoch * num_batches + step) % every == 0 if unit == "steps" else step == 0 and epoch % every == 0

    @torch.no_grad()
    def fill(self, exact: ExactPasses) -> None:
        """The sweep: Q, and S of every fixed batch, or M = P Q where batches overlap; K of every fixed batch; mean and
        covariance for batch norms."""
        Q, numbers = exact.tables["Q"], exact.numbers
        batches: Sequence[Rows] = exact.extended if self._overlapping else exact.cores
        layers, moments, grams = sorted(Q), Moments(exact), dict[int, Tensor]()

        def read(l: int) -> None:
            grams[l] = maps.read_basis(exact, l, batches)

        exact.messages(self._sums, partial(_store_basis, exact), read, moments.add, random=self.basis == "random")
        # in an order that is the same on all ranks; ``grams`` keeps the matrices until they have been read
        stored = beside(exact.problem.device, partial(self._fit.store, exact, {l: grams[l] for l in layers}, batches))
        moments.store()
        for l in [] if self._overlapping else layers[-1:]:  # the pass has filled the other sums
            exact.fill_sums(l, Q[l], exact.tables["S"][l], outside=True)
        _fill_feature_sums(exact)
        self._publish(exact)
        stored()
        numbers["explained"].zero_()
        numbers["unexplained"][0].fill_(torch.inf)

    def regraph(self, exact: ExactPasses) -> None:
        """S, or M where batches overlap, with the current P."""
        for l, rows in exact.tables["Q"].items():
            exact.fill_sums(l, rows, exact.tables[self._sums][l], outside=not self._overlapping)
        moments = Moments(exact)
        moments.add_all(self._sums)
        moments.store()
        _fill_feature_sums(exact)
        self._publish(exact)

    def _publish(self, exact: ExactPasses) -> None:
        """Give other ranks the sums of the rows that they compute as halo rows; Q they have."""
        if self._halo_per_row:
            exact.publish(exact.tables["M"].values())


@dataclass(frozen=True)
class TOP(IMC):
    """TOP: "Accurate and Scalable Graph Neural Networks via Message Invariance".

    It is IMC with a basis that is computed once, from random parameters, and a small ridge in place of the
    pseudo-inverse.
    """

    sweep_every: int | str = 0
    ridge: float = 1e-6
    basis: str = "random"
    halo: float | str = 0.0

    traits: ClassVar[Traits] = replace(
        IMC.traits, name="top", title="TOP", step_rows="core",
        outside="by a linear map of the core rows in both directions, fitted once at random parameters",
    )  # fmt: skip
