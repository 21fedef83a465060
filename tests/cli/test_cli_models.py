"""Every model of the library can be trained from the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lmc.models import MODELS

Invoke = Callable[..., tuple[int, str]]


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"gcn", "gcnii"}))
def test_a_model_trains(invoke: Invoke, name: str) -> None:
    code, said = invoke("train", "tiny-like", "--scale", "0.2", "--model", f"{name}:hidden=8", "--epochs", "1")
    assert code == 0, said


def test_a_model_beyond_all_memory_is_refused_in_one_line(invoke: Invoke) -> None:
    code, said = invoke("train", "tiny-like", "--scale", "0.2", "--model", f"gcn:hidden={10**13}", "--epochs", "1")
    assert code == 2, said
    assert "expected enough memory" in said
    assert "Traceback" not in said
