"""Data sets: names, files and PyG objects become graphs; lookalikes are synthetic graphs with real statistics."""

from lmc.data.npz import write as save
from lmc.data.pyg import from_splits
from lmc.data.registry import Info, describe, load, names
from lmc.data.shards import is_sharded, read_shard, write_shards
