"""The command line: the one subpackage that prints."""

from lmc.cli.app import app, main
