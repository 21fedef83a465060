"""Arguments of a wrong type are refused in one line that names the argument, what was expected and what came."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import lmc
from helpers import make, random_graph
from lmc.errors import ConfigError, LmcError, check_fields, check_positive, check_within, typed


@typed
def call(
    count: int = 1, share: float | None = None, name: str = "", flag: bool = False, choice: Literal["a", "b"] = "a",
    sizes: int | Sequence[int] = 1, then: Callable[[int], int] | None = None, where: str | Path = "", seed: int = 0,
    free: Any = None, *rest: int, **others: str,
) -> str:  # fmt: skip
    return "done"


@pytest.mark.parametrize(
    "given",
    [
        {"count": np.int64(3), "share": 1},
        {"share": np.float32(0.5), "flag": True},
        {"sizes": [1, 2], "then": len, "where": Path("x")},
        {"sizes": (1, 2), "seed": 2**63 - 1, "free": object(), "others": "x"},
    ],
)
def test_values_of_the_annotated_types_pass(given: dict[str, Any]) -> None:
    assert call(**given) == "done"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": "3"}, r"expected count to be a whole number \(got '3'\)"),
        ({"count": 3.0}, "a whole number"),
        ({"count": True}, "a whole number"),
        ({"count": None}, "a whole number"),
        ({"count": torch.tensor(3)}, r"\(got Tensor\)"),
        ({"share": "x"}, r"expected share to be a number \(got 'x'\)"),
        ({"share": float("nan")}, "a number"),
        ({"share": 1j}, "a number"),
        ({"name": 3}, "a text"),
        ({"name": b"x"}, "a text"),
        ({"flag": "no"}, "True or False"),
        ({"flag": 1}, "True or False"),
        ({"choice": "c"}, r'expected choice "a" or "b" \(got \'c\'\)'),
        ({"choice": np.zeros(2)}, "choice"),
        ({"sizes": [1, "2"]}, r"a whole number or a list of whole numbers \(got list of int and str\)"),
        ({"sizes": "12"}, "sizes"),
        ({"then": 3}, "a function"),
        ({"where": 3}, "a text or a Path"),
        ({"seed": 2**63}, r"seed from 0 to 2\^63 - 1"),
        ({"seed": -1}, r"seed from 0 to 2\^63 - 1"),
        ({"name": str}, "str, a class"),
    ],
    ids=str,
)
def test_other_values_are_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        call(**given)
    assert "\n" not in str(refusal.value)


def test_a_long_value_is_cut_short() -> None:
    with pytest.raises(ConfigError) as refusal:
        call(count="9" * 1000)  # type: ignore[arg-type]
    assert len(str(refusal.value)) < 200


def test_the_fields_of_a_record_are_checked_with_those_it_inherits() -> None:
    @dataclass(frozen=True)
    class Wider(lmc.methods.GAS):
        more: "Unknown" = 0  # type: ignore[name-defined]  # noqa: F821, UP037 (it cannot be resolved: anything goes)

    assert Wider(more="x").num_parts is None
    with pytest.raises(ConfigError, match="num_parts"):
        Wider(num_parts="4")  # type: ignore[arg-type]
    check_fields(Wider())


G = random_graph()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda model: lmc.fit(model, G, lmc.methods.GAS(4, 1)),
        lambda model: lmc.fit(G, model, lmc.methods.GAS),
        lambda model: lmc.fit(G, model, lmc.methods.GAS(4, 1), epochs="3"),
        lambda model: lmc.fit(G, model, lmc.methods.GAS(4, 1), epochs=1, seed="a"),
        lambda model: lmc.fit(G, model, lmc.methods.GAS(4, 1), epochs=1, lr="0.1"),
        lambda model: lmc.fit(G, model, lmc.methods.GAS(4, 1), epochs=1, run_dir=3),
        lambda model: lmc.methods.LMC4Conv(alpha="x"),
        lambda model: lmc.methods.GAS(4, 1).bind(model, G),
        lambda model: lmc.methods.GAS(4, 1).bind(G, model, seed=2**70),
        lambda model: lmc.methods.GAS(4, 1).bind(G, model, device="mps"),
        lambda model: lmc.methods.GAS(4, 1).bind(G, model, device="meta"),
        lambda model: lmc.evaluate(G, model),
        lambda model: lmc.models.GCN("6", 4, 4),
        lambda model: lmc.models.GCN(6, 4, 4, seed=2**64),
        lambda model: lmc.Placement(history=3),
        lambda model: lmc.partition.partition(G, "4"),
        lambda model: lmc.results.read_run("there is no such folder"),
        lambda model: lmc.results.read_run(3),
        lambda model: lmc.fit(G, model.requires_grad_(False), lmc.methods.GAS(4, 1), epochs=1),
        lambda model: lmc.fit(G, model, lmc.methods.GAS(4, 1), epochs=1, scheduler="step:size=0"),
        lambda model: lmc.wrap(torch.nn.Linear(6, 4), in_width="6"),
        lambda model: lmc.diagnostics.gradient_error(G, model),
        lambda model: lmc.diagnostics.bias(model),
        lambda model: lmc.diagnostics.bias_variance(model),
        lambda model: lmc.Graph.from_edges(torch.tensor([[0, 1], [1, 0]]), torch.ones(2, 3, device="meta")),
    ],
)
def test_misuse_of_the_api_is_refused_in_one_line(misuse: Callable[[lmc.models.Model], object]) -> None:
    with pytest.raises(LmcError) as refusal:
        misuse(make("gcn", G))
    assert "\n" not in str(refusal.value)
    assert "expected" in str(refusal.value)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [("[0, 1]", (0, 0.5, 1), (-0.1, 1.1, math.nan)), ("[0, 1)", (0, 0.9), (1, -1)), ("(0, 1]", (1,), (0, 2))],
)
def test_values_outside_of_an_interval_are_refused(
    interval: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    for value in inside:
        check_within(interval, rate=value)
    for value in outside:
        with pytest.raises(ConfigError, match=re.escape(f"expected rate in {interval} (got {value}): choose another")):
            check_within(interval, rate=value)


def test_a_value_that_has_to_be_positive() -> None:
    check_positive(lr=0.1, clip=None)
    for value in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"expected clip of more than 0 \(got"):
            check_positive(lr=0.1, clip=value)
