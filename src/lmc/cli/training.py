"""Names that the benchmark commands import from here."""

from lmc.cli.console import device_name

__all__ = ["device_name"]
