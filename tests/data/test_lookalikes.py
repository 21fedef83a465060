"""Lookalikes: their sizes, degrees, communities, splits and learnability."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import lmc.data
from lmc.data import lookalikes, registry
from lmc.data.lookalikes import LOOKALIKES
from lmc.data.registry import REAL
from lmc.errors import LmcError
from lmc.graph import CSR, Graph, gcn_norm, spmm, without_features
from lmc.partition import partition, quality

SMALL = {
    "tiny-like": 1.0,
    "arxiv-like": 0.05,
    "flickr-like": 0.05,
    "ppi-like": 0.1,
    "reddit-like": 0.02,
    "products-like": 0.002,
    "amazon-like": 0.05,
}


@pytest.fixture(scope="module")
def small() -> dict[str, Graph]:
    return {name: lmc.data.load(name, scale=scale) for name, scale in SMALL.items()}


@pytest.mark.parametrize("name", SMALL)
def test_sizes_follow_the_scale(small: dict[str, Graph], name: str) -> None:
    g, spec, scale = small[name], LOOKALIKES[name], SMALL[name]
    assert g.num_nodes == round(spec.nodes * scale)
    assert g.num_edges == round(spec.edges * scale)
    features = g.num_nodes if spec.line else spec.features
    assert (g.num_features, g.num_classes, g.multi_label) == (features, spec.classes, spec.multi_label)
    assert int(g.adj.degrees().min()) >= 1, "no node is isolated"
    if not g.multi_label:
        assert int(torch.bincount(g.y, minlength=spec.classes).min()) > 0, "every class occurs"


@pytest.mark.parametrize("name", SMALL)
def test_the_graph_passes_every_check(small: dict[str, Graph], name: str) -> None:
    """The generator builds the CSR itself, so duplicates, self-loops, directions and splits are checked here."""
    g = small[name]
    edges = torch.stack([g.adj.row_index(), g.adj.indices.long()])
    again = Graph.from_edges(
        edges, g.x, g.y, train=g.train, val=g.val, test=g.test, num_classes=g.num_classes, name=g.name
    )
    assert torch.equal(again.adj.indices, g.adj.indices)
    assert torch.equal(again.adj.indptr, g.adj.indptr)
    assert g.adj.symmetric
    assert LOOKALIKES[name].line or bool((g.train | g.val | g.test).all())
    assert not bool((g.train & g.val).any() | (g.train & g.test).any() | (g.val & g.test).any())


@pytest.mark.parametrize("name", [name for name in SMALL if name != "tiny-like"])
def test_sizes_are_those_of_the_real_set(name: str) -> None:
    spec = LOOKALIKES[name]
    real = next(entry for entry in REAL.values() if entry.lookalike == name and entry.features == spec.features)
    assert (spec.nodes, spec.edges, spec.classes) == (real.nodes, real.edges, real.classes)


@pytest.mark.parametrize("name", [name for name in SMALL if name != "ppi-like"])
def test_splits_have_the_shares_of_the_real_set(small: dict[str, Graph], name: str) -> None:
    g = small[name]
    shares = [float(mask.float().mean()) for mask in (g.train, g.val, g.test)]
    assert shares == pytest.approx(LOOKALIKES[name].splits, abs=0.01)


def test_amazon_has_no_features_few_labelled_nodes_and_labels_that_reach_far(small: dict[str, Graph]) -> None:
    g = small["amazon-like"]
    assert without_features(g)
    assert (g.metric, g.multi_label) == ("top-k-micro-f1", True)
    assert lmc.data.catalog.REAL["amazon"].metric == g.metric
    counts = g.y.sum(1)
    assert counts.min() >= 1
    assert counts.max() > 1
    assert float(g.train.float().mean()) < 0.02
    row, col = g.adj.row_index(), g.adj.indices.long()
    near = g.train.float()
    for _ in range(4):  # a two-layer GCN carries what it learns from a training node at most four hops
        near = near.index_add(0, row, near[col]).clamp(max=1)
    assert float(near[g.test].mean()) < 0.5
    assert float(((g.y[row] * g.y[col]).sum(1) > 0).float().mean()) > 0.85  # neighbours share labels all the same


def test_ppi_splits_are_whole_graphs(small: dict[str, Graph]) -> None:
    g = small["ppi-like"]
    split = g.val.long() + 2 * g.test.long()
    assert torch.equal(split[g.adj.row_index()], split[g.adj.indices])
    components = _components(g.adj)
    assert components.unique().numel() >= 24


def _components(adj: CSR) -> Tensor:
    """The smallest node number reachable from each node, by repeated minima over neighbours."""
    label = torch.arange(adj.num_rows)
    row, col = adj.row_index(), adj.indices.long()
    while True:
        lower = label.scatter_reduce(0, row, label[col], "amin")
        if torch.equal(lower, label):
            return label
        label = lower


def test_same_seed_same_graph() -> None:
    a, b, c = (lmc.data.load("tiny-like", seed=seed) for seed in (0, 0, 1))
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert torch.equal(a.train, b.train)
    assert not torch.equal(a.x, c.x)


def test_the_global_generator_is_not_used() -> None:
    before = torch.random.get_rng_state()
    lmc.data.load("tiny-like")
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_scale_may_be_a_suffix_of_the_name() -> None:
    a, b = lmc.data.load("arxiv-like@0.02"), lmc.data.load("Arxiv_like", scale=0.02)
    assert a.fingerprint == b.fingerprint
    assert a.name == "arxiv-like@0.02"


@pytest.mark.parametrize(
    ("source", "scale", "message"),
    [
        ("arxiv-like@x", None, "a number after @"),
        ("arxiv-like@0.1", 0.2, "one scale"),
        ("arxiv-like", 0.0, "a scale in"),
        ("arxiv-like", -1.0, "a scale in"),
        ("arxiv-like", float("nan"), "scale to be a number"),
        ("arxiv-like", 1e6, "a scale in"),
        ("arxiv-like", 1e-4, "use a scale of 0.0047 or more"),
        ("arxivlike", None, "did you mean arxiv-like"),
    ],
)
def test_invalid_scales_are_refused(source: str, scale: float | None, message: str) -> None:
    with pytest.raises(LmcError, match=message):
        lmc.data.load(source, scale=scale)


@pytest.mark.parametrize("name", ["arxiv-like", "flickr-like", "reddit-like", "products-like"])
def test_degrees_are_heavy_tailed(small: dict[str, Graph], name: str) -> None:
    degrees = small[name].adj.degrees().float()
    assert float(degrees.max()) > 8 * float(degrees.mean())
    assert float(degrees.median()) < float(degrees.mean())


@pytest.mark.parametrize(("name", "scale"), [("arxiv-like", 0.1), ("flickr-like", 0.25), ("reddit-like", 0.05)])
def test_metis_keeps_the_share_of_edges_that_it_keeps_of_the_real_set(name: str, scale: float) -> None:
    spec = LOOKALIKES[name]
    g = lmc.data.load(name, scale=scale)
    kept = quality(g, partition(g, round(spec.parts * scale), cache=False)).kept
    with_loops = (kept * 2 * g.num_edges + g.num_nodes) / (2 * g.num_edges + g.num_nodes)
    assert kept == pytest.approx(spec.kept, abs=0.1)
    assert with_loops == pytest.approx(spec.kept, abs=0.1)


def test_no_part_consists_of_one_class(small: dict[str, Graph]) -> None:
    g = small["arxiv-like"]
    parts = partition(g, 4, cache=False)
    held = torch.zeros(4, g.num_classes).index_put_((parts, g.y), torch.ones(g.num_nodes), accumulate=True)
    assert float((held.max(1).values / held.sum(1)).max()) < 0.5


def _ridge_accuracy(g: Graph, x: Tensor) -> float:
    """Test accuracy of the least-squares classifier on ``x``, which has no random choices."""
    x = torch.cat([x, torch.ones(x.shape[0], 1)], dim=1).double()
    target = torch.nn.functional.one_hot(g.y, g.num_classes).double()
    gram = x[g.train].T @ x[g.train] + 0.1 * torch.eye(x.shape[1])
    weights = torch.linalg.solve(gram, x[g.train].T @ target[g.train])
    return float(((x @ weights).argmax(1) == g.y)[g.test].double().mean())


@pytest.mark.parametrize("name", ["tiny-like", "arxiv-like", "products-like"])
def test_neighbours_are_more_informative_than_the_node(small: dict[str, Graph], name: str) -> None:
    g = small[name]
    assert isinstance(g.x, Tensor)
    P = gcn_norm(g.adj)
    alone, together = _ridge_accuracy(g, g.x), _ridge_accuracy(g, spmm(P, spmm(P, g.x)))
    assert alone + 0.1 < together < 0.95


def test_a_large_lookalike_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    drawn = lmc.load("tiny-like")
    assert not list(tmp_path.rglob("*.safetensors")), "a small one is not kept"
    monkeypatch.setattr(registry, "KEPT_ENTRIES", 12_000)
    assert lmc.load("tiny-like").checksum == drawn.checksum
    lmc.load("tiny-like", seed=1)
    lmc.load("tiny-like@1.5")
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3
    assert lmc.load("tiny-like@0.9").num_nodes == 1350, "smaller: it is not kept"
    monkeypatch.setattr(lookalikes, "make", lambda *_, **__: pytest.fail("drawn again"))
    again = lmc.load("tiny-like")
    assert (again.checksum, again.name, repr(again)) == (drawn.checksum, drawn.name, repr(drawn))
    assert lmc.load("tiny-like@1.5").name == "tiny-like@1.5"
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(registry, "KEPT_ENTRIES", 12_000)
    for file in tmp_path.rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:1000])
    assert lmc.load("tiny-like").checksum == drawn.checksum, "a damaged file is drawn again"
