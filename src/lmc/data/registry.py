"""``lmc.load``, the named data sets with their sizes, and the folders that are searched for their files."""

from __future__ import annotations

import difflib
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lmc.data import fetch, kept, lookalikes, npz, pyg, raw, stream
from lmc.data.catalog import REAL, Named
from lmc.data.lookalikes import LOOKALIKES
from lmc.data.shards import is_sharded
from lmc.errors import DataError, LmcError, typed
from lmc.files import user_cache
from lmc.graph import CSR, Graph

FORMAT = 2
"""The version of parsed sets and lookalikes in the cache: those of another one are made again."""
KEPT_ENTRIES = 10**7
"""Entries of the adjacency from which on a lookalike is kept in the cache; drawing so many takes about 6 s."""


@dataclass(frozen=True)
class Info:
    """One line of the list of sets: ``kind`` is real or lookalike, ``where`` a path or a remark.

    ``preprocessing`` is what is done to the features of a set that is loaded by its name (:class:`Named`).
    """

    name: str
    kind: str
    nodes: int
    edges: int
    features: int
    classes: int
    where: str
    preprocessing: str = "none"


@typed
def load(
    source: Any, *, data_dir: str | Path | None = None, seed: int = 0, scale: float | None = None,
    symmetrise: bool = False, directed: bool | None = None, task: str | None = None, mapped: bool = False,
) -> Graph:  # fmt: skip
    """Load and check the graph that ``source`` names or contains.

    Args:
        source: a name (see :func:`lmc.data.names`; ``"arxiv-like@0.1"`` is a lookalike at a tenth of its size),
            the path of an ``.npz`` file, a PyG ``Data``, a PyG data set (several graphs become one disjoint
            union), or a :class:`lmc.Graph`, which is returned as it is.
        data_dir: the first folder to search, before $LMC_DATA and the user's cache. A set that is in none of them is
            downloaded to the cache. Raw files are parsed once; the result is kept in the cache.
        seed: of a lookalike; real sets do not depend on it.
        scale: of a lookalike: the factor on its nodes and edges.
        symmetrise: repair one-way edges, duplicates and self-loops instead of refusing them. Sets that are
            published as directed graphs (ogbn-arxiv) are always repaired.
        directed: whether a file or PyG data holds a directed graph. None: a file says so by its key ``undirected``, PyG
            data of :meth:`lmc.Graph.to_data` by itself, and other PyG data is undirected.
        task: of a file or of PyG data, as for :meth:`lmc.Graph.from_edges`; every other source knows its own.
        mapped: read an ``.npz`` file, and what an earlier call parsed or drew, in pieces: edges and dense features go
            into memory-mapped files without a name. All other sources are loaded into memory.

    Raises:
        DataError: the name is unknown, or the file is missing or damaged; the message says where to put which file.
        GraphError: the arrays do not form a graph.
    """
    if data_dir is not None:
        folders(data_dir)
    named = _is_name(source)
    if named or isinstance(source, Graph):
        _refuse_options(source, task=task, directed=directed)
    if isinstance(source, Graph):
        return source
    if isinstance(source, str) and (lookalike := lookalikes.parse(source)) is not None:
        name, suffix = lookalike
        return _drawn(name, seed, _one_scale(source, scale, suffix), mapped)
    if scale is not None:
        what = source if isinstance(source, str | os.PathLike) else type(source).__name__
        raise DataError(f"expected a scale for lookalikes only (got scale={scale:g} for {what}): drop it")
    if not isinstance(source, str | os.PathLike):
        return _from_pyg(source, symmetrise=symmetrise, directed=directed, task=task)
    _refuse_shards(Path(source))
    if named:
        return _named(canonical(str(source)), data_dir, symmetrise, mapped)
    if mapped and not symmetrise:
        return stream.read(Path(source), directed=directed, task=task)
    return npz.read(source, symmetrise=symmetrise, directed=directed, task=task)


def _is_name(source: Any) -> bool:
    """Whether the source is the name of a set, in contrast to a path."""
    return isinstance(source, str) and not (source.endswith(".npz") or os.sep in source)


def _refuse_options(source: str | Graph, **options: Any) -> None:
    for option, value in options.items():
        if value is not None:
            raise DataError(
                f"expected {option} for files and PyG data only (got {option}={value!r} for {source!r}): drop it"
            )


def _refuse_shards(source: Path) -> None:
    if is_sharded(source):
        raise DataError(
            f"expected a whole graph (got {source}, a folder of lmc shard): train on it with torchrun -m lmc train, or "
            "read the part of a rank with lmc.data.read_shard"
        )


