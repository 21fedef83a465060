"""Checks that a network can be divided into row-wise code and sums over neighbours, with the right gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError, LmcError
from lmc.graph import Aggregation, Precomputed
from lmc.graph.csr import from_rows
from lmc.models.passes import Operator, Pass
from lmc.pyg.propagate_hook import Call, ChooseState, EdgeUpdate, HookedPass, PropagateSpec, node_arguments, source
from lmc.pyg.recording import RecordedCall, Recording, RowTrackingMode, reason, repeatable, state_of

UseOfPX = Literal["none", "replaces_x", "beside_x"]
"""How the network can use P X, computed once. ``none``: the first sum changes with the parameters or by chance.
``replaces_x``: the first sum is P (X W) and nothing else reads X, so the network may read P X in the place of X.
``beside_x``: the first sum is P X itself, and X may be read elsewhere too."""


@dataclass(frozen=True)
class RowChecks:
    """Passes over some of the nodes, in another order, compared with a recorded plain pass over all of them.

    Args:
        probe: the network in float64 that was recorded.
        specs: its ``propagate`` calls.
        recorded: the plain pass.
    """

    probe: nn.Module
    call: Call
    specs: tuple[PropagateSpec, ...]
    recorded: Recording

    @property
    def order(self) -> Tensor:
        """The nodes in another order, the same one at every call."""
        n = self.recorded.sample.num_nodes
        return torch.randperm(n, generator=torch.Generator().manual_seed(n))

    @property
    def subset(self) -> Tensor:
        """About half of the nodes; the first of them are core rows."""
        return self.order[: self.recorded.sample.num_nodes // 2 + 1]

    def check_row_wise(self) -> None:
        """Refuse a network that does not compute every row from itself alone, without the edges, between layers.

        The network runs on some of the rows with the recorded results in the place of every ``propagate``. If its own
        code is row-wise, each convolution reads the same rows as before, and so do the logits.
        """
        rows = self.subset

        def choose(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
            return self._recorded_state(l, rows)

        logits = self._run(self.recorded.sample.x[rows], rows, self.recorded.calls, choose)
        if not same_rows(logits, self.recorded.logits, rows):
            raise ConfigError(
                "expected row-wise code after the last convolution (got logits that depend on other rows, or on the "
                f"edges{self._when()}): norms and sums over all nodes have no meaning on a batch"
            )

    def check_gradients(self) -> None:
        r"""Refuse a network whose gradient differs from plain autograd, or whose sums depend on the order of nodes.

        Let f(x) be the network's output and L = sum over rows i of <r_i, f(x)_i> with random numbers r. Parameters act
        row by row, and in messages along the edges into a row, so dL/dp is a sum of one term g_i per row i. A pass of
        a method with the core rows C takes sum over i in C of g_i. Here the pass has all nodes of the sample as core or
        halo rows, so that every message and every adjoint is exact, and g(C) + g(V \ C) = dL/dp has to hold. The right
        side is plain autograd through the network itself. Code that the torch function mode does not see takes its
        gradient from halo rows as well; its terms are then counted twice, and the equation fails. Chance has no part in
        it (:mod:`lmc.pyg.recording`). A kink, where two subgradients are right, is left by changing the parameters:
        see :func:`lmc.pyg.inspection.check_on`.
        """
        n, logits = self.recorded.sample.num_nodes, self.recorded.logits
        names, parameters = zip(*((k, p) for k, p in self.probe.named_parameters() if p.requires_grad), strict=True)
        r = torch.randn(logits.shape, generator=torch.Generator().manual_seed(n), dtype=logits.dtype)

        def gradient(out: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad((out * r[rows]).sum(), parameters, materialize_grads=True)

        halves = self.order.tensor_split(2)
        rows = [torch.cat(halves), torch.cat(halves[::-1])]
        try:
            want = gradient(logits, torch.arange(n))
            first, second = (gradient(self._batch(at, core.numel()), at) for at, core in zip(rows, halves, strict=True))
        except LmcError:
            raise
        except Exception as error:
            raise ConfigError(f"expected a network that autograd can differentiate (got {reason(error)})") from error
        total = sum(float(w.square().sum()) for w in want) ** 0.5
        wrong = [
            k
            for k, a, b, w in zip(names, first, second, want, strict=True)
            if not float((a + b - w).norm()) <= 1e-6 * float(w.norm()) + 1e-9 * total
        ]
        if wrong and all(bool(w.isfinite().all()) for w in want):
            raise ConfigError(
                f"expected parameters to take their gradient from core rows (got that of halo rows too, for "
                f"{', '.join(wrong[:3])}{self._when()}): torch.jit, torch.vmap, torch.func, checkpointing and own "
                "autograd.Functions hide their parameters from lmc.wrap; use plain torch operations"
            )

    def use_of_px(self) -> UseOfPX:
        """How the network can use P X, where its first sum is linear and without chance."""
        sample, first, rows = self.recorded.sample, self.recorded.calls[0], self.subset
        if source(first.kwargs["x"]) is sample.x:
            return "beside_x"
        PX = first.weighted_sum(self.specs[0].weight, sample.x)

        def choose(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
            return layer(Precomputed(rows.numel())) if l == 1 else self._recorded_state(l, rows)

        # the first convolution reads the sum already, and all that follows must be the same
        summed = replace(first, kwargs=first.kwargs | {"x": first.out})
        try:
            logits = self._run(PX[rows], rows, [summed, *self.recorded.calls[1:]], choose)
        except ConfigError:
            return "none"
        return "replaces_x" if same_rows(logits, self.recorded.logits, rows) else "none"

    def _batch(self, rows: Tensor, num_core: int) -> Tensor:
        """Logits of all nodes in the order ``rows``, from a pass of a method with the first of them as its core."""
        calls, specs = self.recorded.calls, self.specs
        operators = [_operator(call, spec, rows) for call, spec in zip(calls, specs, strict=True)]

        def choose(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
            state, spec = layer(operators[l - 1]), specs[l - 1]
            if not close(state[:, : state.shape[1] - spec.heads], calls[l - 1].out[rows].flatten(1)):
                raise ConfigError(
                    f"expected sums over neighbours from {spec.name} (got other rows for another order of the nodes, "
                    f"or for some of the edges{self._when()}): messages may read the two ends of their edge alone, "
                    "and their order may not matter"
                )
            return state

        return self._run(self.recorded.sample.x[rows], rows, calls, choose, num_core)

    def _recorded_state(self, l: int, rows: Tensor) -> Tensor:
        return state_of(self.recorded.calls[l - 1], self.specs[l - 1])[rows]

    def _run(
        self, x: Tensor, rows: Tensor, expected: list[RecordedCall], choose: ChooseState, num_core: int = 4
    ) -> Tensor:
        """Logits of a pass in which every ``propagate`` has to read the ``rows`` of an ``expected`` call."""
        self.probe.train(self.recorded.sample.training)
        try:
            with repeatable(self.probe):
                weights = [*self.probe.parameters(), *self.probe.buffers()]
                mode = RowTrackingMode(weights, x, Pass(num_core=num_core, dropout=False))
                when = self._when()
                compared = ComparedPass(self.probe, self.specs, choose, mode, expected=expected, rows=rows, when=when)
                return compared.run(self.call, x)
        except LmcError:
            raise
        except Exception as error:
            raise ConfigError(
                f"expected a network that runs on some of the rows, without the edges (got {reason(error)}"
                f"{self._when()}): between its convolutions it may neither read edge_index nor mix nodes"
            ) from error

    def _when(self) -> str:
        sample = self.recorded.sample
        return f", with {sample.num_nodes} nodes in {'training' if sample.training else 'evaluation'} mode"


def _operator(call: RecordedCall, spec: PropagateSpec, rows: Tensor) -> Aggregation:
    """The operator of a recorded call, for the nodes in the order ``rows``."""
    n = rows.numel()
    position = torch.empty_like(rows)
    position[rows] = torch.arange(n)
    layer = call.layer_edges(spec.weight, spec.linear, spec.features)
    src, dst = position[layer.edges]
    at = (dst * n + src).argsort()
    P = from_rows(dst[at], src[at], layer.entries(n, torch.float64)[at], (n, n))
    return Aggregation.exact(P if layer.features is None else replace(P, edge_data=layer.features[at]))


@dataclass
class ComparedPass(HookedPass):
    """A pass that compares what every ``propagate`` reads with the ``rows`` of the ``expected`` call over all nodes."""

    expected: list[RecordedCall] = field(default_factory=list)
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    when: str = ""

    def propagate(self, convolution: nn.Module, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Tensor:
        out = super().propagate(convolution, edge_index, size, kwargs)
        assert isinstance(self.mode, RowTrackingMode)
        self.mode.add_rows(out)
        return out

    def check(self, convolution: nn.Module, spec: PropagateSpec, kwargs: dict[str, Any]) -> None:
        expected = self.expected[self.l - 1]
        self._compare(spec, node_arguments(convolution), kwargs, expected.kwargs)
        for name, value in kwargs.items():
            if isinstance(value, EdgeUpdate):
                nodes = node_arguments(convolution, "edge_updater")
                self._compare(spec, nodes, value.kwargs, expected.updates[name])

    def _compare(self, spec: PropagateSpec, nodes: set[str], kwargs: dict[str, Any], expected: dict[str, Any]) -> None:
        before = f"after {self.specs[self.l - 2].name}" if self.l > 1 else "before the first convolution"
        for name in nodes & kwargs.keys():
            pairs = zip(_as_tuple(kwargs[name]), _as_tuple(expected[name]), strict=True)
            if not all(same_rows(got, want, self.rows) for got, want in pairs):
                raise ConfigError(
                    f"expected row-wise code {before} (got rows that depend on other rows, or on the edges, where "
                    f"{spec.name} reads {name}{self.when}): norms and sums over all nodes have no meaning on a batch; "
                    'use batch norm, or layer norm by row (mode="node"; norm_kwargs=dict(mode="node") in PyG\'s models)'
                )


def same_rows(got: Any, want: Any, rows: Tensor) -> bool:
    """Whether ``got`` are these rows of ``want``, up to rounding; other values have to be equal."""
    if not isinstance(want, Tensor):
        return got is want or got == want
    want = want[rows]
    return got.shape == want.shape and close(got, want)


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two float64 tensors agree up to rounding, relative to their largest number."""
    largest = float(b.detach().nan_to_num(0, 0, 0).abs().max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-6, atol=1e-9 * largest + 1e-300, equal_nan=True)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
