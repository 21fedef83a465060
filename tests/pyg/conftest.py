"""Fixtures of this folder."""

from helpers import one_thread  # noqa: F401 - a fixture, used by being here
