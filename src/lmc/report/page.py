"""The report of a run or a comparison: one page of HTML without anything that is loaded from elsewhere.

Everything that is read from the folder reaches the page as JSON, which its script writes as text. The page allows no
other script and no request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from lmc.errors import CheckpointError
from lmc.report.names import looks_of
from lmc.results import (
    SHARES,
    About,
    ErrorRecord,
    RunRecord,
    finite,
    mean_errors,
    read_about,
    read_errors,
    read_run,
    target_score,
)

POINTS = 1500
"""The most points of a curve: more than the pixels that show them."""
HIDDEN = ("format", "data", "setup_seconds", "model.layers")
"""Entries of config.json that are no settings, or that others say in fewer words."""
_NEEDED = {"graph": str, "epochs": int, "method": dict, "metrics": list}


@dataclass(frozen=True)
class Entry:
    """One run of the page."""

    label: str
    record: RunRecord
    errors: Sequence[ErrorRecord]
    about: About | None


def report_page(folder: Path) -> str:
    """The page of a run folder, or of the folder of a comparison."""
    root, entries = read_entries(folder)
    try:
        data = finite(page_data(folder.resolve().name, root, entries))
    except RecursionError as error:
        raise CheckpointError(f"expected settings of a run in {folder} (got values nested too deeply)") from error
    parts = {name: (files("lmc.report") / f"page.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    text = json.dumps(data, allow_nan=False)  # without non-ASCII characters
    for mark in "<>&":  # nothing in the data can end the element that holds it
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    filled = {
        "title": html.escape(data["title"]), "data": text, "css": parts["css"], "js": parts["js"],
        "csp": f"default-src 'none'; script-src '{_hash(parts['js'])}'; style-src '{_hash(parts['css'])}'",
    }  # fmt: skip
    before, *rest = parts["html"].split("{{")
    pieces = (piece.partition("}}") for piece in rest)
    return before + "".join(filled[name] + after for name, _, after in pieces)


def _hash(text: str) -> str:
    """The hash by which a content security policy allows one script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def read_entries(folder: Path) -> tuple[About | None, list[Entry]]:
    """What the folder says about itself, and its runs; a folder that is damaged or holds no run is refused."""
    if (folder / "config.json").exists():
        return read_about(folder), [_entry(folder)]
    if not folder.is_dir():
        raise CheckpointError(f"expected a run folder (got {folder}, which is none): name one that lmc wrote")
    root = read_about(folder)
    names = sorted(path.name for path in folder.iterdir()) if root is None else root.methods
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"expected names of folders in {folder} (got {', '.join(names)!r:.80}): train again")
    found = [folder / name for name in names if (folder / name / "config.json").exists()]
    if not found:
        raise CheckpointError(
            f"expected a config.json in {folder}, or in the folders of a comparison (got none): name a folder of "
            "`lmc train` or `lmc compare`"
        )
    entries = [_entry(path) for path in found]
    labels = [entry.label for entry in entries]
    if len(set(labels)) < len(labels):
        entries = [Entry(path.name, e.record, e.errors, e.about) for path, e in zip(found, entries, strict=True)]
    return root, entries


def _entry(folder: Path) -> Entry:
    record, about = read_run(folder), read_about(folder)
    wrong = [name for name, kind in _NEEDED.items() if type(record.config.get(name)) is not kind]
    if wrong or not (folder / "epochs.jsonl").exists():
        raise CheckpointError(
            f"expected a whole run folder (got {folder} without {', '.join(wrong) or 'epochs.jsonl'}): name another "
            "one, or train again"
        )
    label = about.label if about is not None and about.label else str(record.config["method"].get("name", folder.name))
    return Entry(label, record, read_errors(folder / "errors.jsonl"), about)


