"""``lmc.wrap``: a network of PyG convolutions, unchanged, as a model that every method trains."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError, NotComparedWarning, typed
from lmc.graph import CSR, Graph
from lmc.models.base import Layer, Model
from lmc.models.passes import Operator, Pass, evaluating
from lmc.pyg.core_rows_mode import CoreRowsMode
from lmc.pyg.inspection import check_on, edge_data_read, inspect_network, sample_of
from lmc.pyg.matrices import LayerEdges, aggregation_of, marked_symmetric, matrix_of, same_entries, without_loops
from lmc.pyg.network_call import NetworkCall
from lmc.pyg.propagate_hook import ChooseState, EdgeUpdate, HookedPass, PropagateSpec, replaced_methods

MAX_CHECKED_NODES, MIN_CHECKED_NODES = 128, 8
"""Nodes of a user's graph on which ``bind`` compares a network with plain autograd."""
MAX_CHECKED_PRODUCTS = 2**28
"""Parameters times nodes in such a comparison; about a second on one core."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@typed
def wrap(
    network: nn.Module, in_width: int | None = None, output: int | str | None = None, *, edge_dim: int | None = None
) -> Model:
    """A network of PyG convolutions as a model for every method of this library.

    The network is not copied: training the model trains the network. Its ``forward`` is called with
    ``(x, edge_index)``, or with a PyG ``Data`` if it takes one argument. Between its convolutions it has to work row by
    row. Norms over all nodes, pooling and convolutions that choose their own edges are refused with a reason, after an
    inspection of the network on small graphs. ``bind`` repeats it on some nodes of the graph.

    Args:
        network: a model of ``torch_geometric.nn.models``, or any module built from PyG's convolutions.
        in_width: feature width; by default the ``in_channels`` or ``in_features`` of the network. A network with lazy
            modules is initialised with it, by default with the width of the first graph that it is used on.
        output: the entry to train, where the network returns a tuple, a list or a dict.
        edge_dim: width of the edge features, where ``forward`` takes ``edge_attr``; by default that of its first
            convolution that names one. ``edge_weight`` and ``edge_attr`` of the graph are passed on to a ``forward``
            that takes them, cut to the batch.
    """
    if isinstance(network, Model):
        return network
    if any("_orig_mod" in m._modules or getattr(m, "_compiled_call_impl", None) for m in network.modules()):
        raise ConfigError(
            "expected a network that is not compiled (got one of torch.compile, whose convolutions cannot be "
            "intercepted): wrap the network itself, and compile it after training"
        )
    model = WrappedNetwork(network, NetworkCall.of(network, output, edge_dim))
    if in_width is not None or not _is_lazy(network):
        model.initialise(_in_width(network) if in_width is None else in_width)
    return model


class WrappedNetwork(Model):
    """A model whose pass is the network's own ``forward``; layer l is its l-th ``propagate``, and the code between two
    calls is row-wise."""

    owns_forward = True
    transforms_before_aggregating = True
    lin_in = act_in = lin_out = None
    dropout = input_dropout = 0.0

    def __init__(self, network: nn.Module, call: NetworkCall) -> None:
        super().__init__()
        self.network, self._call = network, call

    def __getattr__(self, name: str) -> Any:
        if name in ("specs", "in_width", "out_width"):
            raise ConfigError(
                f"expected the feature width of {type(self.network).__name__}, which has lazy modules (got none yet): "
                "pass in_width to lmc.wrap, or bind the model to a graph first"
            )
        return super().__getattr__(name)

    def initialise(self, in_width: int) -> None:
        """Inspect the network, and initialise its lazy modules before, unless that has happened."""
        if "specs" in vars(self):
            return
        if _is_lazy(self.network):
            p = next(self.network.parameters())
            x, edges = torch.zeros(2, in_width, dtype=p.dtype, device=p.device), torch.tensor([[0, 1], [1, 0]])
            with torch.no_grad(), evaluating(self.network):
                self._call.with_zeros(self.network, x, edges.to(p.device))
        self._call = edge_data_read(self.network, self._call, in_width)
        found = inspect_network(self.network, self._call, in_width)
        self.specs, self.in_width, self.out_width = found.specs, in_width, found.out_width
        self.aggregates_features = found.use_of_px != "none"
        self.keeps_features = found.use_of_px == "beside_x"
        self.reads_all_rows = found.use_of_px != "replaces_x"
        # only with sparse products: what a convolution does over edges may make the host wait for the device
        self.recordable = self.linear and _is_recordable(self.network)

    def check_on(self, graph: Graph) -> None:
        """Compare the network with plain autograd on some nodes of a graph (:func:`lmc.pyg.inspection.check_on`).

        The cost is bounded: few nodes, and none where the network has too many parameters.
        """
        num_parameters = sum(p.numel() for p in self.network.parameters())
        num_nodes = min(graph.num_nodes, MAX_CHECKED_NODES, MAX_CHECKED_PRODUCTS // max(num_parameters, 1))
        if num_nodes < MIN_CHECKED_NODES:
            warnings.warn(
                f"{type(self.network).__name__} with {num_parameters:,} parameters was not compared with plain "
                f"autograd on {graph.name!r} with {graph.num_nodes} nodes: lmc.testing.check_model compares it on "
                "another graph",
                NotComparedWarning,
                stacklevel=2,
            )
            return
        check_on(self.network, self._call, self.specs, sample_of(graph, num_nodes))

    @property
    def num_layers(self) -> int:
        return len(self.specs)

    @property
    def widths(self) -> list[int]:
        return [spec.width for spec in self.specs]

    @property
    def message_widths(self) -> dict[int, int]:
        return {l: s.message_width for l, s in enumerate(self.specs, start=1) if l > 1 or not self.constant_input}

    @property
    def linear(self) -> bool:
        return all(spec.linear for spec in self.specs)

    affine = linear

    @property
    def exact(self) -> bool:
        return all(spec.linear or spec.heads for spec in self.specs)

    @property
    def reads_edge_weight(self) -> bool:
        return self._call.reads_edge_weight

    @property
    def edge_dim(self) -> int | None:  # type: ignore[override]
        return self._call.edge_dim

    def completes_halo(self, l: int) -> bool:
        return self.specs[l - 1].heads > 0

    @property
    def settings(self) -> dict[str, object]:
        return super().settings | {"name": f"wrap({type(self.network).__name__})"}

    def reset_parameters(self, seed: int) -> None:
        raise ConfigError("expected a network that draws its own parameters (got a seed): reset it before wrapping it")

    def layer(self, l: int) -> Layer:
        raise ConfigError("expected a model of lmc.models (got a wrapped network): it has no layers of its own")

    def forward(
        self, x: Tensor | CSR, P: Any, p: Any = None, *, edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Logits of every row.

        With a PyG ``edge_index`` as P this is the network's own forward pass. With an operator of this library, or a
        sequence of one operator per layer, it is the pass that methods use.
        """
        if isinstance(P, Tensor):
            rows, weight = x.to_dense() if isinstance(x, CSR) else x, p if edge_weight is None else edge_weight
            return self._call(self.network, rows, P, weight, edge_attr)
        operators: Sequence[Operator] = P if isinstance(P, Sequence) else [P] * self.num_layers
        return self.run_forward(x, p or Pass(), lambda l, layer: layer(operators[l - 1]))

    def run_forward(self, x: Tensor | CSR, p: Pass, at: ChooseState) -> Tensor:
        """Logits of the rows that the last layer computes, core rows first; ``at`` chooses the state of each layer."""
        rows = x.to_dense() if isinstance(x, CSR) else x
        PX = None
        if rows.shape[1] == 2 * self.in_width:  # [P X | X]
            PX, rows = rows.split(self.in_width, 1)
        weights = [*self.network.parameters(), *self.network.buffers()]
        mode = CoreRowsMode(weights, rows.shape[0], p, self.network.modules() if p.batch_renorm else ())
        hooked = HookedPass(self.network, self.specs, at, mode, PX, not self.reads_all_rows)
        return hooked.run(self._call, rows)[: hooked.num_computed]

    def matrices(self, adj: CSR, dtype: torch.dtype) -> tuple[list[CSR], tuple[int, ...]]:
        """The distinct matrices that the convolutions compute from the edges of the whole graph, and which of them each
        layer reads."""
        found: list[CSR] = []
        index = []
        for layer in self._layer_edges(adj):
            P = matrix_of(adj, layer, dtype)
            same = [k for k, other in enumerate(found) if same_entries(P, other)]
            if not same:
                found.append(marked_symmetric(P))
            index.append(same[0] if same else len(found) - 1)
        return found, tuple(index)

    def renormalise(self, block: CSR, l: int) -> CSR:
        """The matrix of layer l on the subgraph that ``block`` is the pattern of."""
        adj = without_loops(block)
        return marked_symmetric(matrix_of(adj, self._layer_edges(adj)[l - 1], block.dtype))

    def _layer_edges(self, adj: CSR) -> list[LayerEdges]:
        """What every ``propagate`` sums over on a graph, from a pass with zeros for features and sums.

        The weights of a bfloat16 network are computed by a float32 copy: sums of ones end at 256 in bfloat16.
        """
        network, dtype = self.network, next(self.network.parameters()).dtype
        if dtype.itemsize < 4:
            network, dtype = copy.deepcopy(network).float(), torch.float32
        n, found = adj.num_rows, list[LayerEdges]()

        def propagate(convolution: Any, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> Tensor:
            spec = self.specs[len(found)]
            weight = None if spec.weight is None else kwargs[spec.weight]
            weight = None if weight is None else weight.flatten()
            aggregation = aggregation_of(convolution) if spec.linear else None
            found.append(LayerEdges(edge_index, weight, aggregation, _edge_features(spec, kwargs)))
            return torch.zeros(n, *spec.shape, dtype=dtype, device=adj.device)

        x = torch.zeros(1, self.in_width, dtype=dtype, device=adj.device).expand(n, -1)
        exact = torch.autocast(adj.device.type, enabled=False)
        edges = torch.stack([adj.indices.long(), adj.row_index()])
        data = (None if part is None else part.to(dtype) for part in (adj.values, adj.edge_data))
        with evaluating(network), torch.no_grad(), exact, replaced_methods(network, propagate):
            self._call(network, x, edges, *data)
        return found


def _edge_features(spec: PropagateSpec, kwargs: dict[str, Any]) -> Tensor | None:
    """The edge features among the arguments of ``propagate``, and of the ``edge_updater`` call before it."""
    updates = [value.kwargs for value in kwargs.values() if isinstance(value, EdgeUpdate)]
    return next((each[spec.features] for each in (*updates, kwargs) if spec.features in each), None)


def _is_lazy(network: nn.Module) -> bool:
    """Whether the network has parameters or buffers whose shape depends on the features."""
    return any(nn.parameter.is_lazy(t) for t in [*network.parameters(), *network.buffers()])


def _in_width(network: nn.Module) -> int:
    """The feature width of the network, or of its first module that has one."""
    for module in network.modules():
        for name in ("in_channels", "in_features"):
            width = getattr(module, name, None)
            if isinstance(width, int) and width > 0:
                return width
    raise ConfigError(f"expected a network that says its feature width (got {type(network).__name__}): pass in_width")


def _is_recordable(network: nn.Module) -> bool:
    """Whether steps of the network can be recorded as CUDA graphs (:mod:`lmc.engine.cuda_graphs`).

    A CUDA graph repeats the operations of the pass that was recorded. A network that takes decisions during a pass
    (layers left out at random, a hook that writes a log) would take them once and for all, and a network that reads a
    number from the device cannot be recorded at all. What a user's own code does is not known, so only networks that
    consist of PyG's and torch's own modules are recorded.
    """
    from torch_geometric.nn.models.basic_gnn import BasicGNN

    act = getattr(network, "act", None)
    known_act = act is None or isinstance(act, nn.Module)
    return isinstance(network, BasicGNN) and known_act and all(_repeats(module) for module in network.modules())


def _repeats(module: Any) -> bool:
    home = type(module).__module__
    known = home.startswith(("torch.nn.", "torch_geometric.nn.")) or home == "torch_geometric.utils._trim_to_layer"
    hooked = any(getattr(module, hooks, None) for hooks in HOOKS)
    # without a momentum, batch norm divides by a count that it reads on the host
    reads_count = isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None
    return known and not hooked and not reads_count and not isinstance(module, nn.RNNBase)
