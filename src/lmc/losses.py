"""Losses: a function ``(outputs [rows, k], targets) -> losses [rows]`` in which each row depends on its own row alone.

The loss of a graph is the mean over its labelled training nodes, weighted by the weights w_i of the nodes,

    L = sum over labelled i of w_i loss_i / sum over labelled i of w_i,

so without weights it is divided by the number of labelled nodes. A function of a user's own is tried on a few rows when
it is bound (:func:`checked_loss`). The ready-made ones are frozen records of their settings::

    cross_entropy(weight=[1, 5, 1], smoothing=0.1)       classes
    binary_cross_entropy(pos_weight=3)                   labels, the mean over the labels of a row
    mse()    huber(delta=0.5)                            regression, the mean over the columns of a row

Each can also be passed without settings, ``loss=lmc.losses.mse``, or called on rows, ``lmc.losses.mse(outputs, y)``.
"""

from __future__ import annotations

import hashlib
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.errors import ConfigError, check_positive, check_within
from lmc.graph import Graph

__all__ = ["LOSSES", "RowLoss", "binary_cross_entropy", "cross_entropy", "huber", "mse"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [rows, k], targets [rows] or [rows, k]) -> losses [rows]."""

NUM_ROWS = 64
"""Rows on which a loss is tried."""


@dataclass(frozen=True, kw_only=True)
class RowLoss:
    """A ready-made loss.

    ``tasks`` are the tasks it serves. ``recordable`` says that it does not wait for the device and reads no tensor but
    its arguments and what lies on their device, so that a step with it can be recorded as a CUDA graph; a function of
    your own may have this attribute too.
    """

    tasks: ClassVar[tuple[str, ...]]
    recordable: ClassVar[bool] = True

    _constants: dict[object, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __new__(cls, *rows: Tensor, **settings: Any) -> Any:
        if len(rows) == 2:
            return cls(**settings)(*rows)
        if rows:
            raise ConfigError(f"expected the settings of {cls.__name__} by name (got {rows[0]!r}): write name=value")
        return super().__new__(cls)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def _constant(self, values: float | Sequence[float] | None, like: Tensor) -> Tensor | None:
        """Settings as a tensor, made once for each device and dtype: recorded steps read it at a fixed address."""
        if values is None:
            return None
        key = like.device, like.dtype
        if key not in self._constants:
            self._constants[key] = torch.tensor(values, dtype=like.dtype, device=like.device)
        return self._constants[key]


@dataclass(frozen=True, kw_only=True)
class cross_entropy(RowLoss):  # noqa: N801 - read as a function
    """Cross entropy of classes: w[y_i] times -log softmax(outputs_i)[y_i].

    Args:
        weight: one factor per class, at least 0. The library divides by the number of labelled nodes, as for every
            loss; ``reduction="mean"`` of torch divides by the sum of the factors, which is a constant times that.
        smoothing: the share of the target that is spread evenly over all classes, in [0, 1).
    """

    tasks = ("classes",)
    weight: Sequence[float] | None = None
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _numbers("weight", self.weight))
        check_within("[0, 1)", smoothing=self.smoothing)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weight = self._constant(self.weight, outputs)
        return F.cross_entropy(outputs, targets, weight, reduction="none", label_smoothing=self.smoothing)


@dataclass(frozen=True, kw_only=True)
class binary_cross_entropy(RowLoss):  # noqa: N801
    """Binary cross entropy of labels, the mean over the labels of a row.

    Args:
        pos_weight: factor on the loss of labels that are 1: one number, or one per label, at least 0.
    """

    tasks = ("labels",)
    pos_weight: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pos_weight", _numbers("pos_weight", self.pos_weight))

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weight = self._constant(self.pos_weight, outputs)
        each = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none", pos_weight=weight)
        return each.mean(1)


@dataclass(frozen=True, kw_only=True)
class mse(RowLoss):  # noqa: N801
    """The square of the error, the mean over the columns of a row."""

    tasks = ("regression", "labels")

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets.reshape(outputs.shape), reduction="none").mean(1)


@dataclass(frozen=True, kw_only=True)
class huber(RowLoss):  # noqa: N801
    """Half the square of errors up to delta, linear beyond; the mean over the columns of a row.

    Args:
        delta: where the loss becomes linear, more than 0.
    """

    tasks = ("regression", "labels")
    delta: float = 1.0

    def __post_init__(self) -> None:
        check_positive(delta=self.delta)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.huber_loss(outputs, targets.reshape(outputs.shape), reduction="none", delta=self.delta).mean(1)


LOSSES: dict[str, type[RowLoss]] = {cls.__name__: cls for cls in (cross_entropy, binary_cross_entropy, mse, huber)}
DEFAULT: dict[str, type[RowLoss]] = {"classes": cross_entropy, "labels": binary_cross_entropy, "regression": mse}
"""The loss of each task."""


def _numbers(name: str, given: Any) -> float | tuple[float, ...] | None:
    """Settings as plain numbers, at least 0 and finite."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if values is None:
        return None
    try:
        found = tuple(map(float, values)) if isinstance(values, Sequence) else float(values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"expected {name} as numbers (got {given!r}): pass one, or a list of them") from error
    each = found if isinstance(found, tuple) else (found,)
    if not all(0 <= value < math.inf for value in each) or not any(each):
        raise ConfigError(f"expected {name} of at least 0, finite and not all 0 (got {found}): choose other factors")
    return found


