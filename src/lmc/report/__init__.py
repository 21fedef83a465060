"""Figures made from records alone, so that one can be drawn long after the run."""

from lmc.report.compare import compare_figure
from lmc.report.looks import save
from lmc.report.rows import Panel, rows_figure
from lmc.report.scale import Growth, scale_figure
