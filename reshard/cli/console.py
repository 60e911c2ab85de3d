"""What commands write: tables or JSON to stdout, progress to stderr if somebody watches it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

__all__ = ["Steps", "printable", "show_facts", "show_json", "show_lines", "show_table"]

_WIDTH: Final = 110
"""Columns of what goes to a file or another program."""

_DELAY_S: Final = 0.7
_Item = TypeVar("_Item")


def show_json(document: object) -> None:
    """Writes one JSON document."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def show_lines(*lines: str) -> None:
    """Writes lines of text."""
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def printable(text: str) -> str:
    """Returns a text with escapes for what would steer a terminal: names come from files."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text])


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, folds: int = 0
) -> None:
    """Writes a table; columns whose heading starts with `#` hold numbers.

    Args:
        title: the line above it.
        columns: headings, without the `#`.
        rows: cells; None is an empty one.
        folds: number of the column whose text may go over several lines.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=None, show_edge=False)
    for number, heading in enumerate(columns):
        table.add_column(
            heading.removeprefix("#"),
            justify="right" if heading.startswith("#") else "left",
            no_wrap=number != folds,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*[Text("" if cell is None else str(cell)) for cell in row])
    is_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if is_terminal else _WIDTH, highlight=False)
    with console.capture() as captured:
        console.print(table)
    body = [line.rstrip() for line in captured.get().rstrip("\n").split("\n")]
    show_lines("", title, "", *body)


def show_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Writes names and values, one pair per line."""
    width = max((len(name) for name, _ in facts), default=0)
    show_lines(*[f"{name:<{width}}  {value}" for name, value in facts])


class Steps:
    """Shows on stderr what takes long; nothing where stderr is no terminal.

    The line appears after a moment, so that quick commands do not flicker.
    """

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Shows that something goes on for as long as the block runs."""
        with self._progress(what, None):
            yield

    def each(self, what: str, items: Sequence[_Item]) -> Iterator[_Item]:
        """Yields the items, and shows how many are done."""
        with self._progress(what, len(items)) as progress:
            for item in items:
                yield item
                if progress is not None:
                    progress.advance(progress.task_ids[0])

    @contextmanager
    def _progress(self, what: str, total: int | None) -> Iterator[Progress | None]:
        if not self._is_shown:
            yield None
            return
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        progress.add_task(what, total=total)
        timer = threading.Timer(_DELAY_S, progress.start)
        timer.daemon = True
        timer.start()
        try:
            yield progress
        finally:
            timer.cancel()
            timer.join()
            progress.stop()
