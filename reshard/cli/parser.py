"""The parser of the command line, whose errors are one line and say what was meant."""

from __future__ import annotations

import argparse
import re
import sys
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

    def _meant(self, message: str) -> str:
        """Returns what was meant by a command, a choice or an option that does not exist."""
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            return did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
        option = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        return did_you_mean(option[1], self._options()) if option else ""

    def _options(self) -> list[str]:
        found = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in dict.fromkeys(action.choices.values()):
                    found += parser._option_string_actions
        return found
