"""The documentation site: `make docs` builds it into docs/_build/html. Nothing in it is loaded from elsewhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from rooflight import __version__

project = "rooflight"
author = "the rooflight authors"
version = release = __version__
language = "en"

extensions = ["myst_parser", "sphinx_copybutton", "rooflight_docs"]
exclude_patterns = ["_build", "_ext", "_static"]

# Headings get the anchors that GitHub gives them, so that one link works in both.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "strikethrough"]
myst_links_external_new_tab = False

# Of a console block only the commands are copied, without their prompt.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "END"

# Two hyphens are an option, not a dash.
smartquotes = False

html_theme = "furo"
html_title = "rooflight"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/mark.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "light_logo": "wordmark-light.svg",
    "dark_logo": "wordmark-dark.svg",
    "sidebar_hide_name": True,
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#56b4e9"},
}
