"""The command line: the one room that prints."""

from lmc.cli.app import app, main
