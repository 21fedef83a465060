"""What a model is to a method: an encoder, layers, a decoder. Models know no method.

A layer is the paper's equation (4) in two strokes, so that a method may cut between them:

    s^l = layer(h^{l-1})        aggregation and the affine map: the state before the activation
    h^l = layer.activate(s^l)   norm and nonlinearity, row by row
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR, normalise, renormalise
from lmc.kernels import rows as fused
from lmc.kernels.dropout import dropout
from lmc.models.rows import BatchNorm, Bias, Drawn, LayerNorm, Linear, Operator, Pass

NORMS = (None, "layer", "batch")


class Activation(nn.Module):
    """norm, then ReLU; row by row.

    Args:
        dropout: the rate of the dropout that follows, where one does: the two are then drawn in one pass where that is
            cheaper, and :func:`drop` finds what was drawn.
    """

    def __init__(self, width: int, norm: str | None, dropout: float = 0.0) -> None:
        super().__init__()
        self._dropout = dropout
        if norm not in NORMS:
            raise ConfigError(f"expected norm in {NORMS} (got {norm!r})")
        self.norm = None if norm is None else LayerNorm(width) if norm == "layer" else BatchNorm(width)

    def forward(self, s: Tensor, p: Pass) -> Tensor:
        s = s if self.norm is None else self.norm(s, p)
        if not (self.training and p.dropout and self._dropout and fused.available(s)):
            return s.relu()
        h, t = fused.RectifyAndDrop.apply(s, self._dropout, p.generator)
        p.drawn[id(h)] = h, t, self._dropout
        return h


def drop(h: Tensor | CSR, rate: float, p: Pass) -> Tensor | CSR:
    """h with dropout: what was drawn with its activation, or drawn now."""
    _, t, drawn = p.drawn.pop(id(h), (None, None, None))
    return t if t is not None and drawn == rate else dropout(h, rate, p.generator)


class Layer(nn.Module, ABC):
    """One message-passing layer; ``activation`` is None where nothing follows the affine map."""

    activation: Activation | None
    out_width: int
    dropout: float
    affine: bool = True
    """Whether s^l is an affine function of P t, so that the Jacobian of a row does not depend on its aggregate."""
    linear: bool = True
    """Whether the aggregation is a fixed linear map of the messages, P t (attention is not)."""
    completes_halo: bool = False
    """Whether the layer completes halo rows from their stored states, so that their Jacobian is exact all the same."""

    @abstractmethod
    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        """s^l for the rows P gives out, from h^{l-1} of the rows P takes in; h0 is the encoded input."""

    def activate(self, s: Tensor, p: Pass) -> Tensor:
        """h^l from s^l."""
        return s if self.activation is None else self.activation(s, p)

    def drop(self, h: Tensor | CSR, p: Pass) -> Tensor | CSR:
        """h^{l-1} with dropout, in training."""
        return drop(h, self.dropout, p) if self.training and p.dropout else h


class Model(nn.Module, ABC):
    """Encoder, layers, decoder. ``model(x, P)`` is the plain forward pass on every row."""

    in_width: int
    out_width: int
    layers: nn.ModuleList
    dropout: float
    input_dropout: float
    lin_in: Linear | None
    act_in: Activation | None
    lin_out: Linear | None
    reads_input: bool = False
    """Whether layers after the first read the encoded input h^0."""
    normalisation: str = "gcn"
    """The aggregation matrix P, one of :data:`lmc.graph.NORMALISATIONS`."""
    transforms_before_aggregating: bool = False
    """Whether parameters are applied to rows before they are aggregated."""
    reads_all_rows: bool = False
    """Whether the input of every row of a batch is read, also where the first operator takes in fewer."""
    owns_forward: bool = False
    """Whether the model runs its own forward pass (``run_forward``) instead of being run layer by layer."""
    keeps_features: bool = False
    """Whether the first layer reads X beside a constant P X."""
    recurrent: bool = False
    """Whether the one layer is iterated to a fixed point (:class:`lmc.models.recurrent.Recurrent`)."""

    @property
    def recordable(self) -> bool:
        """Whether a pass does the same operations every time, none of which the host waits for: it can be recorded."""
        return not (self.owns_forward or self.recurrent)

    def prepare(self, P: CSR) -> None:
        """Called once with the whole graph's aggregation matrix, before training on it."""

    def project(self) -> None:
        """Bring the parameters back to where the model is well-posed; call it after every optimiser step."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def layer(self, l: int) -> Layer:
        """Layer l, l = 1..L."""
        return cast(Layer, self.layers[l - 1])

    @property
    def widths(self) -> list[int]:
        """The width of every layer's state, l = 1..L."""
        return [self.layer(l).out_width for l in range(1, self.num_layers + 1)]

    @property
    def affine(self) -> bool:
        """Whether every layer is affine in its aggregate."""
        return all(self.layer(l).affine for l in range(1, self.num_layers + 1))

    @property
    def linear(self) -> bool:
        """Whether every layer's aggregation is linear."""
        return all(self.layer(l).linear for l in range(1, self.num_layers + 1))

    def completes_halo(self, l: int) -> bool:
        """Whether layer l completes halo rows from their stored states."""
        return self.layer(l).completes_halo

    @property
    def exact(self) -> bool:
        """Whether the Jacobian of a halo row is known with exact histories: LMC4Conv is exact then."""
        return all(self.layer(l).affine or self.layer(l).completes_halo for l in range(1, self.num_layers + 1))

    @property
    def message_widths(self) -> dict[int, int]:
        """The width of what each layer aggregates, for aggregations that are neither constant nor of the features."""
        widths = {l + 1: width for l, width in enumerate(self.widths[:-1], start=1)}
        if self.lin_in is not None:
            widths[1] = self.lin_in.weight.shape[0]
        return widths

    @property
    def constant_input(self) -> bool:
        """Whether the first layer reads P X alone, and P X is constant; a model has to say so."""
        return False

    @property
    def aggregates_features(self) -> bool:
        """Whether the first layer reads P X alone, but for dropout on X; a model has to say so."""
        return self.constant_input

    @property
    def settings(self) -> dict[str, object]:
        """Every plain number, word and flag of the model and its parts, by name: what its parameters do not tell."""
        return {
            f"{path}.{key}".lstrip("."): value
            for path, module in self.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and key != "training" and not key.startswith("_")
        }

    def matrices(self, adj: CSR, dtype: torch.dtype) -> tuple[list[CSR], tuple[int, ...]]:
        """The matrices the layers aggregate with on a graph, and which of them each layer reads."""
        return [normalise(adj, self.normalisation, dtype)], (0,) * self.num_layers

    def renormalise(self, block: CSR, l: int) -> CSR:
        """The matrix of layer l on the subgraph that ``block`` is the pattern of, as if there were nothing else."""
        return renormalise(block, self.normalisation)

    def well_posed(self, block: CSR) -> CSR:
        """The matrix to aggregate with in the place of ``block``, sampled from P; recurrent models need one on which
        they have a fixed point."""
        return block

    def run_forward(
        self, x: Tensor | CSR, p: Pass, at: Callable[[int, Callable[[Operator], Tensor]], Tensor]
    ) -> Tensor:
        """Logits, where the model ``owns_forward``: it calls ``at(l, layer)`` for every state, with ``layer(P)`` to
        compute it, and goes on with what it gets."""
        raise NotImplementedError

    def encode(self, x: Tensor | CSR, p: Pass) -> Tensor | CSR:
        """h^0, row by row from the features: exact for halo rows too."""
        if self.training and p.dropout:
            x = dropout(x, self.input_dropout, p.generator)
        if self.lin_in is None:
            return x
        s = self.lin_in(x, p)
        return s if self.act_in is None else self.act_in(s, p)

    def decode(self, h: Tensor, p: Pass) -> Tensor:
        """Logits, row by row from h^L."""
        if self.lin_out is None:
            return h
        return self.lin_out(drop(h, self.dropout, p) if self.training and p.dropout else h, p)

    def forward(self, x: Tensor | CSR, P: Operator | Sequence[Operator], p: Pass | None = None) -> Tensor:
        p = p or Pass()
        operators = P if isinstance(P, Sequence) else [P] * self.num_layers
        h = h0 = self.encode(x, p)
        for l, operator in enumerate(operators, start=1):
            h = self.layer(l).activate(self.layer(l)(h, operator, p, h0), p)
        assert isinstance(h, Tensor)
        return self.decode(h, p)

    def _set_up(
        self,
        in_width: int,
        hidden: int,
        out_width: int,
        num_layers: int,
        dropout: float,
        input_dropout: float | bool,
        **sizes: int,
    ) -> None:
        """Check and keep what every model is given; ``sizes`` are further widths and counts of at least one."""
        check_sizes(in_width=in_width, hidden=hidden, out_width=out_width, num_layers=num_layers, **sizes)
        self.in_width, self.out_width = in_width, out_width
        self.dropout = check_rate("dropout", dropout)
        self.input_dropout = input_rate(input_dropout, self.dropout)

    def reset_parameters(self, seed: int) -> None:
        """Draw the initial parameters from ``seed``; no global generator is touched."""
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, Drawn):
                module.reset_parameters(generator)
            elif isinstance(module, LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, BatchNorm):
                module.reset_parameters()
            elif isinstance(module, Bias):
                nn.init.zeros_(module.bias)


def input_rate(input_dropout: float | bool, dropout: float) -> float:
    """The rate on the features: a number of its own, or True for the same as elsewhere."""
    if isinstance(input_dropout, bool):
        return dropout if input_dropout else 0.0
    return check_rate("input_dropout", input_dropout)


def check_rate(name: str, rate: float) -> float:
    """A dropout rate in [0, 1)."""
    if not 0 <= rate < 1:
        raise ConfigError(f"expected {name} in [0, 1) (got {rate})")
    return float(rate)


def check_sizes(**sizes: int) -> None:
    """Widths and depths of at least one."""
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"expected {name} of at least 1 (got {size})")
