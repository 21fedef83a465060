"""Batches of parts: which parts form a batch, and in which order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance
from lmc.sampling import Clusters, derive

NUM_NODES = 53


def assignment(num_parts: int, seed: int = 0) -> Tensor:
    """Parts of different sizes, none empty."""
    g = chance(seed)
    free = torch.randint(num_parts, (NUM_NODES - num_parts,), generator=g)
    return torch.cat([torch.arange(num_parts), free])[torch.randperm(NUM_NODES, generator=g)]


def rows_of(clusters: Clusters, parts: tuple[int, ...]) -> list[int]:
    core = clusters.core(parts)
    return list(range(core.start, core.stop)) if isinstance(core, slice) else core.tolist()


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize(("b", "c"), [(1, 1), (6, 1), (6, 2), (7, 3), (6, 6)])
class TestEveryDivision:
    def test_an_epoch_visits_every_row_once(self, b: int, c: int, redraw: bool) -> None:
        clusters = Clusters.of(assignment(b), c, redraw, seed=1)
        for epoch in range(3):
            rows = [r for parts in clusters.epoch(epoch) for r in rows_of(clusters, parts)]
            assert sorted(rows) == list(range(NUM_NODES))

    def test_an_epoch_has_ceil_b_over_c_batches_of_c_parts(self, b: int, c: int, redraw: bool) -> None:
        clusters = Clusters.of(assignment(b), c, redraw, seed=1)
        sizes = sorted(len(parts) for parts in clusters.epoch(0))
        assert clusters.num_parts == b
        assert clusters.num_batches == len(sizes) == -(-b // c)
        assert sizes == sorted([c] * (b // c) + ([b % c] if b % c else []))

    def test_rows_of_a_part_are_the_nodes_assigned_to_it(self, b: int, c: int, redraw: bool) -> None:
        parts = assignment(b)
        clusters = Clusters.of(parts, c, redraw, seed=1)
        groups = [set(parts[clusters.order[rows_of(clusters, (k,))]].tolist()) for k in range(b)]
        assert sorted(map(tuple, groups)) == [(k,) for k in range(b)]


def test_order_is_a_permutation() -> None:
    order = Clusters.of(assignment(6), 2, False, seed=1).order
    assert torch.equal(order.sort().values, torch.arange(NUM_NODES))


def test_fixed_batches_are_slices_and_the_same_every_epoch() -> None:
    clusters = Clusters.of(assignment(7), 3, redraw=False, seed=1)
    first = clusters.epoch(0)
    assert all(isinstance(clusters.core(parts), slice) for parts in first)
    for epoch in range(1, 6):
        assert set(clusters.epoch(epoch)) == set(first)


def test_fixed_batches_come_in_another_order_every_epoch() -> None:
    clusters = Clusters.of(assignment(12), 2, redraw=False, seed=1)
    assert len({tuple(clusters.epoch(e)) for e in range(5)}) > 1


def test_redrawn_batches_differ_between_epochs() -> None:
    clusters = Clusters.of(assignment(12), 3, redraw=True, seed=1)
    drawn = [frozenset(clusters.epoch(e)) for e in range(4)]
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("redraw", [False, True])
def test_an_epoch_depends_on_seed_and_number_alone(redraw: bool) -> None:
    a, b = (Clusters.of(assignment(12), 3, redraw, seed=5) for _ in range(2))
    b.epoch(0)  # an epoch drawn before must not matter
    assert a.epoch(7) == b.epoch(7)
    assert torch.equal(a.order, b.order)


def test_another_seed_groups_other_parts() -> None:
    parts = assignment(12)
    groups = set()
    for seed in range(4):
        clusters = Clusters.of(parts, 3, redraw=False, seed=seed)
        groups.add(
            frozenset(
                frozenset(parts[clusters.order[rows_of(clusters, batch)]].tolist()) for batch in clusters.epoch(0)
            )
        )
    assert len(groups) > 1


def test_the_core_of_parts_that_are_not_adjacent_is_row_numbers() -> None:
    clusters = Clusters.of(assignment(6), 2, redraw=True, seed=1)
    core = clusters.core((0, 2))
    assert isinstance(core, Tensor)
    o = clusters.offsets
    assert core.tolist() == [*range(o[0], o[1]), *range(o[2], o[3])]


def test_the_global_generator_is_not_used() -> None:
    before = torch.get_rng_state()
    Clusters.of(assignment(6), 2, redraw=True, seed=1).epoch(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_derived_seeds_are_fixed_and_different() -> None:
    # the value itself is fixed, so that a run can be resumed on another machine
    assert derive(0, "parts") == int.from_bytes(bytes.fromhex("3f3685aec88d79ae")) >> 1
    seeds = {derive(s, *names) for s in range(3) for names in (("parts",), ("epoch", 0), ("epoch", 1), ("dropout",))}
    assert len(seeds) == 12
    assert all(0 <= s < 2**63 for s in seeds)
