"""The command `reshard`: one module per subcommand.

Results go to stdout, messages and progress to stderr. Exit codes: 0 all is well, 1 the command
found what it looks for (findings, differences, wrong elements), 2 it could not do its work.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from reshard.cli import diff, doctor, explain, lint, plan, simulate
from reshard.cli.console import printable
from reshard.cli.parser import ArgumentParser
from reshard.errors import PlanError, ReshardError
from reshard.versions import library_version

__all__ = ["main"]

_COMMANDS: Final[dict[str, ModuleType]] = {
    "plan": plan,
    "explain": explain,
    "lint": lint,
    "diff": diff,
    "simulate": simulate,
    "doctor": doctor,
}
_EXIT_UNUSABLE: Final = 2
_EXIT_SIGNAL: Final = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        arguments: what follows the command's name; None takes the process's own.
    """
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as in `reshard plan ... | head`; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_SIGNAL + signal.SIGPIPE
    except KeyboardInterrupt:
        return _EXIT_SIGNAL + signal.SIGINT
    return code


def _run(arguments: Sequence[str] | None) -> int:
    parser = ArgumentParser(
        prog="reshard",
        description="Plans, checks and tries moves of model weights between distributed layouts.",
        epilog="Exit codes: 0 all is well; 1 findings, differences or wrong elements; 2 the "
        "command could not do its work.",
    )
    parser.add_argument("--version", action="version", version=f"reshard {library_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in _COMMANDS.items():
        summary = (module.__doc__ or "").partition("\n")[0].partition(": ")[2]
        subparser = commands.add_parser(
            name, help=summary, description=summary[:1].upper() + summary[1:]
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    try:
        parsed = parser.parse_args(arguments)
        code: int = parsed.run(parsed)
    except SystemExit as exit_:  # what argparse does after --help, --version and wrong arguments
        return exit_.code if isinstance(exit_.code, int) else _EXIT_UNUSABLE
    except (ReshardError, ImportError, MemoryError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        sys.stderr.write(f"reshard: {printable(_one_line(error))}\n")
        return _EXIT_UNUSABLE
    except OverflowError as error:
        sys.stderr.write(
            f"reshard: a number in what was given is too large to work with ({error}). Check the "
            "files and arguments for numbers of hundreds of digits.\n"
        )
        return _EXIT_UNUSABLE
    return code


def _one_line(error: Exception) -> str:
    """Returns the message of an error; of a list of several problems, how many they are."""
    text = str(error) or type(error).__name__
    first, _, rest = text.partition("\n")
    if not rest:
        return text
    num_listed = sum(line.startswith("  ") for line in rest.split("\n"))
    if isinstance(error, PlanError) and num_listed > 1:
        return f"{first.rstrip(':')}. 'reshard lint' with the same arguments lists them."
    return " ".join(text.split())
