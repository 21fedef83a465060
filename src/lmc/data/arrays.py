"""Files of arrays that need not be trusted: npz, npy, json and tables of numbers, compressed or not.

Nothing is unpickled. What a file declares (shapes, sizes, numbers of rows) is checked before memory is allocated.
A damaged file is refused in one line that names it.
"""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from lmc.errors import DataError, GraphError, LmcError

HARMLESS = 1 << 28
"""Archives up to this many bytes are read however well they are compressed."""
RATIO = 200
"""The most that a larger archive may grow when it is unpacked; deflate reaches 1,000 on constant arrays only."""
BLOCK = 1 << 22
"""Bytes of text that are read at once; no line of a table is longer."""


@contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Turn whatever reading a damaged file raises into one line that names the file and says ``what`` it should be."""
    try:
        yield
    except LmcError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"expected {what} at {path} (got no such file): check the path") from error
    except IsADirectoryError as error:
        raise DataError(f"expected {what} (got {path}, a folder): pass the path of a file in it") from error
    except Exception as error:  # a damaged file may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(f"expected {what} (got {path}, {reason}): copy or write it again") from error


def read_npz(path: Path, keys: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file; with ``keys`` only those that are named there."""
    with naming(path, "a whole .npz file"), path.open("rb") as file:
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise DataError(f"expected an .npz archive (got a single array in {path}): write it with lmc.save")
        if not zipfile.is_zipfile(file):
            raise DataError(
                f"expected an .npz of plain arrays (got {path}, which is no zip: it is cut off, or holds Python "
                "objects): copy it again, or write numbers with lmc.save or np.savez"
            )
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = {key: info for key, info in members.items() if keys is None or key in keys}
            check_unpacked(chosen.values(), os.fstat(file.fileno()).st_size, str(path))
            for key, info in chosen.items():
                with archive.open(info) as stream:
                    header(stream, info.file_size, f"{key} in {path}")
            return {key: _member(archive, info) for key, info in chosen.items()}


def check_unpacked(members: Collection[zipfile.ZipInfo], packed: int, where: str) -> None:
    """Refuse an archive of ``packed`` bytes that would grow out of proportion when ``members`` are unpacked."""
    unpacked = sum(info.file_size for info in members)
    if unpacked > max(HARMLESS, RATIO * packed):
        raise DataError(
            f"expected arrays of at most {RATIO} times the size of their archive (got {unpacked:,} bytes from "
            f"{packed:,} in {where}): save them uncompressed with np.savez, or the features as sparse rows"
        )


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as stream:
        array: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return array


def header(stream: IO[bytes], size: int, where: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """Shape and dtype that an array declares, and whether its columns come one after the other.

    Its data must fill the ``size`` bytes of its file exactly.
    """
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"expected an array of numbers as {where} (got format {version}): save it with np.save")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise DataError(f"expected plain arrays (got Python objects as {where}): write numbers only")
    if dtype.kind not in "biufcUS":
        raise DataError(f"expected an array of numbers as {where} (got {dtype}): convert it first")
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != size - stream.tell():
        raise DataError(
            f"expected {size - stream.tell():,} bytes of data as {where} (got a header of shape {list(shape)}, "
            f"{dtype}): write or copy it again"
        )
    return shape, dtype, fortran


def read_npy(path: Path, rows: int | None = None, cols: int | None = None) -> np.ndarray:
    """The numeric matrix of an ``.npy`` file; numbers of rows and columns that are given must be those of the file."""
    with naming(path, "a whole .npy file"):
        with path.open("rb") as stream:
            shape, dtype, _ = header(stream, os.fstat(stream.fileno()).st_size, str(path))
        known = [str(size) if size is not None else "any" for size in (rows, cols)]
        fits = len(shape) == 2 and rows in (None, shape[0]) and cols in (None, shape[1])
        if not fits or dtype.kind not in "biuf":
            raise DataError(
                f"expected numbers [{', '.join(known)}] in {path} (got {list(shape)}, {dtype}): copy it again"
            )
        return np.array(np.load(path, allow_pickle=False), dtype=dtype.newbyteorder("="), order="C", copy=None)


def read_json(path: Path, kind: type) -> Any:
    """The content of a JSON file, whose outermost value is of the type ``kind``."""
    with naming(path, "a JSON file"):
        content = json.loads(path.read_bytes())
        if not isinstance(content, kind):
            raise DataError(f"expected a {kind.__name__} in {path} (got {type(content).__name__}): copy it again")
        return content


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, or of one compressed with gzip, without empty ones and comments (#)."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        rest = b""
        while block := stream.read(BLOCK):
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) > BLOCK:
                raise ValueError(f"a line is longer than {BLOCK:,} bytes")
            yield from (line.decode() for line in whole if line.strip() and not line.startswith(b"#"))
        if rest.strip() and not rest.startswith(b"#"):
            yield rest.decode()


def read_table(path: Path, dtype: type, cols: int, most: int, delimiter: str | None = None) -> np.ndarray:
    """A table of numbers with ``cols`` columns and at most ``most`` rows, text or gzip."""
    with naming(path, "a table of numbers"):
        rows = lines(path)
        first = next(rows, "")
        found = len(first.split(delimiter)) if first else 0
        if found != cols:
            raise DataError(f"expected {cols} numbers in every row of {path} (got {found} in the first): copy it again")
        given = islice((line for part in ((first,), rows) for line in part), most + 1)
        table: np.ndarray = np.loadtxt(given, delimiter=delimiter, dtype=dtype, ndmin=2, comments=None)
        if len(table) > most:
            raise DataError(f"expected at most {most:,} rows in {path} (got more): copy the file of this set")
        return table


def read_lists(path: Path, what: str, most: int) -> list[np.ndarray]:
    """Lists of whole numbers, one per line and at most ``most`` numbers in all, text or gzip."""
    with naming(path, what):
        found, total = [], 0
        for line in lines(path):
            found.append(np.array(line.split(), dtype=np.int64))
            total += found[-1].size
            if total > most:
                raise DataError(f"expected at most {most:,} numbers in {path} (got more): copy the file of this set")
        return found


def check_pointers(indptr: np.ndarray, indices: np.ndarray, shape: Any, what: str) -> tuple[int, int]:
    """The shape of a matrix that is given by rows, after its row pointers and columns are checked against it."""
    whole = all(part.dtype.kind in "iu" for part in (indptr, indices, np.asarray(shape)))
    if not whole or np.shape(shape) != (2,):
        raise GraphError(
            f"expected {what}_shape to be two numbers and whole numbers throughout (got others): copy or write the "
            "file again"
        )
    rows, cols = (int(size) for size in shape)
    if not 0 <= rows < 2**31 or not 0 <= cols < 2**31:
        raise GraphError(
            f"expected fewer than 2^31 rows and columns of {what} (got {rows} x {cols}): copy or write the file again"
        )
    if indptr.shape != (rows + 1,) or indices.ndim != 1:
        raise GraphError(
            f"expected {what}_indptr [{rows + 1}] and {what}_indices of one dimension "
            f"(got {list(indptr.shape)}, {list(indices.shape)}): copy or write the file again"
        )
    if indptr[0] != 0 or indptr[-1] != indices.size or bool((indptr[1:] < indptr[:-1]).any()):
        raise GraphError(
            f"expected {what}_indptr to rise from 0 to {indices.size} (got other row pointers): copy or write the file "
            "again"
        )
    if indices.size and not (indices.min() >= 0 and indices.max() < cols):
        raise GraphError(
            f"expected {what}_indices in [0, {cols}) (got {indices.min()} to {indices.max()}): copy or write the file "
            "again"
        )
    return rows, cols
