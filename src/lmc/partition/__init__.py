"""Partitions of a graph into parts, and measures of their quality."""

from lmc.partition.dispatch import METHODS, Quality, check_parts, group_parts, is_cached, partition, quality
from lmc.partition.stream import coarse_pieces, parts_in_pieces
