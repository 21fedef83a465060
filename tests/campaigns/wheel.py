"""Build the wheel, install it into an empty venv, and run the README's example there, outside of the repository.

    python tests/campaigns/wheel.py                       dependencies are those of this Python (no network)
    python tests/campaigns/wheel.py --python python3.12   another Python, with dependencies from the package index

The exit code is 1 if a file is missing in the wheel, a link of the README would not work on a package index, or the
example or a command fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    ["--version"],
    ["train", "tiny-like", "--epochs", "2", "--device", "cpu", "--name", "first"],
    ["predict", "runs/first-1", "tiny-like", "--out", "predictions.csv"],
)


def relative_links(text: str) -> list[str]:
    """Links and images that are relative to the repository, which a package index cannot show."""
    return re.findall(r"\]\((?!https://|#)([^)]+)\)", text) + re.findall(r'src="(?!https://)([^"]+)"', text)


def missing_files(wheel: Path) -> list[str]:
    """Files of the package in the repository, apart from compiled ones, that the wheel does not have."""
    source = ROOT / "src"
    wanted = {
        str(file.relative_to(source)) for suffix in ("py", "toml", "typed") for file in source.rglob(f"*.{suffix}")
    }
    return sorted(wanted - set(zipfile.ZipFile(wheel).namelist()))


def readme_example() -> str:
    """The first block of Python of the README."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """What a command prints, without the settings of this process that could find the repository."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean | env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(wheel: Path, venv: Path, python: str | None) -> Path:
    """A venv with the wheel; without ``python`` its dependencies are the packages of the running Python."""
    run(python or sys.executable, "-m", "venv", venv, cwd=venv.parent)
    inside = venv / "bin" / "python"
    if python is None:
        (folder,) = venv.glob("lib/python*/site-packages")
        (folder / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    offline = ["--no-deps", "--no-index"] if python is None else ["-c", ROOT / "constraints.txt"]
    run(inside, "-m", "pip", "install", "--quiet", *offline, wheel, cwd=venv.parent)
    return inside


def main() -> int:
    """Build, install, run; the outcome of each step is one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", help="an interpreter; its dependencies come from the package index")
    python: str | None = parser.parse_args().python
    with tempfile.TemporaryDirectory(prefix="lmc-wheel-") as name:
        folder = Path(name)
        isolation = [] if python else ["--no-build-isolation"]
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "-w", folder, ROOT, cwd=folder)
        (wheel,) = folder.glob("*.whl")
        absent, relative = missing_files(wheel), relative_links((ROOT / "README.md").read_text())
        sys.stdout.write(f"{wheel.name}: missing files {absent or 'none'}; relative links {relative or 'none'}\n")
        inside = install(wheel, folder / "venv", python)
        found = run(inside, "-c", "import lmc; print(lmc.__file__)", cwd=folder).strip()
        sys.stdout.write(f"installed as {Path(found).relative_to(folder)}\n")  # not the one of the repository
        (folder / "example.py").write_text(readme_example())
        sys.stdout.write(run(inside, "example.py", cwd=folder).splitlines()[0] + "\n")
        for arguments in COMMANDS:
            run(inside, "-m", "lmc", *arguments, cwd=folder)
        rows = len((folder / "predictions.csv").read_text().splitlines()) - 1
        sys.stdout.write(f"{len(COMMANDS)} commands; {rows} predictions\n")
    return int(bool(absent or relative))


if __name__ == "__main__":
    sys.exit(main())
