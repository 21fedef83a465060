"""What to run: comparisons of methods, and the time and memory of their epochs."""

from lmc.bench.compare import ComparedRun, compare, layer_of
from lmc.bench.epoch import Setup
