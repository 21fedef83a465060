"""The campaigns under tests/campaigns: a fixed share of their cases runs here, and the mutants fit the sources."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

from campaigns.campaign import GROUPS, TABLE
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


def test_no_case_of_a_fixed_share_is_wrong() -> None:
    """The share runs in a process of its own, since some cases fork it."""
    script = ROOT / "tests" / "campaigns" / "campaign.py"
    ended = subprocess.run(
        [sys.executable, str(script), "--share", "0.025", "--json"], capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    outcomes = json.loads(ended.stdout.splitlines()[-1])
    assert {group: outcomes[group]["wrong"] for group in GROUPS} == {group: [] for group in GROUPS}
    for group in GROUPS:
        found = outcomes[group]
        assert found["tried"] == found["right"] + found["refused"], group
        assert found["tried"] >= LEAST[group], group


def test_the_campaign_of_ranks_can_be_run() -> None:
    """It runs on its own, so that a name it imports may be lost unnoticed."""
    campaign = importlib.import_module("campaigns.ranks")
    assert campaign.CASES % len(campaign.FAULTS) == 0


def test_the_page_quotes_the_table_of_the_whole_campaign() -> None:
    table = TABLE.read_text()
    assert table in (ROOT / "docs" / "reliability.md").read_text()
    rows = [re.findall(r"\s([\d,]+)(?=\s|$)", line) for line in table.splitlines()]
    figures = [[int(cell.replace(",", "")) for cell in row] for row in rows if len(row) == 4]
    assert len(figures) == len(GROUPS)
    assert all(wrong == 0 and tried == right + refused for tried, right, refused, wrong in figures)
