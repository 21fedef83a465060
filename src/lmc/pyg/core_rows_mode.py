"""Any row-wise code, with the parameters' gradient taken from core rows: the rule of :mod:`lmc.models.rows` for code
that does not know it.

While this mode is on, every torch operation passes through it. One that joins rows with a parameter (or with what was
computed from parameters alone) is done for core rows with the parameter and for halo rows with the detached one. The
common ones are done for all rows at once by the functions of :mod:`lmc.models.rows`. Dropout draws from the run's own
generator, and batch norm treats halo rows as :class:`lmc.models.BatchNorm` does.
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
from lmc.models.rows import Pass, _Affine, _Linear, _Shift, renormalised, share_of

Rule = Literal["split", "live", "frozen", "off"]
"""Rows core first; all rows teach the parameters; none does; not ours."""

_ADDITIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


class CoreRows(TorchFunctionMode):
    """The mode; ``fixed`` are the parameters and buffers, ``num_rows`` the rows of a pass, ``norms`` the modules among
    which are those that normalise by batch."""

    def __init__(self, fixed: Iterable[Tensor], num_rows: int, p: Pass, norms: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self._fixed = {id(t): t for t in fixed}  # holds on to them: an id is that of a living tensor
        self._n, self._c, self._p = num_rows, p.core_of(num_rows), p
        self._batches = {id(m.running_mean): m.num_batches_tracked for m in norms if isinstance(m, nn.BatchNorm1d)}
        self.derived: dict[int, Tensor] | None = None
        """For a network looked at for the first time: all that was computed from rows so far."""
        self.drops = 0
        """Dropouts that were asked for in training."""
        self._other: Rule | None = None

    @property
    def _rule(self) -> Rule:
        return self._other or ("split" if self._c < self._n else "live")

    def resize(self, num_rows: int) -> None:
        """From here on rows are so many."""
        self._n, self._c = num_rows, self._p.core_of(num_rows)

    @contextmanager
    def under(self, rule: Rule) -> Iterator[None]:
        """Another rule for a while."""
        was, self._other = self._other, rule
        try:
            yield
        finally:
            self._other = was

    def after_sum(self) -> None:
        """From here on core rows teach."""
        self._other = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = self._apply(func, args, kwargs or {})
        if self.derived is not None and self._rule != "off":
            self._follow(func, args, kwargs or {}, out)
        return out

    def _follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Whatever is computed from rows is derived from rows."""
        assert self.derived is not None
        found: list[Tensor] = []
        _collect(args, found)
        _collect(kwargs.values(), found)
        made: list[Tensor] = []
        _collect((out,), made)
        name = getattr(func, "__name__", "")
        if any(id(t) in self.derived for t in found) and not name.startswith("new_") and not name.endswith("_like"):
            self.derived.update((id(t), t) for t in made if id(t) not in self._fixed)

    def _apply(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._rule == "off":
            return func(*args, **kwargs)
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self, *args, **kwargs)
        found: list[Tensor] = []
        _collect(args, found)
        _collect(kwargs.values(), found)
        fixed = [t for t in found if id(t) in self._fixed]
        if not fixed:
            return func(*args, **kwargs)
        if len(fixed) == len(found):
            out = func(*args, **kwargs)
            self._mark(out)
            return out
        if self._rule == "live" or not any(t.requires_grad for t in fixed) or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if self._rule == "frozen":
            return func(*self._part(args, slice(None), frozen=True), **self._part(kwargs, slice(None), frozen=True))
        return self._split(func, args, kwargs, [t for t in found if id(t) not in self._fixed])

    def _mark(self, out: Any) -> None:
        found: list[Tensor] = []
        _collect((out,), found)
        self._fixed.update((id(t), t) for t in found)

    def _is_rows(self, t: Tensor) -> bool:
        return id(t) not in self._fixed and t.dim() > 0 and t.shape[0] == self._n

    def _part(self, value: Any, rows: slice, frozen: bool) -> Any:
        """The arguments of an operation for some of the rows."""
        if isinstance(value, Tensor):
            if id(value) in self._fixed:
                return value.detach() if frozen else value
            return value[rows] if self._is_rows(value) and rows != slice(None) else value
        if isinstance(value, dict):
            return {k: self._part(v, rows, frozen) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(self._part(v, rows, frozen) for v in value)
        return value

    def _split(self, func: Callable[..., Any], args: Any, kwargs: Any, others: list[Tensor]) -> Any:
        name, c = getattr(func, "__name__", str(func)), self._c
        if name in _RECURRENT:
            return self._recurrent(func, *args)
        if not any(self._is_rows(t) for t in others):
            if self.derived is not None and any(id(t) in self.derived for t in others):
                raise ConfigError(
                    f"expected one row a node, along the first dimension, where {name} meets a parameter (got shapes "
                    f"{[list(t.shape) for t in others]} for {self._n} nodes): write it row by row, x @ W instead of "
                    "W.T @ x.T, [n, k, d] instead of [n * k, d]"
                )
            out = func(*args, **kwargs)  # constants made on the way, not rows
            self._mark(out)
            return out
        if func in _ADDITIONS and not kwargs and len(args) == 2:
            x, b = args if self._is_rows(args[0]) else (args[1], args[0])
            if x.dim() == 2 and b.shape == x.shape[1:]:
                return _Shift.apply(x, b, c)
        core = func(*self._part(args, slice(c), False), **self._part(kwargs, slice(c), False))
        halo = func(*self._part(args, slice(c, None), True), **self._part(kwargs, slice(c, None), True))
        in_place = name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))
        return args[0] if in_place else _join(core, halo, 0)

    def _recurrent(self, func: Callable[..., Any], x: Tensor, hx: Any, weights: list[Tensor], *rest: Any) -> Any:
        """A recurrent net over [n, steps, width]; its hidden states have the rows in dimension 1."""
        if not rest[-1]:
            raise ConfigError("expected a recurrent module with batch_first=True (got rows in dimension 1)")
        c, many = self._c, isinstance(hx, tuple | list)
        pairs = hx if many else (hx,)
        parts = []
        for rows, W in ((slice(c), weights), (slice(c, None), [w.detach() for w in weights])):
            state = tuple(h[:, rows].contiguous() for h in pairs)
            parts.append(func(x[rows].contiguous(), state if many else state[0], W, *rest))
        out = [_join(a, b, 0 if k == 0 else 1) for k, (a, b) in enumerate(zip(*parts, strict=True))]
        return tuple(out)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        self.drops += 1
        if not self._p.dropout:
            return x
        if p >= 1:
            return x * 0
        out = dropout(x, p, self._p.generator)
        assert isinstance(out, Tensor)
        return out

    def _linear(self, x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
        known = id(W) in self._fixed and (b is None or id(b) in self._fixed)
        if self._rule == "frozen":
            return F.linear(x, *self._part((W, b), slice(None), frozen=True))
        if self._rule == "live" or not known or not torch.is_grad_enabled():
            return F.linear(x, W, b)
        if x.dim() == 2 and self._is_rows(x):
            return _Linear.apply(x, W, b, self._c)
        return self._split(F.linear, (x, W, b), {}, [x])

    def _layer_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        if weight is None or self._rule == "live" or not torch.is_grad_enabled():
            return F.layer_norm(x, shape, weight, bias, eps)
        if self._rule == "split" and bias is not None and x.dim() == 2 and len(shape) == 1:
            return _Affine.apply(F.layer_norm(x, shape, eps=eps), weight, bias, self._c)
        if self._rule == "frozen":
            W, b = self._part((weight, bias), slice(None), frozen=True)
            return F.layer_norm(x, shape, W, b, eps)
        return self._split(F.layer_norm, (x, shape, weight, bias, eps), {}, [x])

    def _batch_norm(
        self,
        x: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        frozen_weight, frozen_bias = self._part((weight, bias), slice(None), frozen=True)

        def normed(x: Tensor, weight: Tensor | None, bias: Tensor | None, keep: bool) -> Tensor:
            alone = training and x.shape[0] == 1 and mean is not None  # one row has no statistics of its own
            stats = (mean, var) if keep or alone or not training else (None, None)
            return F.batch_norm(x, *stats, weight, bias, training and not alone, momentum, eps)

        if self._rule == "frozen":
            return normed(x, frozen_weight, frozen_bias, keep=False)
        if self._rule == "live" or not self._is_rows(x):
            return normed(x, weight, bias, keep=True)
        if self._p.pooled and training:
            unit = normed(x, None, None, keep=True)
            return unit if weight is None or bias is None else _Affine.apply(unit, weight, bias, self._c)
        if self._p.batch_renorm and training and mean is not None and var is not None:
            batches = self._batches.get(id(mean))
            share = momentum if batches is None else share_of(batches, momentum)
            return renormalised(x, self._c, mean, var, weight, bias, share, eps)
        core = normed(x[: self._c], weight, bias, keep=True)
        return torch.cat([core, normed(x[self._c :], frozen_weight, frozen_bias, keep=False)])


_SPECIAL: dict[Any, Callable[..., Any]] = {
    F.dropout: CoreRows._dropout,
    F.linear: CoreRows._linear,
    F.layer_norm: CoreRows._layer_norm,
    F.batch_norm: CoreRows._batch_norm,
}


def _collect(values: Iterable[Any], found: list[Tensor]) -> None:
    """Every tensor among arguments, in lists too."""
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            _collect(value, found)


def _join(core: Any, halo: Any, dim: int) -> Any:
    if isinstance(core, Tensor):
        return torch.cat([core, halo], dim)
    return type(core)(_join(a, b, dim) for a, b in zip(core, halo, strict=True))
