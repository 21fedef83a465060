"""Rows that outlive a step: tables on the training device, in host memory or on disk.

A method and the engine use a :class:`Table` (pull, push, add, data). Around every step the engine also talks to
:class:`Staging`, which moves rows of tables outside of the training device ahead of the step and behind it:

    host             launches step k     | starts fetch k + 1 | launches step k + 1
    training stream  ... step k runs, on the rows of fetch k ... | delivery of fetch k + 1 | step k + 1 ...
    other streams    ... rows of fetch k + 1 are read, the pending write of step k - 2 is written back ...

**The life of a row** of such a table. Step k has ended, which means that it is launched, and step k + 1 comes next:

    state           where the newest value is              entered when                      complete at this event
    -------------   ------------------------------------   -------------------------------   ----------------------
    on the host     host table                             the write of step k - 3 is done   WriteBack.written
    fetched         cache of fetch k + 1                   prefetch for step k + 1           Fetch.fetched
    delivered       cache of fetch k + 1, with the         begin of step k + 1, or an        Fetch.delivered
                    pending write of step k laid over it   earlier pull
    pushed          log of step k + 1                      push or add in step k + 1         training stream
    newest write    cache of the pending write of step k   end of step k                     PendingWrite.packed
    older writes    caches of the pending writes of        end of step k; that of step       PendingWrite.packed
                    steps k - 1 and k - 2                  k - 2 is sent now
    on the host     host table, once more                  end of step k + 1                 PendingWrite.written

The rows of three steps (``KEPT``) stay on the device. What a step changed in place, from the first delivered row on, is
pending where it is; everything else that it pushed is packed into memory of its own.

**From where fetch k + 1 reads a row.** The first of these that has it:

1. the newest pending write, of step k. Step k may still run, so its rows are laid over the fetched ones on delivery;
2. the older pending writes, of steps k - 1 and k - 2, in this order. One that is in place stands for its whole fetch;
3. the caches of the fetches that were delivered to steps k, k - 1 and k - 2, as many as the kernel can look through.
   Fetch j holds every write up to step j - 1. What step j changed in it in place it also pushed, so the rules above
   cover it;
4. the host table, which holds every write up to step k - 3.

So no row is read before it is written, a row that is on the device is hardly ever read from the host, and reading and
writing do not wait for each other. A fetch is a source only as long as all that was pushed since is pending.

**What waits for what.**

- Fetch k + 1 starts after ``WriteBack.written`` (rule 4, and the cache that it fills may hold the write of step k - 3),
  after ``PendingWrite.packed`` of the older pending writes (rule 2), after ``Fetch.delivered`` of fetch k (rule 3), and
  after its row numbers are computed.
- If step k pushes every row of fetch k, the older writes leave these rows out: they look them up in the cache of fetch
  k, which is not filled again before they are written.
- The memory of the write of step k - 3, unless it was in place, is used again for step k, after its
  ``PendingWrite.written``.
- A read or a write that a fetch or a log does not cover settles the table first: everything pending is written to the
  host table and the fetches are dropped. A step that had to settle cannot be recorded as a CUDA graph.
- A fetch serves pulls until a step that pushed rows has ended; then it is only a source (rule 3).
- Where the host writes, two page-locked buffers take turns, and a write is launched once the last but one is done.
- Where fetches are more than steps, one could fill a cache that a pending write uses: everything pending is written
  first.

The kernels read and write page-locked host memory themselves (:mod:`lmc.kernels.row_transfers`). Pages of a file can be
locked for reading at most; where the kernels cannot reach, two threads copy rows (:mod:`lmc.stores.host`). Where the
training device is a CPU there is nothing to overlap and every call takes effect at once.
"""

from lmc.kernels.packed import Rows
from lmc.stores.base import DeviceTable, PassTable, Store, Table, overwrite, tables_of
from lmc.stores.disk import FileRows
from lmc.stores.host import HostRows, host_zeros
from lmc.stores.memory import free_memory
from lmc.stores.placement import PRECISIONS, Placement, check_device, placement_on
from lmc.stores.staged import BundleMember, InPlace, StagedTable, in_place
from lmc.stores.staging import Staging, WriteLogs
from lmc.stores.tiers import TIERS, Auto, Device, Disk, Pinned, store

__all__ = ["PRECISIONS", "TIERS", "Auto", "Device", "Disk", "Pinned", "Placement", "Store", "Table"]
