"""Puts files into the pages that show them; `<!-- file: PATH -->` before a code block names one.

python docs/embed.py          # write the blocks anew
python docs/embed.py --check  # fail if one is out of date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- file: (?P<path>\S+) -->\n```\w*\n)(?P<text>.*?)(```)", re.DOTALL)


def embedded(page: str) -> str:
    """Returns the page with every block replaced by the file that it names."""
    return BLOCK.sub(lambda m: m[1] + (ROOT / m["path"]).read_text() + m[4], page)


def main() -> int:
    """Writes or checks all pages."""
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        page = path.read_text()
        if embedded(page) != page:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(embedded(page))
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(str(p) for p in stale)}; run python docs/embed.py")
    return 0


if __name__ == "__main__":
    main()
