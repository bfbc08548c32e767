"""Configuration of the documentation."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from jupyter_cache import get_cache

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

# The kernels that run the tutorials listen on this machine alone; their reminder that the line
# is not encrypted would be the only output of a clean build.
_ipython = Path(__file__).parent / "_build" / "ipython"
_kernel = _ipython / "profile_default" / "ipython_kernel_config.py"
_kernel.parent.mkdir(parents=True, exist_ok=True)
_kernel.write_text("c.IPKernelApp.log_level = 40\n", encoding="utf-8")
os.environ["IPYTHONDIR"] = str(_ipython)

project = "tensornet-mpo"
author = "The tensornet developers"
copyright = author
release = installed_version("tensornet-mpo")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.bibtex",
    "settings_table",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]

# Pages
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent / "_build" / "jupyter_cache")
# Made before the processes that build side by side begin: each would make tables of its own.
get_cache(nb_execution_cache_path).db  # noqa: B018
nb_execution_raise_on_error = True
nb_execution_timeout = 180
nb_merge_streams = True
nb_output_stderr = "warn"

# Reference
autosummary_generate = True
# Names that differ in case alone would be one file on some file systems.
autosummary_filename_map = {"tensornet.MPO": "tensornet.MPO-class"}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False

# Bibliography
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

# Look
html_theme = "pydata_sphinx_theme"
html_title = "tensornet-mpo"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "tensornet-mpo"},
    "header_links_before_dropdown": 6,
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
html_sidebars = {"index": [], "install": [], "glossary": [], "bibliography": [], "changelog": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
