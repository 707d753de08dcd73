"""How Sphinx builds the site from these pages: `make docs`, then docs/_build/html/index.html."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "tcgemm"
author = "the authors of tcgemm"
copyright = "the authors of tcgemm"
root_doc = "README"

extensions = ["myst_nb", "repository"]
exclude_patterns = ["_build", "site"]
myst_heading_anchors = 4
highlight_language = "none"  # a block that names no language: output, drawings, commands
nb_execution_mode = "off"  # what they show is kept in them: make notebooks
nb_merge_streams = True
myst_url_schemes = {"http": None, "https": None, "mailto": None, "repo": None}
suppress_warnings = ["myst.header"]  # a page on a Git host may begin below level 1

html_theme = "furo"
html_title = "tcgemm"
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_use_index = False  # no page has entries of one
html_show_sphinx = False
