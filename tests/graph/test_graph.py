"""The validated graph: the arrays it refuses, repairs and accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers import EDGES, both_directions, chance, hand_graph, random_graph, sparse
from lmc.errors import GraphError
from lmc.graph import CSR, SPLITS, Graph

NAN_ROW = torch.ones(8, 5).index_fill(0, torch.tensor([3]), float("nan"))
INF_ROW = torch.ones(8, 5).index_fill(0, torch.tensor([6]), float("inf"))
ONE_WAY = torch.tensor(EDGES).t()
BOTH = both_directions(EDGES)


def arguments(**changed: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "edge_index": BOTH,
        "x": torch.ones(8, 5),
        "y": torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]),
        "train": torch.tensor([0, 1, 2]),
        "val": torch.tensor([3, 4]),
        "test": torch.tensor([5, 6, 7]),
    }
    return good | changed


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "edge index too large": (
        {"edge_index": BOTH + 1},
        r"between nodes in \[0, 8\) \(got node 8\): number the nodes from 0",
    ),
    "edge index negative": ({"edge_index": BOTH - 1}, r"between nodes in \[0, 8\) \(got node -1\)"),
    "edge index of floats": (
        {"edge_index": BOTH.float()},
        r"whole node numbers .* \(got torch.float32\): pass integers",
    ),
    "no edges in a list": ({"edge_index": [[], []]}, r"at least one edge \(got none\)"),
    "edge index of wrong shape": ({"edge_index": BOTH.t()}, r"shape \[2, E\] \(got \[20, 2\]\): .*edge_index.T"),
    "no edges": ({"edge_index": BOTH[:, :0]}, "at least one edge"),
    "one direction": ({"edge_index": ONE_WAY}, r"undirected.*\(0, 1\) without \(1, 0\).*symmetrise=True"),
    "duplicate": ({"edge_index": torch.cat([BOTH, BOTH[:, :1]], 1)}, r"duplicate.*\(0, 1\).*symmetrise=True"),
    "self-loop": (
        {"edge_index": torch.cat([BOTH, torch.tensor([[5], [5]])], 1)},
        r"self-loops \(got \(5, 5\)\).*symmetrise=True",
    ),
    "NaN features": ({"x": NAN_ROW}, "finite features.*5 NaN or infinite values, the first in row 3"),
    "infinite features": ({"x": INF_ROW}, "finite features.*the first in row 6"),
    "NaN in sparse features": ({"x": sparse(NAN_ROW)}, "finite features.*the first in row 3"),
    "too few feature rows": ({"x": torch.ones(7, 5)}, r"\[8, d\] \(got x of shape \[7, 5\]\)"),
    "too few targets": ({"y": torch.zeros(7, dtype=torch.int64)}, r"got x of shape \[8, 5\]\): y has 7 rows"),
    "features of one dimension": ({"x": torch.ones(8)}, r"got x of shape \[8\]"),
    "no feature column": ({"x": torch.ones(8, 0)}, "at least one feature column.*: pass x=None"),
    "label too large": ({"num_classes": 2}, r"classes in \[0, 2\).*y\[2\] = 2"),
    "label below -1": ({"y": torch.tensor([0, 1, 2, -2, 1, 2, 0, 1])}, r"y\[3\] = -2"),
    "fractional labels": ({"y": torch.linspace(0, 1, 8)}, "whole class numbers"),
    "labels of three dimensions": ({"y": torch.zeros(8, 2, 2)}, "expected y of shape"),
    "multi-labels beyond 0/1": ({"y": torch.full((8, 3), 2)}, "0/1 matrix"),
    "multi-label width": (
        {"y": torch.zeros(8, 3), "num_classes": 4},
        "expected 4 label columns.*: leave num_classes out",
    ),
    "unknown class in a split": ({"y": torch.tensor([0, 1, 2, -1, 1, 2, 0, 1])}, r"every val node.*y\[3\] = -1"),
    "all unknown": ({"y": torch.full((8,), -1)}, "at least one known class.*: for predictions alone pass y=None"),
    "empty train split": ({"train": torch.tensor([], dtype=torch.int64)}, "at least one train node"),
    "empty list of train nodes": ({"train": []}, "at least one train node .*: name some, or leave train out"),
    "no split": ({"train": None, "val": None, "test": None}, r"train nodes \(got none\).*leave out y"),
    "val and test without train": ({"train": None}, r"train nodes \(got none\).*pass test alone"),
    "empty test mask": ({"test": torch.zeros(8, dtype=torch.bool)}, "at least one test node"),
    "overlapping splits": ({"val": torch.tensor([2, 3])}, "1 nodes in both train and val, e.g. node 2"),
    "mask of wrong length": (
        {"train": torch.ones(7, dtype=torch.bool)},
        r"train mask of length 8 \(got 7\): pass a boolean per node",
    ),
    "split node out of range": (
        {"test": torch.tensor([5, 8])},
        r"test nodes in \[0, 8\) \(got 8\): number the nodes from 0",
    ),
    "split of two dimensions": (
        {"val": torch.ones(8, 2, dtype=torch.bool)},
        "expected val .* one-dimensional.*pass one column",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_with_the_offending_value(case: str) -> None:
    changed, message = BAD[case]
    with pytest.raises(GraphError, match=message):
        Graph.from_edges(**arguments(**changed))


@pytest.mark.parametrize("case", ["good", *BAD])
def test_inputs_are_not_changed(case: str) -> None:
    args = arguments(**(BAD[case][0] if case in BAD else {}))
    before = {k: v.clone() for k, v in args.items() if isinstance(v, torch.Tensor)}
    try:
        Graph.from_edges(**args)
    except GraphError:
        assert case != "good"
    for k, v in before.items():
        assert torch.equal(args[k].nan_to_num(7.0), v.nan_to_num(7.0)), k


def test_good_arrays_give_the_graph() -> None:
    g = Graph.from_edges(**arguments())
    assert (g.num_nodes, g.num_edges, g.num_features, g.num_classes) == (8, len(EDGES), 5, 3)
    assert g.num_labelled == 3
    assert not g.multi_label
    want = torch.zeros(8, 8).index_put_(tuple(BOTH), torch.tensor(1.0))
    assert torch.equal(g.adj.to_dense(), want)


def test_numpy_arrays_and_masks_give_the_same_graph() -> None:
    masks = {k: np.isin(np.arange(8), np.asarray(arguments()[k])) for k in SPLITS}
    arrays = {k: np.asarray(arguments()[k]) for k in ("edge_index", "x", "y")}
    a, b = Graph.from_edges(**arguments()), Graph.from_edges(**arrays, **masks)
    for k in ("x", "y", *SPLITS):
        assert torch.equal(getattr(a, k), getattr(b, k))
    assert a.fingerprint == b.fingerprint


@pytest.mark.parametrize(
    "edges",
    [
        ONE_WAY,
        torch.cat([BOTH, BOTH[:, 3:9]], 1),
        torch.cat([BOTH, torch.tensor([[2, 7], [2, 7]])], 1),
    ],
    ids=["one direction", "duplicates", "self-loops"],
)
def test_symmetrise_repairs_the_edges(edges: torch.Tensor) -> None:
    repaired = Graph.from_edges(**arguments(edge_index=edges), symmetrise=True)
    assert torch.equal(repaired.adj.to_dense(), Graph.from_edges(**arguments()).adj.to_dense())


def test_symmetrise_cannot_repair_self_loops_alone() -> None:
    with pytest.raises(GraphError, match="self-loops only"):
        Graph.from_edges(**arguments(edge_index=torch.tensor([[1], [1]])), symmetrise=True)


def test_unknown_class_outside_every_split_is_allowed() -> None:
    g = Graph.from_edges(**arguments(y=torch.tensor([0, 1, 2, 0, -1, 2, 0, 1]), val=torch.tensor([3])))
    assert g.num_classes == 3


def test_features_are_taken_without_their_autograd_history() -> None:
    x = torch.randn(8, 5, requires_grad=True)
    made = Graph.from_edges(**arguments(x=2 * x)).x
    assert isinstance(made, torch.Tensor)
    assert not made.requires_grad
    assert torch.equal(made, 2 * x)


def test_integer_features_become_floats() -> None:
    assert Graph.from_edges(**arguments(x=torch.ones(8, 5, dtype=torch.int64))).x.dtype == torch.float32


def test_column_of_classes_is_single_label() -> None:
    g = Graph.from_edges(**arguments(y=arguments()["y"].unsqueeze(1)))
    assert not g.multi_label
    assert torch.equal(g.y, arguments()["y"])


@pytest.mark.parametrize("sparse_features", [False, True])
def test_permute_permutes_every_array(sparse_features: bool) -> None:
    g = random_graph(sparse_features=sparse_features)
    order = torch.randperm(g.num_nodes, generator=chance(4))
    h = g.permute(order)
    assert torch.equal(h.adj.to_dense(), g.adj.to_dense()[order][:, order])
    x, moved = (m.to_dense() if sparse_features else m for m in (g.x, h.x))
    assert torch.equal(moved, x[order])
    for k in ("y", *SPLITS):
        assert torch.equal(getattr(h, k), getattr(g, k)[order])
    assert h.num_classes == g.num_classes


def test_permuting_back_gives_the_same_graph() -> None:
    g = random_graph()
    order = torch.randperm(g.num_nodes, generator=chance(4))
    back = g.permute(order).permute(order.argsort())
    assert torch.equal(back.adj.to_dense(), g.adj.to_dense())
    assert torch.equal(back.y, g.y)


def test_fingerprint_depends_on_structure_alone() -> None:
    base = Graph.from_edges(**arguments()).fingerprint
    assert Graph.from_edges(**arguments(x=torch.zeros(8, 2), y=torch.zeros(8, dtype=torch.int64))).fingerprint == base
    shuffled = BOTH[:, torch.randperm(BOTH.shape[1], generator=chance())]
    assert Graph.from_edges(**arguments(edge_index=shuffled)).fingerprint == base
    fewer = BOTH[:, [i for i in range(20) if i not in (9, 19)]]
    assert Graph.from_edges(**arguments(edge_index=fewer)).fingerprint != base


def test_repr_names_the_sizes() -> None:
    text = repr(hand_graph())
    for fact in ("'hand'", "8 nodes", "10 edges", "5 dense features", "3 classes", "splits 5/1/2"):
        assert fact in text


def test_sparse_features_with_columns_outside_are_refused() -> None:
    bad = CSR(torch.tensor([0, 1, 1], dtype=torch.int32), torch.tensor([9], dtype=torch.int32), torch.ones(1), 3)
    with pytest.raises(GraphError, match=r"columns in \[0, 3\) \(got 9 to 9\)"):
        Graph.from_edges(torch.tensor([[0, 1], [1, 0]]), bad, torch.tensor([0, 1]), train=[0], val=[1], test=[1])


def test_complex_features_and_fractional_nodes_are_refused() -> None:
    edges, y = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([0, 1, 0])
    with pytest.raises(GraphError, match="real features"):
        Graph.from_edges(edges, torch.ones(3, 2, dtype=torch.complex64), y, train=[0], val=[1], test=[2])
    with pytest.raises(GraphError, match=r"whole node numbers.*: convert it"):
        Graph.from_edges(edges, torch.ones(3, 2), y, train=torch.tensor([0.5]), val=[1], test=[2])


def test_edges_are_listed_as_pyg_lists_them() -> None:
    edges = torch.tensor([[0, 2, 2], [1, 1, 0]])  # source, target
    g = Graph.from_edges(edges, torch.ones(3, 1), edge_weight=torch.tensor([1.0, 2.0, 3.0]), directed=True)
    assert g.edge_weight is not None
    listed = sorted(zip(*g.edge_index.tolist(), g.edge_weight.tolist(), strict=True))
    assert listed == [(0, 1, 1.0), (2, 0, 3.0), (2, 1, 2.0)]
