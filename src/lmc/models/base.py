"""What a model is to a method: an encoder, layers, a decoder. Models know no method.

A layer is the paper's equation (4) in two parts, so that a method may store the state between them:

    s^l = layer(h^{l-1})        aggregation and the affine map: the state before the activation
    h^l = layer.activate(s^l)   norm and nonlinearity, row by row
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError, check_at_least, check_within
from lmc.graph import CSR, Aggregation, Graph, checked_edges, normalise, renormalise
from lmc.models.activation import Activation, BatchNorm, drop
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Embedding, Linear, Resettable

Rows = TypeVar("Rows", Tensor, Tensor | CSR)


class Layer(nn.Module, ABC):
    """One message-passing layer."""

    out_width: int
    """The width of the state s^l."""
    activation: Activation | None
    """What follows the state; None: nothing does."""
    dropout: float
    """The rate of the dropout on the layer's input h^{l-1}."""
    affine: bool = True
    """Whether s^l is an affine function of P t, so that the Jacobian of a row does not depend on its aggregate."""
    linear: bool = True
    """Whether the aggregation is a fixed linear map of the messages, P t (attention is not)."""
    completes_halo: bool = False
    """Whether the layer completes halo rows from their stored states, so that their Jacobian is exact all the same."""
    affine_of: tuple[()] | tuple[Literal["sums"]] | tuple[Literal["sums"], Literal["rows"]] = ()
    """What s^l is an affine function of, row by row: the sums P t, or the sums and the rows h^{l-1}. Empty where it
    depends on anything else, or is not affine. A step may call ``forward`` once more, with rows that belong to no node
    and an operator that holds their sums, to get the statistics of s^l over all nodes."""

    @abstractmethod
    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        """s^l of P's output rows, from h^{l-1} of P's input rows; h0 is the encoded input h^0."""

    def activate(self, s: Tensor, p: Pass) -> Tensor:
        """h^l from s^l."""
        return s if self.activation is None else self.activation(s, p)

    def drop(self, h: Rows, p: Pass) -> Rows:
        """h^{l-1} with dropout, in training."""
        return drop(h, self.dropout, p, self.training)


class Hooks(nn.Module):
    """What the engine calls around the passes of a model. By default nothing happens."""

    def initialise(self, in_width: int) -> None:
        """Called with the feature width of a graph before the model is first used on it."""

    def check_on(self, graph: Graph) -> None:
        """Called once with the graph before training on it; refuses what was not known without the graph."""

    def prepare(self, P: CSR) -> None:
        """Called once with the whole graph's aggregation matrix, before training on it."""

    def project(self) -> None:
        """Project the parameters onto the set where the model is well-posed; called after every optimiser step."""

    def well_posed(self, block: CSR) -> CSR:
        """The matrix to aggregate with instead of ``block``, a sample of P; recurrent models scale it so that their
        fixed point exists."""
        return block


