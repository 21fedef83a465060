"""Bit flips, truncation and edits of every file that the library reads.

The outcome is right if the result is that of the undamaged file, if need be after a warning. Text files without a
digest can be edited into other valid text: their reader is right if it returns what the text says.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmc
import raw_folders
from campaigns.harness import Tally, Wrong, folder
from campaigns.runs import EPOCHS, SETTINGS, check_same, graph, train, undisturbed
from lmc.graph import CSR
from lmc.results import ErrorRecord, read_errors, read_run, write_lines

TITLE = "damaged files"
CASES, PER_BLOCK = 2200, 200
JUNK = (b"", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"{}", b"[]", b"null", b"\n", b"PK\3\4", b"\x93NUMPY", b"\0" * 4096)
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1.5, "x", "", [], {}, [None], {"a": {}}, math.nan, math.inf, "9" * 400, [[[[]]]],
)  # fmt: skip


def damaged(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Some content with one of many kinds of damage, and its name."""
    size = max(1, len(content))
    at, length = chance.randrange(size), chance.choice((1, 2, 7, 64, 1000))
    kind = chance.randrange(12)
    if kind <= 3:
        changed = bytearray(content or b"\0")
        for _ in range(chance.choice((1, 1, 1, 2, 8))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return "flipped bits", bytes(changed)
    if kind == 4:
        return f"cut at byte {at}", content[:at]
    if kind == 5:
        return "cut near its end", content[: -chance.randint(1, 40)]
    if kind == 6:
        return "a hole", content[:at] + content[at + length :]
    if kind == 7:
        return "zeros", content[:at] + bytes(min(length, size - at)) + content[at + length :]
    if kind == 8:
        return "inserted bytes", content[:at] + chance.randbytes(length) + content[at:]
    if kind == 9:
        return "bytes after its end", content + chance.randbytes(length)
    if kind == 10:
        junk = chance.choice(JUNK)
        return f"{junk[:8]!r} in place of it", junk
    return f"{(junk := chance.choice(JUNK))[:8]!r} before it", junk + content


def edited(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """JSON text, or lines of it, with another value, key or line."""
    lines = content.decode().splitlines()
    is_lines = len(lines) > 1 and lines[0].endswith("}")
    at = chance.randrange(len(lines)) if is_lines else 0
    kind = chance.choice(("a line twice", "a lost line", "swapped lines")) if is_lines and chance.random() < 0.3 else ""
    if kind == "a line twice":
        lines.insert(at, lines[at])
    elif kind == "a lost line":
        del lines[at]
    elif kind == "swapped lines":
        lines[0], lines[-1] = lines[-1], lines[0]
    else:
        value = json.loads(lines[at] if is_lines else content)
        kind = edit_value(value, chance)
        lines = [*lines[:at], json.dumps(value), *lines[at + 1 :]] if is_lines else [json.dumps(value)]
    return kind, ("\n".join(lines) + "\n").encode()


def edit_value(value: dict[str, Any], chance: random.Random) -> str:
    """Change, remove or add an entry somewhere in a JSON object; the name of the edit."""
    place, path = value, ""
    while True:
        key = chance.choice(sorted(place))
        path += f"[{key}]"
        if not isinstance(place[key], dict) or not place[key] or chance.random() < 0.3:
            break
        place = place[key]
    kind = chance.randrange(5)
    if kind == 0:
        del place[key]
        return f"without {path}"
    if kind == 1:
        place[f"{key}x"] = place.pop(key)
        return f"{path} with another name"
    if kind == 2 and isinstance(place[key], int | float) and not isinstance(place[key], bool):
        place[key] += chance.choice((-1, 1, 0.5, 1e30))
        return f"{path} with another number"
    place[key] = chance.choice(VALUES)
    return f"{path} = {str(place[key])[:20]}"


def damage_one(path: Path, chance: random.Random) -> str:
    """Damage a file, and give the name of the damage."""
    content = path.read_bytes()
    if chance.random() < 0.04:
        path.unlink()
        if chance.random() < 0.5:
            path.mkdir()
            return f"{path.name}: a folder in its place"
        return f"{path.name}: missing"
    is_text = path.suffix in (".json", ".jsonl") and content
    kind, changed = (edited if is_text and chance.random() < 0.5 else damaged)(content, chance)
    path.write_bytes(changed)
    return f"{path.name}: {kind}"


def run(number: int, tally: Tally) -> None:
    """One damaged file, and a reader of it."""
    chance = random.Random(number)
    label, case = KINDS[number % len(KINDS)]
    with folder() as path:
        kind, check = case(path, chance)
        tally.attempt(f"{number}: {label}: {kind}", check)


Prepared = tuple[str, Callable[[], object]]


@cache
def _half_trained(index: int) -> dict[str, bytes]:
    """The files of a run that was stopped after two of its three epochs."""
    with folder() as path:
        train(SETTINGS[index], path / "run", epochs=EPOCHS - 1)
        return {file.name: file.read_bytes() for file in (path / "run").iterdir() if file.is_file()}


def _run_folder(path: Path, index: int, chance: random.Random) -> tuple[Path, str]:
    """A run folder in which one file is damaged."""
    files = _half_trained(index)
    (path / "run").mkdir()
    for name, content in files.items():
        (path / "run" / name).write_bytes(content)
    chosen = chance.choice([name for name in sorted(files) if not name.startswith(".")])
    return path / "run", damage_one(path / "run" / chosen, chance)


def continued(path: Path, chance: random.Random) -> Prepared:
    """A damaged run folder is continued: it ends as undisturbed, or is refused."""
    index = chance.choice((0, 2, 6))
    setting = SETTINGS[index]
    run_dir, kind = _run_folder(path, index, chance)
    return f"{setting.name}: {kind}", lambda: check_same(train(setting, run_dir), undisturbed(setting))


def read_back(path: Path, chance: random.Random) -> Prepared:
    """The record of a damaged run folder is read: it is what its text says, or it is refused."""
    run_dir, kind = _run_folder(path, 2, chance)

    def check() -> None:
        record = read_run(run_dir)
        text = (run_dir / "epochs.jsonl").read_bytes() if (run_dir / "epochs.jsonl").exists() else b""
        lines = [json.loads(line) for line in text.split(b"\n")[: len(record.epochs)]]
        said = [(line["epoch"], line["loss"], line.get("scores"), line["seconds"]) for line in lines]
        if [(r.epoch, r.loss, r.scores, r.seconds) for r in record.epochs] != said:
            raise Wrong("the record is not what the file says")
        if [r.epoch for r in record.epochs] != list(range(1, len(record.epochs) + 1)):
            raise Wrong("the record has gaps")
        if record.config != json.loads((run_dir / "config.json").read_bytes()):
            raise Wrong("the configuration is not what the file says")
        for value in (record.test, record.best_val, record.loss, record.seconds):
            if value is not None and not math.isfinite(value):
                raise Wrong(f"a figure of the record is {value}")

    return kind, check


def errors(path: Path, chance: random.Random) -> Prepared:
    """Damaged gradient errors of ``lmc compare`` are read: the figures are finite and in order, or refused."""
    file = path / "errors.jsonl"
    write_lines(file, [ErrorRecord(k, {"1": 0.5 / k, "2": 0.25}, 0.3) for k in range(1, 5)])
    kind = damage_one(file, chance)

    def check() -> None:
        for record in read_errors(file):
            if not (math.isfinite(record.mean) and all(map(math.isfinite, record.layers.values()))):
                raise Wrong(f"a figure is not finite: {record}")

    return kind, check


def graph_file(path: Path, chance: random.Random) -> Prepared:
    """A damaged graph file gives the same graph, or is refused."""
    file = path / "graph.npz"
    lmc.save(graph(), file)
    kind = damage_one(file, chance)

    def check() -> None:
        if lmc.load(file).checksum != graph().checksum:
            raise Wrong("another graph was read without a word")

    return kind, check


def cached_parts(path: Path, chance: random.Random) -> Prepared:
    """A damaged file of the partition cache gives the same parts."""
    g = graph()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path))
        want = lmc.partition.partition(g, 5)
    (file,) = (path / "lmc" / "partitions").iterdir()
    if chance.random() < 0.2:
        parts = chance.choice((np.zeros(3, int), -want.numpy(), want.numpy() * 1.5, want.numpy() + 1, np.array(["a"])))
        np.savez(file.open("wb"), parts=parts)
        kind = f"parts {parts.dtype} {parts.shape}"
    else:
        kind = damage_one(file, chance)

    def check() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(path))
            if not lmc.partition.partition(g, 5).equal(want):
                raise Wrong("other parts were read without a word")

    return kind, check


