"""Whether a graph and a model fit each other, for training, evaluation and predictions."""

from __future__ import annotations

from typing import Literal

from lmc.errors import ConfigError
from lmc.graph import Graph, Shard, without_features
from lmc.models import Embedding, Model

Needs = Literal["train", "targets", "features"]
"""What a graph must have: "train": training nodes; "targets": nodes of any split; "features": no targets, so that only
the features have to fit."""
_READERS = {
    "edge_weight": "a model with a linear aggregation, such as GCN, SAGE or GIN",
    "edge_attr": "a wrapped network whose forward takes edge_attr (lmc.wrap)",
}
"""Models that read what an edge was given with."""


def check_fit(given: Graph | Shard, model: Model, needs: Needs = "train") -> None:
    """Refuse a graph and a model that do not fit each other. A network with lazy modules is initialised with the width
    of the features."""
    graph = given.graph if isinstance(given, Shard) else given
    if not isinstance(graph, Graph):
        raise ConfigError(f"expected an lmc.Graph (got {type(graph).__name__}): lmc.load makes one")
    if not isinstance(model, Model):
        raise ConfigError(
            f"expected a model of lmc.models (got {type(model).__name__}): lmc.wrap makes one of a network of PyG "
            "convolutions; docs/bring-your-own-model.md shows how to write one"
        )
    model.initialise(graph.num_features)
    if needs == "train" and "train" not in given.splits:
        raise ConfigError(
            f"expected training nodes in graph {graph.name!r} (got none): pass y and train to Graph.from_edges; "
            "lmc.predict needs neither"
        )
    if needs == "targets" and not given.splits:
        raise ConfigError(
            f"expected nodes with known targets in graph {graph.name!r} (got none): pass y and test to "
            "Graph.from_edges; lmc.predict needs neither"
        )
    _check_edge_data(graph, model)
    if isinstance(getattr(model, "lin_in", None), Embedding) and not without_features(graph):
        raise ConfigError(
            f'expected a graph without features for input="embedding" (got {graph.num_features} features in graph '
            f'{graph.name!r}): use input="features", or build the graph with x=None'
        )
    _check_widths(graph, model, needs)


def _check_widths(graph: Graph, model: Model, needs: Needs) -> None:
    """Refuse a graph whose features or classes are not as many as the model has inputs or outputs."""
    if needs == "features":
        if graph.num_features != model.in_width:
            raise ConfigError(
                f"expected a graph with the {model.in_width} features that the model was made for (got "
                f"{graph.num_features} in graph {graph.name!r}): pass the features of training"
            )
        return
    for what, wanted, got, source in (
        ("inputs", graph.num_features, model.in_width, "g.num_features"),
        ("outputs", graph.num_classes, model.out_width, "g.num_classes"),
    ):
        if wanted == got:
            continue
        other = f", or pass num_classes={got} to Graph.from_edges" if needs == "targets" and what == "outputs" else ""
        raise ConfigError(
            f"expected a model with {wanted} {what} for graph {graph.name!r} (got {got}): build it with {source}{other}"
        )


def _check_edge_data(graph: Graph, model: Model) -> None:
    """Refuse edge weights and features that the model would ignore, or that have another width."""
    for name, reads in (("edge_weight", model.reads_edge_weight), ("edge_attr", model.edge_dim is not None)):
        if getattr(graph, name) is not None and not reads:
            raise ConfigError(
                f"expected a model that reads {name} (got {type(model).__name__}, which would ignore it): use "
                f"{_READERS[name]}, or load the graph without {name}"
            )
    if graph.edge_attr is not None and graph.edge_attr.shape[1] != model.edge_dim:
        raise ConfigError(
            f"expected edge_attr [E, {model.edge_dim}] for {type(model).__name__} (got {list(graph.edge_attr.shape)}): "
            "change the edge_dim of its convolutions"
        )
