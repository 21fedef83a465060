"""Downloads of published raw files, over https with verified certificates. Nothing else here uses the network.

A file gets its name when it is complete and its checksum, where one is known, agrees; before that it is temporary.
Files that are there are not overwritten. The digest of every file is recorded beside it in ``SHA256SUMS``.
"""

from __future__ import annotations

import hashlib
import ssl
import tempfile
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any

from lmc.data.arrays import check_unpacked
from lmc.data.catalog import Raw, Source
from lmc.errors import DataError
from lmc.files import replacing

SUMS = "SHA256SUMS"
TIMEOUT = 20.0  # seconds without an answer before a download is given up
LARGEST = 4 << 30  # bytes; the largest published file has 1.4 GB
BLOCK = 1 << 20


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    """Refuses to be led from https to an address without encryption."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        _check_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_https(url: str) -> None:
    if not url.startswith("https://"):
        raise DataError(f"expected an https address (got {url}): provide the file yourself")


def open_url(url: str) -> Any:
    """The answer of the server at ``url``, a stream with ``headers``; the certificate of the server is verified."""
    _check_https(url)
    verified = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    request = urllib.request.Request(url, headers={"User-Agent": "lmc"})
    return urllib.request.build_opener(verified, _OnlyHttps).open(request, timeout=TIMEOUT)


def fetch(raw: Raw, folder: Path) -> None:
    """Download the files of the form ``raw`` that are missing in ``folder``.

    Raises:
        DataError: a download failed; what was received of it is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for source in raw.sources:
        packed = source.file.endswith(".zip")
        missing = [file for file in (raw.files if packed else (source.file,)) if not (folder / file).exists()]
        if missing and packed:
            with tempfile.TemporaryFile(dir=folder) as archive:
                _receive(source, archive, folder)
                _unpack(archive, source, missing, folder)
        elif missing:
            with replacing(folder / source.file) as file:
                digest = _receive(source, file, folder)
            _record(digest, source.file, folder)


def _receive(source: Source, file: IO[bytes], folder: Path) -> str:
    """Write what ``source`` sends to ``file``, and return its digest."""
    digest, received = hashlib.sha256(), 0
    try:
        with open_url(source.url) as answer:
            declared = answer.headers.get("Content-Length")
            while block := answer.read(BLOCK):
                if not received and block.lstrip()[:1] == b"<":
                    raise DataError(f"expected {source.file} (got a web page from {source.url}): provide the file")
                received += len(block)
                if received > LARGEST:
                    raise DataError(f"expected at most {LARGEST:,} bytes of {source.file} (got more): provide the file")
                digest.update(block)
                file.write(block)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"expected {source.file} from {source.url} (got {type(error).__name__}: {error} after {received:,} bytes; "
            f"the partial file is removed): try again, or provide the file"
        ) from error
    if declared is not None and str(received) != declared.strip():
        raise DataError(
            f"expected {declared} bytes of {source.file} (got {received} from {source.url}; the partial file is "
            f"removed): try again, or provide the file"
        )
    found = digest.hexdigest()
    if source.sha256 is None:
        sums = folder / SUMS
        warnings.warn(f"no checksum of {source.url} is known: {found} is recorded in {sums}", stacklevel=2)
    elif found != source.sha256:
        raise DataError(
            f"expected {source.file} with SHA-256 {source.sha256} (got {found} from {source.url}; the file is "
            f"removed): try again, or provide the file if you trust it"
        )
    return found


def _record(digest: str, file: str, folder: Path) -> None:
    with (folder / SUMS).open("a") as sums:
        sums.write(f"{digest}  {file}\n")  # the format of sha256sum


def _unpack(archive: IO[bytes], source: Source, files: Iterable[str], folder: Path) -> None:
    """Take ``files`` out of a zip, wherever they are in it; no name in the zip decides where something is written."""
    try:
        with zipfile.ZipFile(archive) as content:
            members = {file: _find(content, file, source) for file in files}
            check_unpacked(members.values(), archive.tell(), source.file)
            for file, member in members.items():
                digest = hashlib.sha256()
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                with content.open(member) as packed, replacing(folder / file) as target:
                    while block := packed.read(BLOCK):
                        digest.update(block)
                        target.write(block)
                _record(digest.hexdigest(), file, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"expected a whole zip (got {source.file} from {source.url}, {error}): try again, or provide the files"
        ) from error


def _find(content: zipfile.ZipFile, file: str, source: Source) -> zipfile.ZipInfo:
    found = [info for info in content.infolist() if f"/{info.filename}".endswith(f"/{file}")]
    if len(found) != 1:
        raise DataError(f"expected one {file} in {source.file} (got {len(found)}): provide the files of the set")
    return found[0]
