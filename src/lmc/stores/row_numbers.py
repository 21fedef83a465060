"""Row numbers that a GPU computes: when they are ready, and their copies on the host."""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lmc.kernels.packed import Rows
from lmc.stores.streams import Event, record_event

_READY = WeakTensorKeyDictionary()
_ON_HOST = WeakTensorKeyDictionary()


def numbers_ready(rows: Rows) -> Event:
    """The event after which ``rows`` can be read by other streams; recorded at the first call for a tensor."""
    if isinstance(rows, slice):
        return Event()
    if rows not in _READY:
        _READY[rows] = record_event(rows.device)
    event = _READY[rows]
    assert isinstance(event, Event)
    event.query()
    return event


def numbers_on_host(rows: Rows) -> Rows:
    """Row numbers in host memory; each GPU tensor is copied once, since a copy waits for the GPU."""
    if isinstance(rows, slice) or rows.device.type == "cpu":
        return rows
    if rows not in _ON_HOST:
        _ON_HOST[rows] = rows.cpu()
    found = _ON_HOST[rows]
    assert isinstance(found, Tensor)
    return found


def same_rows(a: Rows, b: Rows) -> bool:
    """Whether these are equal ranges, or the same tensor object."""
    return a == b if isinstance(a, slice) and isinstance(b, slice) else a is b
