"""The plain tables, the version and the help."""

from __future__ import annotations

from collections.abc import Callable

import lmc
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


def test_methods_lists_every_name_with_its_facts(invoke: Invoke) -> None:
    code, said = invoke("methods")
    assert code == 0
    assert all(name in said and cls.title in said for name, cls in METHODS.items())
    assert "exact with exact histories" in said
    assert "H and V" in said


def test_version(invoke: Invoke) -> None:
    assert invoke("--version") == (0, f"lmc {lmc.__version__}")


def test_help_names_the_groups(invoke: Invoke) -> None:
    for command in ("train", "compare"):
        code, said = invoke(command, "--help")
        assert code == 0
        assert all(group in said for group in ("Data", "Model", "Optimiser", "Method", "Run"))
