"""The named data sets: their sizes, and the folders that are searched for their files."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from lmc.data.lookalikes import LOOKALIKES
from lmc.errors import DataError
from lmc.results import user_cache


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
    """The user's folder of graphs: $XDG_CACHE_HOME (or ~/.cache) /lmc/data."""
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
