"""Comparisons of a recurrent model, side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from lmc.cli import app

Invoke = Callable[..., tuple[int, str]]
SMALL = ("tiny-like", "--scale", "0.2", "--model", "recgcn:hidden=8", "--parts", "4", "--clusters", "2")


def test_a_comparison_has_a_line_for_every_method_and_a_figure(invoke: Invoke, tmp_path: Path) -> None:
    methods = "backward-sgd,cluster,gas,sse,lmc4rec,cmc4rec"
    options = (*SMALL, "--methods", methods, "--epochs", "2", "--run-dir", "c")
    compared = CliRunner().invoke(app, ["compare", *options])
    assert compared.exit_code == 0, compared.output
    code, said = invoke("estimates", "c", "--out", "estimates.png")
    assert code == 0, said
    assert all(f"c, {name}" in said for name in methods.split(","))
    assert (tmp_path / "estimates.png").stat().st_size > 10_000
    code, said = invoke("estimates", "nowhere")
    assert code != 0
    assert "holds no runs" in said
