"""What commands have in common: results on a terminal, in a pipe, as JSON, and in a file."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tyro

from elbowroom.errors import FileError
from elbowroom.provenance import provenance, write_json

# Options that may be left out, under a name without "None" in the help.
Text: TypeAlias = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Integer: TypeAlias = Annotated[int | None, tyro.conf.arg(metavar="INT")]
Number: TypeAlias = Annotated[float | None, tyro.conf.arg(metavar="FLOAT")]
File: TypeAlias = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


@dataclass(kw_only=True)
class Output:
    """Where a result goes."""

    json: bool = False
    """Print the result as JSON, with its provenance."""
    output: File = None
    """Also write that JSON to this file, all of it or nothing."""

    def begin(self) -> None:
        """Prepare before the work: note where the result comes from, and whether it can be saved.

        The origin is noted first because sources may change while a long command runs.
        """
        self._origin = provenance("") if self.json or self.output is not None else {}
        if self.output is None:
            return
        if self.output.is_dir():
            raise FileError(f"{self.output}: expected a file to write, got a folder")
        parent = next(p for p in self.output.absolute().parents if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise FileError(f"{self.output}: no file can be made in {parent}")

    def deliver(
        self,
        record: Mapping[str, Any],
        rows: Sequence[Sequence[str]],
        *,
        command: Sequence[str],
        seed: int | None = None,
        spare: Sequence[str] = (),
    ) -> None:
        """Print a result, and write it if a file is named; `begin` came before.

        Args:
            record: the result as plain data.
            rows: the same for people; the first row is the heading.
            command: the words that repeat it, without those that say where it goes.
            seed: what decided its random numbers.
            spare: columns that a narrow terminal may do without, the first to go first.
        """
        document: dict[str, Any] = dict(record)
        if self._origin:
            said = {"command": shlex.join(command), "seed": seed}
            document["provenance"] = self._origin | said
        if self.output is not None:
            write_json(self.output, document)
        if self.json:
            print(json.dumps(document, indent=2, ensure_ascii=False))
        else:
            present(rows, spare)


def present(rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> None:
    """Print rows, the first of which is the heading: as a table on a terminal, else as lines.

    Args:
        rows: what to print.
        spare: columns that a narrow terminal may do without, the first to go first.
    """
    if not sys.stdout.isatty():
        for row in rows[1:]:
            named = zip(rows[0], row, strict=True)
            print("  ".join(f"{name}: {' '.join(value.split())}" for name, value in named))
        return
    from rich.console import Console
    from rich.measure import Measurement

    console, left = Console(), list(spare)
    wide = console.options.update(width=10_000)
    while left and Measurement.get(console, wide, _table(rows)).maximum > console.width:
        name = left.pop(0)
        kept = [i for i, heading in enumerate(rows[0]) if heading != name]
        rows = [[row[i] for i in kept] for row in rows]
    console.print(_table(rows))


def say(lines: Sequence[str]) -> None:
    """Print sentences, on a terminal with breaks between words.

    Args:
        lines: one a sentence.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in lines:
        print(textwrap.fill(line, width, subsequent_indent="  ") if width else line)


def _table(rows: Sequence[Sequence[str]]) -> Any:
    """Return a table with words on the left of their columns and numbers on the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(rows[0]):
        numbers = any(row[i][:1] in "0123456789+-–" for row in rows[1:] if row[i])
        table.add_column(Text(name), justify="right" if i and numbers else "left")
    for row in rows[1:]:
        table.add_row(*map(Text, row))  # brackets in a name are no markup
    return table


def counted(runs: int) -> str:
    """Return a number of runs in words.

    Example:
        >>> counted(1), counted(3)
        ('1 run', '3 runs')
    """
    return f"{runs} run{'' if runs == 1 else 's'}"


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show progress on stderr if it is a terminal; yield what to call with (done, total).

    Args:
        what: goes on.
        quiet: show nothing.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
