"""Settings of the documentation site: ``make docs`` builds it into build/site, with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import lmc

project, author, release = "lmc", "The lmc authors", lmc.__version__
copyright = "the lmc authors, MIT licence"
extensions = ["myst_parser", "executed", "reference"]
exclude_patterns = ["_extensions"]

myst_heading_anchors = 4
highlight_language = "text"
nitpicky = True
# the annotations in signatures name classes of torch and types of Python that have no page here
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = "lmc"
html_copy_source = False
html_theme_options = {
    "source_repository": "https://github.com/lmc-gnn/lmc/",
    "source_branch": "main",
    "source_directory": "docs/",
}
maximum_signature_line_length = 88
