"""The paper's numbers as they are copied, and the verdict on the order of methods."""

from __future__ import annotations

import math

import pytest

from experiments.paper import ablations, settings, table_1, table_2, table_3, table_4, table_6, table_11, table_14
from experiments.paper.catalogue import ITEMS
from experiments.paper.numbers import Comparison, Value, joined, parse, transposed, value_of

SHARE = {"tie": 0.01, "absolute": False}


def comparison(ours: dict[str, Value], paper: dict[str, Value], **options: object) -> Comparison:
    of = {name: {("s", m): v for m, v in numbers.items()} for name, numbers in (("ours", ours), ("paper", paper))}
    return Comparison("what", ["s"], list(paper), of["ours"], of["paper"], **options)  # type: ignore[arg-type]


def test_a_table_is_parsed_with_deviations_words_and_gaps() -> None:
    found = parse("""
              left          right, 2
    GAS       71.44+-0.23   OOM
    LMC       1             -
    """)
    assert found == {("left", "GAS"): Value(71.44, 0.23), ("right, 2", "GAS"): "OOM", ("left", "LMC"): Value(1.0)}
    assert transposed(found, "!")["GAS!", "right, 2"] == "OOM"


def test_values_are_means_with_sample_deviations() -> None:
    assert value_of([1.0, 3.0]) == Value(2.0, math.sqrt(2))
    assert value_of([4.0]) == Value(4.0)
    assert value_of([]) is None
    assert value_of([1.0, math.inf]) == Value(math.inf)
    texts = [v.text(1) for v in (Value(2.0, 0.5), Value(2.0), Value(2.0, 1e-17), Value(math.inf))]
    assert texts == ["2.0 ± 0.5", "2.0", "2.0", "never"]
    assert [Value(x).text(None) for x in (128.0, 0.003, 1024.0)] == ["128", "0.003", "1,024"]


@pytest.mark.parametrize(
    ("ours", "paper", "options", "counts"),
    [
        # ours in the same order, tied by our deviation, and in the other order
        ({"a": Value(9), "b": Value(5)}, {"a": Value(2), "b": Value(1)}, {}, (1, 0, 0)),
        ({"a": Value(5, 0.1), "b": Value(9, 4.0)}, {"a": Value(2), "b": Value(1)}, {}, (0, 1, 0)),
        ({"a": Value(5, 0.1), "b": Value(9, 3.9)}, {"a": Value(2), "b": Value(1)}, {}, (0, 0, 1)),
        # the paper's own deviation leaves nothing to contradict
        ({"a": Value(5), "b": Value(9)}, {"a": Value(2, 1.0), "b": Value(1)}, {}, (0, 0, 0)),
        # smaller is better
        ({"a": Value(5), "b": Value(9)}, {"a": Value(1), "b": Value(2)}, {"higher": False}, (1, 0, 0)),
        # the least difference, in units and as a share
        ({"a": Value(5.09), "b": Value(5)}, {"a": Value(2), "b": Value(1)}, {}, (0, 1, 0)),
        ({"a": Value(5.09), "b": Value(5)}, {"a": Value(2), "b": Value(1)}, SHARE, (1, 0, 0)),
        ({"a": Value(5.04), "b": Value(5)}, {"a": Value(2), "b": Value(1)}, SHARE, (0, 1, 0)),
        # a target that is never reached is worse than any number, and tied with another
        ({"a": Value(5), "b": Value(math.inf)}, {"a": Value(1), "b": Value(2)}, {"higher": False}, (1, 0, 0)),
        ({"a": Value(math.inf), "b": Value(math.inf)}, {"a": Value(1), "b": Value(2)}, {"higher": False}, (0, 1, 0)),
        # what is not measured is not judged
        ({"a": Value(5)}, {"a": Value(2), "b": Value(1)}, {}, (0, 0, 0)),
        # an order in words
        ({"a": Value(5), "b": Value(1)}, {}, {"claims": [("s", "b", "a")]}, (0, 0, 1)),
    ],
)  # fmt: skip
def test_the_verdict_counts_pairs(
    ours: dict[str, Value], paper: dict[str, Value], options: dict[str, object], counts: tuple[int, int, int]
) -> None:
    verdict = comparison(ours, paper, **options).verdict
    assert (len(verdict.holding), len(verdict.tied), len(verdict.contradicted)) == counts
    assert verdict.word == ("no" if counts[2] else "yes" if sum(counts) else "not measured")


def test_a_verdict_names_the_contradictions_and_joins_those_of_several_tables() -> None:
    wrong = comparison({"a": Value(1), "b": Value(2)}, {"a": Value(2), "b": Value(1)})
    right = comparison({"a": Value(2), "b": Value(1)}, {"a": Value(2), "b": Value(1)})
    assert joined([wrong.verdict, right.verdict]).text == "no (pairs: 1 hold, 0 tied, 1 contradicted): s: b before a"
    assert right.table().headers == ["setting", "a: ours", "a: paper", "b: ours", "b: paper"]
    assert comparison({"a": Value(1)}, {}).table().headers == ["setting"]
    judged = comparison({"a": Value(1), "b": Value(2)}, {"a": Value(2), "b": Value(1)}, judged=["a"])
    assert judged.verdict.word == "not measured"
    assert right.table().rows == [["s", "2.00", "2.00", "1.00", "1.00"]]


