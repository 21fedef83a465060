"""Graphs in the cache: what is read is what was written, in memory and in pieces, and damage is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import lmc.data
from lmc.data import kept
from lmc.errors import GraphError, LmcError
from lmc.graph import CSR, Graph


@pytest.fixture(params=["tiny-like@0.2", "amazon-like@0.01"])
def graph(request: pytest.FixtureRequest) -> Graph:
    """With dense features and classes, and with sparse features and labels."""
    return replace(lmc.data.load(request.param), name="kept", metric="")


@pytest.mark.parametrize("mapped", [False, True])
def test_a_graph_is_read_as_it_was_written(graph: Graph, tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "cache" / "graph.safetensors"
    kept.write(graph, path)
    found = kept.read(path, "kept", mapped)
    assert (found.checksum, found.fingerprint, repr(found)) == (graph.checksum, graph.fingerprint, repr(graph))
    assert "fingerprint" in vars(found)
    assert replace(found).fingerprint == graph.fingerprint, "the stored one is that of the arrays"
    assert found.adj.symmetric
    assert (found.adj.files is not None) == mapped
    assert type(found.x) is type(graph.x)
    found.adj.release()
    assert torch.equal(found.adj.indices, graph.adj.indices)
    assert all(a.data_ptr() % a.itemsize == 0 for a in (found.adj.indptr, found.adj.indices, found.y, found.train))
    assert torch.equal(load_file(path)["indices"], graph.adj.indices), "it is a plain safetensors file"


def test_what_is_written_to_the_arrays_does_not_reach_the_file(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "graph.safetensors"
    kept.write(graph, path)
    found = kept.read(path, "kept")
    (found.x.data if isinstance(found.x, CSR) else found.x).zero_()
    assert kept.read(path, "kept").checksum == graph.checksum != found.checksum


def test_entries_outside_of_the_graph_are_refused(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "graph.safetensors"
    kept.write(replace(graph, adj=replace(graph.adj, indices=graph.adj.indices + 1)), path)
    with pytest.raises(GraphError, match=r"expected adjacency_indices in \[0, "):
        kept.read(path, "kept")


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "graph.safetensors"
    kept.write(lmc.data.load("tiny-like@0.08"), path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for at in (*range(0, header, 7), *range(header, len(whole), len(whole) // 40), len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(LmcError):
            kept.read(path, "kept")
