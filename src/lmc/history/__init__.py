"""State that outlives a step: tables of rows on the device or in host memory."""

from lmc.history.tables import Device, DeviceTable, Pinned, Rows, Store, Table, store

__all__ = ["Device", "DeviceTable", "Pinned", "Rows", "Store", "Table", "store"]
