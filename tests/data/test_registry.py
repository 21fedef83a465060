"""Named data sets: spellings, searched folders, downloads and error messages."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lmc.data
from lmc.data import fetch, registry
from lmc.data.lookalikes import LOOKALIKES
from lmc.errors import DataError
from lmc.graph import Graph


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make every download fail, and record the names."""
    names: list[str] = []

    def fail(name: str, root: Path) -> Graph:
        names.append(name)
        raise ConnectionError("network is unreachable")

    monkeypatch.setattr(fetch, "fetch", fail)
    return names


def put(folder: Path, stem: str, arrays: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{stem}.npz", **arrays)
    return folder


def test_every_real_set_has_a_lookalike() -> None:
    assert all(entry.lookalike.partition("@")[0] in LOOKALIKES for entry in registry.REAL.values())


@pytest.mark.parametrize("stem", ["amazon-photo", "amazon_photo"])
@pytest.mark.parametrize("name", ["amazon-photo", "amazon_photo", "Amazon-Photo"])
def test_every_spelling_of_a_name_is_accepted(
    tmp_path: Path, arrays: dict[str, np.ndarray], stem: str, name: str
) -> None:
    g = lmc.data.load(name, data_dir=put(tmp_path / "d", stem, arrays))
    assert g.name == "amazon-photo"


def test_folders_are_searched_in_order(
    tmp_path: Path, arrays: dict[str, np.ndarray], no_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument is searched before $LMC_DATA, and that before the cache."""
    given, env = tmp_path / "given", tmp_path / "env"
    for value, folder in enumerate((no_folders, env, given)):
        put(folder, "cora", {**arrays, "x": np.full((6, 2), value)})
    monkeypatch.setenv("LMC_DATA", str(env))
    for data_dir, value in ((given, 2), (None, 1)):
        assert float(lmc.data.load("cora", data_dir=data_dir).x[0, 0]) == value
    monkeypatch.delenv("LMC_DATA")
    assert float(lmc.data.load("cora").x[0, 0]) == 0


def test_directed_sets_are_symmetrised(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    one_way = {**arrays, "edge_index": arrays["edge_index"][:, ::2]}
    folder = put(tmp_path / "d", "ogbn_arxiv", one_way)
    assert lmc.data.load("ogbn-arxiv", data_dir=folder).num_edges == 7


def test_missing_files_say_where_to_put_them(
    tmp_path: Path, no_folders: Path, offline: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMC_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as raised:
        lmc.data.load("ogbn-arxiv", data_dir=tmp_path)
    message = str(raised.value)
    for fact in ("ogbn-arxiv.npz", "ogbn_arxiv.npz", str(tmp_path), str(tmp_path / "env"), str(no_folders)):
        assert fact in message
    for fact in ("$LMC_DATA", "arxiv-like", "network is unreachable"):
        assert fact in message
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert offline == ["ogbn-arxiv"]


def test_a_download_is_stored_in_the_cache(
    no_folders: Path, arrays: dict[str, np.ndarray], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lmc.data.load(file)
    monkeypatch.setattr(fetch, "fetch", lambda name, root: made)
    assert lmc.data.load("flickr") is made
    assert (no_folders / "flickr.npz").is_file()
    assert lmc.data.load("flickr").num_edges == made.num_edges


def test_amazon_cannot_be_downloaded() -> None:
    with pytest.raises(DataError, match=r"amazon\.npz"):
        lmc.data.load("amazon")


def test_a_missing_ogb_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(DataError, match="pip install ogb"):
        lmc.data.load("ogbn-products")


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(DataError, match=r"did you mean .*citeseer.*`lmc datasets`"):
        lmc.data.load("citeseeer")
    with pytest.raises(DataError, match="`lmc datasets`"):
        lmc.data.load("zzzzzz")


def test_data_dir_must_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data_dir to be a folder"):
        lmc.data.load("cora", data_dir=tmp_path / "nowhere")


def test_a_scale_is_refused_for_real_sets(file: Path) -> None:
    for source in (file, str(file), "cora"):
        with pytest.raises(DataError, match="lookalikes only"):
            lmc.data.load(source, scale=0.5)


def test_describe_lists_every_set(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    infos = {info.name: info for info in lmc.data.describe(put(tmp_path / "d", "cora", arrays))}
    assert list(infos) == lmc.data.names()
    assert infos["cora"].where == str(tmp_path / "d" / "cora.npz")
    assert infos["reddit"].where == "not here"
    assert infos["tiny-like"].kind == "lookalike"
    assert infos["reddit-like"].edges == infos["reddit"].edges == 11_606_919


def test_per_class_split_has_fixed_numbers_per_class() -> None:
    y = torch.arange(300) % 3
    masks = fetch.per_class_split(y)
    assert [int(masks[f"{k}_mask"].sum()) for k in ("train", "val", "test")] == [60, 90, 150]
    assert torch.bincount(y[masks["train_mask"]]).tolist() == [20, 20, 20]
    assert all(torch.equal(a, b) for a, b in zip(masks.values(), fetch.per_class_split(y).values(), strict=True))


def test_the_socket_timeout_is_restored() -> None:
    before = socket.getdefaulttimeout()
    with fetch._timeout(3.0):
        assert socket.getdefaulttimeout() == 3.0
    assert socket.getdefaulttimeout() == before


REAL_FILES = {
    "cora": (2_708, 5_278, 7),
    "citeseer": (3_327, 4_552, 6),
    "pubmed": (19_717, 44_324, 3),
    "amazon-photo": (7_650, 119_081, 8),
    "coauthor-physics": (34_493, 247_962, 5),
    "dblp": (17_716, 52_867, 4),
}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL_FILES)
def test_real_files_have_the_registered_sizes(name: str, data_dir: Path) -> None:
    if registry.find(name, data_dir) is None:
        pytest.skip(f"no file of {name}")
    g = lmc.data.load(name, data_dir=data_dir)
    entry = registry.REAL[name]
    facts = (entry.nodes, entry.edges, entry.classes)
    assert (g.num_nodes, g.num_edges, g.num_classes) == REAL_FILES[name] == facts
    assert g.num_features == entry.features