def page_data(name: str, root: About | None, entries: Sequence[Entry]) -> dict[str, Any]:
    """All values of the page, with names only as values, never as keys."""
    first = entries[0].record.config
    metric = entries[0].record.metric
    model = first.get("model")
    title = f"{first['graph']}, {model.get('name', 'model') if isinstance(model, dict) else 'model'}: {name}"
    shared, differing = _settings([entry.record.config for entry in entries])
    made = root or entries[0].about
    return {
        "title": title,
        "metric": metric,
        "percent": metric.lower() in SHARES,
        "smaller": entries[0].record.smaller_is_better,
        "target": target_score([entry.record for entry in entries]),
        "command": made.command if made else None,
        "environment": list(made.environment.items()) if made else [],
        "methods": _methods(entries),
        "shared": shared,
        "differing": differing,
    }


def _methods(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    looks = looks_of([entry.label for entry in entries])
    return [{**_method(entry), **_look(looks[entry.label])} for entry in entries]


def _look(look: Any) -> dict[str, Any]:
    return {"name": look.name, "light": look.colour, "dark": look.dark, "dashes": list(look.dashes[1])}


def _method(entry: Entry) -> dict[str, Any]:
    """The values of one run: curves as rows of epoch, seconds, loss, validation and test score."""
    record, config, about = entry.record, entry.record.config, entry.about
    epochs = record.epochs
    every = -(-len(epochs) // POINTS) or 1
    kept = [e for k, e in enumerate(epochs) if e.scores or k % every == 0 or k == len(epochs) - 1]
    if len(kept) > 2 * POINTS:
        kept = [*kept[:: -(-len(kept) // POINTS)], kept[-1]]
    limited = any(config.get(name) is not None for name in ("patience", "steps", "minutes"))
    return {
        "label": entry.label,
        "done": len(epochs),
        "wanted": config["epochs"],
        "state": "finished" if len(epochs) >= config["epochs"] else "limited" if limited else "unfinished",
        "curve": [[e.epoch, e.seconds, e.loss, *((e.scores or {}).get(s) for s in ("val", "test"))] for e in kept],
        "best": record.best_epoch,
        "val": record.best_val,
        "test": record.test,
        "loss": record.loss,
        "seconds": record.seconds,
        "exact": config["method"].get("name") in ("full", "backward-sgd"),
        "errors": [[e.epoch, e.mean, _mean(e.staleness, "H"), _mean(e.staleness, "V")] for e in entry.errors],
        "bias": next((e.bias for e in reversed(entry.errors) if e.bias is not None), None),
        "layers": list(mean_errors(entry.errors).items()),
        "stale": list((entry.errors[-1].staleness or {}).items()) if entry.errors else [],
        "partition": list(((about and about.partition) or {}).items()),
        "memory": list(((about and about.memory) or {}).items()),
    }


def _mean(values: Mapping[str, float] | None, table: str) -> float | None:
    """The mean over the layers of one table's staleness."""
    found = [value for name, value in (values or {}).items() if name.startswith(table)]
    return sum(found) / len(found) if found else None


def _settings(configs: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """The settings that all runs share, and those that differ, a row each with one text for every run."""
    flat = [dict(_flat("", config)) for config in configs]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = [[name, *(each.get(name, "") for each in flat)] for name in names]
    shared = [(row[0], row[1]) for row in rows if len(set(row[1:])) == 1]
    return shared, [row for row in rows if len(set(row[1:])) > 1]


def _flat(prefix: str, value: Any) -> list[tuple[str, str]]:
    """The leaves of nested settings, as texts."""
    if prefix.startswith(HIDDEN):
        return []
    if prefix == "parameters":  # a shape for every parameter: too long for a table
        return [(prefix, f"{len(value) if isinstance(value, dict) else 0} tensors")]
    if isinstance(value, dict) and value:
        start = f"{prefix}." if prefix else ""
        return [pair for key, inner in value.items() for pair in _flat(f"{start}{key}", inner)]
    if not isinstance(value, str):
        value = "none" if value is None else json.dumps(_rounded(finite(value)))
    return [(prefix, value if len(value) <= 200 else value[:197] + "...")]


def _rounded(value: Any) -> Any:
    """The value with numbers of six significant digits."""
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
