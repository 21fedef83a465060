"""From choices to graphs, models and methods; an option that does not apply is refused by name."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import lmc.data
from lmc.cli.choices import DataChoice, MethodChoice, MethodOptions, ModelChoice, OptimiserChoice
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import METHODS, DropEdge, HistoryMethod, Method, recommended
from lmc.models import APPNP, GAT, GCN, GCNII, GIN, PNA, SAGE, SIGN, Model, RecGCN
from lmc.train import Settings

T = TypeVar("T")

MODELS: dict[str, type[Model]] = {
    "gcn": GCN,
    "gcnii": GCNII,
    "sage": SAGE,
    "gin": GIN,
    "gat": GAT,
    "appnp": APPNP,
    "pna": PNA,
    "sign": SIGN,
    "recgcn": RecGCN,
}

_METHOD_FIELDS = {"parts": "num_parts", "clusters": "clusters_per_batch"}
_MODEL_ARGUMENTS = {
    "layers": "num_layers",
    "gcnii_alpha": "alpha",
    "gcnii_theta": "theta",
    "teleport": "alpha",
    "bounded_norm": "p",
}
_ONE_MODELS = {"gcnii_alpha": "gcnii", "gcnii_theta": "gcnii", "teleport": "appnp"}
"""Options of one model, whose argument others may have under the same name."""
AUTO = "auto"
_OFF_SWITCHES = {"forward": "--no-forward", "backward": "--no-backward"}


def load_graph(choice: DataChoice) -> Graph:
    """The graph a choice names."""
    return lmc.data.load(choice.source, data_dir=choice.data_dir, scale=choice.scale, symmetrise=choice.symmetrise)


def build_model(choice: ModelChoice, graph: Graph, seed: int) -> Model:
    """The model with its initial parameters drawn from ``seed``."""
    cls = _named(choice.name, MODELS, "model")
    given = {k: v for k, v in dataclasses.asdict(choice).items() if v is not None and k not in ("name", "hidden")}
    if given.get("norm") == "none":
        given["norm"] = None
    accepted = inspect.signature(cls).parameters
    others = [
        f.name
        for f in dataclasses.fields(choice)
        if f.name != "name" and _ONE_MODELS.get(f.name, choice.name) == choice.name
    ]
    _refuse("model", choice.name, given, [o for o in others if _MODEL_ARGUMENTS.get(o, o) in accepted])
    arguments = {_MODEL_ARGUMENTS.get(k, k): v for k, v in given.items()}
    return cast(Any, cls)(graph.num_features, choice.hidden, graph.num_classes, seed=seed, **arguments)


def build_method(choice: MethodChoice) -> Method:
    """The method of one choice."""
    cls = _named(choice.name, METHODS, "method")
    given = choice.options.given()
    _refuse("method", choice.name, given, options_of(choice.name))
    dropped = given.pop("drop_edge", None)
    if len(given.get("fanouts", ())) == 1:
        (given["fanouts"],) = given["fanouts"]
    method: Method = cast(Any, cls)(**{_METHOD_FIELDS.get(k, k): v for k, v in given.items()})
    return method if dropped is None else DropEdge(method, dropped)


def chosen(choice: MethodChoice, model: Model) -> MethodChoice:
    """The choice, with the method that suits ``model`` in the place of "auto"."""
    return dataclasses.replace(choice, name=recommended(model).name) if choice.name == AUTO else choice


def contest(model: str) -> str:
    """The methods that are compared on a model, where the user names none."""
    return "full,cluster,gas,sse,lmc4rec" if _named(model, MODELS, "model").recurrent else "full,cluster,gas,fm,lmc,cmc"


def build_methods(choices: Sequence[MethodChoice], shared: MethodOptions) -> dict[str, Method]:
    """Methods by label. A shared option goes to every method that has it; one that none has is refused."""
    for choice in choices:
        _named(choice.name, METHODS, "method")
    useless = [k for k in shared.given() if not any(k in options_of(c.name) for c in choices)]
    if useless:
        raise ConfigError(
            f"expected options that at least one of {', '.join(c.label for c in choices)} has "
            f"(got {_flags(useless)}): drop it, or add a method that has it"
        )
    return {choice.label: build_method(_with_shared(choice, shared)) for choice in choices}


def options_of(method: str) -> list[str]:
    """The names of the options a method has."""
    accepted = {"drop_edge", *(f.name for f in dataclasses.fields(METHODS[method]))}  # the one wraps any method
    return [f.name for f in dataclasses.fields(MethodOptions) if _METHOD_FIELDS.get(f.name, f.name) in accepted]


def keeps_histories(method: str) -> bool:
    """Whether a method keeps tables between steps that may live on another tier."""
    return method in METHODS and issubclass(METHODS[method], HistoryMethod)


def settings_of(choice: OptimiserChoice) -> Settings:
    """The loop's settings."""
    return Settings(**dataclasses.asdict(choice))


def _with_shared(choice: MethodChoice, shared: MethodOptions) -> MethodChoice:
    accepted = options_of(choice.name)
    taken = {k: v for k, v in shared.given().items() if k in accepted}
    return dataclasses.replace(choice, options=MethodOptions(**taken | choice.options.given()))


def _named(name: str, known: dict[str, type[T]], what: str) -> type[T]:
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f": did you mean {near[0]}?" if near else ""
    raise ConfigError(f"expected a {what} of {', '.join(known)} (got {name!r}){hint}")


def _refuse(what: str, name: str, given: Iterable[str], accepted: Sequence[str]) -> None:
    wrong = [option for option in given if option not in accepted]
    if wrong:
        has = f"it has {_flags(accepted)}" if accepted else "it has none"
        raise ConfigError(f"expected options that {what} {name!r} has (got {_flags(wrong)}): {has}")


def _flags(options: Iterable[str]) -> str:
    return ", ".join(_OFF_SWITCHES.get(o, "--" + o.replace("_", "-")) for o in options)
