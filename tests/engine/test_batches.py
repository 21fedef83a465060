"""What a batch holds: core rows first, the user's numbering, the right operators."""

from __future__ import annotations

import pytest
import torch

from helpers import PARTS, hand_graph, make, parts_of, random_graph
from lmc.graph import CSR, Precomputed, gcn_norm
from lmc.methods import GAS, BackwardSGD, ClusterGCN, ClusterMethod, FullBatch, GraphFM, LMC4Conv

CLUSTER_METHODS = [BackwardSGD, ClusterGCN, GAS, GraphFM, LMC4Conv]


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("sparse_features", [False, True])
@pytest.mark.parametrize("kind", CLUSTER_METHODS)
def test_rows_carry_the_users_labels_and_features(
    kind: type[ClusterMethod], sparse_features: bool, redraw: bool
) -> None:
    g = random_graph(sparse_features=sparse_features)
    # an encoder before the first layer: the model reads the features themselves
    run = kind(clusters_per_batch=2, redraw=redraw).bind(g, make("gcn-linear-in-out", g), parts_of(g, 5))
    x = g.x.to_dense() if isinstance(g.x, CSR) else g.x
    for batch in run.batches():
        inputs = run.problem.inputs(batch.ext)
        got = inputs.to_dense() if isinstance(inputs, CSR) else inputs
        assert batch.num_core + batch.num_halo == batch.n_id.numel() == batch.ext.numel()
        assert torch.equal(batch.y, g.y[batch.n_id])
        assert torch.equal(batch.labelled, g.train[batch.n_id])
        assert torch.equal(got, x[batch.n_id])


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("kind", CLUSTER_METHODS)
def test_core_rows_come_first_and_are_whole_parts(kind: type[ClusterMethod], redraw: bool) -> None:
    g = random_graph()
    parts = parts_of(g, 5)
    run = kind(clusters_per_batch=2, redraw=redraw).bind(g, make("gcn", g), parts)
    seen = []
    for batch in run.batches():
        core = batch.n_id[: batch.batch_size]
        chosen = parts[core].unique()
        assert torch.equal(core.sort().values, torch.isin(parts, chosen).nonzero().squeeze(1))
        seen.append(core)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(g.num_nodes))


@pytest.mark.parametrize("kind", [GAS, GraphFM, LMC4Conv])
def test_halo_is_the_neighbours_outside_the_core(kind: type[ClusterMethod]) -> None:
    g = hand_graph()
    A = g.adj.to_dense() > 0
    for batch in kind(clusters_per_batch=1).bind(g, make("gcn", g), PARTS).batches():
        core, halo = batch.n_id.split([batch.num_core, batch.num_halo])
        reached = A[core].any(0)
        reached[core] = False
        assert torch.equal(halo.sort().values, reached.nonzero().squeeze(1))


def test_backward_sgd_has_everything_else_in_its_halo() -> None:
    g = hand_graph()
    for batch in BackwardSGD(clusters_per_batch=1).bind(g, make("gcn", g), PARTS).batches():
        assert torch.equal(batch.n_id.sort().values, torch.arange(8))


def test_cluster_gcn_and_full_batch_have_no_halo() -> None:
    g = hand_graph()
    model = make("gcn", g)
    assert all(batch.num_halo == 0 for batch in ClusterGCN(clusters_per_batch=1).bind(g, model, PARTS).batches())
    (batch,) = FullBatch().bind(g, model).batches()
    assert (batch.num_core, batch.num_halo) == (8, 0)


@pytest.mark.parametrize(("c", "weight"), [(1, 5), (2, 3), (5, 1)])
def test_weight_is_the_number_of_batches(c: int, weight: int) -> None:
    g = random_graph()
    run = GAS(clusters_per_batch=c).bind(g, make("gcn", g), parts_of(g, 5))
    assert run.num_batches == weight
    assert [batch.weight for batch in run.batches()] == [weight] * weight


def test_lmc_aggregates_on_the_subgraph_induced_on_core_and_halo() -> None:
    g = hand_graph()
    P = gcn_norm(g.adj, torch.float64).to_dense()
    run = LMC4Conv(alpha=0.5, clusters_per_batch=1, first_layer="pruned").bind(g, make("gcn", g), PARTS)
    for batch in run.batches():
        for op in batch.operators:
            assert torch.equal(op.forward.to_dense(), P[batch.n_id][:, batch.n_id])


def test_beta_is_alpha_times_the_score_of_the_local_share_of_degrees() -> None:
    g = hand_graph()
    A = g.adj.to_dense().double()
    run = LMC4Conv(alpha=0.4, score="x^2", clusters_per_batch=1).bind(g, make("gcn", g), PARTS)
    for batch in run.batches():
        halo = batch.n_id[batch.num_core :]
        local = A[halo][:, batch.n_id].sum(1)
        want = 0.4 * (local / A[halo].sum(1)) ** 2
        torch.testing.assert_close(batch.coefficients.squeeze(1), want, rtol=1e-14, atol=0)


def test_first_layer_is_complete_only_where_asked_and_possible() -> None:
    g = hand_graph()
    for method, model, want in [
        (LMC4Conv(), "gcn", "complete"),
        (LMC4Conv(first_layer="pruned"), "gcn", "pruned"),
        (LMC4Conv(), "gcn-linear-in-out", "pruned"),
        (LMC4Conv(), "gcnii", "pruned"),
    ]:
        run = method.bind(g, make(model, g), PARTS)
        first = next(iter(run.batches())).operators[0]
        assert run.first_layer == want
        assert isinstance(first, Precomputed) == (want == "complete")


def test_fixed_batches_are_built_once() -> None:
    g = hand_graph()
    run = LMC4Conv(clusters_per_batch=1).bind(g, make("gcn", g), PARTS)
    assert {id(b) for b in run.batches()} == {id(b) for b in run.batches()}


def test_batches_of_an_epoch_can_be_taken_up_in_the_middle() -> None:
    g = random_graph()
    run = GAS(clusters_per_batch=1, redraw=True).bind(g, make("gcn", g), parts_of(g, 5))
    whole = [batch.n_id.tolist() for batch in run.batches(epoch=3)]
    assert [batch.n_id.tolist() for batch in run.batches(epoch=3, start=2)] == whole[2:]
    assert run.epoch == 4
