"""Runs the demo: trainer and engine side by side, once with refit and once without.

It does what a user does in two terminals: it starts the engine with one virtual environment, the
trainer with another, and waits. Neither program knows of this one. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from launch import DemoError, Launch, check_environment, check_ports
from report import check_claims, format_report
from results import RunResult

HERE = Path(__file__).parent


def run_once(arguments: argparse.Namespace, refit: str) -> RunResult:
    """Runs trainer and engine once and returns the trainer's result."""
    result = arguments.out / f"refit-{refit}.json"
    result.unlink(missing_ok=True)
    addresses = [
        f"--reshard-address=tcp://127.0.0.1:{arguments.port}",
        f"--rollout-address=tcp://127.0.0.1:{arguments.port + 1}",
    ]
    check_ports(arguments.port, arguments.port + 1)
    launch = Launch(arguments.out, f"refit-{refit}", limit_s=arguments.limit)
    launch.start_engine(
        [
            str(arguments.engine_venv / "bin" / "torchrun"),
            *("--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"),
            str(HERE / "engine.py"),
            str(arguments.checkpoint),
            *addresses,
        ]
    )
    launch.start_trainer(
        [
            str(arguments.trainer_venv / "bin" / "python"),
            str(HERE / "trainer.py"),
            str(arguments.checkpoint),
            *addresses,
            f"--steps={arguments.steps}",
            f"--refit={refit}",
            f"--result={result}",
        ]
    )
    launch.wait()
    return RunResult.load(result)


def check_inputs(arguments: argparse.Namespace) -> None:
    """Refuses to start when a virtual environment, a package or the checkpoint is missing."""
    check_environment(arguments.trainer_venv, ("jax", "tunix", "matplotlib", "reshard_jax"))
    check_environment(arguments.engine_venv, ("torch", "transformers", "reshard_torch"))
    if not (arguments.checkpoint / "config.json").is_file():
        message = (
            f"{arguments.checkpoint}: no checkpoint here. Run `make demo`, or make one by hand: "
            f"{arguments.engine_venv}/bin/python examples/grpo/make_checkpoint.py "
            f"{arguments.checkpoint}"
        )
        raise DemoError(message)


def run_demo(arguments: argparse.Namespace) -> bool:
    """Runs both runs, prints the report, draws the chart; returns whether every claim holds."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    check_inputs(arguments)
    print(f"output of both programs: {arguments.out}/*.log")
    refitted = run_once(arguments, "on")
    frozen = run_once(arguments, "off")
    claims = check_claims(refitted, frozen)
    text = format_report(refitted, frozen, claims)
    (arguments.out / "report.txt").write_text(text + "\n")
    print(f"\n{text}\n")
    picture = arguments.out / "reward.png"
    results = [str(arguments.out / f"refit-{refit}.json") for refit in ("on", "off")]
    python = arguments.trainer_venv / "bin" / "python"
    subprocess.run([python, HERE / "plot.py", *results, picture], check=True, timeout=120)
    print(f"reward per step, with and without refit: {picture}")
    return all(claim.holds for claim in claims)


def main() -> None:
    """Runs the demo; exit code 1 if it cannot run or a claim fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer-venv", type=Path, default=Path(".venv-trainer"))
    parser.add_argument("--engine-venv", type=Path, default=Path(".venv-engine"))
    parser.add_argument("--checkpoint", type=Path, default=Path("build/demo/checkpoint"))
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where results go")
    parser.add_argument("--port", type=int, default=29600, help="this port and the next are used")
    parser.add_argument("--steps", type=int, default=20, help="training steps per run")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a run may take")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        holds = run_demo(parser.parse_args())
    except DemoError as error:
        # A terminal may still be in the middle of the line that shows the progress.
        sys.exit(f"{chr(10) if sys.stdout.isatty() else ''}demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted")
    if not holds:
        sys.exit("demo: a claim failed, see the report above")


if __name__ == "__main__":
    main()
