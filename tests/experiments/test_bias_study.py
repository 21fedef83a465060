"""Bias and error of batch gradients over a grid, on small graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.bias import Bias, BiasCell, load
from lmc.errors import ConfigError

Invoke = Callable[..., tuple[int, str]]


def test_an_exact_method_has_no_bias_and_gas_has_some() -> None:
    study = Bias(grid="tiny-like@0.1 6/1 gcn", methods="backward-sgd,gas", hidden=4, epochs=2, every=1, device="cpu")
    (exact,), (gas,) = (study.measure(cell) for cell in study.cells())
    assert exact.bias is not None
    assert gas.bias is not None
    assert gas.error is not None
    assert exact.bias < 1e-5 < 1e-2 < min(gas.bias, gas.error)
    assert list(gas.biases) == ["1", "2"]


def test_settings_of_lookalikes_change_the_graph() -> None:
    sets = ["tiny-like@0.2", "tiny-like@0.2:seed=1", "tiny-like@0.2:near=0.1"]
    assert len({load(source, None)[0].checksum for source in sets}) == 3


def test_the_command_divides_by_the_best_lmc(invoke: Invoke, tmp_path: Path) -> None:
    grid = "tiny-like@0.1 4/1 gcn:norm=layer, tiny-like@0.1:near=0.3 4/2 sage"
    options = ["--hidden", "4", "--epochs", "1", "--every", "1", "--methods", "lmc,lmc:alpha=0,cmc,imc"]
    code, said = invoke("bias", "--grid", grid, *options, "--device", "cpu", "--run-dir", "out")
    assert code == 0, said
    lines = [line.strip("| ").split(" | ") for line in (tmp_path / "out" / "bias.md").read_text().splitlines()]
    rows = [line for line in lines if line[0].startswith("tiny-like")]
    assert [row[:3] for row in rows[:2]] == [setting.split() for setting in grid.split(", ")]
    for row, ours in [(rows[0], 6), (rows[2], 5)]:  # the bias of IMC, the error of CMC
        best = min(float(text.strip("*")) for text in row[3:5])
        assert float(row[7]) == pytest.approx(float(row[ours]) / best, abs=0.02)


@pytest.mark.parametrize(("given", "word"), [({"grid": "cora gcn"}, "PARTS/CLUSTERS"), ({"every": 99}, "--every")])
def test_wrong_options_are_refused(given: dict[str, str | int], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Bias(device="cpu", **given).cells()  # type: ignore[arg-type]


def test_the_default_grid_has_twelve_settings() -> None:
    cells = Bias(device="cpu").cells()
    assert len({(c.dataset, c.config, c.model) for c in cells}) == 12
    assert isinstance(cells[0], BiasCell)
