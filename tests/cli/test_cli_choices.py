"""Parsing method options, and refusing what does not apply."""

from __future__ import annotations

import pytest

from lmc.cli.build import build_method, build_methods, options_of
from lmc.cli.choices import MethodChoice, MethodOptions, parse_method, parse_methods
from lmc.errors import ConfigError
from lmc.methods import METHODS, ClusterMethod, GraphFM, LMC4Conv


def test_methods_with_options_of_their_own() -> None:
    choices = parse_methods("gas, lmc,lmc:alpha=0.8:score=x^2:first-layer=pruned:forward=no")
    assert [c.label for c in choices] == ["gas", "lmc", "lmc:alpha=0.8:score=x^2:first-layer=pruned:forward=no"]
    method = build_method(choices[2])
    assert method == LMC4Conv(alpha=0.8, score="x^2", first_layer="pruned", forward=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lmc:beta=1", "an option of parts, clusters"),
        ("lmc:alpha", "name:option=value"),
        ("lmc:alpha=high", "expected a number for alpha"),
        ("gas:parts=2.5", "expected a whole number for parts"),
        ("lmc:forward=perhaps", "expected yes or no for forward"),
        ("gas,gas", "more than once"),
        (" , ", "at least one method"),
    ],
)
def test_unreadable_methods_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_methods(text)


def test_values_are_checked_by_the_method() -> None:
    with pytest.raises(ConfigError, match="expected score in"):
        build_method(parse_method("lmc:score=cube"))


def test_an_option_of_another_method_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'gas' has \(got --alpha\): it has --parts, --clusters"):
        build_method(MethodChoice("gas", "gas", MethodOptions(alpha=0.3)))
    with pytest.raises(ConfigError, match=r"got --no-backward.*it has --drop-edge"):
        build_method(MethodChoice("full", "full", MethodOptions(backward=False)))


def test_shared_options_go_where_they_apply() -> None:
    methods = build_methods(parse_methods("full,fm,lmc,lmc:alpha=0.9"), MethodOptions(parts=6, alpha=0.2))
    assert methods["fm"] == GraphFM(num_parts=6)
    assert methods["lmc"] == LMC4Conv(num_parts=6, alpha=0.2)
    assert methods["lmc:alpha=0.9"] == LMC4Conv(num_parts=6, alpha=0.9)


def test_a_shared_option_no_method_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one of full, gas has \\(got --momentum\\)"):
        build_methods(parse_methods("full,gas"), MethodOptions(momentum=0.5))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_built(name: str) -> None:
    assert build_method(MethodChoice(name, name)) == METHODS[name]()
    assert ("parts" in options_of(name)) == issubclass(METHODS[name], ClusterMethod)
