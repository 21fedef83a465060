"""The named data sets: sizes, preprocessing, the raw files that are read, and where these can be downloaded.

The file SHA256SUMS has checksums where several independent publications of them agree; for others none is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from lmc.data.planetoid import PARTS

_SUMS = files(__package__).joinpath("SHA256SUMS").read_text().splitlines()
KNOWN = {file: digest for digest, file in map(str.split, _SUMS)}
"""The known SHA-256 of files, by name."""


@dataclass(frozen=True)
class Source:
    """A file to download: under which name it is stored, from where, and its SHA-256 if that is known.

    A ``.zip`` is unpacked: the files of the set are taken out of it.
    """

    file: str
    url: str
    sha256: str | None = None


@dataclass(frozen=True)
class Raw:
    """A form in which a set is published.

    Args:
        reader: the key of its reader in :data:`lmc.data.raw.READERS`.
        files: what it consists of, in the folder of the set or in ``raw/`` in it. The first identifies the form.
        named: whether the names of the files contain that of the set, so that they need no folder of their own.
        sources: where the files can be downloaded.
    """

    reader: str
    files: tuple[str, ...]
    named: bool = False
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Named:
    """A real data set; its edges are counted as undirected.

    Args:
        lookalike: the synthetic graph to use if the files are not available.
        directed: the set is published as a directed graph, so its edges are symmetrised.
        preprocessing: what is done to the features when the set is loaded by its name: ``"none"``, ``"rows"`` (every
            row is divided by its sum) or ``"standardise"`` (every column gets mean 0 and deviation 1 over the training
            nodes).
        inductive: training sees the training nodes alone; validation and test nodes are in graphs of their own.
        metric: the metric that scores the set; by default that of its task.
        folders: further names of a raw folder, besides that of the set.
        raw: the published forms that are read.
    """

    name: str
    nodes: int
    edges: int
    features: int
    classes: int
    lookalike: str
    multi_label: bool = False
    directed: bool = False
    inductive: bool = False
    metric: str = ""
    preprocessing: str = "none"
    folders: tuple[str, ...] = ()
    raw: tuple[Raw, ...] = ()


def _source(file: str, url: str) -> Source:
    return Source(file, url, KNOWN.get(file))


def _planetoid(name: str) -> tuple[Raw, ...]:
    files = tuple(f"ind.{name}.{part}" for part in PARTS)
    at = "https://raw.githubusercontent.com/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"
    return (Raw("planetoid", files, True, tuple(_source(file, f"{at}/{file}") for file in files)),)


def _saint(*ids: str) -> tuple[Raw, ...]:
    files = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
    at = "https://drive.usercontent.google.com/download?confirm=t&id="
    return (Raw("graphsaint", files, False, tuple(Source(f, at + i) for f, i in zip(files, ids, strict=True))),)


def _ogb(name: str, scheme: str) -> tuple[Raw, ...]:
    splits = tuple(f"split/{scheme}/{key}.csv.gz" for key in ("train", "valid", "test"))
    archive = _source(f"{name}.zip", f"https://snap.stanford.edu/ogb/data/nodeproppred/{name}.zip")
    return (Raw("ogb", ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz", *splits), False, (archive,)),)


def _benchmark(file: str, at: str) -> tuple[Raw, ...]:
    return (Raw("gnn-benchmark", (file,), False, (Source(file, f"https://raw.githubusercontent.com/{at}/{file}"),)),)


_PPI_FILES = tuple(
    f"{split}_{part}" for split in ("train", "valid", "test") for part in ("graph.json", "feats.npy", "labels.npy")
)
_PPI_ZIP = _source("ppi.zip", "https://data.dgl.ai/dataset/ppi.zip")
_SNAP_FILES = ("com-amazon.ungraph.txt.gz", "com-amazon.all.dedup.cmty.txt.gz")
_SNAP = tuple(Source(file, f"https://snap.stanford.edu/data/bigdata/communities/{file}") for file in _SNAP_FILES)

REAL: dict[str, Named] = {
    entry.name: entry
    for entry in (
        Named("cora", 2_708, 5_278, 1_433, 7, "tiny-like", preprocessing="rows", raw=_planetoid("cora")),
        Named("citeseer", 3_327, 4_552, 3_703, 6, "tiny-like", preprocessing="rows", raw=_planetoid("citeseer")),
        Named("pubmed", 19_717, 44_324, 500, 3, "arxiv-like@0.1", preprocessing="rows", raw=_planetoid("pubmed")),
        Named(
            "amazon-photo", 7_650, 119_081, 745, 8, "tiny-like", folders=("photo",),
            raw=_benchmark("amazon_electronics_photo.npz", "shchur/gnn-benchmark/master/data/npz"),
        ),
        Named(
            "coauthor-physics", 34_493, 247_962, 8_415, 5, "arxiv-like@0.2", folders=("physics",),
            raw=_benchmark("ms_academic_phy.npz", "shchur/gnn-benchmark/master/data/npz"),
        ),
        Named(
            "dblp", 17_716, 52_867, 1_639, 4, "arxiv-like@0.1",
            raw=_benchmark("dblp.npz", "abojchevski/graph2gauss/master/data"),
        ),
        Named(
            "ppi", 56_944, 793_632, 50, 121, "ppi-like", multi_label=True, inductive=True,
            raw=(
                Raw("ppi", _PPI_FILES, False, (_PPI_ZIP,)),
                Raw("graphsage", ("ppi-G.json", "ppi-feats.npy", "ppi-class_map.json", "ppi-id_map.json"), True),
            ),
        ),
        Named(
            "reddit", 232_965, 11_606_919, 602, 41, "reddit-like", preprocessing="standardise", folders=("reddit2",),
            raw=_saint(
                "1sncK996BM5lpuDf75lDFqCiDZyErc1c2", "1ZsHaJ0ussP1W722krmEIp_8pwKAoi5b3",
                "1JF3Pjv9OboMNYs2aXRQGbJbc4t_nDd5u", "1nJIKd77lcAGU4j-kVNx_AIGEkveIKz3A",
            ),
        ),
        Named(
            "flickr", 89_250, 449_878, 500, 7, "flickr-like",
            raw=_saint(
                "1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy", "1join-XdvX3anJU_MLVtick7MgeAQiWIZ",
                "1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9", "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7",
            ),
        ),
        Named(
            "ogbn-arxiv", 169_343, 1_157_799, 128, 40, "arxiv-like", directed=True, folders=("arxiv",),
            raw=_ogb("arxiv", "time"),
        ),
        Named(
            "ogbn-products", 2_449_029, 61_859_076, 100, 47, "products-like", directed=True, folders=("products",),
            raw=_ogb("products", "sales_ranking"),
        ),
        Named(
            "amazon", 334_863, 925_872, 334_863, 58, "amazon-like", multi_label=True, metric="top-k-micro-f1",
            folders=("amazon-all",),
            raw=(
                Raw("sse", ("adj_list.txt", "label.txt", "train_idx-0.06.txt", "test_idx.txt")),
                Raw("snap", _SNAP_FILES, True, _SNAP),
            ),
        ),
    )
}  # fmt: skip
