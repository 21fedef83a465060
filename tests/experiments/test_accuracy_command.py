"""The study ``accuracy`` from end to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Invoke = Callable[..., tuple[int, str]]

BENCH = (
    "accuracy", "tiny-like", "--scale", "0.2", "--hidden", "8", "--layers", "2", "--config", "4/2",
    "--epochs", "3", "--full-epochs", "12", "--lrs", "1e-2,5e-2", "--methods", "full,gas", "--seeds", "2",
    "--run-dir", "a", "--device", "cpu",
)  # fmt: skip


def test_the_command_trains_once_and_shows_what_it_has(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke(*BENCH)
    assert code == 0, said
    written = (tmp_path / "a" / "accuracy.jsonl").read_text()
    assert len(written.splitlines()) == 8
    assert (tmp_path / "a" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "full" in (tmp_path / "a" / "accuracy.md").read_text()
    assert invoke(*BENCH)[0] == 0
    code, said = invoke(*BENCH, "--epochs", "2")
    assert code == 2
    assert "epochs: 3 there, 2 here" in " ".join(said.split())
    assert (tmp_path / "a" / "accuracy.jsonl").read_text() == written
    code, said = invoke("accuracy", "--summary-only", "--run-dir", "a", "--target", "0.001")
    assert code == 0
    assert "never" not in said
    assert "0.10 %" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--methods", "gas"), "expected full among --methods, or a --target"),
        (("--config", "4/2,4/1"), "expected one division"),
        (("--target", "74"), "expected an accuracy between 0 and 1"),
        (("--within", "-1"), "expected percentage points from 0 on"),
        (("--full-epochs", "2"), "expected --full-epochs as a multiple of --epochs"),
        (("--full-epochs", "13"), "expected --full-epochs as a multiple of --epochs"),
        (("--norm", "group"), "expected norms as none, layer or batch"),
    ],
)
def test_what_cannot_be_is_said(invoke: Invoke, options: tuple[str, ...], words: str) -> None:
    code, said = invoke(*BENCH, *options)
    assert code == 2
    assert words in " ".join(said.split())


def test_a_folder_without_a_finished_cell_says_so(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "accuracy.jsonl").touch()
    for more, words in (((), "no full batch is trained yet"), (("--target", "0.5"), "no cell is done yet")):
        code, said = invoke("accuracy", "--summary-only", "--run-dir", "a", *more)
        assert code == 0
        assert words in said
