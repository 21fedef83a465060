"""Choosing nodes: which rows make a batch. Chance is always an argument."""

from lmc.sampling.clusters import Clusters
from lmc.sampling.seeds import derive

__all__ = ["Clusters", "derive"]
