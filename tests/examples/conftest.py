"""The parts of the demo are programs in a folder, not a package: put the folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "grpo"))
