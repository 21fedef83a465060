"""Who may import whom, and what no file of the library may contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "lmc"
FILES = sorted(SOURCE.rglob("*.py"))

# errors <- {files grammar kernels} <- results <- graph <- {data losses partition stores solvers} <- {sampling models}
#   <- methods <- engine <- {train diagnostics presets} <- bench <- cli;   report <- results only;   pyg: see PLUG_IN
LEFT_TO_RIGHT = [
    {"errors", "heap"},
    {"files", "grammar", "kernels"},
    {"results"},
    {"graph"},
    {"data", "losses", "partition", "stores", "solvers"},
    {"sampling", "models"},
    {"methods"},
    {"engine"},
    {"train", "diagnostics", "presets", "testing"},
    {"bench"},
    {"cli"},
]
EXCEPTIONS = {"methods/protocol.py": {"engine"}}
"""``Method.bind`` is the one call from a method into the engine."""
DRAWS_FROM_RECORDS = "report"
PLUG_IN, PLUG_IN_IMPORTS, PLUG_IN_IS_IMPORTED_BY = "pyg", {"models", "graph", "kernels", "errors"}, "testing"
"""The plug-in is not in the order: only one room, and the front of the package, may import it."""


def allowed() -> dict[str, set[str]]:
    """The rooms each room may import from, itself included."""
    rules: dict[str, set[str]] = {DRAWS_FROM_RECORDS: {DRAWS_FROM_RECORDS, "results", "errors"}}
    left: set[str] = set()
    for rooms in LEFT_TO_RIGHT:
        for room in rooms:
            rules[room] = left | {room}
        left = left | rooms
    # they give finished records to the room that draws
    rules["bench"] |= {DRAWS_FROM_RECORDS}
    rules["cli"] |= {DRAWS_FROM_RECORDS}
    rules[PLUG_IN] = {PLUG_IN} | PLUG_IN_IMPORTS
    rules[PLUG_IN_IS_IMPORTED_BY] |= {PLUG_IN}
    return rules


RULES = allowed()


def room_of(file: Path) -> str:
    """The folder, or the module, directly under the package; "" for the package's own front."""
    first = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "" if first in ("__init__", "__main__") else first


def modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Dotted names of everything imported, at any depth, for type checkers too; relative names made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, *([base] if base else [])])
            # "from lmc import graph" names a room in what it imports, not in where from
            yield from (f"{base}.{alias.name}" for alias in node.names)


def package_of(file: Path) -> str:
    return ".".join(["lmc", *file.relative_to(SOURCE).parent.parts])


def rooms_imported(source: str, package: str) -> set[str]:
    """Rooms of the library that a source text imports; "" is the package's front itself."""
    found = set()
    for name in modules(ast.parse(source), package):
        parts = name.split(".")
        if parts[0] == "lmc":
            # a dunder of the front (the version) is a fact about the package, not a way around the rules
            if len(parts) > 1 and parts[1].startswith("__"):
                continue
            found.add(parts[1] if len(parts) > 1 else "")
    return found


def ids(file: Path) -> str:
    return str(file.relative_to(SOURCE))


def test_there_are_files_to_check() -> None:
    assert {"errors", "graph", "stores", "methods", "models", "sampling"} <= {room_of(f) for f in FILES}


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_every_file_is_in_a_known_room(file: Path) -> None:
    assert room_of(file) in {"", *RULES}, f"{ids(file)}: no such room in DESIGN's layout"


@pytest.mark.parametrize("file", [f for f in FILES if room_of(f) in RULES], ids=ids)
def test_imports_point_to_the_left(file: Path) -> None:
    room = room_of(file)
    wrong = rooms_imported(file.read_text(), package_of(file)) - RULES[room] - EXCEPTIONS.get(ids(file), set())
    assert not wrong, f"{room} may not import {sorted(wrong)}"


