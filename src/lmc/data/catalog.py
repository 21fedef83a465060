"""The named data sets: sizes, preprocessing, the raw files that are read, and where these can be downloaded.

Checksums are given where several independent publications of them agree; for other files none is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmc.data.planetoid import PARTS


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


def _planetoid(name: str, *digests: str) -> tuple[Raw, ...]:
    files = tuple(f"ind.{name}.{part}" for part in PARTS)
    at = "https://raw.githubusercontent.com/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"
    sources = tuple(Source(file, f"{at}/{file}", digest) for file, digest in zip(files, digests, strict=True))
    return (Raw("planetoid", files, True, sources),)


def _saint(*ids: str) -> tuple[Raw, ...]:
    files = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
    at = "https://drive.usercontent.google.com/download?confirm=t&id="
    return (Raw("graphsaint", files, False, tuple(Source(f, at + i) for f, i in zip(files, ids, strict=True))),)


def _ogb(name: str, scheme: str, sha256: str | None = None) -> tuple[Raw, ...]:
    splits = tuple(f"split/{scheme}/{key}.csv.gz" for key in ("train", "valid", "test"))
    archive = Source(f"{name}.zip", f"https://snap.stanford.edu/ogb/data/nodeproppred/{name}.zip", sha256)
    return (Raw("ogb", ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz", *splits), False, (archive,)),)


def _benchmark(file: str, at: str) -> tuple[Raw, ...]:
    return (Raw("gnn-benchmark", (file,), False, (Source(file, f"https://raw.githubusercontent.com/{at}/{file}"),)),)


_PPI_FILES = tuple(
    f"{split}_{part}" for split in ("train", "valid", "test") for part in ("graph.json", "feats.npy", "labels.npy")
)
_PPI_ZIP = Source(
    "ppi.zip", "https://data.dgl.ai/dataset/ppi.zip", "1f5b2b09ac0f897fa6aa1338c64ab75a5473674cbba89380120bede8cddb2a6a"
)
_SNAP_FILES = ("com-amazon.ungraph.txt.gz", "com-amazon.all.dedup.cmty.txt.gz")
_SNAP = tuple(Source(file, f"https://snap.stanford.edu/data/bigdata/communities/{file}") for file in _SNAP_FILES)

REAL: dict[str, Named] = {
    entry.name: entry
    for entry in (
        Named(
            "cora", 2_708, 5_278, 1_433, 7, "tiny-like", preprocessing="rows",
            raw=_planetoid(
                "cora",
                "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
                "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
                "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
                "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
                "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
                "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
                "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
                "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
            ),
        ),
        Named(
            "citeseer", 3_327, 4_552, 3_703, 6, "tiny-like", preprocessing="rows",
            raw=_planetoid(
                "citeseer",
                "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
                "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
                "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
                "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
                "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
                "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
                "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
                "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
            ),
        ),
        Named(
            "pubmed", 19_717, 44_324, 500, 3, "arxiv-like@0.1", preprocessing="rows",
            raw=_planetoid(
                "pubmed",
                "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
                "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
                "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
                "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
                "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
                "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
                "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
                "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
            ),
        ),
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
            raw=_ogb("arxiv", "time", "49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276"),
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
