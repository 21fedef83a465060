"""Comparison with exact values: gradient error, staleness, messages kept; memory and its prediction."""

from lmc.diagnostics.choice import Facts, Recommendation, choose, recommended
from lmc.diagnostics.errors import (
    BiasVariance,
    EstimatedErrors,
    EstimateProbe,
    GradientError,
    GradientProbe,
    Messages,
    Staleness,
    bias,
    bias_variance,
    estimated_errors,
    gradient_error,
    messages_kept,
    staleness,
)
from lmc.diagnostics.plan import Plan, divide, largest_clusters, plan, remedy
from lmc.diagnostics.probe import Memory, memory, peak_bytes
