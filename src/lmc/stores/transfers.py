"""Records of rows between a step and a host table; :mod:`lmc.stores` says what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lmc.kernels.packed import Packed, Rows, num_rows
from lmc.kernels.row_transfers import RowCache
from lmc.stores.row_numbers import same_rows
from lmc.stores.streams import Event


@dataclass(eq=False)
class StepWrite:
    """Rows that the step under way pushed into some ``members`` of a bundle.

    ``piece`` is the index of the rows among the fetched ones, if they are one of them. ``in_place``: ``values`` are the
    delivered values themselves, which the step changed.
    """

    rows: Rows
    values: Packed
    piece: int | None
    in_place: bool
    members: set[int] = field(default_factory=set)


@dataclass(eq=False)
class PendingWrite:
    """What one step pushed: ``rows``, one after the other in ``cache``.

    ``packed`` completes when the cache holds the rows; ``written``, once they are sent, when the host table does,
    except for rows in the cache ``excluded``, which the next step pushed again.
    """

    cache: RowCache
    rows: list[Rows] = field(default_factory=list)
    packed: Event = field(default_factory=Event)
    written: Event | None = None
    excluded: RowCache | None = None


@dataclass(eq=False)
class Fetch:
    """The rows of one step: the ``rows`` objects of the caller, one after the other in ``cache``.

    ``fetched`` completes when the cache holds the rows; ``delivered``, once there is one, when the newest pending write
    is laid over them and the step may read them. A write that is packed after ``newest`` outdates the fetch.
    """

    rows: tuple[Rows, ...]
    cache: RowCache
    newest: PendingWrite | None
    fetched: Event = field(default_factory=Event)
    delivered: Event | None = None

    def write_numbers(self) -> Tensor:
        """Write the row numbers into the cache; on the stream of the fetch, since the training stream is busy."""
        if len(self.rows) == 1 and isinstance(self.rows[0], Tensor):
            return self.cache.share_rows(self.rows[0])
        self.cache.own_rows()
        start = 0
        for rows in self.rows:
            mine = self.cache.rows[start : start + num_rows(rows)]
            torch.arange(rows.start, rows.stop, out=mine) if isinstance(rows, slice) else mine.copy_(rows)
            start += num_rows(rows)
        return self.cache.rows[: self.cache.num]

    def piece(self, rows: Rows) -> int | None:
        """The index of ``rows`` among the fetched rows, if they are one of them."""
        return next((k for k, mine in enumerate(self.rows) if same_rows(mine, rows)), None)

    def values(self, piece: int) -> Packed:
        """The values of one piece."""
        start = sum(num_rows(rows) for rows in self.rows[:piece])
        return self.cache.values.rows(start, num_rows(self.rows[piece]))
