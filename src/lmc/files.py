"""Files that a crash leaves whole: atomic replacement, locks of folders, JSON that is checked when it is read, and
mapped files without a name."""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

from lmc.errors import CheckpointError, ConfigError, RunWarning

LOCK = ".lock"
RESTORE = "restore the file from a copy, or start again in another folder"
"""What to do about a damaged file."""
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{32}\.part")


def user_cache() -> Path:
    """The user's folder for what can be made again: $XDG_CACHE_HOME (or ~/.cache) /lmc."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lmc"


@contextmanager
def replacing(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends: readers see the old file or the new one.

    Args:
        previous: the name under which the old file is kept; None: it is deleted.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        with suppress(OSError):  # the reason why the block failed is the one to report
            temporary.unlink(missing_ok=True)


def replace(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, atomically."""
    with replacing(path) as file:
        file.write(content)


def mapped_file(size: int, path: str | Path | None = None) -> mmap.mmap:
    """A mapped file of zeros without a name in the folder ``path``, by default that for temporary files."""
    folder = Path(tempfile.gettempdir() if path is None else path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a disk that fills up later would end the process
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise ConfigError(
            f"expected a folder with {size / 1e9:.2g} GB of room for rows or edges (got {folder}: {error.strerror}): "
            "name another one, disk:FOLDER or Disk(path=...), or set $TMPDIR"
        ) from error


def sync(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("ab") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; without it, a crash may bring an old name back."""
    if sys.platform == "win32":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot do it
            raise
    finally:
        os.close(descriptor)


@contextmanager
def writable(
    folder: Path, advice: str = "choose another folder, or free space and repeat the command"
) -> Iterator[None]:
    """Within, an error of the file system, such as a full disk, becomes a :class:`CheckpointError` of one line."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"expected a folder that can be written (got {folder}: {error.strerror or error}): {advice}"
        ) from error


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, or that cannot be made; nothing is written or made."""
    with writable(folder):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made where it is missing; another process that wants it is refused.

    The operating system releases the lock when the process ends, however it ends. Temporary files that a crash left
    behind are removed.
    """
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab+", buffering=0)  # closing a file with a buffer would write, and fail, again
    with file:
        if not _lock(file):
            file.seek(0)
            owner = file.read(20).decode(errors="replace").strip() or "unknown"
            raise CheckpointError(
                f"expected a folder that no other run is using (got {folder}, in use by process {owner}): wait "
                "until it has ended, or choose another folder"
            )
        with writable(folder):
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            for partial in folder.iterdir():
                if _PARTIAL.fullmatch(partial.name):
                    partial.unlink(missing_ok=True)
        yield


def _lock(file: IO[bytes]) -> bool:
    """Lock an open file without waiting; whether it was free."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(2**20)  # the locked byte cannot be read, so it is one behind the content
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        warnings.warn(
            f"the file system of {file.name} has no locks ({error.strerror}): use the folder from one process only",
            RunWarning,
            stacklevel=2,
        )
    return True


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; anything else is refused in one line."""
    try:
        value = parse_json(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} instead of an object")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"expected a JSON object in {path} (got a damaged file: {error}): {RESTORE}") from error
    return value


def parse_json(text: bytes) -> Any:
    """The value of a JSON text in UTF-8; raises ValueError for everything else, NaN and Infinity included."""
    try:
        return json.loads(text.decode(), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("values nested too deeply") from None


def _refuse(token: str) -> NoReturn:
    raise ValueError(f"the token {token}, which is not JSON")
