"""Every script and notebook of examples/ runs as a user runs it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
PROMISED = [
    "custom_loss",
    "custom_model",
    "lightning",
    "larger_than_memory",
    "own_loop",
    "predict_new_nodes",
    "pyg_network",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])  # as for ``python examples/NAME.py``


def test_there_is_an_example_for_each_of_the_usual_wishes() -> None:
    assert {*PROMISED, "torchrun_train", "tracker"} <= {script.stem for script in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_runs(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(action="ignore"):
        runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


def test_the_example_of_torchrun_trains_with_two_processes() -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, str(EXAMPLES / "torchrun_train.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 processes: test accuracy")


def test_no_thread_of_the_process_group_outlives_it(tmp_path: Path) -> None:
    """A thread that needs the interpreter after its end would abort the process."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, runpy\n"
        f"runpy.run_path({str(EXAMPLES / 'torchrun_train.py')!r})\n"
        "from lmc.engine.distributed import world\n"
        "world._leave()\n"
        "names = [task.read_text() for task in pathlib.Path('/proc/self/task').glob('*/comm')]\n"
        f"to = pathlib.Path({str(tmp_path)!r}, os.environ['RANK'])\n"
        "to.write_text(str(sum('gloo' in name for name in names)))\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["0", "0"]


def test_the_notebook_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib.use("Agg")
    cells = json.loads((EXAMPLES / "compare.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    exec(compile(code, "compare.ipynb", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.count("test accuracy") == printed.count("bias") == 5
    assert (tmp_path / "compare.png").stat().st_size > 0


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = json.loads((EXAMPLES / "compare.ipynb").read_text())["cells"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
