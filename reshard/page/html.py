"""One self-contained HTML file of a plan: styles, scripts and data inside, no request outside.

The scripts of `page/assets` are joined in the order of their names.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources
from importlib.resources.abc import Traversable

from reshard.page.page_data import make_page_data
from reshard.plan import Plan

__all__ = ["make_page"]


def make_page(plan: Plan, *, title: str) -> str:
    """Returns a page that shows a plan, for a browser.

    Args:
        plan: the plan; with a topology also domains, floor and seconds are shown.
        title: what the plan is of, for people.

    Raises:
        PlanError: if a source layout does not hold what a destination stores; if the staging budget
            is too small for the process with most peers.
    """
    style, script = _joined(".css"), _joined(".js")
    page = (_assets() / "template.html").read_text(encoding="utf-8")
    parts = {
        "{{title}}": html.escape(title),
        "{{policy}}": _policy(style, script),
        "{{style}}": style,
        "{{data}}": _embedded(make_page_data(plan, title=title)),
        "{{script}}": script,
    }
    # One after the other, so that nothing in a part is taken for a mark.
    done = ""
    for mark, text in parts.items():
        before, _, page = page.partition(mark)
        done += before + text
    return done + page


def _assets() -> Traversable:
    return resources.files("reshard.page") / "assets"


def _joined(suffix: str) -> str:
    files = sorted([each.name for each in _assets().iterdir() if each.name.endswith(suffix)])
    return "\n".join([(_assets() / name).read_text(encoding="utf-8") for name in files])


def _policy(style: str, script: str) -> str:
    """Returns a content security policy: this style and this script, nothing from anywhere."""
    return (
        f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(data: object) -> str:
    """Returns data as JSON that cannot end the element which it is in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
