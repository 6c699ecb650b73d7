"""Sphinx: Markdown by MyST, warnings are errors (``./dev docs``)."""

from __future__ import annotations

from importlib.metadata import version as _version

project = "celery_hardened"
author = "the celery_hardened authors"
copyright = f"2026, {author}"
release = version = _version("celery-hardened")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_member_order = "bysource"
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "celery_hardened"
