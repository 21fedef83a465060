"""A GCN in dense numpy, with its adjoints written out: s^l = P h^{l-1} W^T + b, h^l = relu(norm(s^l)), h^0 = X."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from dense import Array, Data, Nodes, Values

EPS, MOMENTUM = 1e-5, 0.1
"""Of both norms; of the running statistics of batch norm."""
STRETCH, SHIFT = 1.2, 0.2
"""Limits of batch renormalisation."""


@dataclass
class Activated:
    """h = relu(norm(s)) of some rows, and how adjoints go back through it.

    Args:
        back: dL/ds from dL/dh.
        slopes: the gradients of the norm's weight and bias from dL/dh, from core rows alone.
    """

    h: Array
    back: Callable[[Array], Array]
    slopes: Callable[[Array], tuple[Array, Array]]


class GCN:
    """The model. Parameters are given anew to every call; running statistics are kept here, by the model's names.

    Args:
        norm: None, "layer" or "batch".
        steady: batch renormalisation with the core's statistics for core and halo rows, as CMC has it; else halo
            rows have statistics of their own.
    """

    def __init__(self, data: Data, num_layers: int, norm: str | None, steady: bool = False) -> None:
        self.data, self.L, self.norm, self.steady = data, num_layers, norm, steady
        self.buffers: Values = {}

    def affine(self, theta: Values, l: int, m: Array) -> Array:
        """s^l from the aggregate m."""
        return m @ theta[f"layers.{l - 1}.lin.weight"].T + theta[f"layers.{l - 1}.lin.bias"]

    def affine_back(self, theta: Values, l: int, v: Array) -> Array:
        """dL/dm from v = dL/ds^l."""
        return v @ theta[f"layers.{l - 1}.lin.weight"]

    def affine_slopes(self, l: int, v: Array, m: Array) -> Values:
        """Gradients of layer l's weight and bias from its aggregate and v = dL/ds^l, given rows that count."""
        return {f"layers.{l - 1}.lin.weight": v.T @ m, f"layers.{l - 1}.lin.bias": v.sum(0)}

    def activate(self, theta: Values, l: int, s: Array, num_core: int | None) -> Activated:
        """h^l from s^l of core rows, then halo rows; ``num_core`` None: all rows in evaluation mode."""
        if l == self.L:  # nothing follows the last layer
            return Activated(s, lambda v: v, lambda v: (np.zeros(0), np.zeros(0)))
        c = len(s) if num_core is None else num_core
        unit, unit_back = self._normalise(l, s, num_core)
        gain, shift = self._gain(theta, l)
        y = unit * gain + shift
        return Activated(
            np.maximum(y, 0),
            lambda v: unit_back(v * (y > 0) * gain),
            lambda v: ((v * (y > 0) * unit)[:c].sum(0), (v * (y > 0))[:c].sum(0)),
        )

    def norm_slopes(self, l: int, activated: Activated, v: Array) -> Values:
        """Gradients of the norm of layer l, where there is one, from v = dL/dh^l."""
        if self.norm is None or l == self.L:
            return {}
        weight, bias = activated.slopes(v)
        return {f"{self._norm(l)}.weight": weight, f"{self._norm(l)}.bias": bias}

    def exact(self, theta: Values) -> tuple[list[Array], list[Array], list[Array]]:
        """s^l, the messages t^l = h^{l-1} and V^l = dL/ds^l of all nodes, l = 0..L (0 unused), in evaluation mode."""
        data, L = self.data, self.L
        everybody = np.arange(data.num_nodes)
        s, t, V = ([np.zeros((0, 0))] * (L + 1) for _ in range(3))
        activated: dict[int, Activated] = {}
        h = data.x
        for l in range(1, L + 1):
            t[l] = h
            s[l] = self.affine(theta, l, data.P @ h)  # (4)
            activated[l] = self.activate(theta, l, s[l], None)
            h = activated[l].h
        V[L] = data.losses(s[L], everybody)[1]
        for l in range(L - 1, 0, -1):
            V[l] = activated[l].back(data.P.T @ self.affine_back(theta, l + 1, V[l + 1]))  # (7)
        return s, t, V

    def _norm(self, l: int) -> str:
        return f"layers.{l - 1}.activation.norm"

    def _gain(self, theta: Values, l: int) -> tuple[Array | float, Array | float]:
        return (1.0, 0.0) if self.norm is None else (theta[f"{self._norm(l)}.weight"], theta[f"{self._norm(l)}.bias"])

    def _normalise(self, l: int, s: Array, c: int | None) -> tuple[Array, Callable[[Array], Array]]:
        """Rows of norm 1, before the norm's own weight and bias, and how adjoints go back through that."""
        if self.norm is None:
            return s, lambda v: v
        if self.norm == "layer":
            return standardised(s, axis=1)
        mean, var = self._running(l, s.shape[1])
        if c is None:  # evaluation mode
            return (s - mean) / np.sqrt(var + EPS), lambda v: v / np.sqrt(var + EPS)
        own_mean, own_var = s[:c].mean(0), s[:c].var(0)
        core, core_back = standardised(s[:c], axis=0)
        self.buffers[f"{self._norm(l)}.num_batches_tracked"] += 1
        if not self.steady:
            mean += MOMENTUM * (own_mean - mean)
            var += MOMENTUM * (own_var * c / (c - 1) - var)
            if len(s) == c:
                return core, core_back
            halo, halo_back = standardised(s[c:], axis=0)
            return np.concatenate([core, halo]), lambda v: np.concatenate([core_back(v[:c]), halo_back(v[c:])])
        # Batch renormalisation, equation (1): y = (x - mu) / sigma * r + d with constants r and d
        share = max(MOMENTUM, 1 / float(self.buffers[f"{self._norm(l)}.num_batches_tracked"]))
        off = own_mean - mean
        mean += share * off
        var += share * (own_var - var + (1 - share) * off**2)  # the variance of the mixture of both
        r = np.clip(np.sqrt(own_var + EPS) / np.sqrt(var + EPS), 1 / STRETCH, STRETCH)
        d = np.clip((own_mean - mean) / np.sqrt(var + EPS), -SHIFT, SHIFT)
        halo = (s[c:] - own_mean) / np.sqrt(own_var + EPS)  # the core's statistics, constants for halo rows
        return np.concatenate([core, halo]) * r + d, lambda v: np.concatenate(
            [core_back(v[:c] * r), v[c:] * r / np.sqrt(own_var + EPS)]
        )

    def _running(self, l: int, width: int) -> tuple[Array, Array]:
        at = self._norm(l)
        self.buffers.setdefault(f"{at}.running_mean", np.zeros(width))
        self.buffers.setdefault(f"{at}.running_var", np.ones(width))
        self.buffers.setdefault(f"{at}.num_batches_tracked", np.zeros(()))
        return self.buffers[f"{at}.running_mean"], self.buffers[f"{at}.running_var"]


def standardised(s: Array, axis: int) -> tuple[Array, Callable[[Array], Array]]:
    """(s - mean) / std along an axis, and how adjoints go back through it."""
    std = np.sqrt(s.var(axis, keepdims=True) + EPS)
    unit = (s - s.mean(axis, keepdims=True)) / std

    def back(v: Array) -> Array:
        return (v - v.mean(axis, keepdims=True) - unit * (v * unit).mean(axis, keepdims=True)) / std

    return unit, back


def add(total: Values, part: Values) -> None:
    """total += part, by name."""
    for name, value in part.items():
        total[name] = total.get(name, 0) + value


def scaled(values: Values, factor: float) -> Values:
    return {name: value * factor for name, value in values.items()}


def joined(core: Nodes, halo: Nodes) -> Nodes:
    """ext: core, then halo."""
    return np.concatenate([core, halo])
