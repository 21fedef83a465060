"""Named data sets: spellings, searched folders, downloads and error messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lmc.data
from lmc.data import registry
from lmc.data.lookalikes import LOOKALIKES
from lmc.errors import DataError


@pytest.fixture
def six_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give some sets the sizes of the graph of six nodes."""
    for name in ("amazon-photo", "dblp", "ogbn-arxiv"):
        monkeypatch.setitem(registry.REAL, name, replace(registry.REAL[name], nodes=6, edges=7))


def put(folder: Path, stem: str, arrays: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{stem}.npz", **arrays)
    return folder


def test_every_real_set_has_a_lookalike() -> None:
    assert all(entry.lookalike.partition("@")[0] in LOOKALIKES for entry in registry.REAL.values())


@pytest.mark.usefixtures("six_nodes")
@pytest.mark.parametrize("stem", ["amazon-photo", "amazon_photo"])
@pytest.mark.parametrize("name", ["amazon-photo", "amazon_photo", "Amazon-Photo"])
def test_every_spelling_of_a_name_is_accepted(
    tmp_path: Path, arrays: dict[str, np.ndarray], stem: str, name: str
) -> None:
    g = lmc.data.load(name, data_dir=put(tmp_path / "d", stem, arrays))
    assert g.name == "amazon-photo"


@pytest.mark.usefixtures("six_nodes")
def test_folders_are_searched_in_order(
    tmp_path: Path, arrays: dict[str, np.ndarray], no_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument is searched before $LMC_DATA, and that before the cache."""
    given, env = tmp_path / "given", tmp_path / "env"
    for value, folder in enumerate((no_folders, env, given)):
        put(folder, "dblp", {**arrays, "x": np.full((6, 2), value)})
    monkeypatch.setenv("LMC_DATA", str(env))
    for data_dir, value in ((given, 2), (None, 1)):
        assert float(lmc.data.load("dblp", data_dir=data_dir).x[0, 0]) == value
    monkeypatch.delenv("LMC_DATA")
    assert float(lmc.data.load("dblp").x[0, 0]) == 0


@pytest.mark.usefixtures("six_nodes")
def test_directed_sets_are_symmetrised(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    one_way = {**arrays, "edge_index": arrays["edge_index"][:, ::2]}
    folder = put(tmp_path / "d", "ogbn_arxiv", one_way)
    assert lmc.data.load("ogbn-arxiv", data_dir=folder).num_edges == 7


def test_missing_files_say_where_to_put_them(tmp_path: Path, no_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMC_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as raised:
        lmc.data.load("ogbn-arxiv", data_dir=tmp_path)
    message = str(raised.value)
    for fact in ("ogbn-arxiv.npz", "ogbn_arxiv.npz", str(tmp_path), str(tmp_path / "env"), str(no_folders)):
        assert fact in message
    for fact in ("$LMC_DATA", "arxiv-like", "no network", "arxiv/", "edge.csv.gz", "split/time/train.csv.gz"):
        assert fact in message
    assert "\n" not in message


def test_a_file_with_other_counts_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    folder = put(tmp_path / "d", "cora", arrays)
    with pytest.raises(DataError, match=r"cora with 2,708 nodes and 5,278 .*got 6 and 7 in .*cora\.npz.*by its path"):
        lmc.data.load("cora", data_dir=folder)


def test_every_set_says_its_preprocessing() -> None:
    assert {name for name, entry in registry.REAL.items() if entry.preprocessing == "rows"} == {
        "cora", "citeseer", "pubmed",
    }  # fmt: skip
    assert [name for name, entry in registry.REAL.items() if entry.preprocessing == "standardise"] == ["reddit"]


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(DataError, match=r"did you mean .*citeseer.*`lmc datasets`"):
        lmc.data.load("citeseeer")
    with pytest.raises(DataError, match="`lmc datasets`"):
        lmc.data.load("zzzzzz")


def test_data_dir_must_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data_dir to be a folder"):
        lmc.data.load("cora", data_dir=tmp_path / "nowhere")
    with pytest.raises(DataError, match="data_dir to be a folder"):
        lmc.data.load("tiny-like", data_dir=tmp_path / "nowhere")


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
