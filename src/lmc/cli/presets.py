"""``lmc presets``, and ``lmc train --preset``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from rich.table import Table

from lmc.cli.console import console, facts
from lmc.cli.options import Train
from lmc.cli.spec import method_options, model_options
from lmc.grammar import Option
from lmc.presets import Preset, get, names

SHARED = {"num_parts": "parts", "clusters_per_batch": "clusters"}
"""Settings of a method that are options of the command line."""


def with_preset(options: Train, name: str, written: Collection[str]) -> Train:
    """The options with the settings of a preset; those that are ``written`` on the command line stay."""
    settings = options_of_preset(get(name))
    return dataclasses.replace(options, **{k: v for k, v in settings.items() if k not in written})


def options_of_preset(preset: Preset) -> dict[str, Any]:
    """The options of ``lmc train`` that a preset sets, by name."""
    method = {f.name: getattr(preset.method, f.name) for f in dataclasses.fields(preset.method)}
    shared = {SHARED[k]: method.pop(k) for k in SHARED}
    name = preset.method.traits.name
    return {
        "method": _spec(name, method, method_options(name)),
        "model": _spec(preset.model_name, dict(preset.model_arguments), model_options(preset.model_name)),
        "parts": shared["parts"],
        "clusters": str(shared["clusters"]),
        **preset.fit_options,
    }


def _spec(name: str, values: dict[str, Any], options: list[Option]) -> str:
    """The spec of these values, without those that are the default."""
    words = {True: "yes", False: "no"}
    written = [
        f"{option.name}={words[value] if isinstance(value, bool) else value}"
        for option in options
        if option.argument in values and (value := values[option.argument]) != option.default
    ]
    return ":".join([name, *written])


def list_presets(name: str | None) -> None:
    """Print all presets, or the settings of one."""
    out = console()
    if name is None:
        table = Table("preset", "data set", "model", "method")
        for each in map(get, names()):
            options = options_of_preset(each)
            table.add_row(each.name, each.dataset, options["model"], options["method"])
        out.print(table)
        return
    preset = get(name)
    options = options_of_preset(preset)
    out.print(facts([("preset", name), *((k, str(v)) for k, v in options.items())]))
    words = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in options.items())
    out.print(f"lmc train {preset.dataset} --preset {name} is short for", soft_wrap=True)
    out.print(f"lmc train {preset.dataset} {words}", soft_wrap=True)
