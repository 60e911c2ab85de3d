"""The picture of a plan: one HTML file to open in a browser (docs/page.md)."""

from __future__ import annotations

from reshard.page.html import make_page

__all__ = ["make_page"]
