"""The page of all tables and figures: report.md, and report.html with its figures inside."""

import base64
import html
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from experiments.paper.catalogue import NO_EXPERIMENT
from experiments.paper.item import Item, Results
from experiments.paper.training import Trained, one_line
from lmc.cli.console import TextTable
from lmc.files import replace, writable

FIGURES = Path("figures") / "paper"
"""Where the figures are, relative to report.md."""
BEGIN, END = "<!-- measured page: begin -->", "<!-- measured page: end -->"
"""The lines of a page of the documentation between which :func:`insert` writes report.md."""
ENDED = (
    "A training has ended when its epochs are done or its validation accuracy has stopped growing. A verdict on "
    "trainings that have not ended says who is ahead early."
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .8em 0; font-size: 13px; display: block; overflow-x: auto }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th.name, td.name { text-align: left; white-space: normal; min-width: 6em }
img { max-width: 100% } h2 { margin-top: 2em; border-top: 1px solid #ccc; padding-top: .6em }
.yes { color: #06703c } .no { color: #a33 } .not { color: #777 } .note { color: #555 }
"""


@dataclass(frozen=True)
class Section:
    """One table or figure on the page."""

    name: str
    label: str  # in the source of the paper
    title: str
    remark: str
    verdict: str  # yes, no or not measured
    verdict_text: str
    counts: str  # of pairs that hold, are tied and are contradicted
    done: str  # seeds and epochs, in words
    ended: str  # "3 of 8": trainings
    tables: Sequence[TextTable] = ()
    figure: str | None = None  # PNG in base64
    problems: Sequence[str] = ()

    def verdict_in(self, bold: str, written: Callable[[str], str] = str) -> str:
        """The verdict as a sentence, with its word in bold type."""
        rest = self.verdict_text.removeprefix(self.verdict)
        return f"Does the paper's order hold? {bold.format(self.verdict)}{written(rest)}."


def section_of(item: Item, lines: Sequence[Trained], failure: str | None = None) -> Section:
    """What there is of an item among the lines of the folder; ``failure`` is the error that ended it."""
    problems = [failure] if failure else []
    try:
        records = item.own(lines)
        problems += problems_of(item, records)
        found = item.comparisons(Results(records))
        verdict = item.verdict(found)
        tables = [comparison.table() for comparison in found if comparison.ours]
        drawn = item.figure(records)
        return Section(
            item.name, item.label, item.title, item.remark, verdict.word, verdict.text,
            " / ".join(map(str, verdict.counts)), *amount(records), tables, None if drawn is None else _png(drawn),
            problems,
        )  # fmt: skip
    except Exception as error:  # one item must not take the page away from the others
        problems.append(one_line(error))
        unknown = ("not measured", "not measured", "-", "-", "-")
        return Section(item.name, item.label, item.title, item.remark, *unknown, problems=problems)


def amount(records: Sequence[Trained]) -> tuple[str, str]:
    """Seeds and epochs, and the trainings that ended: "2 seeds, 31 to 300 epochs" and "3 of 8"."""
    epochs = [record.at[-1] for record in records if record.at]
    seeds = len({record.seed for record in records if record.at or not record.error})
    if not epochs:
        return f"{seeds} seed{'s' * (seeds > 1)}" if seeds else "-", "-"
    span = f"{min(epochs)}" if min(epochs) == max(epochs) else f"{min(epochs)} to {max(epochs)}"
    ended = sum(record.ended for record in records if record.at)
    return f"{seeds} seed{'s' * (seeds > 1)}, {span} epochs", f"{ended} of {len(epochs)}"


def problems_of(item: Item, records: Sequence[Trained]) -> list[str]:
    """What could not be run and why; the same problem of several methods and seeds is one line."""
    found: dict[tuple[str, str, str], list[Trained]] = {}
    for record in records:
        if record.error:
            found.setdefault((record.dataset, record.model, record.error), []).append(record)
    lines = [
        f"{dataset} {model}, {', '.join(dict.fromkeys(r.method for r in those))}: {error} (seed "
        f"{', '.join(map(str, sorted({r.seed for r in those})))})"
        for (dataset, model, error), those in found.items()
    ]
    begun = {(item.of_record(record), record.seed) for record in records}
    missing = [cell for cell in item.waiting(records) if (item.of_record(cell), cell.seed) not in begun]
    if missing:
        sets = ", ".join(dict.fromkeys(f"{cell.dataset} {cell.model}" for cell in missing))
        lines.append(f"{len(missing)} of {len(item.cells())} groups not begun, the time was over: {sets}")
    return lines


@dataclass(frozen=True)
class Page:
    """All sections with the facts about the run."""

    facts: Mapping[str, str]
    graphs: TextTable | None
    sections: Sequence[Section]
    not_run: Mapping[str, str] = field(default_factory=lambda: NO_EXPERIMENT)

    def summary(self) -> TextTable:
        """One row for every table and figure."""
        rows = [[f"{s.name} ({s.label})", s.title, s.verdict, s.counts, s.done, s.ended] for s in self.sections]
        headers = [
            "table or figure", "what it shows", "does the paper's order hold?", "pairs: hold / tied / contradicted",
            "measured", "trainings that ended",
        ]  # fmt: skip
        yes = sum(s.verdict == "yes" for s in self.sections)
        measured = sum(s.verdict != "not measured" for s in self.sections)
        return TextTable(headers, rows, f"The order holds in {yes} of {measured} that are measured.", named=6)

    def markdown(self) -> str:
        """The page without its title."""
        lines = [line for name, value in self.facts.items() for line in _wrapped(f"- {name}: {value}", "  ")] + [""]
        lines += [*self.graph_lines(), self.summary().markdown(), *_wrapped(ENDED), ""]
        for s in self.sections:
            lines += [f"### {s.name}: {s.title}", "", *_wrapped(s.verdict_in("**{}**")), ""]
            lines += [*_wrapped(s.remark), ""] if s.remark else []
            for table in s.tables:
                lines += [*_wrapped(table.caption + ":"), "", table.markdown().partition("\n\n")[0], ""]
            if s.figure is not None:
                lines += [f"![{s.title}]({(FIGURES / f'{s.name}.png').as_posix()})", ""]
        lines += ["### What could not be run, and why", ""]
        for text in self.problem_lines():
            lines += _wrapped(f"- {text}", "  ")
        return "\n".join(lines) + "\n"

    def graph_lines(self) -> list[str]:
        return [] if self.graphs is None else [self.graphs.markdown()]

    def problem_lines(self) -> Iterable[str]:
        """What could not be run, by item."""
        names: dict[str, list[str]] = {}
        for s in self.sections:
            for problem in s.problems:
                names.setdefault(problem, []).append(s.name)
        yield from (f"{', '.join(those)}: {problem}" for problem, those in names.items())
        yield from (f"{name}: no experiment: {why}" for name, why in self.not_run.items())

    def html(self) -> str:
        """The page as one file."""
        title = "The paper, table by table"
        out = [f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"]
        out += [f"<h1>{title}</h1><ul>"]
        out += [f"<li>{_inline(name)}: {_inline(value)}</li>" for name, value in self.facts.items()] + ["</ul>"]
        out += [] if self.graphs is None else [_html_table(self.graphs)]
        out.append(_html_table(self.summary(), linked=True))
        out.append(f"<p class='note'>{_inline(ENDED)}</p>")
        for s in self.sections:
            css = s.verdict.split()[0]
            out.append(f"<h2 id='{s.name}'>{_inline(f'{s.name}: {s.title}')}</h2>")
            out.append(f"<p>{s.verdict_in(f'<b class={css!r}>{{}}</b>', _inline)}</p>")
            out.append(f"<p class='note'>{_inline(s.remark)}</p>" if s.remark else "")
            out += [_html_table(table) for table in s.tables]
            if s.figure is not None:
                out.append(f"<img alt='{_inline(s.title)}' src='data:image/png;base64,{s.figure}'>")
        out.append("<h2>What could not be run, and why</h2><ul>")
        out += [f"<li>{_inline(text)}</li>" for text in self.problem_lines()]
        return "\n".join([*out, "</ul></html>"])

    def write(self, folder: Path) -> None:
        """report.md with its figures, and report.html."""
        with writable(folder):
            (folder / FIGURES).mkdir(parents=True, exist_ok=True)
            for s in self.sections:
                if s.figure is not None:
                    replace(folder / FIGURES / f"{s.name}.png", base64.b64decode(s.figure))
            replace(folder / "report.md", f"# The paper, table by table\n\n{self.markdown()}".encode())
            replace(folder / "report.html", self.html().encode())


def insert(folder: Path, page: Path) -> None:
    """Put the report of a folder between the marks of a page of the documentation, and its figures beside it."""
    text, report = page.read_text(), (folder / "report.md").read_text().partition("\n\n")[2]
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    replace(page, f"{text[:start]}\n\n{report}\n{text[stop:]}".encode())
    (page.parent / FIGURES).mkdir(parents=True, exist_ok=True)
    for figure in sorted((folder / FIGURES).glob("*.png")):
        replace(page.parent / FIGURES / figure.name, figure.read_bytes())


def _wrapped(text: str, indent: str = "", width: int = 116) -> list[str]:
    """Lines of prose of the documentation's length."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _html_table(table: TextTable, linked: bool = False) -> str:
    """A table as HTML; ``linked``: the first word of a row is the name of its section."""

    def cell(kind: str, k: int, text: str) -> str:
        inside = _inline(text)
        if linked and kind == "td" and k == 0:
            inside = f"<a href='#{text.split()[0]}'>{inside}</a>"
        return f"<{kind} class='name'>{inside}</{kind}>" if k < table.named else f"<{kind}>{inside}</{kind}>"

    def line(kind: str, row: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(kind, k, text) for k, text in enumerate(row)) + "</tr>"

    rows = "".join(line("td", row) for row in table.rows)
    return f"<p class='note'>{_inline(table.caption)}</p><table>{line('th', table.headers)}{rows}</table>"
