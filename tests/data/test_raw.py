"""Readers of the published raw files: what is written is read back exactly, and damaged files are refused by name."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmc.data
import raw_folders
from lmc.data import catalog, kept, planetoid, raw, registry
from lmc.errors import DataError, GraphError, LmcError
from raw_folders import MAKERS, Written, assert_read, register, write


def expected_features(form: str, g: Written) -> np.ndarray:
    """The features after the preprocessing of the set, computed here in float64."""
    x = g.x.astype(np.float64)
    if form.startswith("planetoid"):
        sums = x.sum(axis=1, keepdims=True)
        return x / np.where(sums == 0, 1, sums)
    if form in ("graphsaint reddit", "graphsage"):
        rows = x[g.train]
        deviation = rows.std(axis=0)
        return (x - rows.mean(axis=0)) / np.where(deviation == 0, 1, deviation)
    return x


@pytest.mark.parametrize("form", MAKERS)
def test_a_raw_folder_is_read_exactly(
    form: str, tmp_path: Path, no_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first load parses, the second reads our own cache; the user's folder stays as it was."""
    name, folder, g = write(form, tmp_path / "sets", monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for _ in range(2):
        graph = lmc.data.load(name, data_dir=tmp_path / "sets")
        assert_read(graph, g, expected_features(form, g), splits=form != "snap")
        assert graph.name == name
        assert graph.task == ("labels" if catalog.REAL[name].multi_label else "classes")
        monkeypatch.setattr(raw, "read", None)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert len(list((no_folders / "parsed" / name).iterdir())) == 1


def test_a_split_is_drawn_for_snap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("snap", tmp_path, monkeypatch)
    g = lmc.data.load("amazon", data_dir=tmp_path)
    assert [int(mask.sum()) for mask in (g.train, g.val, g.test)] == [1, 1, 2]
    assert bool(g.y[g.train | g.val | g.test].any(dim=1).all()), "these nodes have a label"


PLACES = [
    ("graphsaint flickr", "Flickr/raw"),
    ("graphsaint reddit", "Reddit2"),
    ("ogb arxiv", "arxiv"),
    ("ogb products", "ogbn_products"),
    ("sse", "amazon-all"),
    ("planetoid", "Cora/raw"),
    ("planetoid", "."),
    ("snap", "."),
]


@pytest.mark.parametrize(("form", "place"), PLACES)
def test_folders_may_have_the_names_of_their_publishers(
    form: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, make = MAKERS[form]
    (tmp_path / "sets" / place).mkdir(parents=True)
    register(name, make(tmp_path / "sets" / place), monkeypatch)
    assert lmc.data.load(name, data_dir=tmp_path / "sets").num_nodes == 24
    assert lmc.data.load(name, data_dir=tmp_path / "sets" / place.split("/")[0]).num_nodes == 24, "the folder itself"
    (info,) = [info for info in lmc.data.describe(tmp_path / "sets") if info.name == name]
    assert info.where != "not here"


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_planetoid_is_read_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    raw_folders.planetoid(tmp_path, protocol)
    files = {part: tmp_path / f"ind.cora.{part}" for part in planetoid.PARTS}
    assert planetoid.read(files, 24, 5, 3)["x"].shape == (24, 5)


def test_a_changed_raw_file_is_parsed_again(tmp_path: Path, no_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, folder, g = write("graphsaint flickr", tmp_path, monkeypatch)
    lmc.data.load(name, data_dir=tmp_path)
    np.save(folder / "feats.npy", 2 * g.x.astype(np.float64))
    os.utime(folder / "feats.npy", ns=(1, 1))
    assert torch.equal(lmc.data.load(name, data_dir=tmp_path).x, 2 * torch.from_numpy(g.x))
    (stored,) = (no_folders / "parsed" / name).iterdir()
    whole = stored.read_bytes()
    x = whole.index((2 * g.x[0]).astype(np.float32).tobytes())
    for damaged in (
        whole[:-100],
        whole[:x] + bytes([whole[x] ^ 1]) + whole[x + 1 :],
        whole[:-1] + b"\2",
        b"",
        b"{}" * 9,
    ):
        stored.write_bytes(damaged)
        found = lmc.data.load(name, data_dir=tmp_path)
        assert torch.equal(found.x, 2 * torch.from_numpy(g.x)), "a damaged file in the cache is made again"
        assert int(found.adj.indices.max()) == 23


def test_a_folder_in_place_of_a_file_in_the_cache_is_named(
    tmp_path: Path, no_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, g = write("graphsaint flickr", tmp_path, monkeypatch)
    lmc.data.load(name, data_dir=tmp_path)
    (stored,) = (no_folders / "parsed" / name).iterdir()
    stored.unlink()
    stored.mkdir()
    with pytest.warns(UserWarning, match=f"parsed again at every load: .*{stored.name}"):
        found = lmc.data.load(name, data_dir=tmp_path)
    assert torch.equal(found.x, torch.from_numpy(g.x))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, _ = write("ogb arxiv", tmp_path, monkeypatch)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(kept, "write", full)
    with pytest.warns(UserWarning, match="parsed again at every load.*no space left"):
        lmc.data.load(name, data_dir=tmp_path)


def test_other_counts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of nodes and edges of a named set are those of the registry."""
    name, _, g = write("graphsaint reddit", tmp_path, monkeypatch)
    register(name, Written(g.edges[1:], g.x, g.y, g.train, g.val, g.test), monkeypatch)
    with pytest.raises(DataError, match=r"expected reddit with 24 nodes and 35 .*got 24 and 36.*adj_full\.npz, feats"):
        lmc.data.load(name, data_dir=tmp_path)


def test_processed_files_are_not_loaded(tmp_path: Path) -> None:
    """A folder of PyG with its processed file alone is no raw folder, and what it holds is not run."""
    folder = tmp_path / "cora" / "processed"
    folder.mkdir(parents=True)
    (folder / "data.pt").write_bytes(pickle.dumps(Bomb(str(tmp_path / "ran"))))
    with pytest.raises(DataError, match=r"no network.*put cora\.npz; or in a folder cora/ ind\.cora\.x"):
        lmc.data.load("cora", data_dir=tmp_path)
    assert not (tmp_path / "ran").exists()


class Bomb:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


@pytest.mark.parametrize("part", ["x", "y", "graph"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_run_nothing(part: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder, _ = write("planetoid", tmp_path / "sets", monkeypatch)
    path = folder / f"ind.cora.{'allx' if part == 'x' else part}"
    path.write_bytes(pickle.dumps({0: [1], 1: Bomb(str(tmp_path / "ran"))}, protocol))
    with pytest.raises(DataError, match=rf"numpy and scipy arrays only \(got .*{path.name}.*open"):
        lmc.data.load("cora", data_dir=tmp_path / "sets")
    assert not (tmp_path / "ran").exists()


def shared_lists() -> bytes:
    row = list(range(900))
    return pickle.dumps(dict.fromkeys(range(900), row))


def amplified() -> bytes:
    """A megabyte of text that is stored once and to be encoded 200 times."""
    text = b"X" + (2**20).to_bytes(4, "little") + bytes(2**20) + b"q\x00"
    encoded = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    return b"\x80\x02" + text + b"(" + 200 * encoded + b"t."


def huge_buffer() -> bytes:
    """An array of protocol 5 whose content is the number 10^11 instead of bytes."""
    made = pickle.dumps(np.zeros((16, 3), dtype=np.int64), 5)
    at = made.index(b"\x96")
    return made[:at] + b"\x8a\x05" + (10**11).to_bytes(5, "little") + made[at + 9 + 384 :]


PICKLES: list[tuple[str, bytes, str]] = [
    ("ally", amplified(), "0/1 matrix"),
    ("ally", huge_buffer(), "0/1 matrix"),
    ("graph", shared_lists(), "no lists of their own"),
    ("graph", pickle.dumps({0: [1.5]}), "node numbers"),
    ("graph", pickle.dumps({0: [-1]}), "node numbers"),
    ("graph", pickle.dumps({0: [10**6]}), "node 1000000"),
    ("graph", pickle.dumps([1, 2]), "neighbours"),
    ("graph", b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".", "pickle of numpy"),  # declares 1 TB
    ("graph", b"\x80\x02}r\xff\xff\xff\x7f.", "at least one edge"),  # the memo of number 2^31 - 1
    ("ally", pickle.dumps(np.array([["a"]], dtype=object)), "0/1 matrix|numpy"),
    ("ally", pickle.dumps(np.full((16, 3), 2)), "0/1 matrix"),
    ("ally", pickle.dumps(np.zeros((16, 10**4), dtype=np.int8)), "0/1 matrix"),
    ("allx", pickle.dumps(np.zeros((16, 5))), "CSR matrix"),
    ("test.index", b"16\n17\n1000000000\n", "test nodes"),
    ("test.index", b"", "1 numbers in every row"),
]


@pytest.mark.parametrize(("part", "content", "message"), PICKLES)
def test_odd_planetoid_files_are_refused(
    part: str, content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder, _ = write("planetoid", tmp_path, monkeypatch)
    (folder / f"ind.cora.{part}").write_bytes(content)
    tracemalloc.start()
    with pytest.raises((DataError, GraphError), match=message) as raised:
        lmc.data.load("cora", data_dir=tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25
    assert "\n" not in str(raised.value)


Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "text": lambda content: b"not found\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("form", ["planetoid", "graphsaint flickr", "ppi", "graphsage", "ogb arxiv", "sse", "snap"])
def test_damaged_files_are_refused_by_name(
    form: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of every form in turn. A shorter list of nodes (``*_idx.txt``) cannot be told from a whole one."""
    name, folder, _ = write(form, tmp_path, monkeypatch)
    lists = () if damage != "cut" else ("train_idx-0.06.txt", "test_idx.txt")
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in lists):
        content = path.read_bytes()
        path.write_bytes(DAMAGES[damage](content))
        with pytest.raises(LmcError) as raised:
            lmc.data.load(name, data_dir=tmp_path)
        message = str(raised.value)
        assert path.name in message or folder.name in message
        assert "\n" not in message
        path.write_bytes(content)


def test_a_missing_file_is_named_with_those_that_belong_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder, _ = write("ogb arxiv", tmp_path, monkeypatch)
    (folder / "raw" / "node-feat.csv.gz").unlink()
    with pytest.raises(DataError, match=r"expected node-feat\.csv\.gz in .*raw.*edge\.csv\.gz.*split/time/train"):
        lmc.data.load("ogbn-arxiv", data_dir=tmp_path)


def test_an_invalid_graph_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder, _ = write("ogb arxiv", tmp_path, monkeypatch)
    np.savetxt(folder / "raw" / "edge.csv.gz", np.array([[0, 99]]), fmt="%d", delimiter=",")
    with pytest.raises(GraphError, match=r"ogbn-arxiv.*node 99"):
        lmc.data.load("ogbn-arxiv", data_dir=tmp_path)


def test_a_table_ends_at_the_declared_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small gzip of very many rows, or of one very long row, is refused before it fills the memory."""
    _, folder, _ = write("ogb arxiv", tmp_path, monkeypatch)
    path = folder / "raw" / "edge.csv.gz"
    for content, message in ((b"0,1\n" * 10**6, r"at most 96 rows in .*edge\.csv"), (b"0" * 10**7, r"edge\.csv\.gz")):
        path.write_bytes(gzip.compress(content, 1))
        with pytest.raises(DataError, match=message):
            lmc.data.load("ogbn-arxiv", data_dir=tmp_path)


def test_lists_end_at_the_declared_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder, _ = write("snap", tmp_path, monkeypatch)
    path = folder / "com-amazon.all.dedup.cmty.txt.gz"
    path.write_bytes(gzip.compress(b"1 4 7 10 13 16\n" * 10**4, 1))
    with pytest.raises(DataError, match=r"at most 2,400 numbers in .*cmty\.txt\.gz"):
        lmc.data.load("amazon", data_dir=tmp_path)


SAINT: list[tuple[str, Any, str]] = [
    ("class_map.json", {str(i): 10**8 for i in range(24)}, "classes in"),
    ("class_map.json", {str(i): "a" for i in range(24)}, "numeric"),
    ("class_map.json", {str(i + 1): 0 for i in range(24)}, "class_map"),
    ("class_map.json", [0] * 24, "expected a dict"),
    ("role.json", {"tr": [0], "va": [1], "te": [24]}, "role.json"),
    ("role.json", {"tr": [0], "va": [1]}, "role.json"),
    ("role.json", {"tr": [0], "va": [1], "te": []}, "role.json"),
    ("role.json", {"tr": [0], "va": [1], "te": ["2"]}, "role.json"),
]


@pytest.mark.parametrize(("file", "content", "message"), SAINT)
def test_odd_graphsaint_files_are_refused(
    file: str, content: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder, _ = write("graphsaint flickr", tmp_path, monkeypatch)
    (folder / file).write_text(json.dumps(content))
    with pytest.raises((DataError, GraphError), match=message):
        lmc.data.load(name, data_dir=tmp_path)


def test_a_prepared_file_is_preferred_and_preprocessed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, g = write("planetoid", tmp_path, monkeypatch)
    graph = lmc.data.load(name, data_dir=tmp_path)
    np.savez(
        tmp_path / "cora.npz", edge_index=np.concatenate([g.edges, g.edges[:, ::-1]]).T, x=2 * g.x, y=g.y,
        train_idx=g.train, val_idx=g.val, test_idx=g.test,
    )  # fmt: skip
    assert registry.find("cora", tmp_path) == tmp_path / "cora.npz"
    assert_read(lmc.data.load(name, data_dir=tmp_path), g, graph.x.to_dense().numpy())
    assert np.array_equal(lmc.data.load(tmp_path / "cora.npz").x.numpy(), 2 * g.x), "a path is read as it is"


@pytest.mark.data
def test_cora_written_as_planetoid_is_read_as_cora(data_dir: Path, tmp_path: Path) -> None:
    """The sizes of the registry are those of the real graph, and so is what our reader returns."""
    g = lmc.data.load("cora", data_dir=data_dir)
    published = lmc.data.load(data_dir / "cora.npz")
    pairs = np.stack([published.adj.row_index().numpy(), published.adj.indices.numpy()], axis=1)
    splits = [getattr(published, split).numpy().nonzero()[0] for split in ("train", "val", "test")]
    x, y = published.x.to_dense().numpy(), published.y.numpy()
    raw_folders.planetoid(tmp_path, g=Written(pairs[pairs[:, 0] < pairs[:, 1]], x, y, *splits))
    assert lmc.data.load("cora", data_dir=tmp_path).checksum == g.checksum
    assert torch.allclose(g.x.to_dense().sum(dim=1), torch.ones(2_708))


def test_per_class_split_has_fixed_numbers_per_class() -> None:
    y = np.arange(300) % 3
    masks = raw.per_class_split(y)
    assert [int(mask.sum()) for mask in masks.values()] == [60, 90, 150]
    assert np.bincount(y[masks["train"]]).tolist() == [20, 20, 20]
    assert all(np.array_equal(a, b) for a, b in zip(masks.values(), raw.per_class_split(y).values(), strict=True))
