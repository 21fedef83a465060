"""``lmc.load``, the named data sets with their sizes, and the folders that are searched for their files."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmc.data import fetch as _fetch
from lmc.data import lookalikes, npz, pyg
from lmc.data.lookalikes import LOOKALIKES
from lmc.errors import DataError, typed
from lmc.files import user_cache
from lmc.graph import Graph


@dataclass(frozen=True)
class Named:
    """A real data set; its edges are counted as undirected.

    Args:
        lookalike: the synthetic graph to use if the files are not available.
        directed: the set is published as a directed graph, so its edges are symmetrised.
        raw: the file that identifies a raw folder of the set, where raw folders can be read.
    """

    name: str
    nodes: int
    edges: int
    features: int
    classes: int
    lookalike: str
    multi_label: bool = False
    directed: bool = False
    raw: str | None = None


OGB_MARK = "raw/edge.csv.gz"

REAL: dict[str, Named] = {
    entry.name: entry
    for entry in (
        Named("cora", 2_708, 5_278, 1_433, 7, "tiny-like"),
        Named("citeseer", 3_327, 4_552, 3_703, 6, "tiny-like"),
        Named("pubmed", 19_717, 44_324, 500, 3, "arxiv-like@0.1"),
        Named("amazon-photo", 7_650, 119_081, 745, 8, "tiny-like"),
        Named("coauthor-physics", 34_493, 247_962, 8_415, 5, "arxiv-like@0.2"),
        Named("dblp", 17_716, 52_867, 1_639, 4, "arxiv-like@0.1"),
        Named("ppi", 56_944, 793_632, 50, 121, "ppi-like", multi_label=True, raw="raw/train_graph.json"),
        Named("reddit", 232_965, 11_606_919, 602, 41, "reddit-like", raw="raw/reddit_data.npz"),
        Named("flickr", 89_250, 449_878, 500, 7, "flickr-like", raw="raw/adj_full.npz"),
        Named("ogbn-arxiv", 169_343, 1_157_799, 128, 40, "arxiv-like", directed=True, raw=OGB_MARK),
        Named("ogbn-products", 2_449_029, 61_859_076, 100, 47, "products-like", directed=True, raw=OGB_MARK),
        Named("amazon", 334_863, 925_872, 334_863, 58, "arxiv-like", multi_label=True, raw="adj_list.txt"),
    )
}


@dataclass(frozen=True)
class Info:
    """One line of the list of sets: ``kind`` is real or lookalike, ``where`` a path or a remark."""

    name: str
    kind: str
    nodes: int
    edges: int
    features: int
    classes: int
    where: str


@typed
def load(
    source: Any, *, data_dir: str | Path | None = None, seed: int = 0, scale: float | None = None,
    symmetrise: bool = False, directed: bool | None = None, task: str | None = None,
) -> Graph:  # fmt: skip
    """Load and check the graph that ``source`` names or contains.

    Args:
        source: a name (see :func:`lmc.data.names`; ``"arxiv-like@0.1"`` is a lookalike at a tenth of its size),
            the path of an ``.npz`` file, a PyG ``Data``, a PyG data set (several graphs become one disjoint
            union), or a :class:`lmc.Graph`, which is returned as it is.
        data_dir: the first folder to search, before $LMC_DATA and the user's cache. A set that is in none of them is
            downloaded and stored in the cache.
        seed: of a lookalike; real sets do not depend on it.
        scale: of a lookalike: the factor on its nodes and edges.
        symmetrise: repair one-way edges, duplicates and self-loops instead of refusing them. Sets that are
            published as directed graphs (ogbn-arxiv) are always repaired.
        directed: whether a file or PyG data holds a directed graph. None: a file says so by its key ``undirected``, and
            PyG data is undirected.
        task: of a file or of PyG data, as for :meth:`lmc.Graph.from_edges`; every other source knows its own.

    Raises:
        DataError: the name is unknown, or the file is missing or damaged; the message says where to put which file.
        GraphError: the arrays do not form a graph.
    """
    named = isinstance(source, str) and not (source.endswith(".npz") or os.sep in source)
    for option, value in (("task", task), ("directed", directed)):
        if value is not None and (named or isinstance(source, Graph)):
            raise DataError(
                f"expected {option} for files and PyG data only (got {option}={value!r} for {source!r}): drop it"
            )
    if isinstance(source, Graph):
        return source
    if isinstance(source, str) and (lookalike := lookalikes.parse(source)) is not None:
        name, suffix = lookalike
        if scale is not None and suffix is not None and scale != suffix:
            raise DataError(f"expected one scale (got {source!r} and scale={scale:g}): drop one")
        return lookalikes.make(name, seed=seed, scale=next((s for s in (scale, suffix) if s is not None), 1.0))
    if scale is not None:
        what = source if isinstance(source, str | os.PathLike) else type(source).__name__
        raise DataError(f"expected a scale for lookalikes only (got scale={scale:g} for {what}): drop it")
    if not isinstance(source, str | os.PathLike):
        return _from_pyg(source, symmetrise=symmetrise, directed=bool(directed), task=task)
    if isinstance(source, os.PathLike) or not named:
        return npz.read(source, symmetrise=symmetrise, directed=directed, task=task)
    return _named(canonical(source), data_dir, symmetrise)


def _named(name: str, data_dir: str | Path | None, symmetrise: bool) -> Graph:
    entry = REAL[name]
    place = find(name, data_dir)
    if place is not None and place.is_dir():
        return _from_folder(name, place)
    if place is not None:
        return npz.read(place, name=name, symmetrise=symmetrise or entry.directed)
    root = cache_dir()
    try:
        graph = _fetch.fetch(name, root)
    except Exception as error:  # a reader or the network may raise anything
        raise DataError(_missing(entry, data_dir, error)) from error
    npz.write(graph, root / f"{name}.npz")
    return graph


def _from_folder(name: str, folder: Path) -> Graph:
    if name == "amazon":
        return _fetch.read_amazon(folder, name)
    if name.startswith("ogbn-"):
        return _fetch.read_ogb(folder, name)
    try:
        return _fetch.read_folder(name, folder)
    except Exception as error:  # PyG's readers may raise anything on damaged files
        raise DataError(
            f"expected the raw files of {name} in {folder} ({type(error).__name__}: {error}): copy them again"
        ) from error


def _missing(entry: Named, data_dir: str | Path | None, error: Exception) -> str:
    files = " or ".join(f"{stem}.npz" for stem in spellings(entry.name))
    places = " or ".join(str(folder) for folder in folders(data_dir))
    return (
        f"expected the files of {entry.name} (got none, and no download: {type(error).__name__}: {error}): "
        f"put {files} into {places}, or set $LMC_DATA to the folder that has it; "
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
        Info(e.name, "real", e.nodes, e.edges, e.features, e.classes, str(find(e.name, data_dir) or "not here"))
        for e in REAL.values()
    ]
    synthetic = [
        Info(name, "lookalike", s.nodes, s.edges, s.features, s.classes, "built in") for name, s in LOOKALIKES.items()
    ]
    return real + synthetic


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
    places = [folder / stem for folder in folders(data_dir) for stem in spellings(name)]
    for place in places:
        file = place.with_name(place.name + ".npz")
        if file.is_file():
            return file
    mark = REAL[name].raw
    return next((place for place in places if mark and (place / mark).is_file()), None)
