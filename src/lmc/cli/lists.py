"""Lists on the command line: numbers, parts/clusters, and methods in one division of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from lmc.cli.spec import parse_methods
from lmc.errors import ConfigError
from lmc.grammar import split_spec
from lmc.methods import Method

T = TypeVar("T")


def parse_list(text: str, flag: str, read: Callable[[str], T]) -> list[T]:
    """Comma-separated values, at least one and each once."""
    values = [read(part.strip()) for part in text.split(",") if part.strip()]
    if not values or len(set(values)) < len(values):
        raise ConfigError(f"expected one or more different values, comma-separated, for {flag} (got {text!r})")
    return values


def parse_words(text: str, flag: str, known: Sequence[str]) -> list[str]:
    """Comma-separated words out of ``known``, at least one and each once."""
    words = parse_list(text, flag, str)
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ConfigError(f"expected {flag.strip('-')} of {', '.join(known)} (got {', '.join(unknown)})")
    return words


def parse_numbers(text: str, flag: str) -> list[float]:
    """Comma-separated positive numbers, at least one and each once."""
    return parse_list(text, flag, lambda part: positive(part, flag))


def positive(text: str, flag: str) -> float:
    """A positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"expected positive numbers for {flag} (got {text!r})")
    return value


def at_least_one(flag: str, text: object) -> int:
    """A whole number of at least 1."""
    if not str(text).isdigit() or int(str(text)) < 1:
        raise ConfigError(f"expected whole numbers of at least 1 for {flag} (got {str(text)!r})")
    return int(str(text))


def parse_configs(text: str) -> list[str]:
    """``"80/40, 80/10"`` -> ["80/40", "80/10"]: parts of the graph and parts in a batch."""
    names = ["{parts}/{clusters}".format(**division(part)) for part in text.split(",")]
    if len(set(names)) < len(names):
        raise ConfigError(f"expected every division once in --configs (got {text!r}): drop one")
    return names


def division(config: str) -> dict[str, int]:
    """``"80/40"`` -> {"parts": 80, "clusters": 40}."""
    parts, _, clusters = config.strip().partition("/")
    if not (parts.isdigit() and clusters.isdigit()):
        raise ConfigError(f"expected configs as parts/clusters, e.g. 80/40,80/10 (got {config.strip()!r})")
    return {"parts": int(parts), "clusters": int(clusters)}


def methods_in(config: str, text: str, **shared: object) -> dict[str, Method]:
    """The methods by spec, with the parts and clusters of ``config``, which a spec must not choose for itself."""
    own = [spec for spec in text.split(",") if {"parts", "clusters"} & split_spec(spec)[1].keys()]
    if own:
        raise ConfigError(f"expected methods without parts and clusters (got {', '.join(own)}): use --configs")
    return parse_methods(text, **division(config), **shared)


def first_of(labels: Iterable[str], name: str) -> str | None:
    """The first spec of the method ``name``."""
    return next((label for label in labels if label.partition(":")[0] == name), None)
