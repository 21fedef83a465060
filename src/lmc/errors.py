"""The exceptions of the library. Every message says what was expected, what was given and what to do."""

from __future__ import annotations


class LmcError(Exception):
    """The base class of the library's exceptions."""


class GraphError(LmcError, ValueError):
    """A graph, or arrays given as a graph, are not valid (shape, range, symmetry, splits)."""


class DataError(LmcError, ValueError):
    """A data set cannot be found or its file cannot be read."""


class ConfigError(LmcError, ValueError):
    """A method, model or training loop was configured in a way that it does not support."""


class CheckpointError(LmcError, RuntimeError):
    """A run folder is damaged, or cannot be continued with these settings."""


class Interrupted(LmcError, KeyboardInterrupt):
    """Training was stopped by Ctrl-C after a finished step; the message says what was saved."""


class SolverError(LmcError, ArithmeticError):
    """A fixed-point iteration diverged."""


class SolverWarning(UserWarning):
    """A fixed-point iteration reached its maximum of steps before its tolerance."""
