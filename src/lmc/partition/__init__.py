"""Cutting a graph into parts, and how well it was cut."""

from lmc.partition.check import check_parts
from lmc.partition.dispatch import METHODS, partition
from lmc.partition.quality import Quality, quality

__all__ = ["METHODS", "Quality", "check_parts", "partition", "quality"]
