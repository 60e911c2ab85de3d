"""What pages and docstrings show holds: forms parse, names exist, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import reshard
from reshard import errors, form

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def forms_of(text: str) -> list[str]:
    return re.findall(r"`(Form\([^`]*\))`", text)


TABLES = {
    "docs/layouts.md": (ROOT / "docs" / "layouts.md").read_text(),
    "reshard.Form": form.Form.__doc__ or "",
}


@pytest.mark.parametrize("place", TABLES)
def test_forms_in_tables_are_forms(place):
    found = forms_of(TABLES[place])
    assert found
    for text in found:
        eval(text, vars(reshard))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_pages_are_promised(page):
    mentioned = set(re.findall(r"\breshard\.([A-Za-z]\w*)", page.read_text()))
    modules = {path.stem for path in (ROOT / "reshard").glob("*.py")}
    modules |= {path.parent.name for path in (ROOT / "reshard").glob("*/__init__.py")}
    assert mentioned - modules - {"h"} <= set(reshard.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - {"ReshardError"}))
def test_every_class_of_error_is_explained(name):
    assert re.search(rf"^#+ .*\b{name}\b", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
