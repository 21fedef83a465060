"""What the user asked for, as values. Nothing here needs torch, so that ``lmc --help`` is quick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lmc.errors import ConfigError


@dataclass(frozen=True)
class DataChoice:
    """Which graph."""

    source: str
    data_dir: Path | None = None
    scale: float | None = None
    symmetrise: bool = False


@dataclass(frozen=True)
class ModelChoice:
    """Which model; None leaves an option at the model's own default."""

    name: str = "gcn"
    hidden: int = 64
    layers: int | None = None
    dropout: float | None = None
    input_dropout: float | None = None
    norm: str | None = None
    residual: bool | None = None
    linear_in: bool | None = None
    linear_out: bool | None = None
    gcnii_alpha: float | None = None
    gcnii_theta: float | None = None
    kappa: float | None = None
    bounded_norm: str | None = None
    solver: str | None = None
    tol: float | None = None
    heads: int | None = None
    teleport: float | None = None


@dataclass(frozen=True)
class OptimiserChoice:
    """How to optimise; see lmc.train.Settings."""

    epochs: int
    lr: float
    weight_decay: float = 0.0
    clip: float | None = None
    eval_every: int = 1


@dataclass(frozen=True)
class RunChoice:
    """Where, from which seed, and whether to continue."""

    seed: int = 0
    device: str = "auto"
    run_dir: Path | None = None
    resume: bool = False
    history: str = "device"
    features: str = "device"
    rebuild_batches: bool = False
    precision: str = "float32"
    structure: str = "device"


@dataclass(frozen=True)
class PlanChoice:
    """What memory there is, and whether to plan alone."""

    memory: str | None = None
    dry_run: bool = False
    clusters_auto: bool = False


@dataclass(frozen=True)
class MethodOptions:
    """Options some methods have; None: not given."""

    parts: int | None = None
    clusters: int | None = None
    redraw: bool | None = None
    partition: str | None = None
    alpha: float | None = None
    score: str | None = None
    cut: str | None = None
    first_layer: str | None = None
    momentum: float | None = None
    adjoints: bool | None = None
    update: str | None = None
    undo_drift: bool | None = None
    q: float | None = None
    forward: bool | None = None
    backward: bool | None = None
    batch_size: int | None = None
    fanouts: tuple[int, ...] | None = None
    layer_size: int | None = None
    sampler: str | None = None
    drop_edge: float | None = None

    def given(self) -> dict[str, Any]:
        """The options that were given, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


@dataclass(frozen=True)
class MethodChoice:
    """A method with options of its own; ``label`` is what the user wrote, and names it in tables and figures."""

    label: str
    name: str
    options: MethodOptions = MethodOptions()


def parse_methods(text: str) -> list[MethodChoice]:
    """``"gas,lmc,lmc:alpha=0.8:score=x^2"`` -> three choices."""
    choices = [parse_method(part.strip()) for part in text.split(",") if part.strip()]
    labels = [choice.label for choice in choices]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ConfigError(f"expected every method once (got {', '.join(twice)} more than once): drop one")
    if not choices:
        raise ConfigError("expected at least one method in --methods (got none): write e.g. gas,lmc")
    return choices


def parse_method(text: str) -> MethodChoice:
    """``"lmc:alpha=0.8:score=x^2"`` -> the method's name and its options."""
    name, *settings = text.split(":")
    values: dict[str, Any] = {}
    for setting in settings:
        key, mark, value = setting.partition("=")
        field = key.strip().replace("-", "_")
        if field not in _PARSERS or not mark:
            raise ConfigError(
                f"expected name:option=value with an option of {', '.join(k.replace('_', '-') for k in _PARSERS)} "
                f"(got {setting!r} in {text!r})"
            )
        values[field] = _parse(field, value.strip(), text)
    return MethodChoice(text, name.strip(), MethodOptions(**values))


def _parse(field: str, value: str, text: str) -> Any:
    parser, wanted = _PARSERS[field]
    try:
        return parser(value)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"expected {wanted} for {field.replace('_', '-')} (got {value!r} in {text!r})") from error


def parse_fanouts(text: str | None) -> tuple[int, ...] | None:
    """``"10,10,5"``, or ``"10/10/5"`` inside --methods, where commas part methods; one number serves all hops."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace("/", ",").split(","))
    except ValueError as error:
        raise ConfigError(f"expected whole numbers for --fanouts, e.g. 10 or 10,10,5 (got {text!r})") from error


def parse_clusters(text: str | None) -> tuple[int | None, bool]:
    """Parts in a batch as a number, and whether they are to be found: "auto"."""
    if text is None or text == "auto":
        return None, text == "auto"
    try:
        return int(text), False
    except ValueError as error:
        raise ConfigError(f"expected a whole number or auto for --clusters (got {text!r})") from error


def _truth(value: str) -> bool:
    return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[value.lower()]


_WHOLE: tuple[Callable[[str], Any], str] = (int, "a whole number")
_NUMBER: tuple[Callable[[str], Any], str] = (float, "a number")
_WORD: tuple[Callable[[str], Any], str] = (str, "a word")
_TRUTH: tuple[Callable[[str], Any], str] = (_truth, "yes or no")
_PARSERS = {
    "parts": _WHOLE,
    "clusters": _WHOLE,
    "redraw": _TRUTH,
    "partition": _WORD,
    "alpha": _NUMBER,
    "score": _WORD,
    "cut": _WORD,
    "first_layer": _WORD,
    "momentum": _NUMBER,
    "adjoints": _TRUTH,
    "update": _WORD,
    "undo_drift": _TRUTH,
    "q": _NUMBER,
    "forward": _TRUTH,
    "backward": _TRUTH,
    "batch_size": _WHOLE,
    "fanouts": (parse_fanouts, "whole numbers, e.g. 10/10/5,"),
    "layer_size": _WHOLE,
    "sampler": _WORD,
    "drop_edge": _NUMBER,
}
