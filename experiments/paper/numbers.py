"""Numbers of the paper beside ours, and the verdict: does the paper's order of methods hold here?"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from statistics import fmean, stdev

from lmc.cli.console import TextTable

MISSING = "-"
SHOWN = 4
"""Contradicted pairs that a verdict names."""


@dataclass(frozen=True)
class Value:
    """A mean with its standard deviation over seeds (None: one run). An infinite mean: a target is never reached."""

    mean: float
    deviation: float | None = None

    def text(self, digits: int | None) -> str:
        """ "71.44 ± 0.23", or "never"; without ``digits`` as many as the number has.

        Numbers that are the same for all seeds have no deviation.
        """
        if math.isinf(self.mean):
            return "never"
        if digits is None:
            return f"{self.mean:,g}"
        same = self.deviation is None or self.deviation <= 1e-9 * abs(self.mean)
        spread = "" if same else f" ± {self.deviation:,.{digits}f}"
        return f"{self.mean:,.{digits}f}{spread}"


Entry = Value | str
"""A number, or words in its place, such as OOM or the reason why there is none."""
Key = tuple[str, str]
"""Setting (a data set, a batch size) and method."""
Pair = tuple[str, str, str]
"""Setting, the method that is better, the method that is worse."""


def value_of(numbers: Sequence[float]) -> Value | None:
    """Mean and sample deviation; None where there is no number."""
    if not numbers:
        return None
    finite = all(math.isfinite(n) for n in numbers)
    return Value(fmean(numbers), stdev(numbers) if len(numbers) > 1 and finite else None)


def parse(text: str) -> dict[Key, Entry]:
    """The numbers of a table whose columns are separated by two or more spaces.

    The first line has the names of the columns, every other line a name and its numbers: ``71.44+-0.23``, ``OOM``, or
    ``-`` for none. Keys are (column, row).
    """
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.strip().splitlines()]
    columns = lines[0]
    found: dict[Key, Entry] = {}
    for name, *entries in lines[1:]:
        for column, entry in zip(columns, entries, strict=True):
            if entry != MISSING:
                found[column, name] = _entry(entry)
    return found


def _entry(text: str) -> Entry:
    mean, mark, deviation = text.partition("+-")
    try:
        return Value(float(mean), float(deviation) if mark else None)
    except ValueError:
        return text


def transposed(numbers: Mapping[Key, Entry], suffix: str = "") -> dict[Key, Entry]:
    """The numbers of a table whose methods are its columns: keys (row + suffix, column)."""
    return {(row + suffix, column): entry for (column, row), entry in numbers.items()}


@dataclass(frozen=True)
class Verdict:
    """The pairs that the paper orders: those in the same order here, tied ones, and contradicted ones."""

    holding: Sequence[Pair]
    tied: Sequence[Pair]
    contradicted: Sequence[Pair]

    @property
    def word(self) -> str:
        """yes, no, or not measured."""
        if self.contradicted:
            return "no"
        return "yes" if self.holding or self.tied else "not measured"

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many pairs hold, are tied and are contradicted."""
        return len(self.holding), len(self.tied), len(self.contradicted)

    @property
    def text(self) -> str:
        """The verdict with its counts, and the first contradictions."""
        if self.word == "not measured":
            return self.word
        named = [f"{setting}: {worse} before {better}" for setting, better, worse in self.contradicted[:SHOWN]]
        more = len(self.contradicted) - len(named)
        text = "{} (pairs: {} hold, {} tied, {} contradicted)".format(self.word, *self.counts)
        return text + (": " if named else "") + "; ".join(named) + f"; and {more} more" * (more > 0)


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of several comparisons."""
    kinds = ("holding", "tied", "contradicted")
    return Verdict(*([pair for v in verdicts for pair in getattr(v, kind)] for kind in kinds))


@dataclass(frozen=True)
class Comparison:
    """One kind of number for methods in settings, ours and the paper's.

    Two numbers are tied where they differ by at most the larger of their deviations, and by at most ``tie`` in any
    case: a share of the smaller one, or so many units where ``absolute``. A pair of methods that the paper orders holds
    where ours are in the same order, and is contradicted where they are in the other.

    Args:
        title: what the numbers are, with their unit.
        settings, methods: in the paper's order.
        ours, paper: the numbers by setting and method.
        higher: whether larger numbers are better.
        claims: orders that the paper states in words, where it prints no numbers.
        judged: the methods whose pairs are judged; empty: all of them.
        methods_first: whether methods are the rows of the table and settings the columns.
    """

    title: str
    settings: Sequence[str]
    methods: Sequence[str]
    ours: Mapping[Key, Entry]
    paper: Mapping[Key, Entry] = field(default_factory=dict)
    higher: bool = True
    digits: int | None = 2
    tie: float = 0.1
    absolute: bool = True
    claims: Sequence[Pair] = ()
    judged: Sequence[str] = ()
    methods_first: bool = False

    def order(self, a: Entry | None, b: Entry | None) -> int | None:
        """1 where a is better, -1 where b is, 0 for a tie, None where there is nothing to compare."""
        if not isinstance(a, Value) or not isinstance(b, Value):
            return None
        if a.mean == b.mean:  # both may be infinite
            return 0
        floor = self.tie if self.absolute else self.tie * min(abs(a.mean), abs(b.mean))
        if abs(a.mean - b.mean) <= max(floor, a.deviation or 0.0, b.deviation or 0.0):
            return 0
        return 1 if (a.mean > b.mean) == self.higher else -1

    def ordered(self) -> Iterator[Pair]:
        """The pairs that the paper orders."""
        yield from self.claims
        for setting in self.settings:
            for a, b in combinations(self.judged or self.methods, 2):
                order = self.order(self.paper.get((setting, a)), self.paper.get((setting, b)))
                if order:
                    yield (setting, a, b) if order > 0 else (setting, b, a)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the paper's order holds."""
        found: dict[int, list[Pair]] = {1: [], 0: [], -1: []}
        for setting, better, worse in self.ordered():
            order = self.order(self.ours.get((setting, better)), self.ours.get((setting, worse)))
            if order is not None:
                found[order].append((setting, better, worse))
        return Verdict(found[1], found[0], found[-1])

    def table(self) -> TextTable:
        """Every number of ours with the paper's in the column beside it."""
        rows, columns = (self.methods, self.settings) if self.methods_first else (self.settings, self.methods)
        kinds = ["ours", "paper"] if self.paper else ["ours"]
        names = [f"{c}: {k}" for c in columns for k in kinds] if self.paper else columns
        headers = ["method" if self.methods_first else "setting", *names]
        lines = []
        for row in rows:
            keys = [(c, row) if self.methods_first else (row, c) for c in columns]
            numbers = [(self.ours, self.paper)[kind == "paper"].get(key) for key in keys for kind in kinds]
            lines.append([row, *(self._text(entry) for entry in numbers)])
        return TextTable(headers, lines, self.title)

    def _text(self, entry: Entry | None) -> str:
        return MISSING if entry is None else entry.text(self.digits) if isinstance(entry, Value) else entry
