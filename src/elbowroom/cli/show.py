"""What commands have in common: results on a terminal, in a pipe, as JSON, and in a file."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
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
    ) -> None:
        """Print a result, and write it if a file is named; `begin` came before.

        Args:
            record: the result as plain data.
            rows: the same for people; the first row is the heading.
            command: the words that repeat it, without those that say where it goes.
            seed: what decided its random numbers.
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
            present(rows)


def present(rows: Sequence[Sequence[str]], brief: Sequence[str] = ()) -> None:
    """Print rows, the first of which is the heading: as a table on a terminal, else as lines.

    Args:
        rows: what to print.
        brief: the columns to keep where all of them are too wide for the terminal.
    """
    if not sys.stdout.isatty():
        for row in rows[1:]:
            named = zip(rows[0], row, strict=True)
            print("  ".join(f"{name}: {' '.join(value.split())}" for name, value in named))
        return
    widths = [max(len(line) for row in rows for line in [row[i]]) for i in range(len(rows[0]))]
    if brief and sum(widths) + 2 * len(widths) > shutil.get_terminal_size().columns:
        kept = [i for i, name in enumerate(rows[0]) if name in brief]
        rows = [[row[i] for i in kept] for row in rows]
    _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on stderr if it is a terminal; yield what to call with (done, total)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
