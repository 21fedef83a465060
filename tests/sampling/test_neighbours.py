"""Neighbours drawn from the rows of P: their number, probability and weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance, lonely_graph, random_graph, random_sparse
from lmc.graph import gcn_norm
from lmc.kernels import neighbours as kernel
from lmc.kernels.neighbours import floyd
from lmc.sampling import Neighbours, joined


def distinct(d: Tensor, k: int, seed: int = 0) -> Tensor:
    """k different numbers below d[i], uniformly, for every i, [len(d), k]."""
    return floyd(d, torch.rand(k, d.numel(), dtype=torch.float64, generator=chance(seed)))


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_distinct_numbers_are_distinct_and_below_their_bound(k: int) -> None:
    d = torch.tensor([7, 4, 9, 7]).repeat(50)
    drawn = distinct(d, k)
    assert drawn.shape == (200, k)
    for row, bound in zip(drawn.tolist(), d.tolist(), strict=True):
        used = row[: min(k, bound)]
        assert len(set(used)) == len(used)
        assert all(0 <= number < bound for number in used)


@pytest.mark.parametrize(("d", "k"), [(5, 1), (5, 3), (6, 5), (30, 3)])
def test_every_number_and_every_pair_is_drawn_equally_often(d: int, k: int) -> None:
    times = 20_000
    drawn = distinct(torch.full((times,), d), k, seed=1)
    picked = torch.zeros(times, d).scatter_(1, drawn, 1.0)
    share = k / d
    assert float((picked.mean(0) - share).abs().max()) < 4.5 * (share * (1 - share) / times) ** 0.5
    together = picked[:, 0] * picked[:, 1]
    wanted = share * (k - 1) / (d - 1)
    assert abs(float(together.mean()) - wanted) < 4.5 * max(wanted * (1 - wanted) / times, 1e-9) ** 0.5


def test_all_numbers_are_drawn_if_there_are_no_more() -> None:
    assert distinct(torch.tensor([0, 1, 3]), 3).tolist()[2] == [0, 1, 2]
    assert distinct(torch.tensor([1]), 4).tolist()[0][:1] == [0]


@pytest.mark.parametrize("fanout", [1, 2, 3, 100])
def test_a_row_keeps_its_diagonal_and_at_most_fanout_others(fanout: int) -> None:
    P = gcn_norm(random_graph().adj, torch.float64)
    neighbours, rows = Neighbours(P), torch.tensor([5, 0, 17, 39])
    found = neighbours.hop(rows, fanout, chance(), count_whole=True)
    nodes, matrix = found.nodes, found.matrix
    others = P.degrees()[rows].long() - 1
    assert found.whole == int(P.degrees()[rows].sum())
    assert torch.equal(found.scale, others / others.clamp(max=fanout))
    assert torch.equal(neighbours.diagonal, P.to_dense().diagonal())
    assert torch.equal(nodes[:4], rows)
    assert nodes.unique().numel() == nodes.numel()
    assert matrix.degrees().tolist() == (others.clamp(max=fanout) + 1).tolist()
    dense, whole = matrix.to_dense(), P.to_dense()
    factor = others / others.clamp(max=fanout)
    for k, row in enumerate(rows.tolist()):
        for j, node in enumerate(nodes.tolist()):
            if dense[k, j]:
                wanted = whole[row, node] * (1.0 if node == row else factor[k])
                assert dense[k, j] == pytest.approx(float(wanted), abs=1e-15)


def test_nodes_without_neighbours_read_themselves() -> None:
    g = lonely_graph()
    neighbours, rows = Neighbours(gcn_norm(g.adj, torch.float64)), torch.tensor([8, 0, 9])
    found = neighbours.hop(rows, 2, chance())
    nodes, matrix = found.nodes, found.matrix
    assert matrix.degrees().tolist() == [1, 3, 1]
    assert float(matrix.to_dense()[0, 0]) == 1.0
    assert set(nodes[3:].tolist()) <= {1, 2, 3, 4, 5}


def test_a_matrix_without_diagonal_and_with_empty_rows_is_estimated_without_bias() -> None:
    P = random_sparse(12, 12, density=0.6)
    rows = torch.arange(12)
    neighbours = Neighbours(P)
    draws = []
    for seed in range(1500):
        found = neighbours.hop(rows, 3, chance(seed))
        assert torch.equal(found.nodes, rows)
        draws.append(found.matrix.to_dense())
    std, mean = torch.std_mean(torch.stack(draws), 0)
    assert bool(((mean - P.to_dense()).abs() <= 4.5 * std / 1500**0.5 + 1e-12).all())
    assert bool((std > 0).any())
    assert not mean[6].any()


def test_joined_contains_every_node_once() -> None:
    assert joined(torch.tensor([4, 1]), torch.tensor([9, 1, 3, 9, 4]), 12).tolist() == [4, 1, 3, 9]


def test_the_same_seed_draws_the_same() -> None:
    neighbours, rows = Neighbours(gcn_norm(random_graph().adj, torch.float64)), torch.arange(20)
    a, b, c = (neighbours.hop(rows, 2, chance(seed)).matrix.to_dense() for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert a.shape != c.shape or not torch.equal(a, c)


@pytest.mark.gpu
@pytest.mark.parametrize("fanout", [1, 2, 3, 5])
@pytest.mark.parametrize("loops", [True, False])
def test_the_kernel_draws_what_plain_torch_draws(fanout: int, loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    P = gcn_norm(random_graph(300).adj, torch.float64) if loops else random_sparse(300, 300, density=0.03)
    P = P.to("cuda")
    rows, found = torch.randperm(300, generator=chance())[:137].cuda(), []
    for plain in (False, True):
        neighbours = Neighbours(P)
        assert fanout < int(P.degrees().max()) - 1
        if plain:
            monkeypatch.setattr(kernel, "triton_available", lambda *_: False)
        else:
            assert kernel.triton_available(rows)
        generator = torch.Generator("cuda").manual_seed(4)
        found.append(neighbours._slots(rows, fanout, generator))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
