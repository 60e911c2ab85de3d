"""Makes the `benchmarks` package importable: it is not installed with the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
