"""Which method to train with: one rule over a few facts of the model, the graph and the device.

The thresholds are measured (docs/which-method.md). ``python -m experiments choose`` repeats the measurement: for every
setting of a grid it compares the recommended method with the fastest one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from lmc.diagnostics.plan import USABLE, divide, plan
from lmc.diagnostics.probe import halo_ratio
from lmc.engine import check_fit
from lmc.engine.problem import kind_of
from lmc.errors import check_at_least, typed
from lmc.graph import CSR, Graph
from lmc.methods import CMC, GAS, IMC, SIGN, ClusterMethod, FullBatch, LMC4Rec, Method
from lmc.models import Model
from lmc.models import sign as sign_model
from lmc.models.activation import normalised_by_batch
from lmc.stores import Placement, free_memory

SMALL_STEP, SMALL_NONLINEAR_STEP = 7e6, 3e7
"""On a CPU, multiply-adds of a full-batch step up to which the many steps on parts take longer than fewer exact ones,
unless the model has a batch norm and little comes from outside. The second number is that of models whose aggregation
is not linear."""
SMALL_HALO = 1.0
"""On a CPU, halo rows of a batch, over its core rows, below which little comes from outside: GAS then needs few epochs
without batch norm, and IMC with batch norm, even if its maps are fitted to few rows."""
FULL_STEP, PER_MULTIPLY_ADD = 1.5e-3, 1.45e-12
"""On a GPU, seconds of a full-batch step: a constant, and a share for every multiply-add."""
IN_CACHE = 0.35
"""On a GPU, the time of a multiply-add on rows that all fit the cache, over that of one on rows that do not."""
SHORTEST_STEP = 0.8e-3
"""On a GPU, seconds of a step on parts, however small it is."""
EPOCHS_SAVED, SAVED_BY_IMC = 2.7, 5.0
"""On a GPU, the time of an epoch on parts over that of a full-batch step up to which parts arrive first. The second
number is that of IMC on models without batch norm; with batch norm, the full batch needs fewer epochs."""
ROWS_PER_COLUMN = 23
"""Core rows of a batch, over the width of the rows, from which on the map of IMC is fitted well enough: with 23.2 and
more it is faster than the full batch; with 22.8 it misses the accuracy of the full batch on reddit-like@0.05."""
ROWS_WITH_BATCH_NORM = 11
"""The same on a CPU for models with a batch norm: with 11.6 it is faster than the full batch (flickr-like@0.1), with
8.0 slower (products-like@0.01)."""
LARGE_HALO = 4.0
"""Halo rows of a batch, over its core rows, from which on dropping their adjoints costs GAS more epochs than CMC's
second pass over them costs time."""


@dataclass(frozen=True)
class Facts:
    """What the choice depends on.

    Args:
        kind: "layered", "recurrent" or "sign".
        linear: whether aggregation is linear, so that IMC and CMC train the model.
        on: the type of the training device.
        step: multiply-adds of the sparse products of a full-batch step; where all rows fit the cache of a GPU, each
            counts as :data:`IN_CACHE`.
        fits: whether a full-batch step fits into the memory of the device, and no parts are asked for.
        batches: batches in an epoch.
        rows_per_column: core rows of a batch over the width of the hidden rows.
        batch_norm: whether the model has a batch norm.
        sparse_sum: whether IMC would have to store the aggregated sparse features, which it refuses.
        halo: halo rows over core rows of a batch; None where the choice does not need it.
    """

    kind: str
    linear: bool
    on: str
    step: float
    fits: bool
    batches: float
    rows_per_column: float
    batch_norm: bool = False
    sparse_sum: bool = False
    halo: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """A method, and in one line why it is the one.

    Args:
        settings: those of its settings that differ from the defaults, beside its parts.
    """

    method: Method
    reason: str
    facts: Facts
    settings: dict[str, Any]


def choose(facts: Facts) -> tuple[type[Method], str]:
    """The rule: the class of a method, and the reason."""
    if facts.kind == "sign":
        return SIGN, "the model aggregates before training"
    if facts.kind == "recurrent":
        return LMC4Rec, "the model is recurrent"
    rows = f"{facts.rows_per_column:.0f} core rows for each hidden column"
    if facts.fits and _parts_are_slower(facts):
        if facts.on == "cpu" and facts.linear and facts.step > SMALL_STEP:
            few = "sparse features do not suit IMC" if facts.sparse_sum else f"batches with {rows} need many epochs"
            return FullBatch, f"the full batch fits, and {few}"
        return (
            FullBatch,
            f"the full batch fits, and its step of {facts.step:.1g} multiply-adds takes less time than steps on parts",
        )
    if not facts.linear:
        return GAS, "the aggregation is not linear, and GAS has the shortest steps with a halo"
    if _suits_gas(facts):
        return GAS, "the halo is small, and GAS has the shortest steps with a halo"
    if _suits_imc(facts):
        fit = f"{rows} fit its map" if _enough_rows(facts) else "little comes from outside"
        return IMC, f"steps with few halo rows or none, and {fit}"
    few = "sparse features" if facts.sparse_sum else rows
    if facts.halo is None or facts.halo >= LARGE_HALO:
        return CMC, f"{few} do not suit IMC, and the halo is large"
    return GAS, f"{few} do not suit IMC, and the halo is not large"


def settings_for(facts: Facts) -> dict[str, Any]:
    """The settings of the chosen method that differ from its defaults: on a CPU, columns of P X make the bias of IMC
    smaller, and its epochs longer than they save."""
    return {"basis": "T"} if facts.on == "cpu" and choose(facts)[0] is IMC else {}


def _enough_rows(facts: Facts) -> bool:
    """Whether batches have enough rows for the map of IMC."""
    least = ROWS_WITH_BATCH_NORM if facts.batch_norm and facts.on == "cpu" else ROWS_PER_COLUMN
    return facts.rows_per_column >= least


def _little_outside(facts: Facts) -> bool:
    return facts.on == "cpu" and facts.halo is not None and facts.halo < SMALL_HALO


def _suits_imc(facts: Facts) -> bool:
    """Whether IMC trains the model, and its maps have enough rows, or predict little."""
    fitted = _enough_rows(facts) or (facts.batch_norm and _little_outside(facts))
    return facts.linear and not facts.sparse_sum and fitted


def _suits_gas(facts: Facts) -> bool:
    """Whether GAS needs few epochs, although it drops adjoints from outside."""
    return not facts.batch_norm and _enough_rows(facts) and _little_outside(facts)


def _parts_are_slower(facts: Facts) -> bool:
    """Whether steps on parts take longer together than the fewer exact steps of the full batch."""
    if facts.on == "cpu":
        if not facts.linear:
            return facts.step <= SMALL_NONLINEAR_STEP
        small = facts.step <= SMALL_STEP and not (facts.batch_norm and _little_outside(facts))
        return small or not (_suits_imc(facts) or _suits_gas(facts))
    saved = SAVED_BY_IMC if _suits_imc(facts) and not facts.batch_norm else EPOCHS_SAVED
    return facts.batches * SHORTEST_STEP > saved * (FULL_STEP + PER_MULTIPLY_ADD * facts.step)


@typed
def recommended(
    model: Model, graph: Graph, placement: Placement | None = None, *, num_parts: int | None = None,
    clusters_per_batch: int | None = None, partition: str | None = None, seed: int = 0, memory: int | None = None,
) -> Recommendation:  # fmt: skip
    """The method that trains ``model`` on ``graph`` to the accuracy of the full batch in the fewest seconds, as a rule.

    Args:
        placement: where to train, and what is kept where; its device decides together with the free memory.
        num_parts, clusters_per_batch, partition, seed: as for the methods. Where one of the first three is given, the
            full batch is not recommended.
        memory: bytes of the device that may be used; None: what is free.
    """
    check_fit(graph, model)
    check_at_least(1, memory=memory)
    placement, graph = placement or Placement(), graph.training_graph
    asked = {"num_parts": num_parts, "clusters_per_batch": clusters_per_batch, "partition": partition}
    division: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    parts = IMC(**division)
    b = parts.parts_in(graph)
    share = min(1.0, parts.parts_in_batch(b) / b)
    width = max(model.widths[:-1], default=model.widths[-1])
    facts = Facts(
        kind="sign" if isinstance(model, sign_model.SIGN) else kind_of(model).trained_as,
        linear=model.linear,
        on="cpu" if placement.training_device.type == "cpu" else "cuda",
        step=multiply_adds(model, graph, placement.training_device),
        fits=not division and full_batch_fits(model, graph, placement, memory),
        batches=1 / share,
        rows_per_column=graph.num_nodes * share / width,
        batch_norm=normalised_by_batch(model),
        sparse_sum=isinstance(graph.x, CSR) and not model.constant_input,
    )
    if len({choose(replace(facts, halo=halo))[0] for halo in (0.0, math.inf)}) > 1:  # it depends on the parts
        facts = replace(facts, halo=halo_ratio(graph, divide(graph, parts, seed).clusters(parts)))
    cls, reason = choose(facts)
    settings = settings_for(facts)
    method = cls(**division, **settings) if issubclass(cls, ClusterMethod) else cls(**settings)
    return Recommendation(method, reason, facts, settings)


def multiply_adds(model: Model, graph: Graph, device: torch.device) -> float:
    """Multiply-adds of the sparse products of a full-batch step (:class:`Facts`)."""
    item = next(model.parameters()).element_size()
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    fits = graph.num_nodes * max(model.widths) * item <= cache
    return float(graph.adj.nnz + graph.num_nodes) * sum(model.widths) * (IN_CACHE if fits else 1)


def full_batch_fits(model: Model, graph: Graph, placement: Placement, memory: int | None = None) -> bool:
    """Whether a full batch fits into the memory of the device, where its edges are kept there."""
    if placement.structure != "device":
        return False
    limit = free_memory(placement.training_device) if memory is None else memory
    if certainly_fits(graph, model, limit):
        return True
    return plan(divide(graph, FullBatch()), model, FullBatch(), placement).device <= USABLE * limit


def certainly_fits(graph: Graph, model: Model, limit: int) -> bool:
    """Whether the tensors that are certainly kept take so small a share of ``limit`` bytes that no plan is needed."""
    item = next(model.parameters()).element_size()
    rows = graph.num_nodes * (2 * graph.num_features + 4 * sum(model.widths)) * item
    return rows + graph.adj.nnz * 24 < 0.3 * limit
