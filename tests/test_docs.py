"""README and docs: their examples run, links between pages have targets, and the language follows the rules."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import lmc
from campaigns.wheel import relative_links

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
REPOSITORY = re.compile(
    r"https://(?:github\.com/lmc-gnn/lmc/(?:blob|tree)|raw\.githubusercontent\.com/lmc-gnn/lmc)/main/([^)\s#]+)(#[\w-]+)?"
)
"""Absolute addresses of files of this repository, which also work on a package index."""
LINE_LENGTH = 120
VOCABULARY = (
    r"calm|cargo|drives|far|hall|handed|hands|lanes?|parcels?|shelf|shelves|speech|stands?|stood|taught|teach(?:es)?|"
    r"tickets?|travel(?:s|led|ling)?|wide"
)
"""Words that the documentation does not use, because the field has a term for what they meant."""
EXAMPLE = re.compile(r"```(?:python|\{api\} [\w.]+)\n(.*?)```", flags=re.DOTALL)
CODE = {page: "\n".join(EXAMPLE.findall(page.read_text())) for page in PAGES}
"""The examples of a page go on from one another."""
FRAME = ("Idea", "Messages", "Equations", "Departures from the paper", "Results", "Command")
APART = ROOT / "docs" / "extending.md"
"""A page that registers a method and a model; tests/test_extending.py runs it and removes them again."""


@pytest.mark.parametrize(
    "code", [pytest.param(c, id=str(p.relative_to(ROOT))) for p, c in CODE.items() if c and p != APART]
)
def test_example_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def public_names() -> set[str]:
    """The names of ``lmc``, and those of its rooms: ``__all__`` of a room, or else all that it defines or imports from
    its own files. What ``lmc`` has by itself is not listed again."""
    values = {name: getattr(lmc, name) for name in lmc.__all__}
    rooms = [value for value in values.values() if inspect.ismodule(value)]
    front = [value for value in values.values() if not inspect.ismodule(value)]
    found = {f"lmc.{name}" for name, value in values.items() if not inspect.ismodule(value)}
    for room in rooms:
        own = {
            name: value for name, value in vars(room).items() if not (name.startswith("_") or inspect.ismodule(value))
        }
        listed = getattr(room, "__all__", [n for n, v in own.items() if _is_of(v, room.__name__)])
        found |= {f"{room.__name__}.{name}" for name in listed if not any(own[name] is value for value in front)}
    return found


def _is_of(value: object, room: str) -> bool:
    return str(getattr(value, "__module__", room)).startswith(room)


def test_every_public_name_has_an_entry_with_an_example_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "api").glob("*.md")))
    entries = re.findall(r"^```\{api\} ([\w.]+)\n(?=.*\S)", pages, flags=re.MULTILINE)
    assert len(entries) == len(set(entries))
    assert sorted(public_names() - set(entries)) == [], "add an entry with an example to a page of docs/api"
    assert sorted(set(entries) - public_names()) == []


def test_the_readme_has_an_example() -> None:
    assert CODE[ROOT / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {"#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_absolute_links_into_the_repository_lead_somewhere(page: Path) -> None:
    links = REPOSITORY.findall(page.read_text())
    assert links
    assert [path for path, _ in links if not (ROOT / path).exists()] == []
    assert [path + anchor for path, anchor in links if anchor and anchor not in anchors(ROOT / path)] == []


def test_the_readme_works_on_a_package_index() -> None:
    assert relative_links((ROOT / "README.md").read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_named_on_a_page_exist(page: Path) -> None:
    named = re.findall(r"[`\s]([\w/]+/[\w*]+\.py)\b", page.read_text())
    homes = (ROOT, ROOT / "src" / "lmc")
    assert [name for name in named if not any(list(home.glob(name)) for home in homes)] == []


METHOD_PAGES = [page for page in PAGES if page.parent.name == "methods" and page.stem not in ("index", "recgcn")]


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda p: p.stem)
def test_the_page_of_a_method_has_the_frame_of_all_of_them(page: Path) -> None:
    text = page.read_text()
    titles = [title for title in re.findall(r"^## (.*)$", text, flags=re.MULTILINE) if title in FRAME]
    assert titles == list(FRAME)
    idea = " ".join(text.split("## Idea\n")[1].split("\n## ")[0].split())
    assert len(re.findall(r"\.(?= |$)", idea)) == 3, "the idea has three sentences"
    assert f"figures/messages/{page.stem}.png" in text or page.stem == "dropedge"


def prose(page: Path) -> list[tuple[int, str]]:
    """The numbered lines of a page outside of tables, fenced code and indented code."""
    lines, fenced, in_code, blank = [], False, False, True
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = line.startswith("```")
        # an indented line is code after a blank line, and as long as the indentation lasts
        in_code = line.startswith("    ") and (in_code or blank)
        if not (fence or fenced or in_code or line.startswith("|")):
            lines.append((number, line))
        fenced, blank = fenced != fence, not line.strip()
    return lines


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_of_prose_are_at_most_120_characters_long(page: Path) -> None:
    assert [number for number, line in prose(page) if len(line) > LINE_LENGTH] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    used = re.findall(rf"\b(?:{VOCABULARY})\b", page.read_text(), flags=re.IGNORECASE)
    assert used == []


def test_prose_excludes_tables_and_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n    code\n    code\n\n- item\n    item\n\n| cell |\n```\ncode\n```\nend\n")
    assert [line for _, line in prose(page) if line] == ["text", "- item", "    item", "end"]
