"""CMC against its rules, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense import Array, random_data
from dense_cmc import DenseCMC, Seen
from dense_gcn import GCN
from follow import Noise, follow, graph_of, loss_of

import lmc
from helpers import scrambled


def compare(
    norm: str | None, adjoints: bool, noisy: bool = False, num_parts: int = 4, per_batch: int = 1, redraw: bool = False,
    **edges: bool,
) -> Seen:  # fmt: skip
    """Train with both; gives the values that the rules took."""
    data = random_data(num_parts=num_parts, **edges)
    assert np.bincount(data.parts).min() > 1  # one row has no batch statistics
    model = scrambled(lmc.models.GCN(6, 7, 4, num_layers=3, norm=norm))
    dense = GCN(data, 3, norm, steady=True)
    reference = DenseCMC(dense, [7, 7, 4], num_parts // per_batch, adjoints)
    method = lmc.methods.CMC(clusters_per_batch=per_batch, redraw=redraw, adjoints=adjoints)
    run = method.bind(graph_of(data), model, torch.as_tensor(data.parts), device="cpu", seed=1, loss=loss_of(data))
    mover = Noise(model, 0.4 if adjoints else 0.2) if noisy else torch.optim.SGD(model.parameters(), lr=0.3)
    follow(run, model, reference, data, mover, epochs=6 if noisy else 4, buffers=dense.buffers)
    return reference.seen


def all_of(found: list[Array]) -> Array:
    return np.concatenate([values.ravel() for values in found])


@pytest.mark.parametrize("adjoints", [False, True])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_steps_of_training_follow_the_rules(norm: str | None, adjoints: bool) -> None:
    compare(norm, adjoints)


@pytest.mark.parametrize("norm", [None, "layer"])
def test_redrawn_batches_of_two_parts_follow_the_rules(norm: str | None) -> None:
    compare(norm, False, num_parts=8, per_batch=2, redraw=True)


@pytest.mark.parametrize("adjoints", [False, True])
@pytest.mark.parametrize("norm", [None, "layer"])
def test_very_stale_tables_are_limited_by_the_rules(norm: str | None, adjoints: bool) -> None:
    """Parameters jump, so that every rule makes a difference: drifts are clipped, halo rows are trusted in part."""
    seen = compare(norm, adjoints, noisy=True)
    drifts, trusts = all_of(seen.drifts), all_of(seen.trusts)
    assert drifts.max() > 2
    assert drifts.min() < 0.5  # rows are not negative after a ReLU, so their drift is not, either
    assert trusts.min() == 0
    assert trusts.max() == 1
    assert ((trusts > 0) & (trusts < 1)).any()
    if adjoints:
        assert all_of(seen.adjoint_drifts).max() > 2
        assert all_of(seen.adjoint_drifts).min() < 0


@pytest.mark.parametrize("adjoints", [False, True])
def test_very_stale_tables_under_batch_norm(adjoints: bool) -> None:
    """No drift is fitted there, and what R2 says is believed less where there are few halo rows."""
    seen = compare("batch", adjoints, noisy=True, num_parts=8)
    trusts = all_of(seen.trusts)
    assert set(all_of(seen.drifts)) == {1.0}
    assert trusts.min() == 0
    assert ((trusts > 0) & (trusts < 1)).any()


@pytest.mark.parametrize("directed", [False, True])
def test_weights_and_directions_follow_the_rules(directed: bool) -> None:
    compare(None, True, weighted=True, directed=directed)


@pytest.mark.parametrize("adjoints", [False, True])
def test_weights_of_nodes_and_classes(adjoints: bool) -> None:
    compare(None, adjoints, weighted_loss=True)
