"""Tutorials run when the site is built, and the site shows what their code printed.

On the first page (``start``) and on the pages of ``tutorials/`` every fenced block of ``python`` or ``bash`` runs, in
order, in a folder of its own. The blocks of Python share their names. What a block prints follows it on the page. A
block that fails ends the build. ``-D run_tutorials=0`` shows the pages without running them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n", flags=re.DOTALL | re.MULTILINE)
OUTPUT = "\n```{{code-block}} text\n:class: output\n\n{}\n```\n"


def run_python(code: str, names: dict[str, object]) -> str:
    """Run ``code`` with ``names`` and return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "tutorial", "exec"), names)
    return printed.getvalue()


def run_bash(code: str) -> str:
    """Run ``code`` in a shell whose ``lmc`` is that of this Python, and return what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "110", "TERM": "dumb"}
    done = subprocess.run(["bash", "-e", "-c", code], env=env, capture_output=True, text=True)
    if done.returncode:
        raise ExtensionError(f"a command of a tutorial failed:\n{code}\n{done.stderr}")
    return done.stdout


def with_outputs(page: str) -> str:
    """Return ``page`` with what each block printed behind it."""
    names: dict[str, object] = {"__name__": "tutorial"}

    def ran(block: re.Match[str]) -> str:
        printed = (run_python(block[2], names) if block[1] == "python" else run_bash(block[2])).rstrip()
        return block[0] + (OUTPUT.format(printed) if printed else "")

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return BLOCK.sub(ran, page)


def show_outputs(app: Sphinx, docname: str, source: list[str]) -> None:
    if app.config.run_tutorials and docname.startswith(("start", "tutorials/")):
        source[0] = with_outputs(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("run_tutorials", True, "env", types=(bool, int, str))
    app.connect("source-read", show_outputs)
    return {"parallel_read_safe": False}
