"""What of a run stays on the device, and in how many bytes."""

from __future__ import annotations

from dataclasses import dataclass

from lmc.stores import Store


@dataclass(frozen=True)
class Placement:
    """The arguments of :meth:`lmc.methods.Method.bind` that decide a run's memory, by the same names."""

    features: str | Store = "device"
    keep_batches: bool = True
    precision: str = "float32"
    structure: str = "device"


ON_DEVICE = Placement()
"""What is bound where nothing is said."""
