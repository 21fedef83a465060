"""``lmc runs`` and ``lmc report``: what run folders hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmc.cli.console import console, seconds
from lmc.errors import ConfigError, LmcError
from lmc.files import replace, writable
from lmc.report.page import report_page
from lmc.results import RunRecord, read_run
from lmc.train.run_folder import RUN_FILES

HEADERS = ("run", "last write", "graph", "method", "model", "lr", "seed", "epochs", "best", "val", "test", "time")


def list_runs(root: Path) -> None:
    """Print one line per run, the newest first; one that is damaged, or of another program, is named and
    skipped."""
    if not root.is_dir():
        raise ConfigError(f"expected a folder of runs (got {root}, which is none): name one, or train with `lmc train`")
    out, rows, damaged = console(), list[tuple[str, ...]]([HEADERS]), list[str]()
    folders = {file.parent for name in RUN_FILES for file in root.rglob(name)}
    written = {folder: max(f.stat().st_mtime for name in RUN_FILES for f in folder.glob(name)) for folder in folders}
    for folder in sorted(folders, key=lambda folder: -written[folder]):
        try:
            rows.append(_line(str(folder.relative_to(root)), written[folder], read_run(folder)))
        except KeyError as missing:
            damaged.append(
                f"skipped {folder}: expected {missing} in config.json (got none): it is damaged, or of another program"
            )
        except (LmcError, TypeError, AttributeError, ValueError) as error:
            damaged.append(f"skipped {folder}: {' '.join(str(error).split())}")
    for line in _aligned(rows) if len(rows) > 1 else ():
        out.print(line, soft_wrap=True, markup=False)
    if not folders:
        out.print(f"no runs in {root}")
    for line in damaged:
        out.print(line, soft_wrap=True, markup=False, style="yellow")


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a table whose columns are as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _line(name: str, written: float, record: RunRecord) -> tuple[str, ...]:
    config = record.config
    done = record.epochs[-1].epoch if record.epochs else 0
    scored = record.best is not None and record.best_val is not None
    return (
        name,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(written)),
        str(config["graph"]),
        _method(config),
        _model(config["model"]),
        f"{config['lr']:g}",
        str(config["seed"]),
        f"{done}/{config['epochs']}",
        str(record.best_epoch) if scored else "-",
        *("-" if score is None else f"{score:.4f}" for score in (record.best_val, record.test)),
        seconds(record.seconds),
    )


def _method(config: Any) -> str:
    """The method, with its parts and those of a batch where there are several."""
    parts = config["num_parts"]
    return (
        f"{config['method']['name']} {parts}/{config['clusters_per_batch']}" if parts > 1 else config["method"]["name"]
    )


def _model(model: Any) -> str:
    """The name of a model, its width and its number of layers."""
    given = model.get("arguments") or {}
    sizes = [f"{key}={given[name]}" for key, name in (("layers", "num_layers"), ("hidden", "hidden")) if name in given]
    return ":".join([str(model["name"]).lower() if given else str(model["name"]), *sizes])


def report_command(folder: Path, out: Path) -> None:
    """Write the page of a run folder, or of the folder of a comparison."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"expected --out with a name that ends in .html or .htm (got {out}): rename it")
    page = report_page(folder)
    with writable(out.parent, "choose another path"):
        out.parent.mkdir(parents=True, exist_ok=True)
        replace(out, page.encode(errors="replace"))
    console().print(f"report   {out.resolve()}", soft_wrap=True, markup=False)
