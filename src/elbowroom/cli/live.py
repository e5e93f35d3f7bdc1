"""How training looks: a live table on a terminal, a plain line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elbowroom.cli.show import counted
from elbowroom.lab.distributed import is_first
from elbowroom.lab.trainer import Event, Observer

QUIET_SECONDS = 15.0  # between two lines in a pipe


def clock(seconds: float | None) -> str:
    """Return seconds as a person reads them.

    Example:
        >>> clock(75), clock(3700), clock(None)
        ('1:15', '1:01:40', '-')
    """
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def means(event: Event) -> dict[str, dict[str, float]]:
    """Return what an event's lines say of each method: means over its runs.

    Args:
        event: of kind "log" or "eval".
    """
    sums: dict[str, dict[str, list[float]]] = {}
    for run, line in zip(event.runs, event.lines, strict=True):
        found = sums.setdefault(run.name, {})
        for name, value in _numbers(line):
            found.setdefault(name, []).append(value)
    return {
        method: {name: sum(x) / len(x) for name, x in found.items()}
        for method, found in sums.items()
    }


def _numbers(line: Any) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if name in ("loss", "kept") and value is not None:
            yield name, value
    for language, scores in line.get("eval", {}).items():
        if scores.get("ppl") is not None:
            yield f"ppl {language}", scores["ppl"]


class Plain:
    """A line on stderr now and then, and at each beginning and end.

    Args:
        quiet: say nothing but warnings.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._last = -QUIET_SECONDS
        self._ppl: dict[str, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        """Print what is worth a line."""
        where = f"[{event.population}/{event.populations}] step {event.step}/{event.steps}"
        if event.kind == "eval":
            self._ppl = means(event)
        if event.kind == "warning":
            self._print(f"{where}: warning: {event.message}")
        elif self._quiet:
            return
        elif event.kind in ("start", "judge", "done"):
            words = {"start": "training", "judge": "evaluating", "done": "done"}
            names = ", ".join(dict.fromkeys(run.name for run in event.runs))
            self._print(f"{where}: {words[event.kind]} {counted(len(event.runs))} ({names})")
        elif time.monotonic() - self._last <= QUIET_SECONDS:
            return
        elif event.kind == "judging":
            self._last = time.monotonic()
            self._print(f"{where}: evaluated {event.judged:.0%} of the held-out text")
        elif event.kind == "log":
            self._last = time.monotonic()
            rate = f"{event.tokens_per_second:,.0f} tokens/s, {clock(event.seconds_left)} left"
            self._print(f"{where}, {rate}: {self._numbers(event)}")

    def _numbers(self, event: Event) -> str:
        """Return each method's means, and what the last evaluation said."""
        said = []
        for method, values in means(event).items():
            both = values | self._ppl.get(method, {})
            said.append(" ".join([method, *(f"{name} {x:.4g}" for name, x in both.items())]))
        return "; ".join(said)

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Live:
    """A table of methods under a bar of progress, on a terminal's stderr."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._values: dict[str, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        """Take in an event and draw."""
        if event.kind == "warning":
            self._live.console.print(f"warning: {event.message}", style="yellow", markup=False)
            return
        if event.kind in ("log", "eval"):
            for method, values in means(event).items():
                self._values.setdefault(method, {}).update(values)
        self._live.update(self._draw(event))

    def _draw(self, event: Event) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = Table.grid()  # which ends the bar's line
        bar.add_row(ProgressBar(total=event.steps, completed=event.step, width=60))
        columns = list(dict.fromkeys(k for values in self._values.values() for k in values))
        table = Table(box=None, pad_edge=False, show_header=bool(columns))
        table.add_column("method")
        for name in columns:
            table.add_column(Text(name), justify="right")
        for method, values in self._values.items():
            cells = [f"{values[k]:.4g}" if k in values else "" for k in columns]
            table.add_row(method, *cells)
        return Group(Text(_head(event)), bar, table)


def _head(event: Event) -> str:
    doing = {"judge": "evaluating", "judging": "evaluating", "save": "saving", "done": "done with"}
    said = f"{doing.get(event.kind, 'training')} {counted(len(event.runs))}"
    if event.populations > 1:
        said += f" ({event.population} of {event.populations})"
    said += f", step {event.step}/{event.steps}"
    if event.kind == "judging":
        said += f", {event.judged:.0%} of the held-out text"
    elif event.tokens_per_second:
        said += f", {event.tokens_per_second:,.0f} tokens/s, {clock(event.seconds_left)} left"
    return said


@contextmanager
def watching(quiet: bool = False) -> Iterator[Observer]:
    """Yield what shows training: live on a terminal, lines in a pipe; if quiet, warnings only.

    Of several processes only the first draws on the terminal.

    Args:
        quiet: show no progress.
    """
    if quiet or not (is_first() and sys.stderr.isatty()):
        yield Plain(quiet)
        return
    from rich.console import Console
    from rich.live import Live as RichLive

    with RichLive(console=Console(stderr=True), refresh_per_second=4) as live:
        yield Live(live)
