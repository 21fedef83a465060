"""Lists on the command line: numbers, parts/clusters, and methods in one division of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from lmc.cli.spec import parse_methods, split_spec
from lmc.errors import ConfigError
from lmc.methods import Method

T = TypeVar("T")


def parse_list(text: str, flag: str, read: Callable[[str], T]) -> list[T]:
    """Comma-separated values, at least one and each once."""
    values = [read(part.strip()) for part in text.split(",") if part.strip()]
    if not values or len(set(values)) < len(values):
        raise ConfigError(f"expected one or more different values, comma-separated, for {flag} (got {text!r})")
    return values


def positive(flag: str) -> Callable[[str], float]:
    """A reader of positive numbers."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not 0 < value < float("inf"):
            raise ConfigError(f"expected positive numbers for {flag} (got {text!r})")
        return value

    return read


def at_least_one(flag: str, text: object) -> int:
    """A whole number of at least 1."""
    if not str(text).isdigit() or int(str(text)) < 1:
        raise ConfigError(f"expected whole numbers of at least 1 for {flag} (got {str(text)!r})")
    return int(str(text))


def parse_configs(text: str) -> list[str]:
    """``"80/40, 80/10"`` -> ["80/40", "80/10"]: parts of the graph and parts in a batch."""
    names = [f"{parts}/{clusters}" for parts, clusters in map(parse_config, text.split(","))]
    if len(set(names)) < len(names):
        raise ConfigError(f"expected every division once in --configs (got {text!r}): drop one")
    return names


def parse_config(text: str) -> tuple[int, int]:
    """``"80/40"`` -> (80, 40)."""
    parts, _, clusters = text.strip().partition("/")
    if not (parts.isdigit() and clusters.isdigit()):
        raise ConfigError(f"expected configs as parts/clusters, e.g. 80/40,80/10 (got {text.strip()!r})")
    return int(parts), int(clusters)


def methods_in(config: str, text: str, **shared: object) -> dict[str, Method]:
    """The methods by spec, with the parts and clusters of ``config``, which a spec must not choose for itself."""
    own = [spec for spec in text.split(",") if {"parts", "clusters"} & split_spec(spec)[1].keys()]
    if own:
        raise ConfigError(f"expected methods without parts and clusters (got {', '.join(own)}): use --configs")
    parts, clusters = parse_config(config)
    return parse_methods(text, parts=parts, clusters=clusters, **shared)


def first_of(labels: Iterable[str], name: str) -> str | None:
    """The first spec of the method ``name``."""
    return next((label for label in labels if label.partition(":")[0] == name), None)
