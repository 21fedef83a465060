"""Stores by name."""

from __future__ import annotations

from lmc.errors import ConfigError
from lmc.history.auto import Auto
from lmc.history.base import Store
from lmc.history.device import Device
from lmc.history.disk import Disk
from lmc.history.host import Pinned

TIERS: dict[str, Store] = {"auto": Auto(), "device": Device(), "disk": Disk(), "host": Pinned()}


def store(choice: str | Store) -> Store:
    """A store by name, "device", "host", "disk" ("disk:/path" in a folder) or "auto"; a store passes through."""
    if not isinstance(choice, str):
        return choice
    if choice.startswith("disk:"):
        return Disk(choice.removeprefix("disk:"))
    if choice not in TIERS:
        raise ConfigError(f"expected a history tier in {sorted(TIERS)} (got {choice!r})")
    return TIERS[choice]
