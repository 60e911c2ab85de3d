"""Checks the ready-made forms of trainers against the trainers themselves: `make check-trainers`.

    python tests/trainers/check.py --library maxtext --python .venv-maxtext/bin/python \
        --engine .venv-engine/bin/python

For each model of `cases.py`, the trainer's program publishes random weights and the engine's takes
them, into memory full of NaN; then the engine publishes others and the trainer takes them. Each
side computes logits, in float32, and they must agree within 1e-4 of the largest. Nothing is allowed
to be unmatched, so every parameter of both sides is covered.

The names and shapes that the libraries show must be those of `tests/data/trainer_trees.json`, which
the tests of the default suite use; `--write` writes the file anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from cases import cases_of

FOLDER = Path(__file__).parent
TREES = FOLDER.parent / "data" / "trainer_trees.json"
TOLERANCE = 1e-4
LIMIT_S = 3600.0


def _addresses(names: list[str]) -> dict[str, list[str]]:
    """Returns two free addresses per case."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * len(names))]
    ports = [f"tcp://127.0.0.1:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    return {name: ports[2 * i : 2 * i + 2] for i, name in enumerate(names)}


def _run(programs: dict[str, list[str]], folder: Path) -> None:
    """Runs programs side by side; ends with the word of the first that fails."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    started = {}
    for name, command in programs.items():
        with (folder / f"{name}.log").open("w") as log:
            started[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
            )
    failed = None
    deadline = time.monotonic() + LIMIT_S
    try:
        while failed is None and any(process.poll() is None for process in started.values()):
            ended = [name for name, process in started.items() if process.poll()]
            failed = ended[0] if ended else None
            if time.monotonic() > deadline:
                failed = "slower"
            time.sleep(0.2)
        failed = failed or next((name for name, done in started.items() if done.poll()), None)
    finally:
        for process in started.values():
            process.send_signal(signal.SIGABRT)  # which prints where it is
            process.wait()
    for name in started if failed else ():
        lines = (folder / f"{name}.log").read_text(errors="replace").splitlines()[-25:]
        print(f"--- {name}:", *(line[:300] for line in lines), sep="\n  ", file=sys.stderr)
    if failed:
        raise SystemExit(f"check: the {failed} program failed")


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference as a share of the largest number; inf for NaN."""
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return float("inf")
    return float(np.abs(one - other).max() / np.abs(one).max())


def _compare(names: list[str], folder: Path) -> bool:
    """Prints how far logits are apart, and says whether all are near enough."""
    is_good = True
    print(f"{'model':44}{'trainer to engine':>19}{'engine to trainer':>19}")
    for name in names:
        trainer = np.load(folder / f"{name}.trainer.npz")
        engine = np.load(folder / f"{name}.engine.npz")
        found = (
            _difference(trainer["own"], engine["received"]),
            _difference(engine["own"], trainer["received"]),
        )
        is_good &= max(found) < TOLERANCE
        mark = "" if max(found) < TOLERANCE else "  <- wrong"
        print(f"{name:44}{found[0]:19.1e}{found[1]:19.1e}{mark}")
    return is_good


def _trees(library: str, folder: Path) -> dict[str, object]:
    trees = json.loads((folder / f"{library}.trees.json").read_text())
    shapes = json.loads((folder / "engine.trees.json").read_text())
    return {name: {**tree, "engine": shapes[name]} for name, tree in trees.items()}


def _check_trees(library: str, found: dict[str, object], is_written: bool) -> bool:
    stored = json.loads(TREES.read_text()) if TREES.exists() else {}
    if is_written:
        stored = {name: tree for name, tree in stored.items() if not name.startswith(library)}
        stored |= found
        lines = [f" {json.dumps(name)}: {json.dumps(stored[name])}" for name in sorted(stored)]
        TREES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    different = [name for name, tree in found.items() if stored.get(name) != tree]
    if different:
        print(f"check: {TREES.name} does not have what the library shows of {different}")
    return not different


def main() -> int:
    """Returns 0 if everything agrees."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", choices=("tunix", "maxtext"), required=True)
    parser.add_argument("--python", required=True, help="Python that has the trainer's library")
    parser.add_argument("--engine", required=True, help="Python that has PyTorch and transformers")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--write", action="store_true", help="write trainer_trees.json anew")
    given = parser.parse_args()
    names = [case.name for case in cases_of(given.library) if given.only in case.name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arguments = [str(folder), json.dumps(_addresses(names))]
        programs = {
            "trainer": (given.python, f"{given.library}_side.py"),
            "engine": (given.engine, "engine_side.py"),
        }
        _run(
            {
                # No resolving: a link is what makes a Python that of a virtual environment.
                name: [
                    os.path.abspath(python),  # noqa: PTH100
                    "-X",
                    "faulthandler",
                    str(FOLDER / script),
                    *arguments,
                ]
                for name, (python, script) in programs.items()
            },
            folder,
        )
        is_good = _compare(names, folder)
        if not given.only:
            is_good &= _check_trees(given.library, _trees(given.library, folder), given.write)
    print(f"{len(names)} models, both ways: " + ("good" if is_good else "WRONG"))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
