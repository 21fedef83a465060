"""The plain tables, the version and the help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

import lmc
from lmc.cli.app import app
from lmc.data import names
from lmc.methods import METHODS
from lmc.models import MODELS

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
    assert all(name in names and cls.traits.title in names for name, cls in METHODS.items())
    facts, models = [cell[3] for cell in cells], [cell[4] for cell in cells]
    assert all(fact in facts for cls in METHODS.values() for fact in cls.traits.facts)
    assert "models: recurrent" in models
    assert "histories: H, V" in models
    assert "…" not in result.output


@pytest.mark.parametrize(("kind", "known"), [("methods", METHODS), ("models", MODELS)])
def test_the_options_of_every_method_and_model_are_shown(invoke: Invoke, kind: str, known: dict[str, type]) -> None:
    assert all(name in invoke(kind)[1] for name in known)
    for name in known:
        code, said = invoke(kind, name)
        assert code == 0
        described = known[name].__doc__ if name == "top" else sys.modules[known[name].__module__].__doc__
        assert (described or "").split("\n")[0][:40] in said  # TOP shares the module of IMC
    assert "did you mean" in invoke(kind, "gcnn" if kind == "models" else "gass")[1]


def test_options_are_shown_with_defaults_and_help(invoke: Invoke) -> None:
    said = invoke("methods", "lmc4rec")[1]
    for cell in ("undo_drift", "yes or no", "one of solution, step", "an eighth of the parts", "drop_edge"):
        assert cell in said
    said = invoke("models", "gcnii")[1]
    for cell in ("layers", "width of the hidden layers", "share of the encoded input", "theta"):
        assert cell in said


def test_the_module_is_the_script() -> None:
    shown = subprocess.run([sys.executable, "-m", "lmc", "--version"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, f"lmc {lmc.__version__}\n")


def test_help_does_not_import_torch() -> None:
    code = "import sys, lmc.cli; lmc.cli.app(['train', '-h'], standalone_mode=False); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_version(invoke: Invoke) -> None:
    assert invoke("--version") == (0, f"lmc {lmc.__version__}")


def test_help_names_the_groups(invoke: Invoke) -> None:
    for command in ("train", "compare"):
        code, said = invoke(command, "--help")
        assert code == 0
        assert all(group in said for group in ("Data", "Model", "Optimiser", "Method", "Run"))


def test_the_shell_completes_commands() -> None:
    env = {"_LMC_COMPLETE": "complete_bash", "COMP_WORDS": "lmc tr", "COMP_CWORD": "1"}
    result = CliRunner().invoke(app, [], prog_name="lmc", env=env)
    assert result.output.split() == ["train"]
