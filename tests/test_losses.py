"""Ready-made losses against torch, and losses that are refused when they are bound."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lmc
from helpers import chance, hand_graph, make, one_thread  # noqa: F401 - the fixture is used by being here
from lmc.errors import ConfigError
from lmc.losses import binary_cross_entropy, cross_entropy, describe, huber, mse
from lmc.methods import FullBatch

W = torch.tensor([1.0, 5.0, 0.5])
OUT = torch.randn(6, 3, generator=chance(2), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 1, 0, 2])
LABELS = (torch.rand(6, 3, generator=chance(3)) < 0.5).double()
NUMBERS = torch.randn(6, 3, generator=chance(4), dtype=torch.float64)


@pytest.mark.parametrize("weight", [W, W.numpy(), W.tolist()], ids=["tensor", "array", "list"])
def test_cross_entropy_with_weights_and_smoothing_by_hand(weight: Any) -> None:
    logs, w = OUT.log_softmax(1), W.double()
    plain = -w[Y] * logs[range(6), Y]
    spread = -(w * logs).mean(1)
    assert torch.allclose(cross_entropy(weight=weight)(OUT, Y), plain)
    assert torch.allclose(cross_entropy(weight=weight, smoothing=0.2)(OUT, Y), 0.8 * plain + 0.2 * spread)


@pytest.mark.parametrize("pos_weight", [3.0, [1.0, 2.0, 4.0], None])
def test_binary_cross_entropy_by_hand(pos_weight: Any) -> None:
    p = OUT.sigmoid()
    factor = torch.tensor(1.0 if pos_weight is None else pos_weight, dtype=torch.float64)
    want = -(factor * LABELS * p.log() + (1 - LABELS) * (1 - p).log()).mean(1)
    assert torch.allclose(binary_cross_entropy(pos_weight=pos_weight)(OUT, LABELS), want)


def test_losses_of_numbers_by_hand() -> None:
    error = (OUT - NUMBERS).abs()
    assert torch.allclose(mse()(OUT, NUMBERS), (error**2).mean(1))
    want = torch.where(error < 0.4, error**2 / 2, 0.4 * (error - 0.2)).mean(1)
    assert torch.allclose(huber(delta=0.4)(OUT, NUMBERS), want)
    assert torch.allclose(mse()(OUT[:, :1], NUMBERS[:, 0]), error[:, 0] ** 2)  # targets [rows], outputs [rows, 1]


def test_a_loss_is_a_value_that_its_text_tells_apart() -> None:
    assert repr(cross_entropy(weight=W, smoothing=0.1)) == "cross_entropy(weight=(1.0, 5.0, 0.5), smoothing=0.1)"
    assert huber(delta=0.5) == huber(delta=0.5) != huber()
    assert torch.equal(mse(OUT, NUMBERS), mse()(OUT, NUMBERS))


@pytest.mark.parametrize(
    ("make_loss", "message"),
    [
        (lambda: cross_entropy(weight=[1.0, -1.0]), "expected weight of at least 0"),
        (lambda: cross_entropy(weight=[0.0, 0.0]), "not all 0"),
        (lambda: cross_entropy(weight="ab"), "expected weight as numbers"),
        (lambda: cross_entropy(smoothing=1.0), r"expected smoothing in \[0, 1\)"),
        (lambda: binary_cross_entropy(pos_weight=math.inf), "expected pos_weight of at least 0, finite"),
        (lambda: huber(delta=0), "expected delta of more than 0"),
        (lambda: huber(0.5), "expected the settings of huber by name"),
    ],
)
def test_wrong_settings_are_refused(make_loss: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_loss()


def regression_graph() -> lmc.Graph:
    g = hand_graph()
    return lmc.Graph(g.adj, g.x, torch.rand(8, generator=chance(5)), g.train, g.val, g.test, 1, task="regression")


def gradient(g: lmc.Graph, loss: Any) -> Tensor:
    run = FullBatch().bind(g, lmc.models.GCN(5, 4, g.num_classes).double(), loss=loss)
    return torch.cat([v.view(-1) for v in run.gradient(next(iter(run.batches()))).values()])


def test_every_way_to_name_a_loss_is_the_same_loss() -> None:
    g, numbers = hand_graph(), regression_graph()
    want = gradient(g, None)
    for loss in (cross_entropy, cross_entropy(), partial(F.cross_entropy, reduction="none")):
        assert torch.allclose(gradient(g, loss), want, rtol=1e-12)
    assert torch.allclose(
        gradient(g, nn.CrossEntropyLoss(W.double(), reduction="none")), gradient(g, cross_entropy(weight=W))
    )
    for own in (mse, mse(), lambda out, y: (out.squeeze(1) - y) ** 2):
        assert torch.allclose(gradient(numbers, own), gradient(numbers, None), rtol=1e-12)


CENTRED: Any = lambda out, y: F.cross_entropy(out - out.mean(0), y, reduction="none")  # noqa: E731
REFUSED: dict[str, tuple[Any, str]] = {
    "scalar": (
        F.cross_entropy,
        r'expected one loss per row, \[64\].*got torch.float64 of shape \[\]\): use reduction="none"',
    ),
    "matrix": (lambda out, y: out * y[:, None], r"expected one loss per row.*shape \[64, 3\]"),
    "no tensor": (lambda out, y: 1.0, "expected one loss per row.*got float"),
    "mixes rows": (CENTRED, "expected the loss of a row to depend on that row alone"),
    "divides by rows": (lambda out, y: F.cross_entropy(out, y, reduction="none") / len(y), "on that row alone"),
    "weighs by frequency": (
        lambda out, y: F.cross_entropy(out, y, (1 / y.bincount(minlength=3)).to(out), reduction="none"),
        "on that row alone",
    ),
    "weighs by place": (lambda out, y: out.square().sum(1) * torch.arange(len(y)), "on that row alone"),
    "chance": (lambda out, y: F.dropout(out).square().sum(1), "on that row alone"),
    "not finite": (lambda out, y: out.log().sum(1), "expected finite losses and gradients"),
    "detached": (lambda out, y: F.cross_entropy(out.detach(), y, reduction="none"), "expected a loss that depends"),
    "numpy": (lambda out, y: np.log(out), "expected a loss that reads outputs .* RuntimeError: Can't call numpy"),
    "other classes": (cross_entropy(weight=[1.0, 2.0]), "expected a loss that reads .*weight tensor"),
    "other task": (mse(), "expected a loss for task 'classes' .*use lmc.losses.cross_entropy"),
    "text": ("mse", "expected loss to be a function"),
    "parameters": (nn.Bilinear(3, 3, 1), "expected a loss without parameters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_losses_that_cannot_be_divided_into_rows_are_refused_in_one_line(case: str) -> None:
    loss, message = REFUSED[case]
    g = hand_graph()
    with pytest.raises(ConfigError, match=message) as refusal:
        FullBatch().bind(g, make("gcn", g), loss=loss)
    assert "\n" not in str(refusal.value)


def test_a_broadcast_over_columns_is_refused() -> None:
    # outputs [rows, 1] minus targets [rows] is a matrix of all pairs; its mean over columns has the shape of a loss
    with pytest.raises(ConfigError, match="on that row alone"):
        gradient(regression_graph(), lambda out, y: ((out - y) ** 2).mean(1))


def test_a_loss_that_is_infinite_on_unlabelled_rows_gives_finite_gradients() -> None:
    g = hand_graph()
    # the derivative of the root is infinite at zero outputs, which is what unlabelled rows are given
    found = gradient(g, lambda out, y: out.square().sum(1).sqrt())
    assert bool(found.isfinite().all())
    assert bool(found.any())


def test_a_loss_that_overflows_on_unlabelled_rows_gives_finite_gradients() -> None:
    # two components; the outputs of the unlabelled one are so large that their cosh is infinite
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    x = torch.tensor([[0.1, 0.2], [0.3, 0.1], [1e9, 1e9], [1e9, -1e9]], dtype=torch.float64)
    g = lmc.Graph.from_edges(edges, x, torch.tensor([0, 1, -1, -1]), train=[0, 1])
    run = FullBatch().bind(g, lmc.models.GCN(2, 4, 2, num_layers=1).double(), loss=lambda out, y: out.cosh().sum(1))
    assert all(bool(v.isfinite().all()) for v in run.gradient(next(iter(run.batches()))).values())


def scaled(factor: Any) -> Any:
    return lambda out, y: factor * F.cross_entropy(out, y, reduction="none")


def test_functions_are_told_apart_by_what_they_compute() -> None:
    assert describe(None) is None
    assert describe(huber(delta=2.0)) == "huber(delta=2.0)"
    ways = [scaled(2), scaled(3), scaled(W), scaled(2 * W)]
    ways += [partial(F.cross_entropy, reduction=how) for how in ("none", "sum")]
    ways += [nn.CrossEntropyLoss(W), nn.CrossEntropyLoss(2 * W), nn.MSELoss()]
    assert len({describe(loss) for loss in ways}) == len(ways)
    assert describe(scaled(2)) == describe(scaled(2))
    circular: list[Any] = [2]
    circular.append(circular)
    assert describe(scaled(circular)) != describe(scaled(2))
    assert describe(nn.CrossEntropyLoss(W)) == describe(nn.CrossEntropyLoss(W.clone()))
