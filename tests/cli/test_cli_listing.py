"""The plain tables, the version and the help."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import CliRunner

import lmc
from lmc.cli.app import app
from lmc.data import names
from lmc.methods import METHODS

Invoke = Callable[..., tuple[int, str]]


def test_datasets_lists_every_name(invoke: Invoke) -> None:
    code, said = invoke("datasets")
    assert code == 0
    assert all(name in said for name in names())
    assert "169,343" in said
    assert "built in" in said


def test_a_missing_data_dir_is_refused(invoke: Invoke) -> None:
    code, said = invoke("datasets", "--data-dir", "nowhere")
    assert code == 2
    assert "expected data_dir to be a folder" in said


def test_methods_lists_every_name_with_its_facts() -> None:
    result = CliRunner().invoke(app, ["methods"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 120
    cells = [[cell.strip() for cell in line.split("│")] for line in lines if line.startswith("│")]
    names = [cell[1] for cell in cells]
    assert all(name in names and cls.title in names for name, cls in METHODS.items())
    facts, models = [cell[3] for cell in cells], [cell[4] for cell in cells]
    assert all(fact in facts for cls in METHODS.values() for fact in cls.facts)
    assert "models: recurrent" in models
    assert "histories: H, V" in models
    assert "…" not in result.output


def test_version(invoke: Invoke) -> None:
    assert invoke("--version") == (0, f"lmc {lmc.__version__}")


def test_help_names_the_groups(invoke: Invoke) -> None:
    for command in ("train", "compare"):
        code, said = invoke(command, "--help")
        assert code == 0
        assert all(group in said for group in ("Data", "Model", "Optimiser", "Method", "Run"))
