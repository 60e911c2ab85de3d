"""How long the survivors of a killed process take to notice, whatever its size.

Two source and two destination processes refit without a pause; one of them, which holds a ballast
of touched memory, is killed. The kernel closes the sockets of a process only after it has freed its
memory, so whatever waits for a closed socket waits longer the larger the process was; a socket of
the victim shows how long. Every kill has a fresh set of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time

import torch

from benchmarks import memory, report
from benchmarks.machine import describe_machine
from benchmarks.methods.registry import METHODS
from benchmarks.refit_worker import RankRound, RefitWorker
from benchmarks.results import Kill, KillResults
from benchmarks.targets import OURS, judge_kills
from benchmarks.team import Team, TeamError

__all__ = ["METHODS_KILLED", "main", "measure"]

METHODS_KILLED = ("gloo_p2p", OURS)
_NUM_SOURCES, _NUM_PROCESSES = 2, 4
# Source process 0 hosts the store at which everybody meets.
_VICTIMS = {3: "destination 1", 1: "source 1", 0: "source 0 (store)"}
_WORKLOAD, _PAIR = "dense-400m", "A2"
_SHARED_MEMORY = pathlib.Path("/dev/shm")
_MIB = 1 << 20
_MOMENT = struct.Struct("d")
_RUN_UP_S = 30.0
_SURVIVORS_LIMIT_S = 5.0
_BALLAST_LIMIT_S = 60.0
_REFITS_BEFORE = 3


@dataclasses.dataclass(frozen=True)
class Survival:
    """What a process saw: when its refit failed, how, and how many had gone well before."""

    moment: float
    error: str
    text: str
    refits_before: int


class MortalWorker(RefitWorker):
    """A rank that refits until something fails."""

    def tell_starts(self, path: str) -> None:
        """Says to which file the starts of refits are written."""
        self._clock = pathlib.Path(path)

    def hold(self, nbytes: int, socket_path: str) -> int:
        """Touches a ballast and connects to the controller; returns the resident memory."""
        self._ballast = torch.ones(nbytes, dtype=torch.uint8)
        self._lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lifeline.connect(socket_path)
        return memory.read_memory().resident

    def refit_until_error(self, method: str) -> Survival:
        """Refits again and again, telling when each one starts; returns what ended them."""
        count = 0
        while True:
            self._clock.write_bytes(_MOMENT.pack(time.monotonic()))
            try:
                self._methods[method].refit(self._version + count)
            except RuntimeError as error:
                moment = time.monotonic()
                return Survival(moment, type(error).__name__, str(error), count)
            count += 1


class _Lifeline:
    """A socket of the victim and a thread that notes when it closes."""

    def __init__(self, path: pathlib.Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._listener.settimeout(_BALLAST_LIMIT_S)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.closed_at: float | None = None

    def accept(self) -> None:
        """Takes the victim's connection and starts to watch it."""
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(None)
        self._thread.start()

    def close(self) -> None:
        """Waits for the end of the connection, with a limit."""
        self._thread.join(_SURVIVORS_LIMIT_S)
        self._listener.close()

    def _watch(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            self._connection.recv(1)
        self.closed_at = time.monotonic()


def measure(methods: list[str], ballasts_mib: list[int], *, quick: bool) -> KillResults:
    """Kills a destination process with each of the ballasts, and for ours sources too."""
    machine = describe_machine()
    kills: list[Kill] = []
    skipped: dict[str, str] = {}
    for method in methods:
        reason = METHODS[method].unavailable() if method in METHODS else "not built yet"
        if reason is not None:
            skipped[method] = reason
            continue
        victims = list(_VICTIMS) if method == OURS and not quick else [_NUM_PROCESSES - 1]
        kills += _kill_each(method, [mib * _MIB for mib in ballasts_mib], victims)
    return KillResults(machine, kills, skipped)


def _kill_each(method: str, ballasts: list[int], victims: list[int]) -> list[Kill]:
    kills = []
    for ballast in ballasts:
        for victim in victims:
            kill = _kill_once(method, ballast, victim)
            last = "never" if kill.last_s is None else f"{kill.last_s * 1e3:.1f} ms"
            report.progress(f"  {method}, {kill.victim}, {ballast // _MIB} MiB: {last}")
            kills.append(kill)
    return kills


def _kill_once(method: str, ballast: int, victim: int) -> Kill:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="reshard-bench-", dir=_SHARED_MEMORY))
    team = Team(MortalWorker, _NUM_PROCESSES, _NUM_SOURCES, _NUM_PROCESSES, str(folder))
    try:
        return _kill_in(team, folder, method, ballast, victim)
    finally:
        team.kill()
        shutil.rmtree(folder)