def _one_scale(source: str, scale: float | None, suffix: float | None) -> float:
    """The scale of a lookalike, from the option or from the end of its name."""
    if scale is not None and suffix is not None and scale != suffix:
        raise DataError(f"expected one scale (got {source!r} and scale={scale:g}): drop one")
    return next((s for s in (scale, suffix) if s is not None), 1.0)


def _named(name: str, data_dir: str | Path | None, symmetrise: bool, mapped: bool) -> Graph:
    """The set ``name`` with the preprocessing and the protocol that belong to it."""
    entry = REAL[name]
    found = _read_named(entry, data_dir, symmetrise, mapped)
    return replace(found, inductive=entry.inductive, metric=entry.metric)


def _read_named(entry: Named, data_dir: str | Path | None, symmetrise: bool, mapped: bool) -> Graph:
    """A set from a file, from raw files, or from a download."""
    name, place = entry.name, find(entry.name, data_dir)
    if place is not None and place.is_file():
        task = "labels" if entry.multi_label else "classes"
        graph = npz.read(place, name=name, symmetrise=symmetrise or entry.directed, task=task)
        return preprocessed(_checked(graph, entry, place), entry)
    if place is None:
        place = cache_dir() / "downloads" / name
        form = next(form for form in entry.raw if form.sources)
        try:
            fetch.fetch(form, place)
        except (LmcError, OSError) as error:
            raise DataError(_missing(entry, data_dir, error)) from error
    return _parsed(entry, place, mapped)


def _parsed(entry: Named, folder: Path, mapped: bool) -> Graph:
    """The set in a raw folder. It is parsed once: the result is kept in the user's cache, never in the folder."""
    form = next(form for form in entry.raw if form.files[0] in raw.locate(form, folder))
    found = [(name, path.stat()) for name, path in raw.locate(form, folder).items()]
    key = repr((FORMAT, entry, [(name, at.st_size, at.st_mtime_ns) for name, at in found]))
    place = cache_dir() / "parsed" / entry.name

    def parse() -> Graph:
        for old in filter(Path.is_file, place.glob("*.safetensors")):  # of other files, or damaged
            old.unlink(missing_ok=True)
        return preprocessed(_checked(raw.read(form, entry, folder), entry, folder), entry)

    return _kept(place, key, entry.name, "parsed", parse, mapped, lambda graph, path: _checked(graph, entry, path))


def _drawn(name: str, seed: int, scale: float, mapped: bool) -> Graph:
    """A lookalike. A large one is drawn once: the result is kept in the user's cache."""
    spec, label = LOOKALIKES[name], lookalikes.label_of(name, scale)
    draw = partial(lookalikes.make, name, seed=seed, scale=scale)
    if spec.multi_label or not 2 * spec.edges * scale >= KEPT_ENTRIES or scale > lookalikes.LARGEST:
        return draw()
    return _kept(cache_dir() / "lookalikes", repr((FORMAT, name, spec, seed, scale)), label, "drawn", draw, mapped)


def _kept(
    place: Path, key: str, name: str, made: str, make: Callable[[], Graph], mapped: bool,
    check: Callable[[Graph, Path], Graph] = lambda graph, _: graph,
) -> Graph:  # fmt: skip
    """The undirected graph that is stored under ``key`` in a folder; it is made and stored where it is not there."""
    path = place / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
    if path.is_file():
        try:
            return check(kept.read(path, name, mapped), path)
        except LmcError:
            path.unlink(missing_ok=True)  # damaged: make it again
    graph = make()
    try:
        kept.write(graph, path)
    except OSError as error:
        warnings.warn(f"{name} is {made} again at every load: {path} cannot be written ({error})", stacklevel=2)
    return graph


def _checked(graph: Graph, entry: Named, where: Path) -> Graph:
    """``graph``, which must have the registered numbers of nodes and edges of the set."""
    if (graph.num_nodes, graph.num_edges) != (entry.nodes, entry.edges):
        raise DataError(
            f"expected {entry.name} with {entry.nodes:,} nodes and {entry.edges:,} undirected edges (got "
            f"{graph.num_nodes:,} and {graph.num_edges:,} in {where}): these are files of another set or version; "
            f"accepted are {accepted(entry)}; an .npz of your own is loaded by its path"
        )
    return graph


def accepted(entry: Named) -> str:
    """The files from which a set is read, in words."""
    files = " or ".join(f"{stem}.npz" for stem in spellings(entry.name))
    forms = "; or ".join(f"{', '.join(form.files)}" for form in entry.raw)
    names = " or ".join(f"{folder}/" for folder in (entry.name, *entry.folders))
    return f"{files}; or in a folder {names} {forms}"


