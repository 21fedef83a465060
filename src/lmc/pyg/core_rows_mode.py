"""Gradients of parameters from core rows only, for row-wise code that knows nothing of core and halo rows.

The native models of this library apply the rule of :mod:`lmc.models.rows` themselves: a row-wise map passes on the
adjoint of every row, but its parameters take their gradient from core rows. A PyG network does not know this rule, so
a torch-function mode applies it from outside. While the mode is active, every torch operation passes through it. An
operation that combines rows with a weight is done for core rows with the weight and for halo rows with the detached
weight. A weight is a parameter, a buffer, or a tensor that was computed from these alone.

The common operations (linear, addition of a bias, layer norm) are done for all rows at once by the functions of
:mod:`lmc.models.rows`. Dropout draws from the generator of the run, and batch norm treats halo rows as
:class:`lmc.models.BatchNorm` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lmc.errors import ConfigError
from lmc.kernels.dropout import dropout
from lmc.models.activation import batch_renorm, update_share
from lmc.models.passes import Pass
from lmc.models.rows import add_bias, linear, scale_and_shift

GradientRows = Literal["core", "all", "none", "off"]
"""The rows from which weights take their gradient. With ``off`` every operation runs unchanged."""

OptTensor = Tensor | None
_ADDITIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


class CoreRowsMode(TorchFunctionMode):
    """The torch-function mode of one pass.

    Args:
        weights: parameters and buffers of the network.
        num_rows: rows of the pass, core rows first.
        p: the pass; its ``num_core`` rows give the gradient.
        modules: modules of the network, where ``p.batch_renorm`` needs the counters of batch norms among them.
    """

    def __init__(self, weights: Iterable[Tensor], num_rows: int, p: Pass, modules: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self._weights = {id(t): t for t in weights}  # holds the tensors, so that no id is used again
        self.num_rows, self._num_core, self.p = num_rows, p.core_of(num_rows), p
        self._batches = {id(m.running_mean): m.num_batches_tracked for m in modules if isinstance(m, nn.BatchNorm1d)}
        self._chosen: GradientRows | None = None

    @property
    def gradient_rows(self) -> GradientRows:
        """The rows from which weights take their gradient now."""
        return self._chosen or ("core" if self._num_core < self.num_rows else "all")

    def resize(self, num_rows: int) -> None:
        """Continue the pass with another number of rows."""
        self.num_rows, self._num_core = num_rows, self.p.core_of(num_rows)

    @contextmanager
    def gradient_from(self, rows: GradientRows) -> Iterator[None]:
        """Take gradients from other rows inside a ``with`` block."""
        before, self._chosen = self._chosen, rows
        try:
            yield
        finally:
            self._chosen = before

    def gradient_from_core(self) -> None:
        """Take gradients from core rows again, until the enclosing ``with`` block ends."""
        self._chosen = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.gradient_rows == "off":
            return func(*args, **kwargs)
        handler = _HANDLERS.get(func)
        return self._general(func, args, kwargs) if handler is None else getattr(self, handler)(*args, **kwargs)

    def _general(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation without a handler of its own."""
        found = tensors_in(*args, *kwargs.values())
        weights = [t for t in found if id(t) in self._weights]
        if not weights:
            return func(*args, **kwargs)
        if len(weights) == len(found):
            return self._as_weight(func(*args, **kwargs))
        trained = torch.is_grad_enabled() and any(t.requires_grad for t in weights)
        if not trained or self.gradient_rows == "all":
            return func(*args, **kwargs)
        if self.gradient_rows == "none":
            return func(*self._restrict(args, None, detach=True), **self._restrict(kwargs, None, detach=True))
        return self._by_rows(func, args, kwargs, [t for t in found if id(t) not in self._weights])

    def _as_weight(self, out: Any) -> Any:
        """The result of an operation that read no rows."""
        self._weights.update((id(t), t) for t in tensors_in(out))
        return out

    def _is_rows(self, t: Tensor) -> bool:
        return id(t) not in self._weights and t.dim() > 0 and t.shape[0] == self.num_rows

    def _is_matrix_of_rows(self, t: Tensor, *weights: OptTensor) -> bool:
        """Whether a function of :mod:`lmc.models.rows` applies to the rows ``t`` and these weights."""
        known = all(w is None or id(w) in self._weights for w in weights)
        return known and self.gradient_rows == "core" and torch.is_grad_enabled() and t.dim() == 2 and self._is_rows(t)

    def _restrict(self, value: Any, rows: slice | None, detach: bool) -> Any:
        """Arguments of an operation for some of the rows (None: all of them)."""
        if isinstance(value, Tensor):
            if id(value) in self._weights:
                return value.detach() if detach else value
            return value[rows] if rows is not None and self._is_rows(value) else value
        if isinstance(value, dict):
            return {k: self._restrict(v, rows, detach) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(self._restrict(v, rows, detach) for v in value)
        return value

    def _by_rows(self, func: Callable[..., Any], args: Any, kwargs: Any, others: list[Tensor]) -> Any:
        """An operation on weights and ``others``: weights take their gradient from core rows."""
        name, c = getattr(func, "__name__", str(func)), self._num_core
        if name in _RECURRENT:
            return self._recurrent(func, *args)
        if not any(self._is_rows(t) for t in others):
            self._check_constants(name, others)
            return self._as_weight(func(*args, **kwargs))
        if func in _ADDITIONS and not kwargs and len(args) == 2:
            x, b = args if self._is_rows(args[0]) else (args[1], args[0])
            if x.dim() == 2 and b.shape == x.shape[1:]:
                return add_bias(x, b, c)
        core, halo = (
            func(*self._restrict(args, rows, detach), **self._restrict(kwargs, rows, detach))
            for rows, detach in ((slice(c), False), (slice(c, None), True))
        )
        in_place = name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))
        return args[0] if in_place else _join(core, halo, 0)

    def _check_constants(self, name: str, others: list[Tensor]) -> None:
        """Called where weights meet tensors that are not rows; an inspection checks that they are constants."""

    def _recurrent(self, func: Callable[..., Any], x: Tensor, hx: Any, weights: list[Tensor], *rest: Any) -> Any:
        """A recurrent module over [n, steps, width]; its hidden states have the rows in dimension 1."""
        if not rest[-1]:
            raise ConfigError("expected a recurrent module with batch_first=True (got rows in dimension 1)")
        c, is_tuple = self._num_core, isinstance(hx, tuple | list)
        parts = []
        for rows, W in ((slice(c), weights), (slice(c, None), [w.detach() for w in weights])):
            state = tuple(h[:, rows].contiguous() for h in (hx if is_tuple else (hx,)))
            parts.append(func(x[rows].contiguous(), state if is_tuple else state[0], W, *rest))
        return tuple(_join(a, b, 0 if k == 0 else 1) for k, (a, b) in enumerate(zip(*parts, strict=True)))

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0 or not self.p.dropout:
            return input
        if p >= 1:
            return input * 0
        return dropout(input, p, self.p.generator)

    def _linear(self, input: Tensor, weight: Tensor, bias: OptTensor = None) -> Tensor:
        if self._is_matrix_of_rows(input, weight, bias):
            return linear(input, weight, bias, self._num_core)
        return self._general(F.linear, (input, weight, bias), {})

    def _layer_norm(
        self, input: Tensor, normalized_shape: Any, weight: OptTensor = None, bias: OptTensor = None, eps: float = 1e-5
    ) -> Tensor:
        by_column = len(normalized_shape) == 1 and self._is_matrix_of_rows(input, weight, bias)
        if by_column and weight is not None and bias is not None:
            return scale_and_shift(F.layer_norm(input, normalized_shape, eps=eps), weight, bias, self._num_core)
        return self._general(F.layer_norm, (input, normalized_shape, weight, bias, eps), {})

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: OptTensor,
        running_var: OptTensor,
        weight: OptTensor = None,
        bias: OptTensor = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Batch norm with statistics of core rows for core rows and of halo rows for halo rows, or as the pass says."""
        running, settings = (running_mean, running_var), (training, momentum, eps)
        detached = self._restrict((weight, bias), None, detach=True)
        if self.gradient_rows == "none":
            return _normalise(input, running, detached, *settings, update=False)
        if self.gradient_rows == "all" or not self._is_rows(input):
            return _normalise(input, running, (weight, bias), *settings)
        c = self._num_core
        if self.p.pooled and training:
            unit = _normalise(input, running, (None, None), *settings)
            return unit if weight is None or bias is None else scale_and_shift(unit, weight, bias, c)
        if self.p.batch_renorm and training and running_mean is not None and running_var is not None:
            batches = self._batches.get(id(running_mean))
            share = momentum if batches is None else update_share(batches, momentum)
            return batch_renorm(input, c, running_mean, running_var, weight, bias, share, eps)
        core = _normalise(input[:c], running, (weight, bias), *settings)
        return torch.cat([core, _normalise(input[c:], running, detached, *settings, update=False)])


_HANDLERS = {f: f"_{f.__name__}" for f in (F.dropout, F.linear, F.layer_norm, F.batch_norm)}
"""Methods of :class:`CoreRowsMode` that replace a function of torch and have its signature."""


def _normalise(
    x: Tensor,
    running: tuple[OptTensor, OptTensor],
    affine: tuple[OptTensor, OptTensor],
    training: bool,
    momentum: float,
    eps: float,
    update: bool = True,
) -> Tensor:
    """Batch norm of one set of rows; a single row has no statistics of its own and takes the running ones."""
    alone = training and x.shape[0] == 1 and running[0] is not None
    if training and not alone and not update:
        running = (None, None)
    return F.batch_norm(x, *running, *affine, training and not alone, momentum, eps)


def tensors_in(*values: Any) -> list[Tensor]:
    """Every tensor among ``values``, also in their lists and tuples."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += tensors_in(*value)
    return found


def _join(core: Any, halo: Any, dim: int) -> Any:
    if isinstance(core, Tensor):
        return torch.cat([core, halo], dim)
    return type(core)(_join(a, b, dim) for a, b in zip(core, halo, strict=True))
