"""The documentation site builds without a warning; its tutorials run by ``make docs`` and in tests/test_docs.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def warnings_of(source: Path, folder: Path) -> str:
    """What Sphinx says when it reads the pages of ``source`` and resolves every link, without writing any page."""
    quick = ["-q", "-E", "-b", "dummy", "-D", "run_tutorials=0", "-d", str(folder / "trees")]
    build = [sys.executable, "-m", "sphinx", *quick, str(source), str(folder / "site")]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    assert warnings_of(DOCS, tmp_path) == ""


def test_a_link_without_a_target_is_a_warning(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    shutil.copytree(DOCS / "_extensions", source / "_extensions")
    shutil.copy(DOCS / "conf.py", source)
    (source / "index.md").write_text("# Title\n\n[page](absent.md), [section](#nowhere) and [title](#title)\n")
    missing = [line for line in warnings_of(source, tmp_path).splitlines() if "WARNING" in line]
    assert ["absent.md" in line for line in missing] == [True, False]
    assert ["nowhere" in line for line in missing] == [False, True]