@pytest.mark.parametrize(
    ("source", "package", "rooms"),
    [
        ("from lmc.graph import CSR", "lmc.models", {"graph"}),
        ("import lmc.train.loop as x", "lmc.models", {"train"}),
        ("from lmc import methods", "lmc.models", {"methods"}),
        ("from lmc import __version__", "lmc.results", set()),
        ("import lmc", "lmc.models", {""}),
        ("from ..cli import main", "lmc.models", {"cli"}),
        ("from .base import Layer", "lmc.models", {"models"}),
        ("from . import base", "lmc.models", {"models"}),
        ("def f():\n    from lmc.bench import tables", "lmc.graph", {"bench"}),
        ("import torch, lmcx", "lmc.graph", set()),
    ],
)
def test_the_reader_of_imports_sees_every_form(source: str, package: str, rooms: set[str]) -> None:
    assert rooms_imported(source, package) == rooms


def test_siblings_and_the_right_are_out_of_bounds() -> None:
    assert "diagnostics" not in RULES["train"]
    assert "train" not in RULES["diagnostics"]
    assert "partition" not in RULES["stores"]
    assert "models" not in RULES["sampling"]
    assert "methods" not in RULES["models"]
    assert RULES["report"] == {"report", "results", "errors"}


def test_the_architecture_page_lists_the_files_of_the_engine() -> None:
    page = (SOURCE.parent.parent / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`(\w+/\w+\.py)`", page))
    assert not [name for name in named if not ((SOURCE / name).exists() or (SOURCE.parent.parent / name).exists())]
    table = page[page.index("### Files of the engine") : page.index("## Before and after a step")]
    listed = set(re.findall(r"`(engine/\w+\.py)`", table))
    assert listed == {f"engine/{file.name}" for file in SOURCE.glob("engine/*.py") if file.name != "__init__.py"}


def test_the_architecture_page_states_the_same_rules() -> None:
    page = (SOURCE.parent.parent / "docs" / "architecture.md").read_text()
    names = [" ".join(sorted(rooms)) for rooms in LEFT_TO_RIGHT]
    order = " <- ".join(f"{{{name}}}" if " " in name else name for name in names)
    assert order in " ".join(page.split())
    listed = re.findall(r"^\| `(\w+)/?` \|", page.split("## Import direction")[0], flags=re.MULTILINE)
    assert sorted(listed) == sorted(RULES)


def test_only_testing_and_the_front_of_the_package_import_the_plug_in() -> None:
    assert {room for room, reach in RULES.items() if "pyg" in reach} == {"pyg", "testing"}
    importers = {room_of(f) for f in FILES if "pyg" in rooms_imported(f.read_text(), package_of(f))}
    assert importers == {"", "pyg", "testing"}


def test_the_front_imports_the_plug_in_only_when_it_is_used() -> None:
    code = (
        "import sys, lmc, lmc.methods, lmc.train; assert 'lmc.pyg' not in sys.modules;"
        "lmc.wrap; assert 'lmc.pyg' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def forbidden(source: str, may_print: bool) -> list[str]:
    """What a source text does that no library file may do."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec") or (called == "print" and not may_print):
                found.append(f"line {node.lineno}: {called}(")
            # both unpickle what they read
            if called in ("torch.load", "torch.save"):
                found.append(f"line {node.lineno}: {called}(")
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False":
                    found.append(f"line {node.lineno}: allow_pickle")
    for name in modules(ast.parse(source), "lmc"):
        if name.split(".")[0] in ("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"):
            found.append(f"imports {name}")
    return found


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_no_print_eval_or_pickle(file: Path) -> None:
    assert forbidden(file.read_text(), may_print=room_of(file) == "cli") == []


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "eval('1')",
        "exec('1')",
        "import pickle",
        "from pickle import loads",
        "np.load(f, allow_pickle=True)",
        "torch.load(f)",
    ],
)
def test_the_reader_of_calls_sees_what_is_forbidden(source: str) -> None:
    assert forbidden(source, may_print=False)


def test_evaluation_mode_is_not_eval() -> None:
    assert forbidden("model.eval()\nnp.load(f, allow_pickle=False)", may_print=False) == []


def test_no_two_files_of_tests_have_one_name() -> None:
    # pytest imports them by their names alone
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert len(set(names)) == len(names)
