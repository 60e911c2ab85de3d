"""Makes the cffi binding from the C header (cdef text, then C source), or checks it.

The header is the only place where the border is written down. `python native/bindings/generate.py`
rewrites the two generated files, `--check` compares and fails on any difference.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = "reshard._native_bindings"
HERE = Path(__file__).resolve().parent
HEADER = HERE.parent / "include" / "reshard" / "reshard.h"
CDEF = HERE / "_native_bindings.cdef.txt"
SOURCE = HERE / "_native_bindings.c"
PRELUDE = '#include "reshard/reshard.h"\n'


def cdef_of_header(header: str) -> str:
    """Returns the declarations of the header without comments, preprocessor lines and C++."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = text.replace("\\\n", " ")
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", text, flags=re.DOTALL)
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("#")]
    declarations = "\n".join(line for line in lines if line).replace("RESHARD_API ", "")
    return declarations + "\n"


def source_of_cdef(cdef: str) -> str:
    """Returns the C source that cffi makes of the declarations."""
    with tempfile.TemporaryDirectory() as folder:
        cdef_path, prelude_path = Path(folder, "cdef.txt"), Path(folder, "prelude.c")
        output_path = Path(folder, "output.c")
        cdef_path.write_text(cdef)
        prelude_path.write_text(PRELUDE)
        command = [sys.executable, "-m", "cffi.gen_src", "read-sources", MODULE]
        subprocess.run(
            [*command, str(cdef_path), str(prelude_path), str(output_path)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return output_path.read_text()


def main() -> int:
    """Writes or checks both generated files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="fail if a generated file is not current"
    )
    arguments = parser.parse_args()
    cdef = cdef_of_header(HEADER.read_text())
    stale = []
    for path, content in ((CDEF, cdef), (SOURCE, source_of_cdef(cdef))):
        if not arguments.check:
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            stale.append(path.name)
    if stale:
        sys.stderr.write(f"not current: {', '.join(stale)}; run python {Path(__file__).name}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
