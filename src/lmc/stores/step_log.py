"""What the step under way has pushed."""

from __future__ import annotations

from torch import Tensor

from lmc.kernels.packed import Packed, Rows
from lmc.stores.host_rows import HostRows
from lmc.stores.row_numbers import same_rows
from lmc.stores.transfers import Fetch, StepWrite


class StaticBuffers:
    """Memory at fixed addresses, where a recorded step leaves its rows in every epoch.

    All steps share it, since they never run at the same time.
    """

    def __init__(self, host: HostRows) -> None:
        self._host = host
        self._views: dict[tuple[object, ...], tuple[tuple[Rows, ...], Packed]] = {}
        self._buffers: list[Packed] = []

    def view(self, fetch: Fetch, num: int) -> Packed:
        """The memory of ``num`` rows for the step that reads the rows of ``fetch``."""
        key = tuple((rows.start, rows.stop) if isinstance(rows, slice) else id(rows) for rows in fetch.rows)
        if key not in self._views:
            if not self._buffers or self._buffers[-1].capacity < num:
                self._buffers.append(self._host.buffer(num))
            # The row tensors are kept, so that no other tensor gets their ids.
            self._views[key] = fetch.rows, self._buffers[-1].rows(0, num)
        return self._views[key][1]

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)


class StepLog:
    """Notes what a step pushes, and keeps the values until the step ends."""

    def __init__(self, host: HostRows) -> None:
        self._host = host
        self.writes: list[StepWrite] = []
        """A recording puts its own writes here when it is replayed."""
        self.fixed = False
        """Whether the values must be at the same address in every epoch."""
        self.in_place = False
        """Whether any step so far changed the delivered values in place."""
        self._static: list[StaticBuffers] = []

    @property
    def complete(self) -> bool:
        """Whether the step pushed the same rows into every member of the bundle."""
        return all(len(write.members) == len(self._host.packed) for write in self.writes)

    @property
    def nbytes(self) -> int:
        return sum(buffers.nbytes for buffers in self._static)

    def take(self) -> list[StepWrite]:
        """The writes; the log is empty afterwards."""
        writes, self.writes = self.writes, []
        return writes

    def unwritten(self, piece: int, member: int) -> bool:
        """Whether the delivered values of a piece are the newest: the step wrote other pieces of this member alone."""
        return all(w.piece is not None and w.piece != piece for w in self.writes if member in w.members)

    def note(self, rows: Rows, values: Tensor, member: int, adds: bool, fetch: Fetch | None) -> bool:
        """Note that the step writes these rows; False if the write cannot wait until the step ends.

        Args:
            fetch: the rows that were delivered to the step.
        """
        piece = None if fetch is None else fetch.piece(rows)
        delivered = None if fetch is None or piece is None else fetch.values(piece)
        if adds:
            if piece is None or delivered is None or not self.unwritten(piece, member):
                return False
            values = delivered[member] + values
        write = next((w for w in self.writes if same_rows(w.rows, rows)), None)
        in_place = delivered is not None and values.data_ptr() == delivered[member].data_ptr()
        in_place = in_place and (write is None or write.in_place)
        if write is None:
            kept = delivered if delivered is not None and in_place else self._buffer(values.shape[0], fetch)
            write = StepWrite(rows, kept, piece, in_place)
            self.writes.append(write)
        if write.in_place != in_place:
            return False
        if not in_place:  # the caller may overwrite these values before the step ends; delivered values it may not
            write.values[member].copy_(values)
        self.in_place = self.in_place or in_place
        write.members.add(member)
        return True

    def _buffer(self, num: int, fetch: Fetch | None) -> Packed:
        if not self.fixed or fetch is None:
            return self._host.packed.empty(num, self._host.device)
        if len(self._static) == len(self.writes):
            self._static.append(StaticBuffers(self._host))
        return self._static[len(self.writes)].view(fetch, num)
