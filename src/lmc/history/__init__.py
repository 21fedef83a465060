"""State that outlives a step: tables of rows on the device, in host memory or on disk."""

from lmc.history.auto import Auto
from lmc.history.base import Rows, Store, Table, overwrite
from lmc.history.cargo import Write
from lmc.history.carried import Carried, carriers, tables_of
from lmc.history.device import Device, DeviceTable
from lmc.history.disk import Disk, DiskTable
from lmc.history.host import HostTable, Pinned
from lmc.history.lanes import together
from lmc.history.memory import free_memory
from lmc.history.named import TIERS, store
from lmc.history.staged import StagedTable

__all__ = [
    "TIERS",
    "Auto",
    "Carried",
    "Device",
    "DeviceTable",
    "Disk",
    "DiskTable",
    "HostTable",
    "Pinned",
    "Rows",
    "StagedTable",
    "Store",
    "Table",
    "Write",
    "carriers",
    "free_memory",
    "overwrite",
    "store",
    "tables_of",
    "together",
]