def preprocessed(graph: Graph, entry: Named) -> Graph:
    """``graph`` with the features of the set's protocol (``entry.preprocessing``)."""
    x = graph.x
    if entry.preprocessing == "rows":
        if isinstance(x, CSR):
            sums = torch.zeros(x.num_rows, dtype=x.dtype).index_add_(0, x.row_index(), x.data)
            return replace(graph, x=replace(x, values=x.data / _divisor(sums)[x.row_index()]))
        return replace(graph, x=x / _divisor(x.sum(dim=1, keepdim=True)))
    if entry.preprocessing == "standardise":
        dense = x.to_dense() if isinstance(x, CSR) else x
        return replace(graph, x=torch.from_numpy(raw.standardise(dense.numpy(), graph.train.numpy())))
    return graph


def _divisor(sums: torch.Tensor) -> torch.Tensor:
    return torch.where(sums == 0, 1.0, sums)


def _missing(entry: Named, data_dir: str | Path | None, error: Exception) -> str:
    places = " or ".join(str(folder) for folder in folders(data_dir))
    return (
        f"expected the files of {entry.name} (got none, and no download: {type(error).__name__}: {error}): "
        f"put {accepted(entry)} into {places}, or set $LMC_DATA to the folder that has them; "
        f"meanwhile {entry.lookalike!r} is a stand-in that needs no file"
    )


def _from_pyg(source: Any, **options: Any) -> Graph:
    from torch_geometric.data import Data, Dataset

    if isinstance(source, Data):
        return pyg.from_data(source, **options)
    if isinstance(source, Dataset):
        name = str(getattr(source, "name", type(source).__name__)).lower()
        return pyg.from_dataset(source, name=name, **options)
    raise DataError(
        f"expected a name, a path, a PyG Data or data set, or an lmc.Graph (got {type(source).__name__}): "
        f"for arrays of your own use lmc.Graph.from_edges"
    )


def names() -> list[str]:
    """Every name that :func:`lmc.data.load` accepts, real sets first."""
    return [*REAL, *LOOKALIKES]


def describe(data_dir: str | Path | None = None) -> list[Info]:
    """The sizes of every known set, and where its files are on this machine."""
    real = [
        Info(e.name, "real", e.nodes, e.edges, e.features, e.classes, _where(e.name, data_dir), e.preprocessing)
        for e in REAL.values()
    ]
    synthetic = [
        Info(name, "lookalike", s.nodes, s.edges, s.features, s.classes, "built in") for name, s in LOOKALIKES.items()
    ]
    return real + synthetic


def _where(name: str, data_dir: str | Path | None) -> str:
    return str(find(name, data_dir) or "not here")


def canonical(name: str) -> str:
    """The registered spelling of ``name``; case and the choice of ``-`` or ``_`` are ignored.

    Raises:
        DataError: the set is unknown; the message suggests similar names.
    """
    spelled = name.strip().lower().replace("_", "-")
    if spelled in REAL:
        return spelled
    near = difflib.get_close_matches(spelled, names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise DataError(
        f"expected the name of a data set or the path of an .npz file (got {name!r}): {hint}"
        f"`lmc datasets` lists the names"
    )


def cache_dir() -> Path:
    """The user's folder of graphs."""
    return user_cache() / "data"


def folders(data_dir: str | Path | None = None) -> list[Path]:
    """The folders that are searched, in order: ``data_dir``, $LMC_DATA, the user's cache."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise DataError(f"expected data_dir to be a folder (got {data_dir}): make it, or leave it out")
    given = [data_dir, os.environ.get("LMC_DATA")]
    return [Path(folder).expanduser() for folder in given if folder] + [cache_dir()]


def spellings(name: str) -> tuple[str, ...]:
    """The file stems that are accepted for ``name``."""
    return tuple(dict.fromkeys((name, name.replace("-", "_"))))


def find(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The first ``.npz`` file, or else the first raw folder, of the set ``name``."""
    searched = [folder for folder in folders(data_dir) if folder.is_dir()]
    for file in (folder / f"{stem}.npz" for folder in searched for stem in spellings(name)):
        if file.is_file():
            return file
    found = (place for folder in searched for place in _raw_folders(REAL[name], folder))
    downloaded = cache_dir() / "downloads" / name
    complete = any(len(raw.locate(form, downloaded)) == len(form.files) for form in REAL[name].raw)
    return next(found, downloaded if complete else None)


def _raw_folders(entry: Named, folder: Path) -> Iterator[Path]:
    """The places in ``folder`` that have raw files of a set: it, or folders named after the set."""
    known = (entry.name, *entry.folders)
    places = (folder.resolve(), *sorted(folder.glob("*/")))
    own = [place for place in places if place.name.lower().replace("_", "-") in known]
    for form in entry.raw:
        yield from (place for place in (*own, *([folder] * form.named)) if form.files[0] in raw.locate(form, place))
