"""When the native library is loaded, and what is said when it cannot be."""

from __future__ import annotations

import subprocess
import sys


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr


def test_importing_reshard_does_not_load_the_native_library():
    code = "import reshard, sys; print([m for m in sys.modules if 'reshard._native' in m])"
    assert run_python(code) == (0, "[]", "")


def test_a_missing_library_is_a_native_library_error_with_the_remedy():
    code = """
import sys
sys.modules["reshard._native_bindings"] = None
import reshard.errors
try:
    import reshard._native
except reshard.errors.NativeLibraryError as error:
    print(isinstance(error, ImportError), error)
"""
    status, output, _ = run_python(code)
    assert status == 0
    assert output.startswith("True cannot load the native library of reshard")
    assert "pip install -e ." in output


def test_handles_that_are_still_open_at_exit_do_no_harm():
    code = """
from array import array
from reshard import _native
communicator = _native.Communicator.shm("abi-loading-exit", 0, [0], [], [])
communicator.connect(1.0)
program = _native.Program(array("q"), array("q"), array("q"), array("q"), 0, 64)
program.run(communicator, array("Q"), run_id=1, timeout_s=1.0)
print("done")
"""
    assert run_python(code) == (0, "done", "")
