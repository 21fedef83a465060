"""Where a run keeps what it needs, and in how many bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lmc.errors import ConfigError, check_fields
from lmc.graph import MappedFiles
from lmc.stores.base import Store
from lmc.stores.tiers import store

STRUCTURES = ("device", "host", "disk")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Placement:
    """The one record of where things are kept during training.

    Args:
        device: where to train; "auto" is the GPU where there is one.
        history: where the tables that a method keeps between steps are stored: "device", "host", "disk", "auto" (by
            free memory), or a store of :mod:`lmc.stores`.
        features: where the features are stored, likewise; only the rows of a batch are transferred.
        structure: where the graph's edges are stored: "device"; "host", from where batches are cut; or "disk"
            ("disk:/path" for a folder), memory-mapped files from which the rows of a batch are read.
        precision: "float32", rows in the dtype of the parameters, or "bfloat16": features, states, adjoints, tables
            and P in half the bytes. Parameters, losses and sums over steps stay float32.
        keep_batches: keep fixed batches on the device; False builds each of them anew in every epoch.
    """

    device: str | torch.device = "auto"
    history: str | Store = "device"
    features: str | Store = "device"
    structure: str = "device"
    precision: str = "float32"
    keep_batches: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        store(self.history, "history")
        store(self.features, "features")
        if self.structure.partition(":")[0] not in STRUCTURES or self.structure.startswith(("device:", "host:")):
            raise ConfigError(f"expected structure in {STRUCTURES}, or disk:FOLDER (got {self.structure!r})")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"expected precision in {PRECISIONS} (got {self.precision!r})")

    @property
    def training_device(self) -> torch.device:
        """The device itself; one that this machine does not have is refused."""
        return check_device(self.device)

    def structure_files(self) -> MappedFiles | None:
        """The files of the graph's edges, where they are to lie on disk."""
        place, _, folder = self.structure.partition(":")
        return MappedFiles(folder or None) if place == "disk" else None

    @property
    def tier(self) -> Store:
        """The store of the tables that a method keeps."""
        return store(self.history)


def placement_on(device: str | torch.device | None, placement: Placement | None) -> Placement:
    """The placement, the default one where there is none, on ``device`` where one is named."""
    placement = placement or Placement()
    return placement if device is None else replace(placement, device=device)


def check_device(device: str | torch.device) -> torch.device:
    """A device that exists; "auto" is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f'expected a device such as "cpu", "cuda" or "auto" (got {device!r})') from error
    if chosen.type not in ("cpu", "cuda"):
        raise ConfigError(f'expected a CPU or a CUDA device (got "{device}"): use device="cpu", "cuda" or "auto"')
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError('expected a device of this machine (got "cuda", but no GPU is visible): use device="cpu"')
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f'expected a device of this machine (got "{device}"): it has {torch.cuda.device_count()} GPUs'
        )
    return chosen
