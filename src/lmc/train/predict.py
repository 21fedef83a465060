"""Predictions: the exact forward pass, in chunks of rows, for the nodes that a user names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from lmc.engine import Distributed, Problem, check_fit
from lmc.engine.exact import MAX_ELEMENTS, chunks_of, exact_logits, last_states, widest_row
from lmc.engine.problem import kind_of
from lmc.errors import ConfigError, typed
from lmc.graph import Graph, Nodes, Shard
from lmc.graph.csr import CHUNK
from lmc.methods.protocol import Setup
from lmc.models import Model, Pass, evaluating
from lmc.stores import Placement, Table, placement_on
from lmc.train.evaluate import shared_problem

OUTPUTS = ("logits", "probabilities", "classes", "states")

COPIES = 8
"""Rows that a layer holds for each row that a chunk reads: inputs, products, messages, outputs."""
NATIVE, WRAPPED = (45, 13), (112, 32)
"""Bytes for every entry of P: temporary ones while P is computed, and those of P; measured."""


@typed
def predict(
    model: Model, graph: Graph | Shard, nodes: Nodes | None = None, output: str = "logits", *, layer: int | None = None,
    memory: int | None = None, placement: Placement | None = None, distributed: bool | Distributed = False,
) -> Tensor:  # fmt: skip
    """The outputs of ``model`` for nodes of ``graph``, by the exact forward pass on the whole graph.

    The graph may be another one than that of training. It needs no targets and no splits. Of several ranks, each may
    pass its own shard; node numbers are those of the whole graph.

    Args:
        model: used on the device it is on, in evaluation mode; afterwards every submodule has its own mode again.
        nodes: node numbers, in any order and repeated if wished, or a boolean mask [n]; None: all nodes.
        output: "logits" [k, C]; "probabilities" [k, C], by a softmax, or by sigmoids for a task of several labels;
            "classes", the likeliest class [k], or 0 and 1 for every label [k, C]; "states", the state h^l [k, width]
            that ``layer`` l gives to the next one. In a wrapped network it is the result of the l-th ``propagate``.
        layer: 1 to the number of layers, for "states"; by default the last.
        memory: bytes that the device may need in addition to the graph, the model and the result. The forward pass is
            divided into chunks that fit, and states are kept in host memory, or on disk, where they do not fit. It does
            not change the result. None: chunks of at most 1 GiB.
        placement: where states between layers (``history``), features and edges are kept.
        distributed: predict together with the other processes that torchrun started; all of them get the result.

    Returns:
        One row for every requested node, in the order of ``nodes``, on the device of ``graph``.
    """
    check_fit(graph, model, needs="features")
    given, graph = graph, graph.graph if isinstance(graph, Shard) else graph
    _check_output(model, graph, output, layer)
    index = _node_index(nodes, given.num_nodes)
    placement = placement_on(next(model.parameters()).device, placement)
    max_elements = MAX_ELEMENTS
    if memory is not None:
        placement, max_elements = _within(memory, graph, model, placement)
    with torch.no_grad():
        problem = shared_problem(given, model, placement, distributed, Setup(precompute=False))
        chunks = chunks_of(problem, max_elements, per_edge=memory is not None and not model.linear)
        rows = index if problem.exchange is None else problem.exchange.local_rows(index)
        here = (rows >= 0).nonzero().squeeze(1)
        wanted = rows[here].to(problem.device).split(max(1, max_elements // widest_row(graph, model)))
        if output == "states":
            found = _layer_outputs(problem, last_states(problem, chunks, upto=layer), wanted, layer)
        else:
            found = (rows for _, rows in exact_logits(problem, wanted, last_states(problem, chunks)))
        made = torch.cat([_as(output, rows, graph.task == "labels").to(graph.device) for rows in found])
        return made if problem.exchange is None else problem.exchange.joined(made, here, index.numel())


def _as(output: str, rows: Tensor, several_labels: bool) -> Tensor:
    """Logits, or states, in the form of the output."""
    if output == "probabilities":
        return rows.sigmoid() if several_labels else rows.softmax(1)
    if output == "classes":
        return (rows > 0).long() if several_labels else rows.argmax(1)
    return rows


def _layer_outputs(
    problem: Problem, states: Sequence[Table], wanted: Sequence[Tensor], layer: int | None
) -> Iterator[Tensor]:
    """h^l of the requested rows, piece by piece."""
    model = problem.model
    with evaluating(model):
        for rows in wanted:
            s = states[-1].pull(rows)
            yield s if model.owns_forward else model.layer(layer or model.num_layers).activate(s, Pass())


def _check_output(model: Model, graph: Graph, output: str, layer: int | None) -> None:
    if output not in OUTPUTS:
        raise ConfigError(f"expected output in {list(OUTPUTS)} (got {output!r})")
    if output in ("probabilities", "classes") and graph.task == "regression":
        raise ConfigError(f'expected output="logits" for a regression (got {output!r}): they are the predicted numbers')
    if layer is not None and output != "states":
        raise ConfigError(f'expected layer with output="states" alone (got layer={layer} with {output!r}): drop it')
    if layer is not None and not 1 <= layer <= model.num_layers:
        raise ConfigError(f"expected layer from 1 to {model.num_layers} (got {layer}): the model has no other")


def _node_index(nodes: Nodes | None, n: int) -> Tensor:
    """Node numbers [k], from node numbers or a mask."""
    if nodes is None:
        return torch.arange(n)
    chosen = torch.as_tensor(nodes)
    if chosen.numel() == 0 and chosen.dim() == 1:
        return chosen.long()
    if chosen.dim() != 1 or chosen.is_floating_point() or chosen.is_complex():
        raise ConfigError(
            f"expected nodes as a mask or whole node numbers, one-dimensional (got {chosen.dtype} of shape "
            f"{list(chosen.shape)}): convert them to one of these"
        )
    if chosen.dtype == torch.bool:
        if chosen.numel() != n:
            raise ConfigError(
                f"expected a mask of length {n} for nodes (got {chosen.numel()}): pass a boolean per node"
            )
        return chosen.nonzero().squeeze(1)
    if 2 < n == chosen.numel() and bool(((chosen == 0) | (chosen == 1)).all()):
        raise ConfigError(
            f"expected nodes as a boolean mask or node numbers (got {n} numbers 0 and 1 for {n} nodes): pass "
            "nodes.bool() if it is a mask"
        )
    outside = (chosen < 0) | (chosen >= n)
    if bool(outside.any()):
        raise ConfigError(f"expected nodes in [0, {n}) (got {int(chosen[outside][0])}): number the nodes from 0")
    return chosen.long()


def _within(memory: int, graph: Graph, model: Model, placement: Placement) -> tuple[Placement, int]:
    """Where states are kept, and the numbers that a chunk may read, so that ``memory`` bytes are enough."""
    n, item, widths = graph.num_nodes, next(model.parameters()).element_size(), [0, *model.widths]
    widest, all_layers = widest_row(graph, model), kind_of(model).logits_read_all_layers
    computing, edges = _bytes_of_edges(graph, model, COPIES // 2 * n * widest * item)
    # of a model that is run layer by layer, the states of two layers are kept at a time
    tables = n * item * (sum(widths) if all_layers else max(a + b for a, b in pairwise(widths)))
    row = COPIES * item * (graph.num_features + sum(widths) if all_layers else widest)
    if tables > (memory - edges) // 2 and placement.history == "device":
        on_gpu = placement.training_device.type == "cuda"
        placement, tables = replace(placement, history="host" if on_gpu else "disk"), 0
    needed = max(computing, edges + tables + row * (int(graph.adj.degrees().max()) + 1))
    if memory < needed:
        raise ConfigError(
            f"expected memory of at least {needed:,} bytes for this graph and model (got {memory:,}): the edges, and "
            "the neighbours of one node, have to fit"
        )
    return placement, (memory - edges - tables) // row * widest


def _bytes_of_edges(graph: Graph, model: Model, rows: int) -> tuple[int, int]:
    """Bytes at the peak of computing P, and those that P keeps; ``rows`` are those of a pass over all nodes."""
    entries, (temporary, kept) = graph.adj.nnz + graph.num_nodes, WRAPPED if model.owns_forward else NATIVE
    if model.owns_forward:  # its convolutions compute their weights in a pass over all nodes
        return entries * (temporary + kept) + rows, entries * kept
    plain = graph.edge_weight is None and not graph.directed
    # the matrix of a plain graph is computed in chunks
    return entries * kept + temporary * (min(entries, CHUNK) if plain else entries), entries * kept
