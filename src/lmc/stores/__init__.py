"""State that outlives a step: tables of rows on the device, in host memory or on disk."""

from lmc.stores.auto import Auto
from lmc.stores.base import Rows, Store, Table, overwrite
from lmc.stores.bundle import Carried, tables_of
from lmc.stores.device import Device, DeviceTable
from lmc.stores.disk import Disk, DiskTable
from lmc.stores.host import HostTable, Pinned
from lmc.stores.memory import free_memory
from lmc.stores.placement import PRECISIONS, Placement, check_device, placement_on
from lmc.stores.registry import TIERS, store
from lmc.stores.staged import StagedTable
from lmc.stores.staging import Staging, WriteLogs

__all__ = [
    "PRECISIONS",
    "TIERS",
    "Auto",
    "Carried",
    "Device",
    "DeviceTable",
    "Disk",
    "DiskTable",
    "HostTable",
    "Pinned",
    "Placement",
    "Rows",
    "StagedTable",
    "Staging",
    "Store",
    "Table",
    "WriteLogs",
    "check_device",
    "free_memory",
    "overwrite",
    "placement_on",
    "store",
    "tables_of",
]
