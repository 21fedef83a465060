"""The grammar ``name:option=value:option=value`` of methods, models, optimisers and schedulers.

Options are the fields of a dataclass or the arguments of a function. Their types, defaults and help come from there.
"""

from __future__ import annotations

import difflib
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lmc.errors import ConfigError

T = TypeVar("T")
Reader = tuple[str, Callable[[str], Any]]
"""The accepted values in words, and the function that reads one."""

SHORT = {"num_parts": "parts", "clusters_per_batch": "clusters", "num_layers": "layers"}
"""Short spellings of options; the long ones are accepted too."""
_WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(frozen=True)
class Option:
    """One option, for example of a method or a model."""

    name: str  # the spelling on the command line, e.g. "parts"
    argument: str  # the name of the field or argument, e.g. "num_parts"
    hint: Any  # its type
    default: Any
    help: str  # its entry of the docstring

    @property
    def expected(self) -> str:
        """The accepted values in words."""
        return " or ".join(words for words, _ in _readers(self.hint))

    def read(self, value: str, text: str) -> Any:
        for _, reader in _readers(self.hint):
            try:
                return reader(value)
            except (ValueError, KeyError):
                continue
        raise ConfigError(f"expected {self.expected} for {self.name} (got {value!r} in {text!r})")


def split_spec(text: str) -> tuple[str, dict[str, str]]:
    """The name and the options of a spec as they are written, with options in their short spelling."""
    name, *settings = (part.strip() for part in text.split(":"))
    values: dict[str, str] = {}
    for setting in settings:
        key, mark, value = (part.strip() for part in setting.partition("="))
        option = SHORT.get(key.replace("-", "_"), key.replace("-", "_"))
        if not (mark and key and value):
            raise ConfigError(
                f"expected name:option=value (got {setting!r} in {text!r}): write {name}:{key or 'option'}=VALUE"
            )
        if option in values:
            raise ConfigError(f"expected every option once (got {option} twice in {text!r}): drop one")
        values[option] = value
    return name, values


def named(name: str, known: Mapping[str, T], what: str) -> T:
    """The entry of that name; another name is refused with the closest one."""
    if name in known:
        return known[name]
    article = "an" if what[0] in "aeiou" else "a"
    raise ConfigError(f"expected {article} {what} of {', '.join(known)} (got {name!r}){_near(name, known)}")


def summary_of(cls: type) -> str:
    """The docstring of a class up to its arguments, as plain text."""
    return _plain(inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")[0].strip())


def options_of(typed: Any, defaults: Mapping[str, Any], documented: Iterable[type]) -> list[Option]:
    """The options with these defaults, with types from ``typed`` and help from the docstrings of classes."""
    hints, helps = get_type_hints(typed), help_of(documented)
    return [Option(SHORT.get(k, k), k, hints[k], default, helps.get(k, "")) for k, default in defaults.items()]


def read_options(
    what: str, name: str, written: Mapping[str, str], options: Sequence[Option], text: str
) -> dict[str, Any]:
    """The values of the options that a spec gives, by name; one that is not among ``options`` is refused."""
    by_name = {option.name: option for option in options}
    for wrong in (key for key in written if key not in by_name):
        raise ConfigError(
            f"expected an option of {what} {name!r} (got {wrong!r} in {text!r}): it has {', '.join(by_name)}"
            + _near(wrong, by_name).replace(":", ";", 1)
        )
    return {key: by_name[key].read(value, text) for key, value in written.items()}


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def _readers(hint: Any) -> list[Reader]:
    """What a value of this type is in words, and how it is read; numbers come first, since every text is a word."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    found: list[Reader] = []
    for kind in kinds:
        if kind in _PLAIN:
            found.append(_PLAIN[kind])
        elif get_origin(kind) is Literal:
            values = {str(value): value for value in get_args(kind)}
            found.append((f"one of {', '.join(values)}", values.__getitem__))
        elif get_origin(kind) in (tuple, Sequence):
            found.append(_WHOLE_NUMBERS if int in get_args(kind) else _NUMBERS)
    return sorted(found, key=lambda reader: reader is _PLAIN[str])


_WHOLE_NUMBERS: Reader = ("whole numbers such as 10/10/5", lambda value: tuple(map(int, value.split("/"))))
_NUMBERS: Reader = ("numbers such as 0.9/0.999", lambda value: tuple(map(float, value.split("/"))))
_PLAIN: dict[Any, Reader] = {
    int: ("a whole number", int),
    float: ("a number", float),
    bool: ("yes or no", lambda value: _WORDS[value.lower()]),
    str: ("a word", str),
    type(None): ("none", lambda value: {"none": None}[value.lower()]),
}


def help_of(classes: Iterable[type]) -> dict[str, str]:
    """The ``Args:`` entries of docstrings, by argument; the first class that documents an argument counts."""
    found: dict[str, str] = {}
    for cls in classes:
        section = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")[2].split("\n\n")[0]
        for entry in re.split(r"\n(?=    \S)", "\n" + section)[1:]:
            names, _, text = entry.strip().partition(":")
            for name in names.split(","):
                found.setdefault(name.strip(), _plain(" ".join(text.split())))
    return found


def _plain(text: str) -> str:
    """Text without the markup of docstrings: ``x`` and :class:`x` become x."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
