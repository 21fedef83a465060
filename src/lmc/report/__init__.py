"""Records -> figures. Reads results alone, so that a figure can be drawn long after the run."""

from lmc.report.accuracy import accuracy_figure
from lmc.report.estimates import estimates_figure
from lmc.report.figure import compare_figure, save
from lmc.report.grid import grid_figure
from lmc.report.rows import Panel, rows_figure
from lmc.report.scale import Growth, scale_figure

__all__ = [
    "Growth",
    "Panel",
    "accuracy_figure",
    "compare_figure",
    "estimates_figure",
    "grid_figure",
    "rows_figure",
    "save",
    "scale_figure",
]
