"""Comparison with exact values: gradient error, staleness, messages kept; memory and its prediction."""

from lmc.diagnostics.cost import Memory, Messages, memory, messages_kept, peak_bytes
from lmc.diagnostics.errors import (
    EstimatedErrors,
    EstimateProbe,
    GradientError,
    GradientProbe,
    Staleness,
    estimated_errors,
    gradient_error,
    staleness,
)
from lmc.diagnostics.plan import Plan, divide, largest_clusters, plan, remedy
