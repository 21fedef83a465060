"""Networks of PyG convolutions, unchanged, as models of this library."""

from lmc.pyg.wrap import wrap

__all__ = ["wrap"]
