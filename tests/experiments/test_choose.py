"""The study of recommendations: targets, the best rates, what is compared, and that it continues where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.choose import Choose, ChooseRecord, seconds_of, settings_of
from lmc.diagnostics import choose
from lmc.methods import IMC, FullBatch

Invoke = Callable[..., tuple[int, str]]
FULL = ChooseRecord("g", "-", "none", 0, "full", 0.1, [1.0, 2.0], [0.5, 0.6], [0.5, 0.8], 0.1)
IMC_LINE = ChooseRecord(
    "g", "8/2", "none", 0, "imc", 0.1, [0.4, 0.6], [0.5, 0.6], [0.5, 0.8], 0.1, 1e9, True, 90.0, None
)
OPTIONS = (
    "choose", "tiny-like", "--configs", "10/2", "--norms", "layer:0.1", "--lrs", "1e-2,2e-2", "--methods", "gas,imc",
    "--epochs", "4", "--full-epochs", "8", "--hidden", "8", "--layers", "2", "--device", "cpu", "--run-dir", "r",
    "--within", "60",
)  # fmt: skip


def test_every_method_counts_at_its_best_rate_and_only_where_it_arrives_on_every_seed() -> None:
    fast = replace(IMC_LINE, lr=0.2, seconds=[0.1, 0.2])
    missed = replace(IMC_LINE, lr=0.2, seed=1, test=[0.1, 0.1])
    late = replace(IMC_LINE, seed=1, seconds=[1.0, 2.0])
    targets = {("g", "none", 0): 0.7, ("g", "none", 1): 0.7}
    assert seconds_of([FULL, IMC_LINE, fast], targets) == {"full": 2.0, "imc": 0.2}
    assert seconds_of([IMC_LINE, fast, missed, late], targets) == {"imc": pytest.approx(1.3)}
    assert seconds_of([missed], targets) == {}


def test_the_target_is_that_of_the_full_batch_at_the_rate_with_the_best_mean() -> None:
    study = Choose(lrs="0.1,0.2", seeds=2, within=0.1)
    other = replace(FULL, seed=1, test=[0.5, 0.7])
    faster = [replace(FULL, lr=0.2, test=[0.5, 0.9]), replace(other, lr=0.2, test=[0.5, 0.5])]
    assert study.targets([FULL, other, faster[0]]) == {}, "a seed of one rate is missing"
    found = {("g", "none", 0): pytest.approx(0.799), ("g", "none", 1): pytest.approx(0.699)}
    assert study.targets([FULL, other, *faster, IMC_LINE]) == found


def test_a_random_split_has_60_20_and_20_percent_of_the_nodes_and_is_always_the_same() -> None:
    (graph,), (own,) = (Choose(datasets="tiny-like", random_split=each).graphs.values() for each in (True, False))
    sizes = [int(nodes.sum()) for nodes in (graph.train, graph.val, graph.test)]
    assert sizes == [900, 300, 300]
    assert bool((graph.train ^ graph.val ^ graph.test).all()), "every node is in one of them"
    assert graph.checksum != own.checksum, "a run folder must notice the other split"
    assert graph.checksum == Choose(datasets="tiny-like", random_split=True).graphs["tiny-like"].checksum


def test_the_rule_is_applied_to_the_facts_of_the_lines() -> None:
    (facts,) = settings_of([FULL, IMC_LINE], "cpu").values()
    assert choose(facts)[0] is IMC
    (facts,) = settings_of([replace(IMC_LINE, step=1e3)], "cpu").values()
    assert choose(facts)[0] is FullBatch


def test_the_study_runs_stops_continues_and_compares(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke(*OPTIONS, "--limit", "1e-9")
    assert (code, "6 of 6 cells are left" in said) == (0, True)
    code, said = invoke(*OPTIONS)
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "r" / "choose.jsonl").read_text().splitlines()]
    assert [(line["method"], line["config"]) for line in lines][::2] == [
        ("full", "-"),
        ("gas", "10/2"),
        ("imc", "10/2"),
    ]
    assert all(len(line["seconds"]) == 1 for line in lines[2:]), "a method stops where it reaches the target"
    assert [len(line["seconds"]) for line in lines[:2]] == [4, 4]
    assert all(line["fits"] and line["rows_per_column"] == pytest.approx(1500 / 5 / 8) for line in lines[2:])
    table = (tmp_path / "r" / "choose.md").read_text()
    assert "| tiny-like | 10/2 | layer:0.1 |" in table
    assert "| full |" in table
    assert (tmp_path / "r" / "choose.png").exists()
