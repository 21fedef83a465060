"""The features on their tier: on the training device, or on a slower one from which the rows of a batch are fetched."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR, Extractor, Graph, MappedFiles, hstack, row_chunks, rows_in_chunks, sparse_product, spmm
from lmc.stores import Auto, Disk, HostRows, Pinned, Rows, StagedTable, Store, Table, overwrite, store

CHUNK = 2**25
"""Numbers in the features that one chunk of P X reads."""
MANY = 2**30
"""Entries of P times features from which on a CPU computes rows of P X when they are first read; so many take 0.1 s."""


def tier_of(choice: str | Store, graph: Graph, width: int, dtype: torch.dtype, device: torch.device) -> Store:
    """The tier for features of this width; the choice that "auto" makes, by free memory."""
    tier = store(choice)
    if isinstance(tier, Auto):
        x = graph.x
        size = (8 * x.nnz if isinstance(x, CSR) else dtype.itemsize * x.numel()) * width // graph.num_features
        tier = tier.choose(size, device)
        tier = Pinned() if isinstance(graph.x, CSR) and tier.name == "disk" else tier
    if isinstance(graph.x, CSR) and tier.name == "disk":
        raise ConfigError(
            'expected features "device" or "host" for sparse features (got "disk"): they have no rows of one length'
        )
    return tier


def permuted(
    graph: Graph, order: Tensor | None, tier: Store, device: torch.device, files: MappedFiles | None = None
) -> tuple[Graph, Table | None]:
    """The graph in run order, with its edges in ``files`` where they are kept on disk; and its features as a table
    where they are kept on disk: they are written there first, so that they are never in memory twice."""
    n, on_disk = graph.num_nodes, isinstance(tier, Disk) and not isinstance(graph.x, CSR)
    if order is None:
        if files is None and not on_disk:
            return graph, None
        order = torch.arange(n)
    if not on_disk:
        return graph.permute(order, files=files), None
    x, order = graph.x, order.cpu()
    assert isinstance(x, Tensor)
    table = tier.table(n, x.shape[1], x.dtype, device)
    step = max(1, CHUNK // x.shape[1])
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        table.push(rows, x[order[rows].to(x.device)].cpu())
        graph.adj.release()  # mapped features lie in the same files
    return graph.permute(order, x=table.data(), files=files), table


def aggregated_features(
    P: CSR, x: Tensor | CSR, table: Table | None, tier: Store, both: bool, dtype: torch.dtype
) -> Tensor | CSR | Table:
    """P X on its tier, with X beside it where the model reads ``both``.

    It is summed in the dtype of P and kept as ``dtype``; sparse features keep the dtype of P.
    """
    if isinstance(x, CSR):
        home = P.device if tier.name == "device" else torch.device("cpu")
        sparse = x.to(home, P.dtype)
        product = sparse_product(P, sparse).to(home)
        return hstack(product, sparse) if both else product
    if tier.name == "device" and not P.on_host:
        dense = x.to(P.device, P.dtype)
        PX = spmm(P, dense).to(dtype)
        return torch.cat([PX, dense.to(dtype)], 1) if both else PX
    n, d = x.shape
    found = tier.table(n, 2 * d if both else d, dtype, P.device)
    blocks = Extractor(P)
    for rows, _ in row_chunks(P, max(1, CHUNK // d)):
        index = torch.arange(rows.start, rows.stop, device=P.device)
        ext = torch.cat([index, blocks.halo(index)])
        read = (x[ext.to(x.device)] if table is None else table.pull(ext)).to(P.device, P.dtype)
        PX = spmm(blocks.block(index, ext), read)
        found.push(rows, torch.cat([PX, read[: index.numel()]], 1) if both else PX)
    return found.data() if tier.name == "device" else found


def plain_features(
    x: Tensor | CSR, table: Table | None, tier: Store, device: torch.device, dtype: torch.dtype
) -> Tensor | CSR | Table:
    """X on its tier, without a copy where it is there already."""
    if isinstance(x, CSR):
        return x.to(device if tier.name == "device" else "cpu", dtype)
    if tier.name == "device":
        return x.to(device, dtype)
    if x.dtype == dtype and (table is not None or x.device.type == "cpu"):
        return StagedTable(HostRows.of(x, device)) if table is None else table
    n, d = x.shape
    found = tier.table(n, d, dtype, device)
    overwrite(found, x)
    return found


class FirstReads:
    """P X in host memory, whose rows are computed when they are first read: a step does not wait for all others.

    A row is the same whenever it is computed, and with whichever other rows.

    Args:
        both: X is stored beside P X.
    """

    def __init__(self, P: CSR, x: Tensor, both: bool) -> None:
        self._P, self._x, self._both = P, x, both
        self.sums = x.new_empty(x.shape[0], x.shape[1] * (2 if both else 1))
        self.missing: Tensor | None = torch.ones(x.shape[0], dtype=torch.bool)
        """Which rows are not computed yet; None: there are none."""

    def fill(self, rows: Rows) -> None:
        """Compute the rows among these that are missing."""
        if self.missing is None:
            return
        absent = self.missing[rows]
        count = int(absent.sum())
        if isinstance(rows, slice) and 2 * count >= absent.numel():  # nothing is copied to compute all of them
            self._write(rows, self._P.select_rows(rows))
        elif count:
            nodes = absent.nonzero().squeeze(1) + (rows.start or 0) if isinstance(rows, slice) else rows[absent]
            for some, P in rows_in_chunks(self._P, nodes):  # temporary values stay in the cache
                self._write(nodes[some], P)
        self.missing[rows] = False
        if count and not bool(self.missing.any()):
            self.missing = None
            del self._P, self._x

    def _write(self, rows: Rows, P: CSR) -> None:
        out, d = self.sums.data, self._x.shape[1]  # autograd need not know: no row changes after it was read
        if self._both:
            out[rows, d:] = self._x[rows]
        if isinstance(rows, slice) and not self._both:
            spmm(P, self._x, out[rows])
        else:
            out[rows, :d] = spmm(P, self._x)


def when_read(P: CSR, x: Tensor | CSR, tier: Store, dtype: torch.dtype) -> bool:
    """Whether rows of P X are computed when they are first read."""
    in_memory = P.device.type == "cpu" and tier.name == "device" and not P.on_host
    return in_memory and isinstance(x, Tensor) and x.dtype == P.dtype == dtype and P.nnz * x.shape[1] >= MANY
