"""A runner of ``python -m experiments`` whose working folder is the test's own, and one thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import make_app
from helpers import one_thread  # noqa: F401 - a fixture, used by being here

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """``invoke("grid", ...)`` -> exit code and everything that was printed, in one line's worth of spaces."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(make_app(), list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, " ".join(result.output.split())

    return run
