"""``lmc.wrap``: a network of PyG convolutions, unchanged, as a model that every method trains."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.models.base import Layer, Model
from lmc.models.rows import Operator, Pass
from lmc.pyg.core_rows_mode import CoreRows
from lmc.pyg.inspection import First, examine
from lmc.pyg.matrices import Recording, matrix_of, symmetric, without_loops
from lmc.pyg.propagate_hook import At, Crossing, Passage, taken_over
from lmc.pyg.replay import replays


def wrap(network: nn.Module, in_width: int | None = None) -> Model:
    """A network of PyG convolutions as a model for every method of this library. It is not copied: training the model
    trains the network.

    Its ``forward`` is called with ``(x, edge_index)``, or with a PyG ``Data`` where it has one argument. Between its
    convolutions it has to work row by row: norms over all nodes, pooling and convolutions that choose their own edges
    are refused with a reason, after a look at what the network does on a graph of twelve nodes.

    Args:
        network: a model of ``torch_geometric.nn.models``, or any module built from its convolutions.
        in_width: feature width; by default what the network says (``in_channels``).
    """
    if isinstance(network, Model):
        return network
    if not isinstance(network, nn.Module):
        raise ConfigError(f"expected a torch.nn.Module (got {type(network).__name__})")
    in_width = _in_width(network) if in_width is None else in_width
    call = _calling(network)
    if any(nn.parameter.is_lazy(p) for p in network.parameters()):
        with torch.no_grad():  # materialises parameters whose shape the features decide
            call(network, torch.zeros(2, in_width), torch.tensor([[0, 1], [1, 0]]))
    crossings, out_width, first = examine(network, call, in_width)
    return Wrapped(network, call, crossings, in_width, out_width, first)


class Wrapped(Model):
    """A network whose own ``forward`` drives the pass; layer l is its l-th ``propagate``."""

    owns_forward = True
    transforms_before_aggregating = True
    lin_in = act_in = lin_out = None
    dropout = input_dropout = 0.0

    def __init__(
        self,
        network: nn.Module,
        call: Any,
        crossings: tuple[Crossing, ...],
        in_width: int,
        out_width: int,
        first: First,
    ) -> None:
        super().__init__()
        self.network = network
        self.crossings = crossings
        self.in_width, self.out_width = in_width, out_width
        self._call = call
        self._first = first
        self.keeps_features = first == "beside"
        self.reads_all_rows = first != "swapped"

    @property
    def num_layers(self) -> int:
        return len(self.crossings)

    @property
    def widths(self) -> list[int]:
        return [c.width for c in self.crossings]

    @property
    def message_widths(self) -> dict[int, int]:
        return {l: c.message_width for l, c in enumerate(self.crossings, start=1) if l > 1 or not self.constant_input}

    @property
    def constant_input(self) -> bool:
        return self._first != "changing"

    @property
    def affine(self) -> bool:
        return all(c.linear for c in self.crossings)

    @property
    def linear(self) -> bool:
        return self.affine

    @property
    def exact(self) -> bool:
        return all(c.linear or c.heads for c in self.crossings)

    @property
    def recordable(self) -> bool:
        """Only with sparse products: a convolution's own way over the edges may wait for the device."""
        return self.linear and replays(self.network)

    def completes_halo(self, l: int) -> bool:
        return self.crossings[l - 1].heads > 0

    @property
    def settings(self) -> dict[str, object]:
        return super().settings | {"name": f"wrap({type(self.network).__name__})"}

    def reset_parameters(self, seed: int) -> None:
        raise ConfigError("expected a network that draws its own parameters (got a seed): reset it before wrapping it")

    def layer(self, l: int) -> Layer:
        raise ConfigError("expected a model of lmc.models (got a wrapped network): it has no layers of its own")

    def forward(self, x: Tensor | CSR, P: Any, p: Pass | None = None) -> Tensor:
        """The network's own forward pass for a PyG ``edge_index``; for an operator of this library, or one a layer,
        the pass that methods use."""
        if isinstance(P, Tensor):
            return self._call(self.network, x.to_dense() if isinstance(x, CSR) else x, P)
        operators: Sequence[Operator] = P if isinstance(P, Sequence) else [P] * self.num_layers
        return self.run_forward(x, p or Pass(), lambda l, layer: layer(operators[l - 1]))

    def run_forward(self, x: Tensor | CSR, p: Pass, at: At) -> Tensor:
        """Logits of the rows that the last crossing gives, core rows first; each crossing asks ``at`` for its state."""
        x = x.to_dense() if isinstance(x, CSR) else x
        PX = None
        if x.shape[1] == 2 * self.in_width:  # [P X | X]
            PX, x = x.split(self.in_width, 1)
        fixed = [*self.network.parameters(), *self.network.buffers()]
        mode = CoreRows(fixed, x.shape[0], p, self.network.modules() if p.batch_renorm else ())
        passage = Passage(self.network, self.crossings, x.shape[0], p, at, mode)
        passage.first, passage.swapped = PX, not self.reads_all_rows
        entered = passage.entered if p.grad_from_halo and p.num_core is not None else None
        with taken_over(self.network, passage.propagate, passage.edge_updater, normalised=True, entered=entered), mode:
            logits = self._call(self.network, x, _no_edges(x.device))
        return logits[: passage.rows]

    def matrices(self, adj: CSR, dtype: torch.dtype) -> tuple[list[CSR], tuple[int, ...]]:
        """Every distinct matrix that the convolutions aggregate with on this graph, and which of them each layer
        reads: computed by the convolutions themselves from the whole graph's edges."""
        found: list[CSR] = []
        kinds = []
        for l in range(1, self.num_layers + 1):
            P = self._matrix(adj, l, dtype)
            same = [k for k, other in enumerate(found) if torch.equal(P.data, other.data)]
            if not same:
                found.append(symmetric(P))
            kinds.append(same[0] if same else len(found) - 1)
        self._recorded = None
        return found, tuple(kinds)

    def renormalise(self, block: CSR, l: int) -> CSR:
        """The matrix of layer l on the subgraph that ``block`` is the pattern of."""
        matrix = symmetric(self._matrix(without_loops(block), l, block.dtype))
        self._recorded = None
        return matrix

    _recorded: Recording | None = None

    def _matrix(self, adj: CSR, l: int, dtype: torch.dtype) -> CSR:
        if self._recorded is None:
            self._recorded = Recording.of(self.network, self._call, self.crossings, adj, self.in_width, dtype)
        edges, weight = self._recorded.calls[l - 1]
        return matrix_of(adj, edges, weight, self._recorded.aggregations[l - 1], dtype)


def _no_edges(device: torch.device) -> Tensor:
    return torch.empty(2, 0, dtype=torch.int64, device=device)


def _in_width(network: nn.Module) -> int:
    """The feature width that a network, or else its first part that says one, was built for."""
    for module in network.modules():
        for name in ("in_channels", "in_features"):
            width = getattr(module, name, None)
            if isinstance(width, int) and width > 0:
                return width
    raise ConfigError(f"expected a network that says its feature width (got {type(network).__name__}): pass in_width")


def _calling(network: nn.Module) -> Any:
    """How to call the network: with (x, edge_index), or with a Data that holds them."""
    parameters = [
        p
        for p in inspect.signature(network.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(parameters) != 1:
        return _with_arrays
    return _with_data


def _with_arrays(network: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    return network(x, edge_index)


def _with_data(network: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    from torch_geometric.data import Data

    return network(Data(x=x, edge_index=edge_index))
