"""The grammar of methods and models, and what it refuses."""

from __future__ import annotations

import pytest

from helpers import random_graph
from lmc.cli.spec import (
    method_options,
    model_options,
    parse_method,
    parse_methods,
    parse_model,
)
from lmc.errors import ConfigError
from lmc.grammar import split_spec, summary_of
from lmc.methods import (
    GAS,
    LADIES,
    METHODS,
    VRGCN,
    ClusterMethod,
    DropEdge,
    GraphFM,
    GraphSAGE,
    GraphSAINT,
    LMC4Conv,
    LMC4Rec,
    ShaDow,
)
from lmc.models import APPNP, GAT, GCN, GCNII, MODELS


def test_methods_with_options_of_their_own() -> None:
    methods = parse_methods("gas, lmc,lmc:alpha=0.8:score=x^2:first-layer=pruned:forward=no")
    assert list(methods) == ["gas", "lmc", "lmc:alpha=0.8:score=x^2:first-layer=pruned:forward=no"]
    assert list(methods.values())[2] == LMC4Conv(alpha=0.8, score="x^2", first_layer="pruned", forward=False)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("lmc4rec:undo_drift=no:update=step", LMC4Rec(undo_drift=False, update="step")),
        ("lmc:num_parts=8:clusters=2:redraw=TRUE", LMC4Conv(8, 2, redraw=True)),
        ("lmc:first_layer=pruned", LMC4Conv(first_layer="pruned")),
        ("graphsage:fanouts=10/10/5", GraphSAGE((10, 10, 5))),
        ("vrgcn:fanouts=3/2", VRGCN((3, 2))),
        ("shadow:fanouts=4:normalise=graph", ShaDow(fanouts=4, normalise="graph")),
        ("ladies:layer-size=9:normalise=0", LADIES(9, normalise=False)),
        ("graphsaint:sampler=node:size=none", GraphSAINT("node")),
        ("gas:parts=4:drop-edge=0.3", DropEdge(GAS(4), p=0.3)),
    ],
)
def test_values_are_read_by_the_type_of_the_field(text: str, method: object) -> None:
    assert parse_method(text) == method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("glas", r"expected a method of full, .* \(got 'glas'\): did you mean gas\?"),
        ("lmc:alpa=1", r"option of method 'lmc' \(got 'alpa' in 'lmc:alpa=1'\): it has parts.*; did you mean alpha\?"),
        ("gas:alpha=1", "option of method 'gas' .*: it has parts, clusters, redraw, partition, drop_edge$"),
        ("full:backward=no", "option of method 'full' .*: it has drop_edge$"),
        ("lmc:alpha", r"expected name:option=value \(got 'alpha' in 'lmc:alpha'\): write lmc:alpha=VALUE"),
        ("lmc:", "name:option=value"),
        ("lmc:alpha=", "name:option=value"),
        ("lmc:alpha=1:alpha=0", "got alpha twice"),
        ("gas:parts=2:num-parts=3", "got parts twice"),
        ("lmc:alpha=high", "expected a number for alpha"),
        ("gas:parts=2.5", "expected a whole number or none for parts"),
        ("lmc:forward=perhaps", "expected yes or no for forward"),
        ("lmc:cut=middle", "expected one of before, after for cut"),
        ("graphsage:fanouts=a", "a whole number or whole numbers such as 10/10/5 for fanouts"),
        ("graphsage:fanouts=3//2", "whole numbers such as 10/10/5 for fanouts"),
        ("lmc:score=cube", "expected score in"),
        ("gas,gas", "more than once"),
        (" , ", "at least one method"),
    ],
)
def test_unreadable_methods_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_methods(text)


def test_shared_options_go_to_the_methods_that_have_them() -> None:
    methods = parse_methods("full,fm,lmc,lmc:parts=9", parts=6, clusters=None)
    assert methods["fm"] == GraphFM(num_parts=6)
    assert methods["lmc"] == LMC4Conv(num_parts=6)
    assert methods["lmc:parts=9"] == LMC4Conv(num_parts=9)
    with pytest.raises(ConfigError, match=r"at least one of full, graphsage has \(got --parts\)"):
        parse_methods("full,graphsage", parts=3)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_built_and_every_option_has_help(name: str) -> None:
    assert parse_method(name) == METHODS[name]()
    options = {option.name: option for option in method_options(name)}
    assert ("parts" in options) == issubclass(METHODS[name], ClusterMethod)
    assert all(option.help and option.expected for option in options.values())


def test_help_and_defaults_come_from_the_classes() -> None:
    options = {option.name: option for option in method_options("lmc")}
    assert (options["alpha"].default, options["parts"].default) == (0.8, None)
    assert options["clusters"].help.endswith("an eighth of the parts, at least 2.")
    assert "run.first_layer says" in options["first_layer"].help
    assert summary_of(LMC4Conv).startswith("Messages between core and halo are compensated")
    assert "alpha: in" not in summary_of(LMC4Conv)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_built_and_every_option_has_help(name: str) -> None:
    assert type(parse_model(f"{name}:hidden=8", random_graph(), seed=0)) is MODELS[name]
    options = model_options(name)
    assert options[0].name == "hidden"
    assert not {"in_width", "out_width", "seed"} & {option.name for option in options}
    assert all(option.help and option.expected for option in options)


def test_options_reach_their_model() -> None:
    g = random_graph()
    gat = parse_model("gat:hidden=8:heads=2:layers=3", g, seed=0)
    assert isinstance(gat, GAT)
    assert (gat.layer(1).heads, gat.num_layers) == (2, 3)
    appnp = parse_model("appnp:alpha=0.3", g, seed=0)
    assert isinstance(appnp, APPNP)
    assert (appnp.layer(1).alpha, appnp.num_layers) == (0.3, 10)
    gcn = parse_model("gcn:norm=none:dropout=0.3:input-dropout=yes", g, seed=0)
    assert isinstance(gcn, GCN)
    assert (gcn.dropout, gcn.input_dropout) == (0.3, 0.3)
    gcnii = parse_model("gcnii:input_dropout=0.2:theta=1", g, seed=0)
    assert isinstance(gcnii, GCNII)
    assert gcnii.input_dropout == 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gcni", r"did you mean gcnii\?"),
        ("gcn:heads=2", "option of model 'gcn' .got 'heads'"),
        ("gcnii:linear_in=yes", "option of model 'gcnii' .*: it has hidden, layers"),
        ("gcn:layers=two", "expected a whole number for layers"),
        ("gcn:norm=group", "expected norm"),
        ("gcn:input_dropout=much", "expected a number or yes or no for input_dropout"),
        ("recgcn:p=2", "expected one of 1, inf for p"),
    ],
)
def test_unreadable_models_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_model(text, random_graph(), seed=0)


def test_a_spec_is_split_as_it_is_written() -> None:
    assert split_spec("gas:num-parts=4:drop-edge=0.2") == ("gas", {"parts": "4", "drop_edge": "0.2"})