def _kill_in(team: Team, folder: pathlib.Path, method: str, ballast: int, victim: int) -> Kill:
    lifeline = _Lifeline(folder / "lifeline")
    team.call("open_case", _WORKLOAD, _PAIR)
    team.call("set_up", method)
    team.call("set_version", 1)
    team.post("hold", ballast, str(folder / "lifeline"), ranks=[victim])
    lifeline.accept()
    resident = team.collect("hold", [victim], _BALLAST_LIMIT_S)[0]
    everyone = range(_NUM_PROCESSES)
    typical = _typical_seconds(team, method)
    for rank in everyone:
        team.call("tell_starts", str(folder / f"starts-{rank}"), ranks=[rank])
    team.post("refit_until_error", method, ranks=everyone)
    _wait_for_the_middle(folder / f"starts-{victim}", typical)
    killed_at = team.kill_rank(victim)
    survivors = [rank for rank in everyone if rank != victim]
    seen: list[Survival] = team.collect_some(survivors, _SURVIVORS_LIMIT_S)
    lifeline.close()
    delays = sorted(survival.moment - killed_at for survival in seen)
    return Kill(
        method=method,
        victim=_VICTIMS[victim],
        ballast_bytes=ballast,
        resident_bytes=resident,
        refits_before=max((survival.refits_before for survival in seen), default=0),
        first_s=delays[0] if delays else None,
        last_s=delays[-1] if len(seen) == len(survivors) else None,
        socket_eof_s=lifeline.closed_at - killed_at if lifeline.closed_at else None,
        errors=[f"{survival.error}: {survival.text}" for survival in seen],
    )


def _typical_seconds(team: Team, method: str) -> float:
    """Returns the time of a refit once everything is set up."""
    seconds: list[float] = []
    for _ in range(3):
        rounds: list[RankRound] = team.call("refit", method, 0.0, 1)
        seconds.append(max(r.ended for r in rounds) - max(r.started for r in rounds))
    return min(seconds)


def _wait_for_the_middle(starts: pathlib.Path, typical_s: float) -> None:
    """Returns half a refit after the victim has started a refit that is not its first."""
    deadline = time.monotonic() + _RUN_UP_S
    begun: list[bytes] = []
    while time.monotonic() < deadline:
        moment = starts.read_bytes() if starts.exists() else b""
        if len(moment) == _MOMENT.size and moment not in begun:
            begun.append(moment)
        if len(begun) == _REFITS_BEFORE:
            left = _MOMENT.unpack(moment)[0] + typical_s / 2 - time.monotonic()
            time.sleep(max(0.0, left))
            return
        time.sleep(0.001)
    message = f"the refits did not go on for {_RUN_UP_S:.0f} s"
    raise TeamError(message)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    choices = METHODS_KILLED
    parser.add_argument("--methods", nargs="+", choices=choices, default=list(choices))
    parser.add_argument("--ballast-mib", nargs="+", type=int, default=[64, 1024, 4096])
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "killed_peer.json")
    options = parser.parse_args(arguments)
    results = measure(options.methods, options.ballast_mib, quick=False)
    report.write(results, options.output)
    report.print_kills(results)
    report.print_verdicts(judge_kills(results.kills))
    return 0


if __name__ == "__main__":
    sys.exit(main())
