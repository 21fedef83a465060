"""Comparison with exact values: gradient error, staleness, messages kept; memory and its prediction."""

from lmc.diagnostics.cost import Memory, Messages, memory, messages_kept, peak_bytes
from lmc.diagnostics.equilibrium import EstimatedErrors, EstimateProbe, estimated_errors
from lmc.diagnostics.gradient import GradientError, GradientProbe, gradient_error
from lmc.diagnostics.plan import Plan, divide, largest_clusters, plan, remedy
from lmc.diagnostics.staleness import Staleness, staleness
