"""The examples of README and docs run as they stand, and links between pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = {page: "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)) for page in PAGES}
"""The examples of a page go on from one another."""


@pytest.mark.parametrize("code", [pytest.param(c, id=str(p.relative_to(ROOT))) for p, c in CODE.items() if c])
def test_example_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_readme_has_an_example() -> None:
    assert CODE[ROOT / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
