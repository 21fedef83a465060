"""Downloads: checksums, partial files, archives and addresses, with a fake server."""

from __future__ import annotations

import hashlib
import io
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPMessage
from pathlib import Path

import pytest

import lmc.data
from lmc.data import catalog, fetch
from lmc.data.catalog import Raw, Source
from lmc.errors import DataError
from raw_folders import MAKERS, assert_read, register

Serve = Callable[..., list[str]]


class Answer(io.BytesIO):
    """What a server sends, with the length that it declares."""

    def __init__(self, content: bytes, declared: int | None) -> None:
        super().__init__(content)
        self.headers = HTTPMessage()
        if declared is not None:
            self.headers["Content-Length"] = str(declared)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Answer requests from a dict of contents; returns the list of requested addresses."""

    def start(contents: dict[str, bytes], declared: int | None = None) -> list[str]:
        asked: list[str] = []

        def open_url(url: str) -> Answer:
            asked.append(url)
            return Answer(contents[url], declared)

        monkeypatch.setattr(fetch, "open_url", open_url)
        return asked

    return start


def one_file(content: bytes, sha256: str | None = None) -> Raw:
    return Raw("graphsaint", ("a.npy",), False, (Source("a.npy", "https://x/a", sha256),))


def test_a_file_without_a_known_checksum_is_recorded(tmp_path: Path, serve: Serve) -> None:
    digest = hashlib.sha256(b"abc").hexdigest()
    serve({"https://x/a": b"abc"}, declared=3)
    with pytest.warns(UserWarning, match=f"no checksum of https://x/a is known: {digest} is recorded in .*SHA256SUMS"):
        fetch.fetch(one_file(b"abc"), tmp_path)
    assert (tmp_path / "a.npy").read_bytes() == b"abc"
    assert (tmp_path / "SHA256SUMS").read_text() == f"{digest}  a.npy\n"


def test_existing_files_are_not_overwritten(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "a.npy").write_bytes(b"mine")
    assert serve({}) == []
    fetch.fetch(one_file(b"abc"), tmp_path)
    assert (tmp_path / "a.npy").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("content", "declared", "sha256", "message"),
    [
        (b"abc", 5, None, "expected 5 bytes of a.npy .got 3 .*partial file is removed"),
        (b"abc", 3, "0" * 64, f"expected a.npy with SHA-256 {'0' * 64} .got ba7816bf.*file is removed"),
        (b" <!DOCTYPE html>", None, None, "got a web page from https://x/a"),
    ],
)
def test_a_wrong_download_is_named_and_removed(
    content: bytes, declared: int | None, sha256: str | None, message: str, tmp_path: Path, serve: Serve
) -> None:
    serve({"https://x/a": content}, declared)
    with pytest.raises(DataError, match=message):
        fetch.fetch(one_file(content, sha256), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lost_connection_is_named_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(Answer):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 0:
                raise ConnectionResetError("connection reset")
            return super().read(size)

    monkeypatch.setattr(fetch, "open_url", lambda url: Lost(b"abc", 9))
    with pytest.raises(DataError, match=r"a\.npy from https://x/a .got ConnectionResetError: .* after 3 bytes"):
        fetch.fetch(one_file(b""), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_endless_answer_is_ended(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    serve({"https://x/a": b"abcdef"})
    monkeypatch.setattr(fetch, "LARGEST", 5)
    with pytest.raises(DataError, match="expected at most 5 bytes"):
        fetch.fetch(one_file(b""), tmp_path)


@pytest.mark.filterwarnings("ignore:no checksum")
def test_an_archive_decides_no_path(tmp_path: Path, serve: Serve) -> None:
    """Only the wanted files are taken out, to the places that they have in our folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("set/raw/edge.csv", "0,1\n")
        archive.writestr("../../evil", "x")
    serve({"https://x/z": packed.getvalue()})
    form = Raw("ogb", ("edge.csv",), False, (Source("set.zip", "https://x/z"),))
    fetch.fetch(form, tmp_path / "in")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["SHA256SUMS", "edge.csv", "in"]
    for files, content in ((("evil", "other"), packed.getvalue()), (("evil",), packed.getvalue()[:-30])):
        serve({"https://x/z": content})
        with pytest.raises(DataError, match=r"set\.zip"):
            fetch.fetch(replace(form, files=files), tmp_path / "in")


@pytest.mark.filterwarnings("ignore:no checksum")
def test_an_archive_that_explodes_is_refused(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("edge.csv", bytes(10**6))
    serve({"https://x/z": packed.getvalue()})
    monkeypatch.setattr("lmc.data.arrays.HARMLESS", 10**5)
    with pytest.raises(DataError, match="at most 200 times the size"):
        fetch.fetch(Raw("ogb", ("edge.csv",), False, (Source("set.zip", "https://x/z"),)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_https_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real function, which refuses before it connects
    with pytest.raises(DataError, match=r"expected an https address .got http://x/a"):
        fetch.open_url("http://x/a")
    request = urllib.request.Request("https://x/a")
    with pytest.raises(DataError, match="expected an https address"):
        fetch._OnlyHttps().redirect_request(request, io.BytesIO(), 302, "", HTTPMessage(), "http://x/a")


def test_every_address_is_https() -> None:
    sources = [source for entry in catalog.REAL.values() for form in entry.raw for source in form.sources]
    assert all(source.url.startswith("https://") for source in sources)
    assert all(source.sha256 is None or len(source.sha256) == 64 for source in sources)
    assert sum(source.sha256 is not None for source in sources) == 26


@pytest.mark.filterwarnings("ignore:no checksum")
@pytest.mark.parametrize("form", ["graphsaint flickr", "snap", "gnn-benchmark"])
def test_a_set_that_is_not_here_is_downloaded_once(
    form: str, tmp_path: Path, serve: Serve, no_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download that was cut off continues with the files that are missing."""
    name, make = MAKERS[form]
    (tmp_path / "published").mkdir()
    g = make(tmp_path / "published")
    entry = register(name, g, monkeypatch)
    (published,) = [raw for raw in entry.raw if raw.sources]
    contents = {source.url: (tmp_path / "published" / source.file).read_bytes() for source in published.sources}
    asked = serve({url: content for url, content in contents.items() if url == published.sources[0].url})
    if len(contents) > 1:
        with pytest.raises(KeyError):
            lmc.data.load(name)
        asked = serve({url: content for url, content in contents.items() if url != published.sources[0].url})
    graph = lmc.data.load(name)
    assert_read(graph, g, g.x, splits=form != "snap")
    assert len(asked) == max(1, len(contents) - 1)
    serve({})
    assert lmc.data.load(name).checksum == graph.checksum
    (info,) = [info for info in lmc.data.describe() if info.name == name]
    assert info.where == str(no_folders / "downloads" / name)


def test_planetoid_downloads_must_have_their_checksums(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "published").mkdir()
    MAKERS["planetoid"][1](tmp_path / "published")
    (form,) = catalog.REAL["cora"].raw
    serve({source.url: (tmp_path / "published" / source.file).read_bytes() for source in form.sources})
    with pytest.raises(DataError, match=r"expected ind\.cora\.x with SHA-256 23cfa55d.*put cora\.npz"):
        lmc.data.load("cora")
