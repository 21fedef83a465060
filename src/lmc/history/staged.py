"""Rows that lie outside the training device's memory, read ahead of a step and written back behind it.

On a GPU, with steps k and k + 1 of a training loop:

    host     step k is launched | prefetch(k + 1): older writes are applied, rows gathered | step k + 1 is launched
    device   .... step k runs, reads what was staged for it ....  | step k + 1 ...
    copies   .... rows for k + 1 arrive, what k pushed leaves ....

What step k pushes is not in the rows yet when those of step k + 1 are gathered, so it is PATCHED into them on the
device, in the order of the pushes. The host waits for copies of step k - 1 at most, while the device works on step k.

Where the training device is the CPU there is nothing to overlap, and every verb acts at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lmc.history.base import Rows
from lmc.history.device import write

PENDING = 4
"""Writes since the last prefetch that a table holds back: a step makes fewer; a pass over all rows must not pile them
up."""


@dataclass(eq=False)
class Write:
    """Rows on their way back: ``values`` on the device until no more patches are made of them, ``copy`` on the host."""

    rows: Rows
    values: Tensor | None
    copy: Tensor
    adds: bool
    done: torch.cuda.Event | None


@dataclass(eq=False)
class Staged:
    """Rows that were sent for: the very ``rows`` they were asked for by, and the same on the host."""

    asked: Rows
    rows: Rows
    values: Tensor
    arrived: torch.cuda.Event | None
    pulled: bool = field(default=False)


class StagedTable:
    """A table over ``rows``, a tensor on the host (plain, page-locked or mapped from a file).

    Args:
        behind: read ahead and write back as above; by default where the training device is a GPU.
    """

    def __init__(self, rows: Tensor, device: torch.device, behind: bool | None = None, tier: str = "host") -> None:
        self.tier = tier
        self._rows = rows
        self._device = device
        self._cuda = device.type == "cuda"
        self.stages = self._cuda if behind is None else behind
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._staged: list[Staged] = []
        self._older: list[Write] = []
        self._newer: list[Write] = []

    def pull(self, rows: Rows) -> Tensor:
        for staged in self._staged:
            if _same(staged.asked, rows):
                staged.pulled = True
                return self._arrive(staged)
        self._settle()
        return self._gather(on_host(rows)).to(self._device, non_blocking=self._cuda)

    def push(self, rows: Rows, values: Tensor) -> None:
        self._write(rows, values.detach(), adds=False)

    def add(self, rows: Rows, values: Tensor) -> None:
        self._write(rows, values.detach(), adds=True)

    def prefetch(self, *rows: Rows) -> None:
        if not self.stages:
            return
        self._staged = []
        self._apply(self._older)
        self._older, self._newer = self._newer, []
        for asked in rows:
            staged = self._send(asked)
            self._staged.append(staged)
            for w in self._older:
                self._patch(staged, w)
        for w in self._older:
            w.values = None

    def data(self) -> Tensor:
        # the caller may write into it, behind the back of what is staged
        self._staged = []
        self._settle()
        return self._rows

    def _write(self, rows: Rows, values: Tensor, adds: bool) -> None:
        if not self.stages or (self._cuda and values.device.type == "cpu"):  # not from a step
            self._staged = []
            self._settle()
            self._change(on_host(rows), values, adds)
            return
        if len(self._newer) >= PENDING:
            self._settle()
        w = self._bring(on_host(rows), values, adds)
        self._newer.append(w)
        # a pulled tensor is its owner's: it is let go, not changed
        self._staged = [s for s in self._staged if not (s.pulled and overlap(s.rows, w.rows)[0].numel())]
        for staged in self._staged:
            self._patch(staged, w)

    def _change(self, rows: Rows, values: Tensor, adds: bool) -> None:
        """Write into the rows themselves."""
        write(self._rows, rows, values, adds)

    def _gather(self, rows: Rows) -> Tensor:
        """The rows; on the way to a GPU always a page-locked copy, since the copy to the device reads it later."""
        if isinstance(rows, slice):
            found = self._rows[rows]
            return torch.empty_like(found, pin_memory=True).copy_(found) if self._cuda else found
        if not self._cuda:
            return self._rows.index_select(0, rows)
        staging = torch.empty(rows.numel(), self._rows.shape[1], dtype=self._rows.dtype, pin_memory=True)
        return torch.index_select(self._rows, 0, rows, out=staging)

    def _send(self, asked: Rows) -> Staged:
        rows = on_host(asked)
        values = self._gather(rows)
        if self._stream is None:
            return Staged(asked, rows, values.clone(), None)
        with torch.cuda.stream(self._stream):
            there = values.to(self._device, non_blocking=True)
            return Staged(asked, rows, there, self._stream.record_event())

    def _arrive(self, staged: Staged) -> Tensor:
        """The staged rows, for the stream of the caller."""
        if staged.arrived is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(staged.arrived)
            staged.values.record_stream(stream)
        return staged.values

    def _bring(self, rows: Rows, values: Tensor, adds: bool) -> Write:
        if self._stream is None:
            return Write(rows, values.clone(), values.clone(), adds, None)
        values = values.clone()  # the step may write over its own before the patches are made
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            copy.copy_(values, non_blocking=True)
            values.record_stream(self._stream)
            return Write(rows, values, copy, adds, self._stream.record_event())

    def _patch(self, staged: Staged, w: Write) -> None:
        """Bring rows that were gathered before a write up to it."""
        here, there = overlap(staged.rows, w.rows)
        if not here.numel():
            return
        assert w.values is not None
        if self._cuda:
            here = here.pin_memory().to(self._device, non_blocking=True)
            there = there.pin_memory().to(self._device, non_blocking=True)
        write(self._arrive(staged), here, w.values.index_select(0, there), w.adds)

    def _apply(self, writes: list[Write]) -> None:
        for w in writes:
            if w.done is not None:
                w.done.synchronize()
            self._change(w.rows, w.copy, w.adds)
        writes.clear()

    def _settle(self) -> None:
        """Bring the rows up to every write."""
        self._apply(self._older)
        self._apply(self._newer)


_ON_HOST = WeakTensorKeyDictionary()


def on_host(rows: Rows) -> Rows:
    """Row numbers in host memory; fetched once for each tensor of a GPU, since fetching waits for it."""
    if isinstance(rows, slice) or rows.device.type == "cpu":
        return rows
    if rows not in _ON_HOST:
        _ON_HOST[rows] = rows.cpu()
    found = _ON_HOST[rows]
    assert isinstance(found, Tensor)
    return found


def overlap(rows: Rows, written: Rows) -> tuple[Tensor, Tensor]:
    """Where rows that both name stand in the one and in the other; each names a row at most once."""
    mine = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    if isinstance(written, slice):
        here = ((mine >= written.start) & (mine < written.stop)).nonzero().squeeze(1)
        return here, mine[here] - written.start
    if not written.numel():
        return written, written
    ascending, order = written.sort()
    place = torch.searchsorted(ascending, mine).clamp_(max=written.numel() - 1)
    here = (ascending[place] == mine).nonzero().squeeze(1)
    return here, order[place[here]]


def _same(asked: Rows, rows: Rows) -> bool:
    return asked == rows if isinstance(asked, slice) and isinstance(rows, slice) else asked is rows
