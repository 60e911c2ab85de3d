"""Starts the two programs of the demo, watches both, and ends both whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

# After one program has ended in an error the other finds out by itself and says so in its own
# words; after this many seconds it is ended from here.
_GRACE_S = 5.0
# After the trainer is done the engine has been told to stop.
_STOP_LIMIT_S = 30.0
# torchrun gives its ranks 30 s before it kills them.
_TERMINATION_LIMIT_S = 40.0
_LOG_LINES_SHOWN = 12


class DemoError(RuntimeError):
    """The demo cannot run, or one of its programs failed."""


@dataclasses.dataclass(frozen=True)
class _Program:
    """A started program and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def describe_failure(self) -> str:
        """Returns how the program ended, with what it said about it."""
        code = self.process.returncode
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        text = self.log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        # torchrun writes a page after a rank's own words.
        own_words = [line for line in lines if line.startswith(f"{self.name}: ")]
        quoted = own_words or lines[-_LOG_LINES_SHOWN:] or ["(nothing)"]
        said = "".join(f"\n  | {line}" for line in quoted)
        return f"the {self.name} (pid {self.process.pid}) {ending}; it said in {self.log}:{said}"

    def end(self) -> None:
        """Ends the program and its children; does nothing if they have ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_TERMINATION_LIMIT_S)


class Launch:
    """One run of trainer and engine.

    Args:
        out: Folder for the programs' output.
        name: Name of the run, begins the names of its files.
        limit_s: Seconds that the run may take.
    """

    def __init__(self, out: Path, name: str, *, limit_s: float) -> None:
        """Starts nothing yet."""
        self._out = out
        self._name = name
        self._limit_s = limit_s
        self._programs: dict[str, _Program] = {}
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start_engine(self, command: Sequence[str]) -> None:
        """Starts the engine; all its output goes to its log."""
        # XLA_FLAGS is the trainer's business. One thread per rank: both cores are in use anyway.
        environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._start("engine", command, environment, shows_stdout=False)

    def start_trainer(self, command: Sequence[str]) -> None:
        """Starts the trainer; its progress is shown, its messages go to its log."""
        environment = dict(os.environ, HF_HUB_OFFLINE="1")
        self._start("trainer", command, environment, shows_stdout=True)

    def wait(self) -> None:
        """Returns when both programs have ended well; ends them otherwise.

        Raises:
            DemoError: A program failed or the run took too long; names the program.
        """
        deadline = time.monotonic() + self._limit_s
        try:
            first = self._wait_for_one(deadline)
            if first is None:
                message = (
                    f"{self._name}: the {' and the '.join(self._running())} did not end within "
                    f"{self._limit_s:g} s (--limit). See {self._out}/{self._name}-*.log."
                )
                raise DemoError(message)
            limit_s = _STOP_LIMIT_S if self._failures() == [] else _GRACE_S
            second = self._wait_for_one(time.monotonic() + limit_s)
            failures = self._failures(first)
            if failures:
                raise DemoError("\n".join(failures))
            if second is None:
                message = f"the {self._running()[0]} did not end {limit_s:g} s after the {first}"
                raise DemoError(message)
        finally:
            for program in self._programs.values():
                program.end()

    def _start(
        self, name: str, command: Sequence[str], environment: dict[str, str], *, shows_stdout: bool
    ) -> None:
        log = self._out / f"{self._name}-{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=None if shows_stdout else output,
                stderr=output,
                start_new_session=True,  # so that torchrun's workers can be ended with it
            )
        self._programs[name] = _Program(name, process, log)

        def report_end() -> None:
            process.wait()
            self._ended.put(name)

        threading.Thread(target=report_end, name=f"wait-{name}", daemon=True).start()

    def _wait_for_one(self, deadline: float) -> str | None:
        """Returns the next program to end, None at the deadline."""
        try:
            return self._ended.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def _running(self) -> list[str]:
        return [name for name, program in self._programs.items() if program.process.poll() is None]

    def _failures(self, first: str = "") -> list[str]:
        """Returns what went wrong, the program that ended first first."""
        failed = [program for program in self._programs.values() if program.process.poll()]
        failed.sort(key=lambda program: program.name != first)
        return [program.describe_failure() for program in failed]


def check_ports(*ports: int) -> None:
    """Refuses ports that another program holds.

    Raises:
        DemoError: A port is taken.
    """
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                message = (
                    f"port {port} on 127.0.0.1 cannot be used: {error.strerror}. Free it, or "
                    "choose two other neighbouring ports: make demo PORT=29700"
                )
                raise DemoError(message) from error


def check_environment(venv: Path, packages: Sequence[str]) -> None:
    """Refuses a virtual environment that does not exist or lacks a package.

    Raises:
        DemoError: Names the environment and what it lacks.
    """
    python = venv / "bin" / "python"
    if not python.exists():
        raise DemoError(f"{venv}: no virtual environment here. `make demo` makes it.")
    program = (
        "import importlib.util, sys; "
        "print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))"
    )
    # -P: the repository's own folders must not hide that a package is not installed.
    command = [str(python), "-P", "-c", program, *packages]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if found.returncode != 0:
        raise DemoError(f"{python} does not run: {found.stderr.strip()}")
    if found.stdout.strip():
        missing = ", ".join(found.stdout.split())
        raise DemoError(
            f"{venv} lacks {missing}. `make demo` installs what is missing; if it does not, remove "
            f"{venv} and try again."
        )
