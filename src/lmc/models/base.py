"""What a model is to a method: an encoder, layers, a decoder. Models know no method.

A layer is the paper's equation (4) in two strokes, so that a method may cut between them:

    s^l = layer(h^{l-1})        aggregation and the affine map: the state before the activation
    h^l = layer.activate(s^l)   norm and nonlinearity, row by row
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.models.dropout import dropout
from lmc.models.rows import BatchNorm, LayerNorm, Linear, Operator, Pass

NORMS = (None, "layer", "batch")


class Activation(nn.Module):
    """norm, then ReLU; row by row."""

    def __init__(self, width: int, norm: str | None) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ConfigError(f"expected norm in {NORMS} (got {norm!r})")
        self.norm = None if norm is None else LayerNorm(width) if norm == "layer" else BatchNorm(width)

    def forward(self, s: Tensor, p: Pass) -> Tensor:
        return (s if self.norm is None else self.norm(s, p)).relu()


class Layer(nn.Module, ABC):
    """One message-passing layer; ``activation`` is None where nothing follows the affine map."""

    activation: Activation | None
    out_width: int
    dropout: float
    affine: bool = True
    """Whether s^l is an affine function of P t, so that the Jacobian of a row does not depend on its aggregate."""
    linear: bool = True
    """Whether the aggregation is a fixed linear map of the messages, P t (attention is not)."""

    @abstractmethod
    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        """s^l for the rows P gives out, from h^{l-1} of the rows P takes in; h0 is the encoded input."""

    def activate(self, s: Tensor, p: Pass) -> Tensor:
        """h^l from s^l."""
        return s if self.activation is None else self.activation(s, p)

    def drop(self, h: Tensor | CSR, p: Pass) -> Tensor | CSR:
        """h^{l-1} with dropout, in training."""
        return dropout(h, self.dropout, p.generator) if self.training and p.dropout else h


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
        t = dropout(h, self.dropout, p.generator) if self.training and p.dropout else h
        return self.lin_out(t, p)

    def forward(self, x: Tensor | CSR, P: Operator | Sequence[Operator], p: Pass | None = None) -> Tensor:
        p = p or Pass()
        operators = P if isinstance(P, Sequence) else [P] * self.num_layers
        h = h0 = self.encode(x, p)
        for l, operator in enumerate(operators, start=1):
            h = self.layer(l).activate(self.layer(l)(h, operator, p, h0), p)
        assert isinstance(h, Tensor)
        return self.decode(h, p)

    def reset_parameters(self, seed: int) -> None:
        """Draw the initial parameters from ``seed``; no global generator is touched."""
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, Linear):
                module.reset_parameters(generator)
            elif isinstance(module, LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, BatchNorm):
                module.reset_parameters()


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
