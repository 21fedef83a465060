"""The campaigns under tests/campaigns: a fixed share of their cases runs here, and the mutants fit the sources."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from campaigns.campaign import GROUPS
from campaigns.mutants import MUTANTS, stale

ROOT = Path(__file__).resolve().parent.parent
LEAST = {"kills": 4, "faults": 3, "damage": 40, "inputs": 30, "misuse": 30, "tables": 20, "soak": 1}
"""Cases of every campaign that the share contains at least."""


def test_every_mutant_fits_the_sources() -> None:
    """Each replaces a text that occurs exactly once, and names test files that exist."""
    assert stale() == []


def test_there_are_mutants_of_every_rule() -> None:
    files = {mutant.file for mutant in MUTANTS}
    assert len(MUTANTS) >= 45
    assert {file.split("/")[0] for file in files} >= {"methods", "models", "sampling", "engine"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """The outcomes of a fixed share of all cases, in a process of its own: some of them fork it."""
    script = ROOT / "tests" / "campaigns" / "campaign.py"
    ended = subprocess.run(
        [sys.executable, str(script), "--share", "0.025", "--json"], capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("group", GROUPS)
def test_no_case_of_the_share_is_wrong(group: str, outcomes: dict[str, Any]) -> None:
    found = outcomes[group]
    assert found["wrong"] == []
    assert found["tried"] == found["right"] + found["refused"]
    assert found["tried"] >= LEAST[group]
