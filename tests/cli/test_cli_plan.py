"""``lmc train`` with tiers, plans and limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lmc.cli.plan import held_to, parse_memory
from lmc.diagnostics import Plan
from lmc.diagnostics.probe import BatchSize
from lmc.errors import ConfigError

Invoke = Callable[..., tuple[int, str]]

SMALL = ("tiny-like", "--model", "gcn:hidden=16:layers=3", "--parts", "8")


def test_a_dry_run_says_what_lies_where_and_trains_nothing(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("train", *SMALL, "--method", "lmc", "--dry-run", "--history", "disk")
    assert code == 0, said
    for fact in ("history H[2] │ disk", "history V[2] │ disk", "P X │ device", "structure", "batches", "optimiser"):
        assert fact in said
    assert "a step, at its peak" in said
    assert "memory at the peak of a step" in said
    assert not (tmp_path / "runs").exists()


def test_a_run_that_does_not_fit_is_refused_before_training(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("train", *SMALL, "--method", "cmc", "--clusters", "4", "--memory", "2MB")
    assert code == 2
    assert "expected a run within 2.0 MB (got a plan of" in said
    assert "--history disk" in said
    assert not (tmp_path / "runs").exists()


def test_a_full_batch_has_a_plan_and_no_option_that_makes_it_smaller(invoke: Invoke) -> None:
    full = ("train", "tiny-like", "--model", "gcn:hidden=16", "--method", "full")
    code, said = invoke(*full, "--dry-run")
    assert code == 0, said
    assert "the whole graph at once, 1 steps an epoch" in said
    code, said = invoke(*full, "--memory", "10kB")
    assert (code, "train by parts" in said) == (2, True)
    code, said = invoke(*full, "--clusters", "auto")
    assert (code, "expected a method with parts for --clusters auto" in said) == (2, True)


def test_clusters_auto_takes_what_fits(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("train", *SMALL, "--clusters", "auto", "--memory", "1GB", "--epochs", "1", "--run-dir", "r")
    assert code == 0, said
    assert json.loads((tmp_path / "r" / "config.json").read_text())["clusters_per_batch"] == 8
    code, said = invoke("train", *SMALL, "--clusters", "some")
    assert code == 2
    assert "a whole number or auto" in said


def test_everything_on_disk_trains_and_says_so(invoke: Invoke, tmp_path: Path) -> None:
    base = ("train", *SMALL, "--method", "cmc", "--clusters", "2", "--epochs", "3", "--seed", "2")
    away = ("--history", f"disk:{tmp_path / 'there'}", "--features", "disk", "--rebuild-batches")
    assert invoke(*base, "--run-dir", "here")[0] == 0
    code, said = invoke(*base, *away, "--run-dir", "away")
    assert code == 0, said
    assert "T[2], T[3], M[2], M[3], features on disk" in said
    lines = [(tmp_path / folder / "epochs.jsonl").read_text().splitlines() for folder in ("here", "away")]
    losses = [[json.loads(line)["loss"] for line in text] for text in lines]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4e9), ("1.5 g", 1.5e9), ("800MB", 8e8), ("2GiB", 2**31), ("12345", 12345)]
)
def test_memory_is_read_as_people_write_it(text: str, size: float) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["much", "-1GB", "1.2.3GB", "0GB", "."])
def test_other_amounts_of_memory_are_refused(invoke: Invoke, text: str) -> None:
    code, said = invoke("train", *SMALL, "--memory", text)
    assert code == 2
    assert "such as 4GB" in said


PLAN = Plan((), 10**9, BatchSize(1, 0, 0, 0, 0), 1, on_host=False)


def test_out_of_memory_within_a_limit_is_one_line_and_the_limit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 8 * 10**9

    shares = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, index: shares.append(share))
    with (
        pytest.raises(ConfigError, match=r"within 2\.00 GB \(got a plan of 1\.00 GB, and more was needed\).* --memory"),
        held_to("2GB", torch.device("cuda"), PLAN),
    ):
        raise torch.OutOfMemoryError
    assert shares == [0.25, 1.0]
    with held_to("9GB", torch.device("cuda"), PLAN):
        assert shares[2:] == [1.0]
    del shares[:]
    with pytest.raises(torch.OutOfMemoryError), held_to(None, torch.device("cuda"), None):
        raise torch.OutOfMemoryError
    with held_to("2GB", torch.device("cpu"), PLAN):
        assert shares == []


@pytest.mark.gpu
def test_a_gpu_gives_cached_memory_back_within_a_limit_and_no_more_is_given() -> None:
    limit, device = 2 * 10**9, torch.device("cuda")
    with held_to("2GB", device, PLAN):
        for tenths in range(1, 8):  # each too large for what those before left: 5.6 GB in all
            torch.empty(limit // 10 * tenths, dtype=torch.int8, device=device)
            assert torch.cuda.memory_reserved() <= limit
    with pytest.raises(ConfigError, match="more was needed"), held_to("2GB", device, PLAN):
        torch.empty(2 * limit, dtype=torch.int8, device=device)
    torch.empty(2 * limit, dtype=torch.int8, device=device)


@pytest.mark.gpu
@pytest.mark.parametrize("away", [(), ("--history", "host", "--features", "host", "--rebuild-batches")])
def test_training_on_a_gpu_is_held_to_its_limit(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, away: tuple[str, ...]
) -> None:
    shares, own = [], torch.cuda.set_per_process_memory_fraction
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, index: shares.append(share) or own(share, index)
    )
    few = ("--epochs", "4", "--device", "cuda")
    code, said = invoke("train", *SMALL, "--clusters", "2", *few, *away, "--memory", "2GB", "--run-dir", "r")
    assert code == 0, said
    assert shares == [pytest.approx(2e9 / torch.cuda.get_device_properties(0).total_memory), 1.0]
