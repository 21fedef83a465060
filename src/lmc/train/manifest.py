"""Checkpoints of several ranks: one file per rank, and a manifest that is written last.

    checkpoint.json                  the manifest: the files, their digests and the parts that each of them holds
    checkpoint-N/shared.safetensors  what is the same on all ranks: parameters, buffers, optimiser, position
    checkpoint-N/rank-K.safetensors  what a rank has of its own: rows of its parts, small numbers, generators

The rows of a part follow each other, by node number, and its smallest node names a part. So another number of ranks,
or one process, finds the rows of its own parts in these files; ranks read a checkpoint of one process in the same way.
The same number of ranks reads its own files, which also hold the rows of mirrors, and continues bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lmc.engine import Run
from lmc.errors import CheckpointError
from lmc.files import read_json, replacing
from lmc.methods import ClusterMethod
from lmc.train import checkpoint
from lmc.train.checkpoint import Position, Saved
from lmc.train.sealed import Damaged, FileMatrix, write_sealed

FILE, PREVIOUS, DAMAGED = (f"checkpoint{kind}.json" for kind in ("", ".previous", ".damaged"))
_FOLDER = "checkpoint-"
_Content = tuple[dict[str, Tensor], Mapping[str, Any], dict[str, str]]
"""Tensors, tables and metadata."""


def save(run_dir: Path, run: Run, optimizer: Optimizer, position: Position) -> None:
    """Write the files of all ranks, and then the manifest; the checkpoint before it is kept. One process writes its one
    file, and deletes those of ranks that it has continued from."""
    if run.sync is None:
        checkpoint.save(run_dir, run, optimizer, position)
        clear(run_dir)
        return
    world = run.sync.world
    run.sync.settle()
    number = int(world.texts(str(1 + max(_numbers(run_dir), default=0)))[0])
    folder, shared = run_dir / f"{_FOLDER}{number}", ""
    with world.together():
        folder.mkdir(parents=True, exist_ok=True)
        rows = write_sealed(folder / _rank_file(world.rank), *checkpoint.row_content(run))
        if world.rank == 0:
            content = checkpoint.shared_content(run, optimizer, position)
            shared = write_sealed(folder / "shared.safetensors", *content)
    digests, parts = world.texts(rows), world.gather(_first_nodes(run).to(world.device))
    with world.together():
        if world.rank == 0:
            ranks = [{"digest": d, "parts": p.tolist()} for d, p in zip(digests, parts, strict=True)]
            done = {"epoch": position.epoch, "step": position.step}
            _write(run_dir, {"number": number, **done, "shared": shared, "ranks": ranks})


def load(run_dir: Path, run: Run, optimizer: Optimizer, recorded: float) -> Position | None:
    """Restore the newest checkpoint, of ranks or of one process; see :func:`lmc.train.checkpoint.load`."""
    one_process = (checkpoint.FILE, checkpoint.PREVIOUS, checkpoint.DAMAGED)
    by_ranks = _written(run_dir, FILE, PREVIOUS) >= _written(run_dir, *one_process[:2])
    if run.sync is not None:  # as rank 0 sees the folder
        by_ranks = run.sync.world.texts(str(by_ranks))[0] == "True"
    elif not by_ranks:
        return checkpoint.load(run_dir, run, optimizer, recorded)
    files = (FILE, PREVIOUS, DAMAGED) if by_ranks else one_process
    return checkpoint.load(run_dir, run, optimizer, recorded, files, _read)


def shared_file(run_dir: Path) -> Path | None:
    """The file with the parameters of the last checkpoint; None where ranks have written none."""
    if not (run_dir / FILE).exists():
        return None
    return run_dir / f"{_FOLDER}{_manifest(run_dir / FILE)['number']}" / "shared.safetensors"


def clear(run_dir: Path) -> None:
    """Delete the checkpoints of ranks."""
    for name in (FILE, PREVIOUS, DAMAGED):
        (run_dir / name).unlink(missing_ok=True)
    _keep(run_dir, set())


@dataclass(frozen=True)
class _Written:
    """The files of a checkpoint: that of all ranks, those with rows, and the first nodes of the parts in each."""

    shared: Path
    rows: list[Path]
    parts: list[list[int]]
    digests: Mapping[Path, str]

    def read(self, path: Path, run: Run) -> _Content:
        tensors, tables, metadata = checkpoint.read_rows(path, run)
        if metadata["digest"] != self.digests.get(path, metadata["digest"]):
            raise Damaged(f"{path} is not the file of its manifest (its digest is another one)")
        return tensors, tables, metadata


def _read(path: Path, run: Run, recorded: float) -> Saved:
    """Read and decode a checkpoint of ranks, or that of one process where ``path`` is no manifest."""
    rank, ranks = (0, 1) if run.sync is None else (run.sync.world.rank, run.sync.world.ranks)
    try:
        written = _files_of(path, run)
        tensors, _, metadata = written.read(written.shared, run)
        same = len(written.rows) == ranks and written.parts[rank] == _first_nodes(run).tolist()
        content = written.read(written.rows[rank], run) if same else _Gathered.of(written, run, rank).content()
    except KeyError as error:
        raise Damaged(f"{path} lacks a value ({error})") from error
    saved = checkpoint.decoded(path, tensors | content[0], content[1], metadata | content[2], recorded)
    return replace(saved, moved=not same)


@dataclass
class _Slices:
    """Rows of a table in several files; ``matrix[start:stop]`` reads them, and gives zeros for mirrors."""

    shape: tuple[int, int]
    dtype: torch.dtype
    pieces: list[tuple[int, int, FileMatrix, int]]
    """First row and number of rows here, and the matrix and first row there."""

    def __getitem__(self, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(self.shape[0])
        found = torch.zeros(stop - start, self.shape[1], dtype=self.dtype)
        for first, count, matrix, there in self.pieces:
            a, b = max(start, first), min(stop, first + count)
            if a < b:
                found[a - start : b - start] = matrix[there + a - first : there + b - first]
        return found


@dataclass
class _Gathered:
    """The parts of a run, in the files of other ranks."""

    run: Run
    rank: int
    files: list[_Content | None]
    """The content of those files that hold a part of this run, or its generator."""
    parts: list[tuple[int, int, int, int]]
    """First row and number of rows of every part here, and its file and number there."""

    @classmethod
    def of(cls, written: _Written, run: Run, rank: int) -> _Gathered:
        place = {first: (k, j) for k, firsts in enumerate(written.parts) for j, first in enumerate(firsts)}
        mine, offsets = _first_nodes(run).tolist(), run.clusters.offsets
        if not isinstance(run.method, ClusterMethod):  # the one part of a rank is what it owns, and has no rows
            mine = []
        if not all(first in place for first in mine):
            raise _other_parts(run)
        parts = [(a, b - a, *place[f]) for a, b, f in zip(offsets[:-1], offsets[1:], mine, strict=False)]
        needed = {k for *_, k, _ in parts} | {0, rank}
        files = [written.read(path, run) if k in needed else None for k, path in enumerate(written.rows)]
        return cls(run, rank, files, parts)

    def content(self) -> _Content:
        """Tensors, tables and metadata as a file of this rank would hold them."""
        run = self.run
        for row, count, k, j in self.parts:
            tensors = self._file(k)[0]
            start, stop = tensors["run.offsets"][j : j + 2].tolist()
            if not torch.equal(tensors["run.order"][start:stop], run.nodes[row : row + count]):
                raise _other_parts(run)
        own, metadata = checkpoint.row_content(run)
        tensors = {k: v for k, v in own.items() if isinstance(v, Tensor)}
        if self.rank < len(self.files):  # further ranks begin with generators and numbers of their own
            found, _, metadata = self._file(self.rank)
            tensors |= {k: v for k, v in found.items() if not k.startswith("model.")}
        tensors |= {f"run.{k}": v for k, v in run.state_dict(tables=False).items() if k in ("order", "offsets")}
        tensors["run.epoch"] = self._file(0)[0]["run.epoch"]
        tensors |= {f"run.numbers.{name}": self._number(name, tensors) for name in run.numbers}
        kept = {k: v for k, v in metadata.items() if k == "generators"}
        return tensors, {name: self._table(name) for name in run.named_tables()}, kept

    def _file(self, k: int) -> _Content:
        found = self.files[k]
        assert found is not None
        return found

    def _table(self, name: str) -> _Slices:
        mine, pieces = self.run.named_tables()[name].data(), []
        for row, count, k, j in self.parts:
            tensors, tables, _ = self._file(k)
            if name not in tables:
                raise CheckpointError(f"expected history {name} in the checkpoint (got none): use the same method")
            pieces.append((row, count, tables[name], int(tensors["run.offsets"][j])))
        width, dtype = (pieces[0][2].shape[1], pieces[0][2].dtype) if pieces else (mine.shape[1], mine.dtype)
        return _Slices((mine.shape[0], width), dtype, pieces)

    def _number(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """A small number: the column of a batch is the mean over its parts; what has no columns stays as it is."""
        run, now = self.run, self.run.numbers[name]
        if run.method.traits.sweeps:  # they are computed anew
            return now
        if name in run.method.traits.replicated_numbers:
            return self._file(0)[0][f"run.numbers.{name}"]
        if name not in run.method.traits.shared_numbers:
            saved = tensors[f"run.numbers.{name}"]
            if saved.shape != now.shape:
                raise CheckpointError(
                    f"expected the {len(self.files)} ranks that {run.method.traits.title} was saved with (got another "
                    f"number): its {name} belong to their batches"
                )
            return saved
        columns = []
        for *_, k, j in self.parts:
            there, _, metadata = self._file(k)
            columns.append(there[f"run.numbers.{name}"][:, j // int(metadata["per_batch"])])
        batches = torch.stack(columns, 1).split(run.clusters.per_batch, 1)
        own = torch.stack([batch.mean(1) for batch in batches], 1)
        return torch.cat([own, now[:, own.shape[1] :].cpu()], 1)  # those of other ranks are published


def _files_of(path: Path, run: Run) -> _Written:
    """The files that a manifest names, or the one file of a single process."""
    if path.suffix != ".json":
        tensors, _, _ = checkpoint.read_rows(path, run)
        firsts = tensors["run.order"][tensors["run.offsets"][:-1]].tolist()
        return _Written(path, [path], [firsts], {})
    manifest = _manifest(path)
    folder = path.parent / f"{_FOLDER}{manifest['number']}"
    shared, rows = folder / "shared.safetensors", [folder / _rank_file(k) for k in range(len(manifest["ranks"]))]
    digests = dict(zip([shared, *rows], [manifest["shared"], *(r["digest"] for r in manifest["ranks"])], strict=True))
    return _Written(shared, rows, [rank["parts"] for rank in manifest["ranks"]], digests)


def _write(run_dir: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest, and delete what no manifest names any more."""
    text = json.dumps(manifest | {"digest": _digest(manifest)}, indent=1)
    with replacing(run_dir / FILE, run_dir / PREVIOUS) as file:
        file.write(text.encode())
    kept = {manifest["number"]}
    with suppress(Damaged, FileNotFoundError):
        kept.add(_manifest(run_dir / PREVIOUS)["number"])
    _keep(run_dir, kept)
    for name in (checkpoint.FILE, checkpoint.PREVIOUS, checkpoint.DAMAGED, DAMAGED):
        (run_dir / name).unlink(missing_ok=True)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except CheckpointError as error:
        raise Damaged(str(error)) from error
    if found.pop("digest", "") != _digest(found):
        raise Damaged(f"{path} is damaged (its digest is another one)")
    return found


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _numbers(run_dir: Path) -> list[int]:
    """The numbers of the folders of checkpoints."""
    found = [path.name.removeprefix(_FOLDER) for path in run_dir.glob(f"{_FOLDER}*") if path.is_dir()]
    return [int(number) for number in found if number.isdecimal()]


def _keep(run_dir: Path, numbers: set[int]) -> None:
    """Delete the folders of all other checkpoints."""
    for number in _numbers(run_dir):
        if number not in numbers:
            shutil.rmtree(run_dir / f"{_FOLDER}{number}")


def _written(run_dir: Path, *names: str) -> float:
    """When the newest of these files was written; 0 where there is none."""
    return max((path.stat().st_mtime for path in (run_dir / name for name in names) if path.exists()), default=0.0)


def _rank_file(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def _first_nodes(run: Run) -> Tensor:
    """The smallest node of every part of a run, in run order."""
    return run.nodes[torch.tensor(run.clusters.offsets[:-1])]


def _other_parts(run: Run) -> CheckpointError:
    return CheckpointError(
        "expected the partition the checkpoint was made with (got another one): bind with the same graph, parts and "
        f"seed, whatever the number of ranks ({run.clusters.num_parts} parts here)"
    )
