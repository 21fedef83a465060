"""The exceptions of the library, and the check of arguments against their annotations.

Every message says what was expected, what was given and what to do.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DistributedError",
    "DivergenceError",
    "FileError",
    "GraphError",
    "Interrupted",
    "LmcError",
    "NotComparedWarning",
    "RunWarning",
    "SolverError",
    "SolverWarning",
]

P = ParamSpec("P")
R = TypeVar("R")


class LmcError(Exception):
    """The base class of the library's exceptions."""


class GraphError(LmcError, ValueError):
    """A graph, or arrays given as a graph, are not valid (shape, range, symmetry, splits)."""


class DataError(LmcError, ValueError):
    """A data set cannot be found or its file cannot be read."""


class FileError(LmcError, OSError):
    """A file cannot be written."""


class ConfigError(LmcError, ValueError):
    """A method, model or training loop was configured in a way that it does not support."""


class CheckpointError(LmcError, RuntimeError):
    """A run folder is damaged, or cannot be continued with these settings."""


class DistributedError(LmcError, RuntimeError):
    """Ranks of a distributed run lost each other, or differ; the message names the rank and the step."""


class Interrupted(LmcError, KeyboardInterrupt):
    """Training was stopped after a finished step by Ctrl-C or a signal; the message says what was saved."""

    signal: int = 2
    """The number of the signal; that of Ctrl-C is 2."""


class RunWarning(UserWarning):
    """A run continues in a way that its user may not expect, such as from an older checkpoint."""


class DivergenceError(LmcError, ArithmeticError):
    """A loss or a parameter is not finite; the message names the step and the last good checkpoint."""


class SolverError(LmcError, ArithmeticError):
    """A fixed-point iteration diverged."""


class SolverWarning(UserWarning):
    """A fixed-point iteration reached its maximum of steps before its tolerance."""


class NotComparedWarning(UserWarning):
    """A wrapped network was not compared with plain autograd on the graph that it was bound to."""


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse arguments that are not of the annotated types, in one line, before the function runs."""
    signature = inspect.signature(function)
    named = {name: p for name, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # Python's own message names the function
        _check_types({name: given[name] for name in named if name in given}, _hints(function))
        return function(*args, **kwargs)

    return checked


def check_fields(record: Any) -> None:
    """Refuse the fields of a dataclass that are not of the annotated types."""
    kind: Any = type(record)
    _check_types({f.name: getattr(record, f.name) for f in dataclasses.fields(record)}, _hints(kind))


def check_within(interval: str, remedy: str = "choose another value", **values: float) -> None:
    """Refuse values outside of an interval, such as "[0, 1)"."""
    low, high = map(float, interval[1:-1].split(","))
    for name, value in values.items():
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            raise ConfigError(f"expected {name} in {interval} (got {value}): {remedy}")


def check_at_least(least: int, **values: float | None) -> None:
    """Refuse values below a bound, and infinite ones; None is accepted."""
    for name, value in values.items():
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"expected {name} of at least {least} (got {value}): choose another value")


def check_positive(**values: float | None) -> None:
    """Refuse values that are not more than 0, and infinite ones; None is accepted."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"expected {name} of more than 0 (got {value}): choose another value")


def _check_types(values: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    for name, value in values.items():
        kinds = list(_kinds(hints.get(name, Any)))
        if not _is_any(value, kinds):
            raise ConfigError(_refusal(name, value, kinds))
        if name == "seed" and isinstance(value, Integral) and not 0 <= int(value) < 2**63:
            raise ConfigError(f"expected seed from 0 to 2^63 - 1 (got {value}): choose another one")


def _refusal(name: str, value: object, kinds: Sequence[Any]) -> str:
    """What was expected, what came and what to do, where a value is of none of these types."""
    words = dict.fromkeys(_words(kind) for kind in kinds if kind is not type(None))
    expected = " or ".join(words)
    to_be = "" if get_origin(kinds[0]) is Literal else "to be "
    made = (text for kind, text in _REMEDIES.items() if any(word.endswith(kind) for word in words))
    remedy = next(made, "pass one")
    return f"expected {name} {to_be}{expected} (got {_shown(value)}): {remedy}"


@cache
def _hints(annotated: Any) -> dict[str, Any]:
    """The annotations of a function or a class; one that cannot be read here, since its names are imported for type
    checkers alone, admits anything."""
    found: dict[str, Any] = {}
    for owner in reversed(annotated.__mro__) if isinstance(annotated, type) else (annotated,):
        names = getattr(owner, "__globals__", None) or vars(sys.modules.get(owner.__module__, types))
        for name, hint in inspect.get_annotations(owner).items():
            try:
                found |= get_type_hints(types.SimpleNamespace(__annotations__={name: hint}), names)
            except (NameError, TypeError):
                found[name] = Any
    return found


def _kinds(hint: Any) -> Iterator[Any]:
    """The alternatives of an annotation."""
    if get_origin(hint) in (Union, types.UnionType):
        for kind in get_args(hint):
            yield from _kinds(kind)
    else:
        yield hint


def _is_any(value: object, kinds: Sequence[Any]) -> bool:
    return any(_is_one(value, kind) for kind in kinds)


def _is_one(value: object, kind: Any) -> bool:
    """Whether a value is of a type; a type that says nothing about values (a protocol, a type variable) admits any."""
    origin = get_origin(kind)
    if kind in (int, float):  # a flag is no number, and nan is none either
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool) and value == value
    if origin is Literal:
        return any(type(value) is type(allowed) and value == allowed for allowed in get_args(kind))
    if origin in (Sequence, tuple, list):
        kinds = list(_kinds(next(iter(get_args(kind)), Any)))
        return isinstance(value, Sequence) and not isinstance(value, str) and all(_is_any(v, kinds) for v in value)
    try:
        return isinstance(value, origin or kind)
    except TypeError:
        return True


_REMEDIES = {
    "Graph": "lmc.load makes one",
    "Model": "choose one of lmc.models, or lmc.wrap makes one of a network of PyG convolutions",
    "Method": "choose a method such as lmc.methods.LMC4Conv()",
}
_PLAIN = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(kind))
    if get_origin(kind) in (Sequence, tuple, list):
        elements = _kinds(next(iter(get_args(kind)), object))
        return f"a list of {' or '.join(_words(element).split(' ', 1)[-1] + 's' for element in elements)}"
    if get_origin(kind) is Callable:
        return "a function"
    name = getattr(get_origin(kind) or kind, "__name__", str(kind))
    return _PLAIN.get(kind, f"an {name}" if name[:1].lower() in "aeio" else f"a {name}")


def _shown(value: object) -> str:
    """A value in one short line."""
    plain = isinstance(value, bool | int | float | str | type(None))
    text = repr(value) if plain else f"{value.__name__}, a class" if isinstance(value, type) else type(value).__name__
    if isinstance(value, list | tuple) and value:
        text += " of " + " and ".join(dict.fromkeys(type(each).__name__ for each in value))
    return text if len(text) <= 60 else f"{text[:60]}..."
