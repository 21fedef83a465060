"""Reading presets, and deriving those of other methods."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, cast

from lmc.errors import ConfigError, typed
from lmc.graph import Graph
from lmc.methods import METHODS, Method
from lmc.models import MODELS, Model

DERIVED = {"lmc": ("gas", "fm", "cluster", "cmc", "imc"), "lmc4rec": ("gas", "cluster", "cmc4rec", "sse")}
"""The methods whose presets are derived from one of LMC4Conv, or of LMC4Rec: those that train its model."""
RANDOM = "-random"
"""The suffix of a method with random parts, for which the paper has learning rates of its own."""


@dataclass(frozen=True)
class Preset:
    """The settings of one experiment.

    Args:
        name: method, model and data set, such as "lmc/gcn/ogbn-arxiv".
        method: the method with its settings.
        model_name, model_arguments: the model, as ``lmc.models`` names it, and its arguments.
        fit_options: arguments of :func:`lmc.fit`.
    """

    name: str
    method: Method
    model_name: str
    model_arguments: Mapping[str, Any] = field(repr=False)
    fit_options: Mapping[str, Any]

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return self.name.split("/")[2]

    def model(self, graph: Graph, seed: int = 0) -> Model:
        """The model for a graph, with initial parameters drawn from ``seed``."""
        cls = cast(Any, MODELS[self.model_name])
        return cls(graph.num_features, out_width=graph.num_classes, seed=seed, **self.model_arguments)


def names() -> list[str]:
    """The names of all presets."""
    return list(_presets())


@typed
def get(name: str) -> Preset:
    """The preset of this name."""
    known = _presets()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "lmc presets lists them"
        raise ConfigError(f"expected a preset such as lmc/gcn/ogbn-arxiv (got {name!r}): {hint}")
    return known[name]


@cache
def _presets() -> dict[str, Preset]:
    found: dict[str, Preset] = {}
    for folder in sorted(files(__package__).iterdir(), key=lambda each: each.name):
        for file in sorted(folder.iterdir(), key=lambda each: each.name) if folder.is_dir() else ():
            if file.name.endswith(".toml"):
                settings = tomllib.loads(file.read_text(encoding="utf-8"))
                found |= _family(f"{folder.name}/{file.name.removesuffix('.toml')}", settings)
    return dict(sorted(found.items()))


def _family(what: str, settings: dict[str, dict[str, Any]]) -> dict[str, Preset]:
    """The preset of one file and those derived from it, by name."""
    own, fit = settings["method"], settings["fit"]
    model = {k: v for k, v in settings["model"].items() if k != "name"}
    rates = {"": fit} | ({RANDOM: fit | settings["random"]} if "random" in settings else {})
    found = {}
    for name in (own["name"], *DERIVED[own["name"]]):
        for suffix, options in rates.items():
            preset = f"{name}{suffix}/{what}"
            method = _method(name, own, random=bool(suffix))
            found[preset] = Preset(preset, method, settings["model"]["name"], model, options)
    return found


def _method(name: str, own: dict[str, Any], random: bool) -> Method:
    """A method with the settings ``own`` where they are its own, else with the parts that they have in common."""
    shared = ("num_parts", "clusters_per_batch")
    chosen = {k: v for k, v in own.items() if k != "name" and (name == own["name"] or k in shared)}
    return cast(Any, METHODS[name])(**chosen, **({"partition": "random"} if random else {}))
