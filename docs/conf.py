"""The site: Sphinx reads the Markdown pages with MyST. `make docs` treats warnings as errors.

The road not taken: MkDocs. It is unmaintained, its theme Material is in maintenance mode, and their
successor Zensical is not at 1.0 yet.
"""

project = "pixy"
author = "the pixy authors"
copyright = "the pixy authors, Apache License 2.0"

extensions = ["myst_parser"]
exclude_patterns = ["*.py", "__pycache__"]

html_theme = "furo"
html_title = "pixy"
html_copy_source = False

nitpicky = True
myst_heading_anchors = 4  # as GitHub names them
myst_enable_extensions = ["html_image"]
suppress_warnings = ["misc.highlighting_failure"]  # console sessions that are cut short
