"""Records -> figures. Reads results alone, so that a figure can be drawn long after the run."""

from lmc.report.figure import compare_figure, save

__all__ = ["compare_figure", "save"]
