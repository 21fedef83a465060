"""Every command that README and docs show exists, with the options, methods and models that it names."""

from __future__ import annotations

import itertools
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import make_app
from lmc.cli.app import app
from lmc.cli.spec import parse_methods, read_model

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"lmc": app, "python -m experiments": make_app()}
COMMAND = re.compile(r"(?:\$ )?(?:\w+=\w+ )*((?:lmc|python -m experiments) [a-z].*)")


def commands_on(page: Path) -> list[str]:
    """The commands of a page: in fenced code, in indented code and in spans of code."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    fences = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
    lines = [line for fence in fences.findall(text) for line in fence.splitlines()]
    rest = fences.sub("", text)
    lines += [line for line in rest.splitlines() if line.startswith("    ")]
    lines += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]
    return [found[1] for line in lines if (found := COMMAND.fullmatch(line.strip()))]


COMMANDS = sorted({command for page in PAGES for command in commands_on(page)})


@cache
def help_of(program: str, *names: str) -> str:
    """What ``program names --help`` prints."""
    result = CliRunner().invoke(PROGRAMS[program], [*names, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return result.output


def check_words(program: str, names: tuple[str, ...], words: list[str]) -> None:
    """Refuse an option that a command does not have, and a method or a model that does not exist."""
    known = set(re.findall(r"--[\w-]+", help_of(program, *names)))
    for word, value in itertools.pairwise([*words, ""]):
        if not word.startswith("--"):
            continue
        assert word in known, f"{' '.join(names)} has no {word}"
        if word in ("--method", "--methods", "--tier-methods"):
            assert parse_methods(",".join(spec for spec in value.split(",") if spec != "..."))
        elif word == "--model":
            assert read_model(value)


@pytest.mark.parametrize("text", COMMANDS)
def test_a_documented_command_exists(text: str) -> None:
    program = next(name for name in PROGRAMS if text.startswith(name))
    # what follows in brackets is a remark, and an ellipsis leaves something out
    name, *words = [word for word in shlex.split(text.removeprefix(program).split(" (")[0]) if word != "..."]
    if name not in ("bench", "paper") or not words:
        check_words(program, (name,), words)
        return
    for command in words[0].split("|"):
        check_words(program, (name, command), words[1:])


def test_the_pages_show_commands_of_both_programs() -> None:
    assert len(COMMANDS) > 40
    assert any(text.startswith("python -m experiments recurrent") for text in COMMANDS)
    assert any(text.startswith("lmc train DATA --method lmc:") for text in COMMANDS)
