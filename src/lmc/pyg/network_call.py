"""How a wrapped network is called, and what it is given of the edges."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lmc.errors import ConfigError

EDGE_ARGUMENTS = ("edge_weight", "edge_attr")
"""Arguments of ``forward`` that hold a number, or a row, for every edge."""


@dataclass(frozen=True)
class NetworkCall:
    """A network is called with (x, edge_index) or a PyG ``Data`` that holds them, and with the edge data that it takes.

    Args:
        takes_data: ``forward`` takes one argument, a ``Data``.
        output: the entry of its result that is trained; None: the result itself.
        accepted: the edge arguments that ``forward`` takes.
        required: those of them without a default.
        edge_dim: the width of the edge features; None: the network reads none.
        reads_edge_weight: whether edge weights change the result; an inspection finds it.
    """

    takes_data: bool
    output: int | str | None
    accepted: tuple[str, ...]
    required: tuple[str, ...]
    edge_dim: int | None
    reads_edge_weight: bool = False

    @classmethod
    def of(cls, network: nn.Module, output: int | str | None, edge_dim: int | None) -> NetworkCall:
        """The call that fits the arguments of the network's ``forward``."""
        parameters = list(inspect.signature(network.forward).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_data = len(positional) == 1
        others = [p for p in parameters if p not in positional[: 1 if takes_data else 2]]
        required = [p.name for p in others if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        unknown = [name for name in required if name not in EDGE_ARGUMENTS]
        if unknown:
            raise ConfigError(
                f"expected forward(x, edge_index) or forward(data) in {type(network).__name__} (got the required "
                f"arguments {', '.join(unknown)} too): give them defaults, or wrap a module that passes them"
            )
        accepted = tuple(name for name in EDGE_ARGUMENTS if takes_data or name in {p.name for p in others})
        width = edge_dim_of(network, edge_dim, "edge_attr" in required) if "edge_attr" in accepted else None
        return cls(takes_data, output, accepted, tuple(required), width)

    def __call__(
        self, network: nn.Module, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Any:  # fmt: skip
        if edge_index.shape[1] == 0:  # a pass of a method, in which convolutions get their edges from the operators
            edge_weight = x.new_empty(0) if self.reads_edge_weight else None
            edge_attr = x.new_empty(0, self.edge_dim) if self.edge_dim else None
        given = {"edge_weight": edge_weight, "edge_attr": edge_attr}
        given = {name: value for name, value in given.items() if value is not None}
        for name in self.required:
            if name not in given:
                raise ConfigError(
                    f"expected a graph with {name} for {type(network).__name__}, whose forward requires it (got one "
                    f"without): build the graph with {name}"
                )
        if not self.takes_data:
            return self._entry(network, network(x, edge_index, **given))
        from torch_geometric.data import Data

        return self._entry(network, network(Data(x=x, edge_index=edge_index, **given)))

    def with_zeros(self, network: nn.Module, x: Tensor, edge_index: Tensor) -> Any:
        """A call with zeros for the edge data that ``forward`` requires."""
        m = edge_index.shape[1]
        weight = x.new_zeros(m) if "edge_weight" in self.required else None
        attr = x.new_zeros(m, self.edge_dim) if "edge_attr" in self.required and self.edge_dim else None
        return self(network, x, edge_index, weight, attr)

    def _entry(self, network: nn.Module, out: Any) -> Any:
        """The entry of a result that is trained."""
        if self.output is None:
            return out
        entries = out if isinstance(out, dict) else dict(enumerate(out if isinstance(out, tuple | list) else ()))
        if self.output not in entries:
            raise ConfigError(
                f"expected an entry {self.output!r} in the result of {type(network).__name__} (got "
                f"{type(out).__name__} with {list(entries) or 'no entries'}): pass the output to train to lmc.wrap"
            )
        return entries[self.output]


def edge_dim_of(network: nn.Module, given: int | None, required: bool) -> int | None:
    """The width of edge features: ``given``, or the one that the first convolution with edge features names. None where
    no convolution names one; this is refused where ``forward`` requires edge features."""
    from torch_geometric.nn import GINEConv

    if given is not None:
        return given
    for module in network.modules():
        lin = getattr(module, "lin_edge", None) or (
            getattr(module, "lin", None) if isinstance(module, GINEConv) else None
        )
        for width in (getattr(module, "edge_dim", None), getattr(lin, "in_channels", None)):
            if isinstance(width, int) and width > 0:
                return width
    if not required:
        return None
    raise ConfigError(
        f"expected the width of the edge features of {type(network).__name__}, whose forward requires edge_attr (got "
        "none): pass edge_dim to lmc.wrap"
    )
