"""The directive ``api``: a public name with its signature and docstring, and an example in the directive's body.

    ```{api} lmc.load
    g = lmc.load("tiny-like")
    ```

The docstrings of the library are Markdown with a section "Args:", so MyST parses them like the rest of a page.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from lmc.grammar import help_of

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")
ARGUMENT = re.compile(r"^    (\w[^:\n]*(?:,\n {8}[^:\n]*)?): ", flags=re.MULTILINE)
"""The names of an argument, or of several, which may go on in the next line."""


def find(name: str) -> tuple[ModuleType, object]:
    """The module in which ``name`` is public, and the object itself."""
    room, _, last = name.rpartition(".")
    module = importlib.import_module(room)
    return module, getattr(module, last)


def as_markdown(docstring: str) -> str:
    """The docstring with its roles as code and its arguments as a list."""
    text = ROLE.sub(r"`\1`", inspect.cleandoc(docstring))
    head, _, arguments = text.partition("\nArgs:\n")
    if not arguments:
        return text
    listed, _, rest = re.sub(r"\n\n(?=\S)", "\0", arguments, count=1).partition("\0")
    return f"{head}\n{ARGUMENT.sub(_listed, listed)}\n\n{rest}"


def _listed(found: re.Match[str]) -> str:
    return f"- `{' '.join(found[1].split())}`: "


def signature(thing: Callable[..., object]) -> str:
    """The arguments of ``thing`` with their annotations and defaults, or nothing where Python does not know them.

    A method has no ``self``, and a class returns nothing."""
    try:
        known = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    given = [argument for name, argument in known.parameters.items() if name not in ("self", "cls")]
    returned = inspect.Signature.empty if inspect.isclass(thing) else known.return_annotation
    text = str(known.replace(parameters=given, return_annotation=returned))
    return re.sub(r" at 0x\w+", "", re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", text))


def inherited(cls: type) -> str:
    """A list of the arguments of ``cls`` that the docstrings of its base classes describe, and its own does not."""
    own, others = help_of([cls]), help_of(cls.__mro__[1:])
    names = [name for name in inspect.signature(cls).parameters if name in others and name not in own]
    listed = "\n".join(f"- `{name}`: {others[name]}" for name in names)
    return f"\n\nInherited arguments:\n\n{listed}\n" if listed else ""


def fence(kind: str, title: str, body: str, example: str = "", depth: int = 3) -> str:
    marks = "`" * (depth + 4)
    return f"{marks}{{py:{kind}}} {title}\n{body}\n{example}\n{marks}\n"


def members(cls: type) -> Iterator[str]:
    """The public methods and properties that a class itself defines, where they have a docstring of their own."""
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", member)
        if name.startswith("_") or not getattr(function, "__doc__", None) or isinstance(function, type):
            continue
        if isinstance(member, property):
            yield fence("property", name, as_markdown(member.__doc__ or ""), depth=1)
        elif inspect.isfunction(function):
            yield fence("method", name + signature(function), as_markdown(function.__doc__ or ""), depth=1)


def described(name: str, example: str) -> str:
    """The Markdown of the directive: what ``name`` is, and how it is used."""
    module, thing = find(name)
    shown = f"```python\n{example}\n```\n"
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
        arguments = "" if kind == "exception" else signature(thing)
        body = as_markdown(thing.__dict__.get("__doc__") or "") + (inherited(thing) if arguments else "")
        return fence(kind, name + arguments, body, shown + "\n" + "\n".join(members(thing)))
    if callable(thing):
        return fence("function", name + signature(thing), as_markdown(inspect.getdoc(thing) or ""), shown)
    comments = ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
    return fence("data", name, as_markdown("\n".join(comments.get(("", name.rpartition(".")[2]), []))), shown)


class Api(SphinxDirective):
    """Describe one public name; the body of the directive is its example."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(described(self.arguments[0], "\n".join(self.content)))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("api", Api)
    return {"parallel_read_safe": True}
