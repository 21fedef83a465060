"""Figures made from records alone, so that one can be drawn long after the run."""

from lmc.report.compare import compare_figure
from lmc.report.costs import Growth, Panel, rows_figure, scale_figure
from lmc.report.looks import save
