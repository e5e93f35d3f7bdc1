"""How training looks: a live table on a terminal, a plain line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    """A line on stderr now and then, and at each beginning and end."""

    def __init__(self) -> None:
        self._last = -QUIET_SECONDS
        self._ppl: dict[str, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        """Print what is worth a line."""
        where = f"[{event.population}/{event.populations}] step {event.step}/{event.steps}"
        if event.kind == "eval":
            self._ppl = means(event)
        if event.kind == "warning":
            self._print(f"{where}: warning: {event.message}")
        elif event.kind in ("start", "judge", "done"):
            words = {"start": "training", "judge": "evaluating", "done": "done"}
            names = ", ".join(dict.fromkeys(run.name for run in event.runs))
            self._print(f"{where}: {words[event.kind]} {len(event.runs)} runs ({names})")
        elif event.kind == "log" and time.monotonic() - self._last > QUIET_SECONDS:
            self._last = time.monotonic()
            found = "; ".join(
                f"{method} "
                + " ".join(
                    f"{k} {v:.4g}" for k, v in {**values, **self._ppl.get(method, {})}.items()
                )
                for method, values in means(event).items()
            )
            rate = f"{event.tokens_per_second:,.0f} tokens/s"
            self._print(f"{where}, {rate}, {clock(event.seconds_left)} left: {found}")

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Live:
    """A table of methods under a bar of progress, on a terminal's stderr."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._values: dict[str, dict[str, float]] = {}
        self._event: Event | None = None

    def __call__(self, event: Event) -> None:
        """Take in an event and draw."""
        if event.kind == "warning":
            self._live.console.print(f"warning: {event.message}", style="yellow", markup=False)
            return
        if event.kind in ("log", "eval"):
            for method, values in means(event).items():
                self._values.setdefault(method, {}).update(values)
        self._event = event
        self._live.update(self._draw(event))

    def _draw(self, event: Event) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        doing = {"judge": "evaluating", "save": "saving", "done": "done"}.get(
            event.kind, "training"
        )
        head = Text(
            f"{doing} {len(event.runs)} runs together, part {event.population} of "
            f"{event.populations}   step {event.step}/{event.steps}   "
            f"{event.tokens_per_second:,.0f} tokens/s   {clock(event.seconds_left)} left"
        )
        columns = list(dict.fromkeys(k for values in self._values.values() for k in values))
        table = Table(box=None, pad_edge=False)
        table.add_column("method")
        for name in columns:
            table.add_column(name, justify="right")
        for method, values in self._values.items():
            cells = [f"{values[k]:.4g}" if k in values else "" for k in columns]
            table.add_row(method, *cells)
        return Group(head, ProgressBar(total=event.steps, completed=event.step, width=60), table)


@contextmanager
def watching(quiet: bool = False) -> Iterator[Observer | None]:
    """Yield what shows training: live on a terminal, lines in a pipe, nothing if quiet.

    Args:
        quiet: show nothing.
    """
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield Plain()
    else:
        from rich.console import Console
        from rich.live import Live as RichLive

        with RichLive(console=Console(stderr=True), refresh_per_second=4) as live:
            yield Live(live)