class Model(Hooks, ABC):
    """Encoder, layers, decoder.

    ``model(x, edge_index, edge_weight)`` is the plain forward pass on all rows, as in PyG. The edges are checked and
    normalised at every call.
    """

    in_width: int
    out_width: int
    layers: nn.ModuleList
    dropout: float
    input_dropout: float
    lin_in: Linear | Embedding | None
    act_in: Activation | None
    lin_out: Linear | None
    reads_input: bool = False
    """Whether layers after the first read the encoded input h^0."""
    normalisation: str = "gcn"
    """The aggregation matrix P, one of :data:`lmc.graph.NORMALISATIONS`."""
    transforms_before_aggregating: bool = False
    """Whether parameters are applied to rows before they are aggregated."""
    reads_all_rows: bool = False
    """Whether the input of every row of a batch is read, also where the first operator has fewer inputs."""
    owns_forward: bool = False
    """Whether the model runs its own forward pass (``run_forward``) instead of being run layer by layer."""
    keeps_features: bool = False
    """Whether the first layer reads X in addition to a constant P X."""
    recurrent: bool = False
    """Whether the one layer is iterated to a fixed point (:class:`lmc.models.equilibrium.Recurrent`)."""
    encodes_aggregates: bool = False
    """Whether the encoder reads P X in the place of X (:class:`lmc.models.IGNN`)."""
    aggregates_features: bool = False
    """Whether the first layer reads P X alone, apart from dropout on X."""
    recordable: bool = True
    """Whether a pass always runs the same operations without waiting for the device, so that a CUDA graph can record
    it."""

    arguments: dict[str, object] | None
    """The arguments that the model was made with, by name; None where they are not plain numbers and words."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        model = super().__new__(cls)
        object.__setattr__(model, "arguments", _plain_arguments(cls, args, kwargs))
        return model

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
    def reads_edge_weight(self) -> bool:
        """Whether edge weights change the result, as they do where P is what messages are summed with."""
        return self.linear

    edge_dim: int | None = None
    """The width of the edge features that messages read; None: they read none."""

    @property
    def message_widths(self) -> dict[int, int]:
        """The width of the rows that each layer aggregates, for aggregations that are neither constant nor of X."""
        widths = {l + 1: width for l, width in enumerate(self.widths[:-1], start=1)}
        if self.lin_in is not None:
            widths[1] = self.lin_in.out_width
        return widths

    @property
    def constant_input(self) -> bool:
        """Whether the first layer reads P X alone, and P X is constant."""
        return self.aggregates_features and self.input_dropout == 0

    @property
    def settings(self) -> dict[str, object]:
        """Every number, word and flag of the model and its parts by name: what its parameters do not determine.

        The flags that :class:`Model` declares are left out, since they follow from the others.
        """
        derived = {"training", *(name for name, value in vars(Model).items() if isinstance(value, bool))}
        return {
            f"{path}.{key}".lstrip("."): value
            for path, module in self.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and key not in derived and not key.startswith("_")
        }

    def matrices(self, adj: CSR, dtype: torch.dtype) -> tuple[list[CSR], tuple[int, ...]]:
        """The matrices the layers aggregate with on a graph, and which of them each layer reads."""
        return [normalise(adj, self.normalisation, dtype)], (0,) * self.num_layers

    def renormalise(self, block: CSR, l: int) -> CSR:
        """The matrix of layer l on the subgraph whose pattern is ``block``, taken as a graph of its own."""
        return renormalise(block, self.normalisation)

    def run_forward(
        self, x: Tensor | CSR, p: Pass, at: Callable[[int, Callable[[Operator], Tensor]], Tensor]
    ) -> Tensor:
        """Logits of a model that ``owns_forward``. It calls ``at(l, layer)`` for the state of every layer, where
        ``layer(P)`` computes that state, and continues with the result."""
        raise NotImplementedError

    def encode(self, x: Tensor | CSR, p: Pass) -> Tensor | CSR:
        """h^0, row by row from the features: exact for halo rows too."""
        x = drop(x, self.input_dropout, p, self.training)
        if self.lin_in is None:
            return x
        s = self.lin_in(x, p)
        return s if self.act_in is None else self.act_in(s, p)

    def decode(self, h: Tensor, p: Pass) -> Tensor:
        """Logits, row by row from h^L."""
        return h if self.lin_out is None else self.lin_out(drop(h, self.dropout, p, self.training), p)

    def forward(
        self, x: Tensor | CSR, P: Tensor | Operator | Sequence[Operator], p: Pass | Tensor | None = None, *,
        edge_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Logits of every row.

        Args:
            x: features [n, in_width].
            P: ``edge_index`` [2, E] as [source, target], without self-loops and duplicates; or an operator of this
                library, or a sequence of one operator per layer.
            p: the settings of the pass; or the edge weights, as the third argument of PyG's models.
            edge_weight: the weights [E] of the edges in ``edge_index``.
        """
        operators, p = operators_of(self, x, P, p if edge_weight is None else edge_weight)
        h = h0 = self.encode(x, p)
        for l, operator in enumerate(operators, start=1):
            h = self.layer(l).activate(self.layer(l)(h, operator, p, h0), p)
        assert isinstance(h, Tensor)
        return self.decode(h, p)

    def __repr__(self) -> str:
        widths = " > ".join(map(str, self.widths))
        count = sum(p.numel() for p in self.parameters())
        name = self.settings.get("name", type(self).__name__)
        return f"{name}({self.in_width} to {self.out_width}, states of width {widths}, {count:,} parameters)"

    def reset_parameters(self, seed: int) -> None:
        """Draw the initial parameters from ``seed``, without torch's global generator."""
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, Resettable | BatchNorm):
                module.reset_parameters(generator)


