"""docs/published_refits.md shows what its command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.published_refits import TARGETS, markdown, rows

PAGE = Path(__file__).resolve().parents[2] / "docs/published_refits.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_shows_the_table_that_the_command_prints():
    found = list(rows())
    (shown,) = re.findall(r"<!-- table: .*? -->\n(.*?)<!-- end", PAGE.read_text(), re.DOTALL)
    assert shown == markdown(found)
    assert min(row.view.share_of_floor for row in found[:TARGETS]) >= 0.9
