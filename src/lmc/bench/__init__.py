"""What to run: comparisons of methods, the time and memory of their epochs, grids of settings."""

from lmc.bench.compare import Contestant, Event, compare, contestants, layer_of
from lmc.bench.epoch import EpochTiming, Setup, time_epochs
from lmc.bench.sampling import SamplingTiming, time_sampling

__all__ = [
    "Contestant",
    "EpochTiming",
    "Event",
    "SamplingTiming",
    "Setup",
    "compare",
    "contestants",
    "layer_of",
    "time_epochs",
    "time_sampling",
]
