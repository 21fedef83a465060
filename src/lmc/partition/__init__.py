"""Partitions of a graph into parts, and measures of their quality."""

from lmc.partition.check import check_parts
from lmc.partition.dispatch import METHODS, partition
from lmc.partition.quality import Quality, quality
