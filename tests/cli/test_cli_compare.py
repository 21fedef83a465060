"""``lmc compare`` from end to end."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lmc.bench import layer_of
from lmc.cli.console import file_name
from lmc.files import locked
from lmc.results import read_errors, read_lines

Invoke = Callable[..., tuple[int, str]]


SMALL = ("tiny-like", "--scale", "0.2", "--model", "gcn:hidden=8:layers=3", "--parts", "4", "--clusters", "1")
METHODS = "full,cluster,gas,fm,lmc,lmc:alpha=0:score=x^2"
FOLDERS = ("full", "cluster", "gas", "fm", "lmc", "lmc_alpha=0_score=x_2")


def test_compare_writes_records_summary_and_figure(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("compare", *SMALL, "--methods", METHODS, "--epochs", "4", "--error-every", "2")
    assert code == 0, said
    root = tmp_path / "runs" / "compare-tiny-like@0.2-gcn-1"
    assert f"figure {root.relative_to(tmp_path) / 'compare.png'}" in said
    assert (root / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (root / "compare.svg").read_text()
    for folder in FOLDERS:
        assert [r.epoch for r in read_lines(root / folder / "epochs.jsonl")] == [1, 2, 3, 4]
    found = json.loads((root / "summary.json").read_text())
    summary = found["methods"]
    assert list(summary) == METHODS.split(",")
    assert summary["full"]["gradient_error"] == {}
    assert list(summary["lmc"]["gradient_error"]) == ["layer 1", "layer 2", "layer 3"]
    assert all(v > 0 for m in list(summary)[1:] for v in summary[m]["gradient_error"].values())
    measured = read_errors(root / "gas" / "errors.jsonl")
    assert [(r.epoch, r.bias is None) for r in measured] == [(2, True), (4, False)]
    assert re.search(r"epoch loss .* error bias", said)
    assert summary["full"]["bias"] is None
    assert summary["gas"]["bias"] == measured[-1].bias
    assert summary["lmc"]["bias"] < summary["cluster"]["bias"]
    for label in summary:
        assert label in said
    best = max(of["test"] for of in summary.values())
    assert found["target"] == pytest.approx(best - 0.005)
    for label, of in summary.items():
        times = [
            r.seconds for r in read_lines(root / file_name(label) / "epochs.jsonl") if r.scores["test"] >= best - 0.005
        ]
        assert of["seconds_to_target"] == min(times, default=None)
    first = min((of["seconds_to_target"], label) for label, of in summary.items() if of["seconds_to_target"])[1]
    assert f"seconds to a test accuracy of {100 * best - 0.5:.2f} %: {first} " in said


def test_measuring_does_not_change_the_run(invoke: Invoke, tmp_path: Path) -> None:
    for folder, every in (("a", "1"), ("b", "0")):
        assert invoke(
            "compare", *SMALL, "--methods", "lmc", "--epochs", "3", "--run-dir", folder, "--error-every", every
        )[0] == 0  # fmt: skip
    losses = [[r.loss for r in read_lines(tmp_path / f / "lmc" / "epochs.jsonl")] for f in ("a", "b")]
    assert losses[0] == losses[1]
    assert not (tmp_path / "b" / "lmc" / "errors.jsonl").exists()


def test_compare_is_train_for_every_method(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("compare", *SMALL, "--methods", "gas,lmc", "--epochs", "3", "--run-dir", "c")[0] == 0
    assert invoke("train", *SMALL, "--method", "lmc", "--epochs", "3", "--run-dir", "t")[0] == 0
    losses = [[r.loss for r in read_lines(tmp_path / f / "epochs.jsonl")] for f in ("c/lmc", "t")]
    assert losses[0] == losses[1]


def test_every_method_is_placed_as_the_options_say(invoke: Invoke, tmp_path: Path) -> None:
    away = ("--history", "host", "--rebuild-batches")
    assert invoke("compare", *SMALL, "--methods", "gas,lmc", "--epochs", "1", "--run-dir", "r", *away)[0] == 0
    for folder in ("gas", "lmc"):
        assert json.loads((tmp_path / "r" / folder / "config.json").read_text())["history"] == "host"


def test_attention_is_compared_without_methods_that_need_a_linear_aggregation(invoke: Invoke) -> None:
    tiny = ("tiny-like", "--scale", "0.2", "--model", "gat:hidden=4", "--parts", "4", "--clusters", "1")
    code, said = invoke("compare", *tiny, "--epochs", "1", "--run-dir", "r")
    assert code == 0, said
    assert " lmc " in said
    assert " cmc " not in said


@pytest.mark.parametrize("more", [(), ("--resume",), ("--overwrite",)])
def test_a_run_and_a_comparison_do_not_share_a_folder(invoke: Invoke, more: tuple[str, ...]) -> None:
    train = ("train", *SMALL, "--method", "lmc", "--epochs", "1", "--run-dir")
    compare = ("compare", *SMALL, "--methods", "full,gas", "--epochs", "1", "--run-dir")
    for command, folder in ((train, "run"), (compare, "comparison")):
        code, said = invoke(*command, folder)
        assert code == 0, said
    code, said = invoke(*compare, "run", *more)
    assert code == 2
    assert "expected a folder for a comparison (got run, which holds a run of lmc train)" in said
    code, said = invoke(*train, "comparison", *more)
    assert code == 2
    assert "expected a folder for a run (got comparison, which holds a comparison)" in said


def test_a_stopped_comparison_is_resumed(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ("compare", *SMALL, "--methods", "gas,lmc", "--epochs", "5", "--error-every", "2")
    assert invoke(*common, "--run-dir", "whole")[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr("lmc.cli.compare.stop_on_interrupt", _StopAfter(17))
        code, said = invoke(*common, "--run-dir", "halves")
    assert code == 130
    assert "--resume" in said
    done = {m: len(read_lines(tmp_path / "halves" / m / "epochs.jsonl")) for m in ("gas", "lmc")}
    assert 0 < sum(done.values()) < 10
    code, said = invoke(*common, "--run-dir", "halves")
    assert code == 2
    assert "--resume" in said
    assert invoke(*common, "--run-dir", "halves", "--resume")[0] == 0
    for method in ("gas", "lmc"):
        halves, whole = (read_lines(tmp_path / f / method / "epochs.jsonl") for f in ("halves", "whole"))
        assert [(r.epoch, r.loss) for r in halves] == [(r.epoch, r.loss) for r in whole]
        halves_errors, whole_errors = (read_errors(tmp_path / f / method / "errors.jsonl") for f in ("halves", "whole"))
        assert halves_errors == whole_errors


def test_a_finished_comparison_is_not_trained_again(invoke: Invoke, tmp_path: Path) -> None:
    common = ("compare", *SMALL, "--epochs", "2", "--error-every", "0", "--run-dir", "r")
    assert invoke(*common, "--methods", "gas")[0] == 0
    before = (tmp_path / "r" / "gas" / "epochs.jsonl").read_text()
    assert invoke(*common, "--methods", "gas,lmc", "--resume")[0] == 0
    assert (tmp_path / "r" / "gas" / "epochs.jsonl").read_text() == before
    assert len(read_lines(tmp_path / "r" / "lmc" / "epochs.jsonl")) == 2


def test_a_comparison_keeps_its_methods(invoke: Invoke, tmp_path: Path) -> None:
    common = ("compare", *SMALL, "--epochs", "2", "--error-every", "0", "--run-dir", "r")
    assert invoke(*common, "--methods", "full,gas,lmc:alpha=0:score=x^2")[0] == 0
    kept = {name: (tmp_path / "r" / name).read_bytes() for name in ("about.json", "summary.json", "compare.svg")}
    code, said = invoke(*common, "--methods", "full,cluster", "--resume")
    assert code == 2
    assert said == (
        "error: expected all methods of the comparison in r (got full,cluster without gas,lmc:alpha=0:score=x^2): "
        "use --methods gas,lmc:alpha=0:score=x^2,full,cluster, or another --run-dir"
    )
    assert {name: (tmp_path / "r" / name).read_bytes() for name in kept} == kept
    assert invoke(*common, "--methods", "gas,lmc:alpha=0:score=x^2,full,cluster", "--resume")[0] == 0
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert list(summary["methods"]) == ["gas", "lmc:alpha=0:score=x^2", "full", "cluster"]


def test_methods_not_begun_are_not_begun_when_stopped(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.cli.compare.stop_on_interrupt", _StopAfter(2))
    assert invoke("compare", *SMALL, "--methods", "gas,lmc", "--epochs", "5", "--run-dir", "r")[0] == 130
    assert not (tmp_path / "r" / "lmc").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "gas,glas"), "did you mean gas?"),
        (("--methods", "gas:alpha=1"), "(got 'alpha' in 'gas:alpha=1'): it has"),
        (("--methods", "full", "--parts", "3"), "at least one of full has"),
        (("--methods", "lmc:alpha=0.50,lmc:alpha=0^50"), "a number for alpha"),
        (("--error-every", "-1"), "--error-every of at least 0"),
        (("--clusters", "auto"), "a whole number for --clusters (got auto)"),
    ],
)
def test_wrong_arguments(invoke: Invoke, arguments: tuple[str, ...], message: str) -> None:
    code, said = invoke("compare", "tiny-like", "--scale", "0.2", *arguments)
    assert code == 2
    assert message in said


class _StopAfter:
    """Stands in for Ctrl-C: ``stop()`` becomes true at the n-th time it is asked."""

    def __init__(self, asked: int) -> None:
        self.left = asked

    def __call__(self) -> _StopAfter:
        return self

    def __enter__(self) -> object:
        def stop() -> bool:
            self.left -= 1
            return self.left < 0

        return stop

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [("layers.0.lin.weight", "layer 1"), ("layers.11.lin.bias", "layer 12"), ("lin_in.weight", "in"),
     ("act_in.norm.weight", "in"), ("lin_out.bias", "out")],
)  # fmt: skip
def test_layers_are_named_as_people_count_them(parameter: str, layer: str) -> None:
    assert layer_of(parameter) == layer


def test_a_comparison_goes_on_after_a_line_of_errors_that_was_cut_off(invoke: Invoke, tmp_path: Path) -> None:
    common = ("compare", *SMALL, "--methods", "gas", "--error-every", "1", "--run-dir", "r", "--resume")
    assert invoke(*common, "--epochs", "2")[0] == 0
    path = tmp_path / "r" / "gas" / "errors.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    for epochs in ("3", "4"):
        code, said = invoke(*common, "--epochs", epochs)
        assert code == 0, said
    assert [r.epoch for r in read_errors(path)] == [1, 3, 4]


def test_a_comparison_in_use_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    with locked(tmp_path / "r"):
        code, said = invoke("compare", *SMALL, "--methods", "gas", "--epochs", "1", "--run-dir", "r")
    assert code == 2
    assert said.endswith("in use by process " + f"{os.getpid()}): wait until it has ended, or choose another folder")
