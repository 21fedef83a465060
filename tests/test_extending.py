"""The method and the model that docs/extending.md writes: they work, and they are as short as the page says."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from typer.testing import CliRunner

from helpers import full_gradient, one_thread, parts_of, random_graph, scrambled, sweep, worst_error  # noqa: F401
from lmc.cli import app
from lmc.errors import ConfigError
from lmc.graph import Aggregation
from lmc.methods import METHODS, LMC4Conv
from lmc.models import GAT, GCN, MODELS

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
MOST_LINES = 45


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """The names that the examples of the page define; what they register is removed afterwards."""
    module = ModuleType("extending")
    with patch.dict(METHODS), patch.dict(MODELS), pytest.MonkeyPatch.context() as patches:
        patches.setitem(sys.modules, module.__name__, module)
        run_in(module, "\n".join(BLOCKS))
        yield vars(module)


def run_in(module: ModuleType, code: str) -> None:
    exec(compile(code, "docs/extending.md", "exec", dont_inherit=True), vars(module))


def block_with(definition: str) -> str:
    (found,) = [block for block in BLOCKS if definition in block]
    return found


FILES = ("class DecayLMC(", "class UniformNodes(", "class ARMA(")


@pytest.mark.parametrize("definition", FILES)
def test_each_file_is_short(definition: str) -> None:
    assert len([line for line in block_with(definition).splitlines() if line.strip()]) <= MOST_LINES


@pytest.mark.parametrize("definition", FILES)
def test_each_file_runs_by_itself(definition: str) -> None:
    run_in(ModuleType("alone"), block_with(definition))


def test_training_lowers_the_loss(page: dict[str, Any]) -> None:
    epochs = page["record"].epochs
    assert len(epochs) == 10
    assert epochs[-1].loss < 0.9 * epochs[0].loss


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["ARMA", "GCN"])
def test_the_method_equals_the_full_batch_on_one_part(page: dict[str, Any], name: str, alpha: float) -> None:
    g = random_graph()
    model = scrambled({"ARMA": page["ARMA"], "GCN": GCN}[name](6, 7, 4, num_layers=3))
    run = page["DecayLMC"](alpha=alpha).bind(g, model, torch.zeros(g.num_nodes, dtype=torch.int64))
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-10


def test_the_method_is_exact_with_exact_histories(page: dict[str, Any]) -> None:
    g = random_graph()
    model = scrambled(page["ARMA"](6, 7, 4, num_layers=3))
    run = page["DecayLMC"](alpha=0.0, clusters_per_batch=1).bind(g, model, parts_of(g))
    run.refresh()
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-10


def test_with_one_exponent_the_method_is_lmc4conv(page: dict[str, Any]) -> None:
    """A model whose only layer with a history is layer 2: beta is alpha ** 2 for every row."""
    g, model = random_graph(), scrambled(GCN(6, 7, 4, num_layers=2))
    mine = page["DecayLMC"](alpha=0.5, clusters_per_batch=1).bind(g, copy.deepcopy(model), parts_of(g))
    theirs = LMC4Conv(alpha=0.25, score="1", clusters_per_batch=1).bind(g, model, parts_of(g))
    for _ in range(3):
        assert worst_error(sweep(mine), sweep(theirs)) < 1e-12


def test_the_sampled_aggregation_and_loss_are_unbiased(page: dict[str, Any]) -> None:
    g, sums, rows = random_graph(20), torch.zeros(20, 20, dtype=torch.float64), torch.zeros(20, 1, dtype=torch.float64)
    run, loss = page["UniformNodes"](share=0.5).bind(g, scrambled(GCN(6, 7, 4, num_layers=1))), 0.0
    draws = [batch for epoch in range(2000) for batch in run.batches(epoch)]
    for batch in draws:
        P = batch.operators[0]
        assert isinstance(P, Aggregation)
        sums[batch.core[:, None], batch.core[None, :]] += P.forward.to_dense()
        rows[batch.core] += 1
        loss += batch.weight * float(g.train[batch.n_id].sum()) / g.num_labelled / len(draws)
    assert float((sums / rows - run.problem.P.to_dense()).abs().max()) < 0.03
    assert loss == pytest.approx(1.0, abs=0.02)
    with pytest.raises(ConfigError, match="linear"):
        page["UniformNodes"]().bind(g, GAT(6, 7, 4))


def test_the_command_line_knows_both(page: dict[str, Any], tmp_path: Path) -> None:
    arguments = ["--method", "decay:alpha=0.4", "--model", "arma:layers=3", "--epochs", "1", "--device", "cpu"]
    result = CliRunner().invoke(app, ["train", "tiny-like", *arguments, "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "alpha" in CliRunner().invoke(app, ["methods", "decay"]).output
