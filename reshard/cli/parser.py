"""The parser of the command line, whose errors are one line and say what was meant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from reshard.suggestion import did_you_mean

__all__ = ["ArgumentParser"]


class ArgumentParser(argparse.ArgumentParser):
    """The standard parser with errors of one line."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong in one line and exits with 2."""
        meant = self._meant(message)
        sys.stderr.write(f"{self.prog}: {message}.{meant} See '{self.prog} --help'.\n")
        raise SystemExit(2)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses what a command does not know in that command's own name."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _meant(self, message: str) -> str:
        """Returns what was meant by a command, a choice or an option that does not exist."""
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            return did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
        option = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        return did_you_mean(option[1], self._option_string_actions) if option else ""
