"""Stores by name."""

from __future__ import annotations

from lmc.errors import ConfigError
from lmc.stores.auto import Auto
from lmc.stores.base import Store
from lmc.stores.device import Device
from lmc.stores.disk import Disk
from lmc.stores.host import Pinned

TIERS: dict[str, Store] = {"auto": Auto(), "device": Device(), "disk": Disk(), "host": Pinned()}


def store(choice: str | Store) -> Store:
    """The store named "device", "host", "disk" ("disk:/path" for a folder) or "auto"; a store is returned as it is."""
    if not isinstance(choice, str):
        return choice
    if choice.startswith("disk:"):
        return Disk(choice.removeprefix("disk:"))
    if choice not in TIERS:
        raise ConfigError(f"expected a history tier in {sorted(TIERS)} (got {choice!r})")
    return TIERS[choice]
