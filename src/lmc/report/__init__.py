"""Records -> figures. Reads results alone, so that a figure can be drawn long after the run."""

from lmc.report.estimates import estimates_figure
from lmc.report.figure import compare_figure, save
from lmc.report.grid import grid_figure

__all__ = ["compare_figure", "estimates_figure", "grid_figure", "save"]
