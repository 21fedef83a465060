"""The grammar ``name:option=value:option=value`` for methods, models and losses.

Options are the dataclass fields of a method and the arguments of a model. Their types, defaults and help come from
there, so a new option of a method or a model is declared in its own file and nowhere else::

    parse_method("lmc:alpha=0.4:score=x", parts=80)      LMC4Conv(num_parts=80, alpha=0.4, score="x")
    parse_methods("full,gas:drop_edge=0.2", parts=80)    {"full": FullBatch(), "gas:drop_edge=0.2": DropEdge(...)}
    parse_model("gcn:layers=3:norm=none", graph, seed=0)
    parse_loss("cross-entropy:weight=1/5/1")             cross_entropy(weight=(1.0, 5.0, 1.0))
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Sequence
from typing import Any, cast

import lmc.models
from lmc.errors import ConfigError
from lmc.grammar import Option, help_of, named, options_of, read_options, split_spec
from lmc.graph import Graph
from lmc.losses import LOSSES, RowLoss
from lmc.methods import METHODS, DropEdge, Method
from lmc.models import MODELS, Model

AUTO = "auto"
DROP_EDGE = "drop_edge"  # the option of every method that wraps it in DropEdge
HIDDEN = 64  # width of the hidden layers by default; the models themselves have no default for it
_FROM_GRAPH = ("self", "in_width", "out_width", "seed")


def parse_method(text: str, **shared: Any) -> Method:
    """The method of one spec.

    ``shared`` are values for options that ``text`` does not give, such as ``parts=80``; a value of None and an option
    that this method does not have are ignored.
    """
    name, written = split_spec(text)
    cls, options = named(name, METHODS, "method"), method_options(name)
    given = {o.name: shared[o.name] for o in options if shared.get(o.name) is not None}
    given |= read_options("method", name, written, options, text)
    p = given.pop(DROP_EDGE, None)
    method = cast(Any, cls)(**{o.argument: given[o.name] for o in options if o.name in given})
    return method if p is None else DropEdge(method, p)


def parse_methods(text: str, **shared: Any) -> dict[str, Method]:
    """The methods of comma-separated specs, by spec; a shared option that none of them has is refused."""
    labels = [part.strip() for part in text.split(",") if part.strip()]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ConfigError(f"expected every method once (got {', '.join(twice)} more than once): drop one")
    if not labels:
        raise ConfigError(f"expected at least one method (got {text!r}): write e.g. gas,lmc")
    check_shared(labels, **shared)
    return {label: parse_method(label, **shared) for label in labels}


def check_shared(texts: Sequence[str], **shared: Any) -> None:
    """Refuse shared options that none of the methods has."""
    known = {o.name for text in texts for o in method_options(split_spec(text)[0])}
    unused = [f"--{name.replace('_', '-')}" for name, v in shared.items() if v is not None and name not in known]
    if unused:
        raise ConfigError(
            f"expected options that at least one of {', '.join(texts)} has (got {', '.join(unused)}): drop it, or add "
            "a method that has it"
        )


def parse_model(text: str, graph: Graph, seed: int) -> Model:
    """The model of one spec for a graph, with its initial parameters drawn from ``seed``."""
    if not graph.num_classes:
        raise ConfigError(
            f"expected targets in graph {graph.name!r} (got none): add y and train_idx to the file; lmc predict needs "
            "neither"
        )
    cls, given = read_model(text)
    return cast(Any, cls)(graph.num_features, given.pop("hidden"), graph.num_classes, seed=seed, **given)


def read_model(text: str) -> tuple[type[Model], dict[str, Any]]:
    """The class of a model and its arguments, without those that depend on the graph."""
    name, written = split_spec(text)
    cls, options = named(name, MODELS, "model"), model_options(name)
    given = read_options("model", name, written, options, text)
    return cls, {"hidden": HIDDEN} | {o.argument: given[o.name] for o in options if o.name in given}


def parse_loss(text: str) -> RowLoss:
    """The loss of one spec."""
    name, written = split_spec(text)
    cls = named(name.replace("-", "_"), LOSSES, "loss")
    options = options_of(cls, {f.name: f.default for f in dataclasses.fields(cls) if f.init}, [cls])
    given: Any = read_options("loss", name, written, options, text)
    return cls(**given)


def method_options(name: str) -> list[Option]:
    """The options of a method: its dataclass fields, and ``drop_edge``."""
    cls = named(name, METHODS, "method")
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}
    drop = Option(DROP_EDGE, "p", float | None, None, help_of([DropEdge]).get("p", ""))
    return [*options_of(cls, defaults, cls.__mro__), drop]


def model_options(name: str) -> list[Option]:
    """The options of a model: its arguments, without those that the graph and ``--seed`` give."""
    cls = named(name, MODELS, "model")
    signature = inspect.signature(cls.__init__).parameters
    defaults = {k: p.default for k, p in signature.items() if k not in _FROM_GRAPH} | {"hidden": HIDDEN}
    # a docstring may refer to that of another model: "The other arguments are those of :class:`lmc.models.GCN`."
    referred = re.findall(r"arguments are those of\s+:class:`lmc\.models\.(\w+)`", cls.__doc__ or "")
    others = [getattr(lmc.models, other) for other in referred]
    return options_of(cls.__init__, defaults, [*cls.__mro__, *others])
