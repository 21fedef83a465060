"""What the library raises. Every message says what was expected, what came and what to do."""

from __future__ import annotations


class LmcError(Exception):
    """The root of every error this library raises on purpose."""


class GraphError(LmcError, ValueError):
    """A graph, or the arrays meant to become one, break a rule (shape, range, symmetry, splits)."""


class DataError(LmcError, ValueError):
    """A data set cannot be found or its file cannot be read."""


class ConfigError(LmcError, ValueError):
    """A method, model or loop was asked for something it cannot do."""


class CheckpointError(LmcError, RuntimeError):
    """A run folder cannot be continued with these settings, or is damaged."""


class Interrupted(LmcError, KeyboardInterrupt):
    """Training was stopped by Ctrl-C after a finished step; the message says what was saved."""


class SolverError(LmcError, ArithmeticError):
    """A fixed-point iteration diverged."""


class SolverWarning(UserWarning):
    """A fixed-point iteration used up its steps before it reached its tolerance."""