def test_the_items_are_in_the_papers_order_with_its_labels() -> None:
    assert [(item.name, item.label) for item in ITEMS] == [
        ("figure-4", "fig:runtime"), ("table-1", "tab:largegraph"), ("table-2", "tab:memory"),
        ("figure-5", "fig:error_conv"), ("table-3", "tab:memory_consumption"), ("table-4", "tab:batchsize_conv"),
        ("figure-6", "fig:ablation"), ("figure-7", "fig:convergence_random"), ("figure-8", "fig:convergence_metis"),
        ("figure-9", "fig:error_rec"), ("table-5", "tab:runtime"), ("table-6", "tab:batchsize_rec"),
        ("table-7", "tab:datasets"), ("table-8", "tab:hyperparameters"), ("figure-10", "fig:runtime_small"),
        ("table-11", "tab:epochtime"), ("subgraphs", "sec:exp_epochtime, footnote"),
        ("table-12", "tab:ablation_alpha"), ("table-13", "tab:ablation_score"),
        ("figure-11", "fig:convergence_random_runtime"), ("figure-12", "fig:bacthsize"),
        ("table-14", "tab:largegraph_appen"), ("figure-13", "fig:large"),
        ("small-graphs", "not in the paper"),
    ]  # fmt: skip


def test_the_reference_figures_are_the_papers() -> None:
    """The figures that are also listed beside the presets, written a second time."""

    def means(numbers: dict, keys: list[tuple[str, str]]) -> list[float]:
        return [numbers[key].mean for key in keys]

    sets = ["reddit", "ppi", "flickr", "ogbn-arxiv"]
    accuracies = {
        "LMC, GCN": [95.44, 98.87, 53.80, 71.44], "LMC, GCNII": [96.88, 99.32, 55.36, 72.76],
        "GAS, GCN": [95.35, 98.91, 53.44, 71.54], "GAS, GCNII": [96.73, 99.36, 55.42, 72.50],
        "GD, GCN": [95.43, 97.58, 53.73, 71.64],
    }  # fmt: skip
    for method, numbers in accuracies.items():
        assert means(table_1.PAPER, [(s, method) for s in sets]) == numbers
    rec = ["PPI", "REDDIT", "AMAZON", "Ogbn-arxiv", "Ogbn-products"]
    assert means(table_14.PAPER, [(s, "LMC4Rec") for s in rec]) == [98.99, 96.58, 88.84, 72.64, 77.73]
    rows = ["Ogbn-arxiv & GCN", "FLICKR & GCN", "REDDIT & GCN", "PPI & GCN"]
    for method, epochs, seconds in (
        ("Cluster-GCN", [211, 379, 239, 428], [108, 127, 516, 359]),
        ("GAS", [176, 389, 372, 294], [79, 117, 790, 179]),
        ("LMC4Conv", [124, 334, 167, 290], [55, 85, 381, 179]),
    ):
        assert [round(e) for e in means(table_2.EPOCHS, [(method, row) for row in rows])] == epochs
        assert means(table_2.SECONDS, [(method, row) for row in rows]) == seconds
    sizes = [f"GCN, {size}" for size in (1, 2, 5, 10)]
    assert means(table_4.PAPER, [(s, "GAS") for s in sizes]) == [70.56, 71.11, 71.99, 71.60]
    assert means(table_4.PAPER, [(s, "LMC4Conv") for s in sizes]) == [71.65, 71.89, 71.84, 72.14]
    for row, megabytes in (
        ("1, Ogbn-arxiv", [681, 177, 178, 207]), ("1, FLICKR", [411, 138, 168, 177]),
        ("1, REDDIT", [2067, 428, 482, 610]), ("1, PPI", [605, 189, 190, 197]),
    ):  # fmt: skip
        columns = ["GD", "Cluster-GCN", "GAS", "LMC4Conv"]
        assert means(table_3.MEMORY, [(column, row) for column in columns]) == megabytes
    kept = ["1, Ogbn-arxiv", "1, FLICKR", "1, REDDIT", "1, PPI"]
    for method, numbers, shares in (
        ("Cluster-GCN", table_3.FORWARD, [67, 57, 35, 90]), ("GAS", table_3.FORWARD, [100] * 4),
        ("GAS", table_3.BACKWARD, [67, 57, 35, 90]), ("LMC4Conv", table_3.BACKWARD, [100] * 4),
    ):  # fmt: skip
        assert means(numbers, [(method, row) for row in kept]) == shares
    assert table_6.PAPER["AMAZON, 1", "GAS"] == Value(83.04)
    assert table_11.PAPER["FM", "REDDIT & GCN"] == Value(5.67)
    assert ablations.ALPHAS["0.4", "1"] == Value(71.65)
    assert ablations.SCORES["sin", "40"] == Value(70.32)


@pytest.mark.parametrize("table", [settings.Table7, settings.Table8])
def test_the_registry_and_the_presets_agree_with_the_paper(table: type[settings.Settings]) -> None:
    item = table(device="cpu")
    found = item.comparisons(None)  # type: ignore[arg-type]
    verdict = item.verdict(found)
    assert verdict.contradicted == []
    assert len(verdict.holding) == len(found[0].paper) > 25
    key = next(iter(found[0].paper))
    found[0].ours[key] = Value(1e9)  # type: ignore[index]
    assert item.verdict(found).word == "no"
