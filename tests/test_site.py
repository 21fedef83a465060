"""The documentation site builds without a warning; its tutorials run by ``make docs`` and in tests/test_docs.py."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_tutorial_shows_what_its_code_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sphinx.errors import ExtensionError  # here, since tests of a GPU are also collected where there is no Sphinx

    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    executed = importlib.import_module("executed")
    page = "```python\nx = 2\n```\n\n```python\nprint(x + 1)\n```\n\n```bash\necho $((20 + 3))\n```\n"
    shown = executed.with_outputs(page)
    assert [shown.count(output) for output in (":class: output", "\n3\n", "\n23\n")] == [2, 1, 1]
    with pytest.raises(ExtensionError, match="a command of a tutorial failed"):
        executed.with_outputs("```bash\nfalse\n```\n")
    with pytest.raises(ZeroDivisionError):
        executed.with_outputs("```python\n1 / 0\n```\n")


def test_a_docstring_becomes_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    reference = importlib.import_module("reference")
    arguments = "    Args:\n        x: one\n            line.\n        y,\n            z: two."
    docstring = f"Load :class:`lmc.Graph`.\n\n{arguments}\n\n    The end."
    wanted = "Load `lmc.Graph`.\n\n- `x`: one\n        line.\n- `y, z`: two.\n\nThe end."
    assert reference.as_markdown(docstring) == wanted


def test_the_reference_describes_a_class_and_what_it_inherits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    reference = importlib.import_module("reference")
    shown = reference.described("lmc.methods.LMC4Conv", "method = lmc.methods.LMC4Conv()")
    assert "- `alpha`: in [0, 1]" in shown
    assert "(self" not in shown
    assert "-> None" not in shown
    assert "Inherited arguments:\n\n- `num_parts`: b; by default" in shown
    assert "{py:method} tables(problem: ProblemView) -> Widths" in shown  # it has a docstring of its own
    assert "{py:method} layout" not in shown  # it has none
