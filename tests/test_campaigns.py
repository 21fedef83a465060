"""The campaigns under tests/campaigns are not run here; this file verifies that they can be."""

from __future__ import annotations

from campaigns.mutants import MUTANTS, stale


def test_every_mutant_fits_the_sources() -> None:
    """Each replaces a text that occurs exactly once, and names test files that exist."""
    assert stale() == []


def test_there_are_mutants_of_every_rule() -> None:
    files = {mutant.file for mutant in MUTANTS}
    assert len(MUTANTS) >= 45
    assert {file.split("/")[0] for file in files} >= {"methods", "models", "sampling", "engine"}