@contextlib.contextmanager
def _set_in(path: Path, name: str, written: raw_folders.Written) -> Iterator[None]:
    """A named data set of this size is in a folder, and the cache is beside it."""
    with pytest.MonkeyPatch.context() as patch:
        raw_folders.register(name, written, patch)
        patch.delenv("LMC_DATA", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        yield


def raw_data(path: Path, chance: random.Random) -> Prepared:
    """A damaged file of a published set: the graph that the files describe, which has to be valid, or a refusal. Raw
    files have no digest, so a changed number cannot be told from another data set."""
    form = chance.choice(sorted(raw_folders.MAKERS))
    name, make = raw_folders.MAKERS[form]
    place = path / "sets" / name
    place.mkdir(parents=True)
    written = make(place)
    file = chance.choice(sorted(file for file in place.rglob("*") if file.is_file()))
    kind, changed = damaged(file.read_bytes(), chance)
    file.write_bytes(changed)

    def check() -> None:
        with _set_in(path, name, written):
            check_valid(lmc.load(name, data_dir=path / "sets"))

    return f"{form}: {file.name}: {kind}", check


def parsed_data(path: Path, chance: random.Random) -> Prepared:
    """A damaged file in the cache of parsed sets gives the same graph."""
    place = path / "sets" / "flickr"
    place.mkdir(parents=True)
    written = raw_folders.graphsaint(place)
    with _set_in(path, "flickr", written):
        want = lmc.load("flickr", data_dir=path / "sets").checksum
    (file,) = (path / "cache").rglob("*.safetensors")
    kind = damage_one(file, chance)

    def check() -> None:
        with _set_in(path, "flickr", written):
            if lmc.load("flickr", data_dir=path / "sets").checksum != want:
                raise Wrong("another graph was read without a word")

    return kind, check


def check_valid(g: lmc.Graph) -> None:
    """Raise :class:`Wrong` unless a graph is symmetric and has finite features, known classes and disjoint splits."""
    rows, cols = g.adj.row_index().long(), g.adj.indices.long()
    keys, mirrored = rows * g.num_nodes + cols, cols * g.num_nodes + rows
    values = g.x.data if isinstance(g.x, CSR) else g.x
    unique = keys.unique().numel() == keys.numel() and not bool((rows == cols).any())
    if not (unique and keys.sort().values.equal(mirrored.sort().values)):
        raise Wrong("a graph that is not symmetric was read")
    if not bool(values.isfinite().all()) or not bool(((g.y >= -1) & (g.y < max(2, g.num_classes))).all()):
        raise Wrong("features or targets that are not valid were read")
    if bool((g.train & g.val).any() | (g.train & g.test).any() | (g.val & g.test).any()):
        raise Wrong("splits that share nodes were read")


KINDS: tuple[tuple[str, Callable[[Path, random.Random], Prepared]], ...] = (
    ("a run is continued", continued),
    ("a graph file", graph_file),
    ("a run is continued", continued),
    ("a record is read", read_back),
    ("cached parts", cached_parts),
    ("a run is continued", continued),
    ("gradient errors", errors),
    ("raw data", raw_data),
    ("a run is continued", continued),
    ("parsed data", parsed_data),
    ("raw data", raw_data),
)