def checked_loss(loss: Any, graph: Graph, device: torch.device, dtype: torch.dtype) -> Loss | None:
    """The loss of a run, tried on a few labelled rows of ``graph``.

    None means the default of classes and of labels, which the engine computes without masking the outputs.

    Args:
        dtype: of the outputs: losses are computed in the accumulate dtype.
    """
    default = DEFAULT[graph.task]()
    if loss is None:
        loss = default
    elif isinstance(loss, type) and issubclass(loss, RowLoss):
        loss = loss()
    if isinstance(loss, RowLoss) and graph.task not in loss.tasks:
        raise ConfigError(
            f"expected a loss for task {graph.task!r} (got {loss!r}): use lmc.losses.{type(default).__name__}"
        )
    if loss == default and graph.task != "regression":
        return None
    if not callable(loss):
        raise ConfigError(f"expected loss to be a function (outputs, targets) -> losses [rows] (got {loss!r})")
    if isinstance(loss, nn.Module):
        if any(p.requires_grad for p in loss.parameters()):
            raise ConfigError("expected a loss without parameters (got some): they would not be trained")
        loss.to(device)
    _try(loss, graph, device, dtype)
    return loss


def _try(loss: Any, graph: Graph, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a loss that fails, gives another shape, mixes rows, or is not finite."""
    labelled = graph.train.nonzero().squeeze(1)
    nodes = labelled[torch.arange(NUM_ROWS, device=labelled.device) * labelled.numel() // NUM_ROWS]
    y = graph.y[nodes].to(device)
    y = y.to(dtype) if y.is_floating_point() else y
    chance = torch.Generator().manual_seed(0)
    outputs = torch.randn(NUM_ROWS, graph.num_classes, generator=chance, dtype=torch.float64).to(device, dtype)
    outputs.requires_grad_()
    with torch.enable_grad():
        losses = _called(loss, outputs, y)
        total = losses.sum()
        slopes = torch.autograd.grad(total, outputs, allow_unused=True)[0] if total.requires_grad else None
    if slopes is None:
        raise ConfigError(
            "expected a loss that depends on the outputs (got one without a gradient): compute it with torch, and do "
            "not detach them"
        )
    if not bool(losses.isfinite().all() and slopes.isfinite().all()):
        raise ConfigError("expected finite losses and gradients of outputs around 0 (got NaN or infinite ones)")
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    fewer, reversed_ = (_called(loss, *pair) for pair in ((outputs[5:], y[5:]), (outputs.flip(0), y.flip(0))))
    for again, rows in ((fewer, losses[5:]), (reversed_.flip(0), losses)):
        if not torch.allclose(again, rows, rtol=tolerance, atol=tolerance * float(losses.detach().abs().max())):
            raise ConfigError(
                "expected the loss of a row to depend on that row alone (got other losses without some other rows, or "
                "in another order): divide by no sum or number of rows, leave chance out, and mind that outputs are "
                f"{list(outputs.shape)} and targets {list(y.shape)}"
            )


def _called(loss: Any, outputs: Tensor, y: Tensor) -> Tensor:
    shown = f"outputs {list(outputs.shape)} and targets {list(y.shape)} of {y.dtype}"
    try:
        losses = loss(outputs, y)
    except Exception as error:  # a function of a user's own may raise anything
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"expected a loss that reads {shown} (got {text[:300]}): fit it to the targets") from error
    if isinstance(losses, Tensor) and losses.shape == outputs.shape[:1] and losses.is_floating_point():
        return losses
    got = f"{losses.dtype} of shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
    raise ConfigError(
        f'expected one loss per row, [{outputs.shape[0]}], for {shown} (got {got}): use reduction="none", and the mean '
        "over columns where there are several"
    )


def describe(loss: Loss | None) -> str | None:
    """A text that tells losses apart, for the record of a run. Functions are told apart by their code, default
    arguments and enclosed values, so that another one is noticed when a run is continued."""
    if loss is None or isinstance(loss, RowLoss):
        return None if loss is None else repr(loss)
    name = getattr(loss, "__qualname__", type(loss).__qualname__)
    return f"{name}#{hashlib.sha256(repr(_content(loss)).encode()).hexdigest()[:12]}"


def _content(value: Any, depth: int = 8) -> Any:
    """What a value consists of, without the addresses of objects; deep or circular structures are cut off."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, Tensor):
        return hashlib.sha256(
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        ).hexdigest()
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return name, [_content(part, depth - 1) for part in _parts(value)] if depth else []


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, types.FunctionType):
        if value.__module__.startswith("torch."):
            return []  # known by its name, whatever the version
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *cells]
    if isinstance(value, types.CodeType):
        return [value.co_code, *value.co_names, *value.co_consts]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, nn.Module):
        return [repr(value), dict(value.named_buffers())]
    return [*getattr(value, "__dict__", {}).items()]
