"""Arrays that need not be trusted: declared sizes, byte orders, kinds of numbers, and scipy matrices."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.lib import format as npy

import lmc
from lmc.data import arrays as arrays_module
from lmc.data.arrays import read_npy, read_npz
from lmc.errors import DataError, GraphError
from lmc.graph import CSR, Graph


def header(shape: tuple[int, ...], dtype: str = "<f4", content: bytes = b"") -> bytes:
    """An npy file that declares ``shape``, followed by ``content``."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + content


def with_member(file: Path, key: str, content: bytes) -> None:
    """Replace one array of the archive ``file`` by the bytes ``content``."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, old in members.items():
            archive.writestr(name, content if name == f"{key}.npy" else old)


LIES = [
    (header((10**9, 500)), "500"),
    (header((-1, 2), content=bytes(48)), "-1"),
    (header((-6, -2), content=bytes(48)), "-6"),
    (header((6, 2), content=bytes(40)), r"40 bytes of data as x in .*six\.npz"),
    (header((6,), "|O", bytes(48)), "Python objects"),
    (header((6, 2), "<M8[s]", bytes(96)), "datetime64"),
    (header((6, 2), "|V4", bytes(48)), "void|V4"),
    (b"\x93NUMPY\x09\x00" + bytes(64), "format"),
    (b"\x93NUMPY\x01\x00\xff\xff" + bytes(64), "whole .npz"),
    (b"", "whole .npz"),
]


@pytest.mark.parametrize(("content", "message"), LIES)
def test_a_header_that_does_not_fit_its_data_is_refused(file: Path, content: bytes, message: str) -> None:
    with_member(file, "x", content)
    with pytest.raises(DataError, match=message) as raised:
        lmc.load(file)
    assert "six.npz" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_archive_that_explodes_is_refused_before_it_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MB of zeros in 32 KB: nothing of it is unpacked. The threshold, 256 MB, is lowered to keep the test short."""
    assert arrays_module.HARMLESS == 2**28
    monkeypatch.setattr(arrays_module, "HARMLESS", 2**24)
    with_member(file, "x", header((2**23, 1), content=bytes(2**25)))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"at most 200 times.*got 33,5\d\d,\d\d\d bytes.*six\.npz.*np\.savez"):
        lmc.load(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize("classes", [10**8, 2**62])
def test_a_huge_class_number_is_refused(file: Path, arrays: dict[str, np.ndarray], classes: int) -> None:
    for change in ({"y": np.array([0, 0, 0, 1, 1, classes])}, {"num_classes": np.int64(classes)}):
        kept = {key: value for key, value in arrays.items() if key != "num_classes"}
        np.savez(file, **{**kept, **change})
        with pytest.raises(GraphError, match=r"six\.npz: expected at most 1,000 classes for 6 nodes"):
            lmc.load(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_shape": np.array([6, 10**9])}, "feature columns.*: leave out empty"),
        ({"x_shape": np.array([6, 2**40])}, "fewer than 2\\^31"),
        ({"x_shape": np.array([2**40, 2])}, "fewer than 2\\^31"),
        ({"x_shape": np.array([-1, 2])}, "fewer than 2\\^31.*: copy or write"),
        ({"x_shape": np.array([6.0, 2.0])}, "two numbers"),
        ({"x_indices": np.array([0.5] * 6)}, "two numbers"),
        ({"x_indptr": np.array([0, 1, 2, 3, 4, 5, 2**40])}, "to rise"),
        ({"x_data": np.array(["a"] * 6)}, "numeric arrays"),
    ],
)
def test_sparse_sizes_are_checked(
    file: Path, arrays: dict[str, np.ndarray], change: dict[str, Any], message: str
) -> None:
    del arrays["x"]
    sparse = {
        "x_indptr": np.arange(7),
        "x_indices": np.zeros(6, int),
        "x_data": np.ones(6),
        "x_shape": np.array([6, 2]),
    }
    np.savez(file, **arrays, **{**sparse, **change})
    with pytest.raises(GraphError, match=message):
        lmc.load(file)


CONVERTED: list[tuple[str, Any]] = [
    ("edge_index", lambda a: a.astype(">i4")),
    ("edge_index", lambda a: a.astype(np.uint32)),
    ("edge_index", lambda a: np.asfortranarray(a)),
    ("edge_index", lambda a: a.astype(np.uint64)[:, ::-1]),
    ("x", lambda a: a.astype(">f4")),
    ("x", lambda a: np.asfortranarray(a)),
    ("x", lambda a: a.astype(np.uint16)),
    ("x", lambda a: a.astype(np.longdouble)),
    ("x", lambda a: a[::-1][::-1]),
    ("y", lambda a: a.astype(">u2")),
    ("train_idx", lambda a: a.astype(np.uint64)),
    ("val_idx", lambda a: a.astype(">i8")),
    ("test_idx", lambda a: a.astype(np.int8)),
]


@pytest.mark.parametrize(("key", "change"), CONVERTED)
def test_other_kinds_of_numbers_are_converted(file: Path, arrays: dict[str, np.ndarray], key: str, change: Any) -> None:
    """From a file and from arrays in memory."""
    before = lmc.load(file)
    changed = {**arrays, key: change(arrays[key])}
    np.savez(file, **changed)
    splits = {split: changed[f"{split}_idx"] for split in ("train", "val", "test")}
    for graph in (lmc.load(file), Graph.from_edges(changed["edge_index"], changed["x"], changed["y"], **splits)):
        assert torch.equal(graph.x.float(), before.x)
        assert torch.equal(graph.adj.indices, before.adj.indices)
        assert torch.equal(graph.y, before.y)
        assert torch.equal(graph.train, before.train)