def operators_of(
    model: Model, x: Tensor | CSR, P: Tensor | Operator | Sequence[Operator], p: Pass | Tensor | None
) -> tuple[Sequence[Operator], Pass]:
    """One operator per layer, and the settings of the pass, from the arguments of :meth:`Model.forward`."""
    if not isinstance(P, Tensor):
        assert not isinstance(p, Tensor)
        return P if isinstance(P, Sequence) else [P] * model.num_layers, p or Pass()
    if len(x.shape) != 2 or x.shape[1] != model.in_width:
        raise ConfigError(
            f"expected features [n, {model.in_width}] (got shape {list(x.shape)}): make the model with the width of x"
        )
    weight, p = (p, Pass()) if isinstance(p, Tensor) else (None, p or Pass())
    if weight is not None and (weight.requires_grad or not model.reads_edge_weight):
        why = "constant edge weights" if model.reads_edge_weight else "no edge weights, which it does not read"
        raise ConfigError(f"expected {why} for {type(model).__name__} (got edge_weight): use lmc.wrap for others")
    # with directed=True an undirected graph is the special case that it is in PyG
    adj = checked_edges(P, x.shape[0], directed=True, edge_weight=weight)
    matrices, index = model.matrices(adj, next(model.parameters()).dtype)
    return [Aggregation.exact(matrices[number]) for number in index], p


def _plain_arguments(cls: type, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object] | None:
    """The arguments of a class by name, with defaults and without the seed; None where they are not plain values."""
    try:
        given = inspect.signature(cls.__init__).bind(None, *args, **kwargs)  # type: ignore[misc]
    except TypeError:  # of a copy, or of a wrong call, which the class refuses itself
        return None
    given.apply_defaults()
    found = {name: value for name, value in list(given.arguments.items())[1:] if name != "seed"}
    return found if all(isinstance(value, Real | str | None) for value in found.values()) else None


def configure(
    model: Model, in_width: int, out_width: int, dropout: float, input_dropout: float | bool, **sizes: int
) -> None:
    """Check the arguments that all models share, and store widths and rates in the model.

    Args:
        input_dropout: the rate on the features; True: the same rate as ``dropout``.
        sizes: further widths and counts, each at least 1.
    """
    check_at_least(1, in_width=in_width, out_width=out_width, **sizes)
    if isinstance(input_dropout, bool):
        input_dropout = dropout if input_dropout else 0.0
    check_within("[0, 1)", dropout=dropout, input_dropout=input_dropout)
    model.in_width, model.out_width = in_width, out_width
    model.dropout, model.input_dropout = float(dropout), float(input_dropout)


def layer_shapes(
    in_width: int, hidden: int, out_width: int, num_layers: int, linear_in: bool = False, linear_out: bool = False
) -> Iterator[tuple[int, int, bool, bool]]:
    """For every layer its input width, its output width, whether it reads the features and whether it gives the logits.

    Args:
        linear_in, linear_out: a Linear is before the first and after the last layer, so that both have hidden rows.
    """
    for l in range(1, num_layers + 1):
        first, last = l == 1 and not linear_in, l == num_layers and not linear_out
        yield in_width if first else hidden, out_width if last else hidden, first, last
