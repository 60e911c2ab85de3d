"""Puts the output of commands into the pages that show them: blocks that start with `$ reshard`.

python docs/commands.py          # run all commands and write the blocks anew
python docs/commands.py --check  # fail if one is out of date
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(```console\n\$ (?P<command>reshard [^\n]*)\n)(?P<text>.*?)(```)", re.DOTALL)
# Differs from run to run.
VARYING = re.compile(r"^(time to \w+ +).*$", re.MULTILINE)


def output_of(command: str) -> str:
    """Returns what a command writes, without what differs from run to run."""
    done = subprocess.run(
        [sys.executable, "-m", "reshard", *shlex.split(command)[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    if done.returncode not in (0, 1) or done.stderr:
        sys.exit(f"{command}: exit code {done.returncode}, {done.stderr}")
    return VARYING.sub(r"\1...", done.stdout)


def refreshed(page: str) -> str:
    """Returns the page with every block replaced by what its command writes now."""
    return BLOCK.sub(lambda m: m[1] + output_of(m["command"]) + m[4], page)


def main() -> int:
    """Writes or checks all pages."""
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        page = path.read_text()
        if refreshed(page) != page:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(refreshed(page))
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(str(p) for p in stale)}; run python docs/commands.py")
    return 0


if __name__ == "__main__":
    main()