ODD: list[tuple[str, Any, str]] = [
    ("edge_index", np.array([["0", "1"], ["1", "0"]]), "numeric arrays .got edge_index of dtype <U1"),
    ("edge_index", np.array([[2**63], [0]], dtype=np.uint64), "below 2\\^63"),
    ("edge_index", np.array([[0, 1], [1, 0]], dtype=complex), "whole node numbers"),
    ("edge_index", "abc", "edge_index as an array of numbers.*: pass an array"),
    ("x", np.array([[{}]] * 6), "numeric arrays .got x of dtype object"),
    ("x", np.array([["a"]] * 6), "numeric arrays"),
    ("x", np.zeros((6, 2), dtype="M8[s]"), "numeric arrays"),
    ("x", np.zeros((6, 2), dtype=complex), "real features"),
    ("y", np.array(["a"] * 6), "numeric arrays .got y"),
    ("y", sp.csr_matrix(np.eye(6)), "dense y .got a scipy csr_matrix"),
    ("train", np.array([0j]), "whole node numbers .got torch.complex"),
    ("train", np.array(["0"]), "numeric arrays .got train"),
]


@pytest.mark.parametrize(("key", "value", "message"), ODD)
def test_arrays_of_other_things_are_refused(arrays: dict[str, np.ndarray], key: str, value: Any, message: str) -> None:
    given: dict[str, Any] = {"edge_index": arrays["edge_index"], "x": arrays["x"], "y": arrays["y"], "train": [0, 3]}
    with pytest.raises(GraphError, match=message) as raised:
        Graph.from_edges(**{**given, key: value})
    assert "\n" not in str(raised.value)


def test_read_only_arrays_are_read_without_a_warning(arrays: dict[str, np.ndarray], recwarn: Any) -> None:
    for key in ("edge_index", "x", "y", "train_idx"):
        arrays[key].flags.writeable = False
    torch.set_warn_always(True)
    try:
        Graph.from_edges(arrays["edge_index"], arrays["x"], arrays["y"], train=arrays["train_idx"])
    finally:
        torch.set_warn_always(False)
    assert not [str(each.message) for each in recwarn]


def test_tables_of_pandas_are_read_in_the_order_of_their_rows(arrays: dict[str, np.ndarray], file: Path) -> None:
    pandas = pytest.importorskip("pandas")
    labels = [f"node {k}" for k in range(6)]
    x, y = pandas.DataFrame(arrays["x"], index=labels), pandas.Series(arrays["y"], index=labels)
    g = Graph.from_edges(arrays["edge_index"], x, y, train=pandas.Series(arrays["train_idx"]))
    assert torch.equal(g.x, lmc.load(file).x)
    assert torch.equal(g.y, lmc.load(file).y)
    assert torch.equal(g.train, lmc.load(file).train)
    with pytest.raises(GraphError, match=r"numeric arrays \(got x of dtype object\)"):
        Graph.from_edges(arrays["edge_index"], x.assign(name=labels), y, train=[0])


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.coo_array, sp.csc_matrix, sp.lil_matrix])
def test_scipy_matrices_are_edges_and_features(arrays: dict[str, np.ndarray], file: Path, kind: Any) -> None:
    edges = arrays["edge_index"]
    adjacency = kind(sp.coo_matrix((np.ones(edges.shape[1]), edges), shape=(6, 6)))
    splits = {split: arrays[f"{split}_idx"] for split in ("train", "val", "test")}
    g = Graph.from_edges(adjacency, kind(arrays["x"]), arrays["y"], **splits)
    assert torch.equal(g.adj.indices, lmc.load(file).adj.indices)
    assert isinstance(g.x, CSR)
    assert torch.equal(g.x.to_dense(), torch.from_numpy(arrays["x"]))
    for wrong in (kind(2.0 * adjacency.toarray()), kind(np.ones((6, 5)))):
        with pytest.raises(GraphError, match=r"square scipy adjacency of zeros and ones .*edge_weight"):
            Graph.from_edges(wrong, arrays["x"], arrays["y"], train=[0])
    with pytest.raises(DataError, match="expected a name, a path"):
        lmc.load(adjacency)


def test_an_npy_file_must_have_the_expected_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3), dtype=">f8"))
    assert read_npy(tmp_path / "a.npy", 4).dtype == np.float64
    with pytest.raises(DataError, match=r"expected numbers \[any, 2\] in .*a\.npy .got \[4, 3\]"):
        read_npy(tmp_path / "a.npy", cols=2)
    np.save(tmp_path / "a.npy", np.array([["a"]]))
    with pytest.raises(DataError, match="<U1"):
        read_npy(tmp_path / "a.npy")


def test_the_checksum_of_an_array_is_compared(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(10.0))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    at = content.rindex(b"PK\x01\x02") + 16  # the checksum in the directory
    content[at] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz, BadZipFile: Bad CRC"):
        read_npz(tmp_path / "a.npz")


def test_arrays_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(3), b=np.array({}, dtype=object))
    assert list(read_npz(tmp_path / "a.npz", ("a", "c"))) == ["a"]
    with pytest.raises(DataError, match=r"Python objects as b in .*a\.npz"):
        read_npz(tmp_path / "a.npz")
