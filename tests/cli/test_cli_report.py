"""``lmc report`` after ``lmc compare`` and ``lmc train``: what training records for the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmc.results import read_about, read_errors

Invoke = Callable[..., tuple[int, str]]
SMALL = ("tiny-like", "--scale", "0.2", "--model", "gcn:hidden=8", "--parts", "4", "--clusters", "1", "--run-dir", "r")


def test_a_comparison_records_what_its_report_shows(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/lmc", "compare", "tiny-like", "--methods", "a b"])
    assert invoke("compare", *SMALL, "--methods", "full,gas", "--epochs", "2", "--error-every", "1")[0] == 0
    whole, full, gas = (read_about(tmp_path / "r" / name) for name in ("", "full", "gas"))
    assert whole is not None
    assert full is not None
    assert gas is not None
    assert list(whole.methods) == ["full", "gas"]
    assert (gas.label, full.partition) == ("gas", None)
    assert gas.command == whole.command == "lmc compare tiny-like --methods 'a b'"
    assert {"torch", "lmc", "device", "machine"} <= set(gas.environment)
    assert gas.partition is not None
    assert (gas.partition["num_parts"], gas.partition["parts_per_batch"], gas.partition["steps"]) == (4, 1, 4)
    for about in (full, gas):
        assert about.memory is not None
        assert about.memory["planned"] == pytest.approx(about.memory["measured"], rel=0.1)
    errors = read_errors(tmp_path / "r" / "gas" / "errors.jsonl")
    assert [set(e.staleness or ()) for e in errors] == [{"H 1"}, {"H 1"}]
    assert all(0 < value < 1 for e in errors for value in (e.staleness or {}).values())
    code, said = invoke("report", "r", "--out", "page.html")
    assert code == 0, said
    assert said == f"report {tmp_path / 'page.html'}"


def test_a_run_records_its_command_and_its_memory(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("train", *SMALL, "--method", "gas", "--epochs", "1")[0] == 0
    about = read_about(tmp_path / "r")
    assert about is not None
    assert about.label == "gas"
    assert about.memory is not None
    assert about.memory["measured step"] > 0
    code, said = invoke("train", *SMALL, "--method", "lmc", "--epochs", "1")
    assert code == 2, said
    assert read_about(tmp_path / "r") == about  # a refused run leaves the folder as it was


@pytest.mark.parametrize("name", ["x.pdf", "x", "", "html"])
def test_a_report_has_the_name_of_a_page(invoke: Invoke, tmp_path: Path, name: str) -> None:
    code, said = invoke("report", "nowhere", "--out", name)
    assert code == 2
    assert said == f"error: expected --out with a name that ends in .html or .htm (got {name or '.'}): rename it"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.htm", "X.HTML"])
def test_a_report_may_have_other_names_of_pages(invoke: Invoke, tmp_path: Path, name: str) -> None:
    assert invoke("train", *SMALL, "--method", "gas", "--epochs", "1")[0] == 0
    assert invoke("report", "r", "--out", name)[0] == 0
    assert (tmp_path / name).read_text().startswith("<!")
