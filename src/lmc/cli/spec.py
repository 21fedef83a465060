"""The grammar ``name:option=value:option=value`` for methods and models.

Options are the dataclass fields of a method and the arguments of a model. Their types, defaults and help come from
there, so a new option of a method or a model is declared in its own file and nowhere else::

    parse_method("lmc:alpha=0.4:score=x", parts=80)      LMC4Conv(num_parts=80, alpha=0.4, score="x")
    parse_methods("full,gas:drop_edge=0.2", parts=80)    {"full": FullBatch(), "gas:drop_edge=0.2": DropEdge(...)}
    parse_model("gcn:layers=3:norm=none", graph, seed=0)
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import lmc.models
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import METHODS, DropEdge, Method, recommended
from lmc.models import MODELS, Model

T = TypeVar("T")

AUTO = "auto"
SHORT = {"num_parts": "parts", "clusters_per_batch": "clusters", "num_layers": "layers"}
"""Short spellings of options; the long ones are accepted too."""
DROP_EDGE = "drop_edge"  # the option of every method that wraps it in DropEdge
HIDDEN = 64  # width of the hidden layers by default; the models themselves have no default for it
_FROM_GRAPH = ("self", "in_width", "out_width", "seed")
_WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(frozen=True)
class Option:
    """One option of a method or a model."""

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
        """The value of this option in the spec ``text``."""
        for _, reader in _readers(self.hint):
            try:
                return reader(value)
            except (ValueError, KeyError):
                continue
        raise ConfigError(f"expected {self.expected} for {self.name} (got {value!r} in {text!r})")


def parse_method(text: str, **shared: Any) -> Method:
    """The method of one spec.

    ``shared`` are values for options that ``text`` does not give, such as ``parts=80``; a value of None and an option
    that this method does not have are ignored.
    """
    name, written = split_spec(text)
    cls, options = named(name, METHODS, "method"), method_options(name)
    given = {o.name: shared[o.name] for o in options if shared.get(o.name) is not None}
    given |= _read("method", name, written, options, text)
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
    cls, given = read_model(text)
    return cast(Any, cls)(graph.num_features, given.pop("hidden"), graph.num_classes, seed=seed, **given)


def read_model(text: str) -> tuple[type[Model], dict[str, Any]]:
    """The class of a model and its arguments, without those that depend on the graph."""
    name, written = split_spec(text)
    cls, options = named(name, MODELS, "model"), model_options(name)
    given = _read("model", name, written, options, text)
    return cls, {"hidden": HIDDEN} | {o.argument: given[o.name] for o in options if o.name in given}


def replace_auto(text: str, model: Model) -> str:
    """The spec, with the method that suits ``model`` in the place of "auto"; its options stay."""
    name, colon, options = text.partition(":")
    if name.strip() != AUTO:
        return text
    suited = recommended(model)
    return next(known for known, cls in METHODS.items() if cls is suited) + colon + options


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


def method_options(name: str) -> list[Option]:
    """The options of a method: its dataclass fields, and ``drop_edge``."""
    cls = named(name, METHODS, "method")
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}
    drop = Option(DROP_EDGE, "p", float | None, None, _help_of([DropEdge]).get("p", ""))
    return [*_options(cls, defaults, cls.__mro__), drop]


def model_options(name: str) -> list[Option]:
    """The options of a model: its arguments, without those that the graph and ``--seed`` give."""
    cls = named(name, MODELS, "model")
    signature = inspect.signature(cls.__init__).parameters
    defaults = {k: p.default for k, p in signature.items() if k not in _FROM_GRAPH} | {"hidden": HIDDEN}
    # a docstring may refer to that of another model: "The other arguments are those of :class:`lmc.models.GCN`."
    referred = re.findall(r"arguments are those of\s+:class:`lmc\.models\.(\w+)`", cls.__doc__ or "")
    others = [getattr(lmc.models, other) for other in referred]
    return _options(cls.__init__, defaults, [*cls.__mro__, *others])


def named(name: str, known: Mapping[str, T], what: str) -> T:
    """The entry of that name; another name is refused with the closest one."""
    if name in known:
        return known[name]
    raise ConfigError(f"expected a {what} of {', '.join(known)} (got {name!r}){_near(name, known)}")


def summary_of(cls: type) -> str:
    """The docstring of a class up to its arguments, as plain text."""
    return _plain(inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")[0].strip())


def _options(typed: Any, defaults: Mapping[str, Any], documented: Iterable[type]) -> list[Option]:
    hints, helps = get_type_hints(typed), _help_of(documented)
    return [Option(SHORT.get(k, k), k, hints[k], default, helps.get(k, "")) for k, default in defaults.items()]


def _read(what: str, name: str, written: Mapping[str, str], options: Sequence[Option], text: str) -> dict[str, Any]:
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


def _readers(hint: Any) -> list[tuple[str, Callable[[str], Any]]]:
    """What a value of this type is in words, and how it is read; numbers come first, since every text is a word."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    found: list[tuple[str, Callable[[str], Any]]] = []
    for kind in kinds:
        if kind in _PLAIN:
            found.append(_PLAIN[kind])
        elif get_origin(kind) is Literal:
            values = {str(value): value for value in get_args(kind)}
            found.append((f"one of {', '.join(values)}", values.__getitem__))
        elif get_origin(kind) in (tuple, Sequence):
            found.append(("whole numbers such as 10/10/5", lambda value: tuple(map(int, value.split("/")))))
    return sorted(found, key=lambda reader: reader is _PLAIN[str])


_PLAIN: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("a whole number", int),
    float: ("a number", float),
    bool: ("yes or no", lambda value: _WORDS[value.lower()]),
    str: ("a word", str),
    type(None): ("none", lambda value: {"none": None}[value.lower()]),
}


def _help_of(classes: Iterable[type]) -> dict[str, str]:
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
