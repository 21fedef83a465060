"""Planetoid's raw files ``ind.<name>.*``: pickles of numpy and scipy arrays, read without running what they contain.

A pickle is a program: it names classes and functions, which Python's reader imports and calls. The interpreter here
imports and calls nothing. It knows the few instructions that build lists, dicts and tuples, and it records which
object a pickle asks for, with which arguments and which state. Names other than those of numpy's and scipy's arrays
are refused. Arrays are built from these records afterwards.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from lmc.data.arrays import check_pointers, naming, read_table
from lmc.errors import DataError

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
VALIDATION = 500
"""Nodes after the training nodes that the authors use for validation."""

ADMITTED = {
    **{f"numpy.{core}.multiarray _reconstruct": "array" for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": "buffer" for core in ("core", "_core")},
    "numpy ndarray": "array",
    "numpy dtype": "dtype",
    **{f"scipy.sparse.{csr} csr_{kind}": "matrix" for csr in ("csr", "_csr") for kind in ("matrix", "array")},
    **{f"{module} _reconstructor": "matrix" for module in ("copy_reg", "copyreg")},
    "_codecs encode": "bytes",
    "collections defaultdict": "dict",
    **{f"{module} {name}": "type" for module in ("__builtin__", "builtins") for name in ("list", "object")},
}
"""The names that a pickle may contain, and what an object made with them is taken for."""


@dataclass
class _Object:
    """An object that a pickle asks for: its kind, the arguments for it and the state that it is given."""

    kind: str
    args: Any = ()
    state: Any = None


class _Stacks:
    """What the instructions of a pickle work on: a stack, those below the marks that are set, and the memo."""

    def __init__(self) -> None:
        self.top: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def mark(self, _: Any) -> None:
        self.below.append(self.top)
        self.top = []

    def since_mark(self) -> list[Any]:
        items, self.top = self.top, self.below.pop()
        return items

    def push(self, value: Any) -> None:
        self.top.append(value)

    def group(self, size: int) -> None:
        self.top[len(self.top) - size :] = [tuple(self.top[len(self.top) - size :])]

    def store(self, items: list[Any]) -> None:
        """Add keys and values, in turn, to the dict on top."""
        if not isinstance(self.top[-1], dict):
            raise ValueError("items of something that is no dict")
        self.top[-1].update(zip(items[::2], items[1::2], strict=True))

    def collect(self) -> None:
        """Make a dict of the items since the mark."""
        items = self.since_mark()
        self.push({})
        self.store(items)

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.top[-1], list):
            raise ValueError("items of something that is no list")
        self.top[-1].extend(items)

    def name(self, name: str) -> None:
        if name not in ADMITTED:
            raise ValueError(f"{name}, which is neither a numpy nor a scipy array")
        self.push(_Object(ADMITTED[name]))

    def make(self, _: Any) -> None:
        args, asked = self.top.pop(), self.top.pop()
        self.push({} if asked.kind == "dict" else _Object(asked.kind, args))

    def build(self, _: Any) -> None:
        state, made = self.top.pop(), self.top[-1]
        if not isinstance(made, _Object):
            raise ValueError("the state of something that is no object")
        made.state = state


_LITERALS = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)
_STEPS: dict[str, Callable[[_Stacks, Any], None]] = {
    **{name: lambda s, _: None for name in ("PROTO", "FRAME")},
    **dict.fromkeys(_LITERALS, _Stacks.push),
    "NONE": lambda s, _: s.push(None),
    "NEWTRUE": lambda s, _: s.push(True),
    "NEWFALSE": lambda s, _: s.push(False),
    "EMPTY_LIST": lambda s, _: s.push([]),
    "EMPTY_DICT": lambda s, _: s.push({}),
    "EMPTY_TUPLE": lambda s, _: s.push(()),
    "MARK": _Stacks.mark,
    "LIST": lambda s, _: s.push(s.since_mark()),
    "DICT": lambda s, _: s.collect(),
    "TUPLE": lambda s, _: s.push(tuple(s.since_mark())),
    "TUPLE1": lambda s, _: s.group(1),
    "TUPLE2": lambda s, _: s.group(2),
    "TUPLE3": lambda s, _: s.group(3),
    "APPEND": lambda s, _: s.extend([s.top.pop()]),
    "APPENDS": lambda s, _: s.extend(s.since_mark()),
    "SETITEM": lambda s, _: s.store([s.top.pop(-2), s.top.pop()]),
    "SETITEMS": lambda s, _: s.store(s.since_mark()),
    **{name: lambda s, at: s.memo.update({at: s.top[-1]}) for name in ("PUT", "BINPUT", "LONG_BINPUT")},
    "MEMOIZE": lambda s, _: s.memo.update({len(s.memo): s.top[-1]}),
    **{name: lambda s, at: s.push(s.memo[at]) for name in ("GET", "BINGET", "LONG_BINGET")},
    "GLOBAL": _Stacks.name,
    "STACK_GLOBAL": lambda s, _: s.name(f"{s.top.pop(-2)} {s.top.pop()}"),
    "REDUCE": _Stacks.make,
    "NEWOBJ": _Stacks.make,
    "BUILD": _Stacks.build,
}
"""The instructions that are known; a pickle with another one is refused."""


def unpickle(path: Path) -> Any:
    """The content of a pickle of numpy arrays, scipy CSR matrices, dicts, lists and numbers; others are refused."""
    with naming(path, "a pickle of numpy and scipy arrays only"):
        stacks = _Stacks()
        for code, argument, _ in pickletools.genops(path.read_bytes()):
            if code.name == "STOP":
                return stacks.top.pop()
            if code.name not in _STEPS:
                raise ValueError(f"the instruction {code.name}")
            _STEPS[code.name](stacks, argument)
        raise ValueError("no last instruction")


def _array(record: Any) -> np.ndarray:
    """The array of a record with the state (version, shape, dtype, in Fortran's order, bytes).

    Protocol 5 gives the arguments (bytes, dtype, shape, order) instead. Bytes of Python 2 are text in latin 1, and
    protocol 2 of Python 3 asks for such text to be encoded. Only here, once per array, are they copied.
    """
    if record.kind == "buffer":
        content, dtype, shape, order = record.args
        fortran = order == "F"
    else:
        _, shape, dtype, fortran, content = record.state
    (code, *_), (_, order, *_) = dtype.args, dtype.state
    if isinstance(content, _Object):
        content, _ = content.args
    if isinstance(content, str):
        content = content.encode("latin1")
    kind = np.dtype(str(code))
    if record.kind not in ("array", "buffer") or kind.kind not in "biuf" or order not in ("<", ">", "|", "="):
        raise ValueError(f"an array of {kind}")
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {list(shape)}")
    flat = np.frombuffer(content, kind.newbyteorder(order)).astype(kind)
    return flat.reshape(shape, order="F" if fortran else "C")


def _matrix(path: Path, cols: int) -> Any:
    record = unpickle(path)
    with naming(path, "a scipy CSR matrix"):
        state = record.state
        data, indices, indptr = (_array(state[key]) for key in ("data", "indices", "indptr"))
        rows, found = check_pointers(indptr, indices, state.get("_shape", state.get("shape")), "matrix")
        if found != cols or data.shape != indices.shape:
            raise ValueError(f"{found} columns instead of {cols}, or {data.size} values of {indices.size} entries")
        return sp.csr_matrix((data.astype(np.float32), indices, indptr), shape=(rows, cols))


def _labels(path: Path, rows: int, classes: int) -> np.ndarray:
    """The class of every row of a 0/1 matrix, -1 for a row of zeros."""
    record = unpickle(path)
    with naming(path, "a 0/1 matrix of classes"):
        table = _array(record)
        if table.shape != (rows, classes):
            raise ValueError(f"shape {list(table.shape)} instead of [{rows}, {classes}]")
        if not np.isin(table, (0, 1)).all() or (table.sum(axis=1) > 1).any():
            raise ValueError("rows with several classes or other numbers")
        return np.where(table.any(axis=1), table.argmax(axis=1), -1)


def _edges(path: Path) -> np.ndarray:
    graph = unpickle(path)
    with naming(path, "a dict of lists of neighbours"):
        counts = [len(row) for row in graph.values() if isinstance(row, list)]
        # in a file every neighbour takes a byte; a list that is referred to many times does not
        if len(counts) != len(graph) or sum(counts) > path.stat().st_size:
            raise ValueError("values that are no lists of their own")
        target = [node for row in graph.values() for node in row]
        if not all(type(node) is int and 0 <= node < 2**31 for node in (*graph, *target)):
            raise ValueError("other things than node numbers")
        return np.stack([np.repeat(np.array(list(graph), np.int64), counts), np.array(target, np.int64)])


def read(files: dict[str, Path], nodes: int, features: int, classes: int) -> dict[str, Any]:
    """Edges, features, classes and split of the set with these sizes; ``files`` are keyed by the parts of their names.

    Row i of ``tx`` belongs to the node on line i of ``test.index``. Numbers that are missing there (citeseer) are
    nodes without features, edges and class. Training nodes are the rows of ``x``, followed by 500 for validation.
    """
    known, tested = _matrix(files["allx"], features), _matrix(files["tx"], features)
    order = read_table(files["test.index"], np.int64, 1, nodes)[:, 0]
    n = max(len(order) and int(order.max()) + 1, known.shape[0])
    distinct = np.unique(order)
    if n != nodes or order.size != tested.shape[0] or distinct.size != order.size or order.min() < known.shape[0]:
        raise DataError(
            f"expected {tested.shape[0]} numbers of test nodes in [{known.shape[0]}, {nodes}) in {files['test.index']} "
            f"(got {distinct.size} up to {n - 1}): copy the files of one set"
        )
    source = np.full(n, known.shape[0] + tested.shape[0])  # a row of zeros, after all others
    source[: known.shape[0]] = np.arange(known.shape[0])
    source[order] = known.shape[0] + np.arange(order.size)
    zeros: Any = sp.csr_matrix(np.zeros((1, features), dtype=np.float32))
    x = sp.vstack([known, tested, zeros], format="csr")[source]
    y = np.full(n, -1)
    y[: known.shape[0]] = _labels(files["ally"], known.shape[0], classes)
    y[order] = _labels(files["ty"], order.size, classes)
    trained = _matrix(files["x"], features).shape[0]
    _labels(files["y"], trained, classes)
    node = np.arange(n)
    return {
        "edges": _edges(files["graph"]),
        "x": x,
        "y": y,
        "train": node < trained,
        "val": (node >= trained) & (node < min(trained + VALIDATION, known.shape[0])),
        "test": np.isin(node, order),
    }
