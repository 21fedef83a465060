"""Comparing with the truth: gradient error, staleness, messages kept, memory."""

from lmc.diagnostics.cost import Memory, Messages, memory, messages_kept, peak_bytes
from lmc.diagnostics.equilibrium import EstimatedErrors, EstimateProbe, estimated_errors
from lmc.diagnostics.gradient import GradientError, GradientProbe, gradient_error
from lmc.diagnostics.staleness import Staleness, staleness

__all__ = [
    "EstimateProbe",
    "EstimatedErrors",
    "GradientError",
    "GradientProbe",
    "Memory",
    "Messages",
    "Staleness",
    "estimated_errors",
    "gradient_error",
    "memory",
    "messages_kept",
    "peak_bytes",
    "staleness",
]
