"""Sends what runs report to TensorBoard or Weights & Biases, beside their ``metrics.jsonl``.

A run of the lab is a run of the tracker. Steps that are made again are not shown twice.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elbowroom import checks
from elbowroom.errors import MissingExtraError
from elbowroom.lab.config import RunConfig, as_plain
from elbowroom.provenance import write_bytes

if TYPE_CHECKING:
    from elbowroom.lab.trainer import Event, Observer

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


@contextmanager
def tracking(names: Iterable[str], output: str | Path) -> Iterator[Observer | None]:
    """Yield an observer that sends numbers to trackers; all is written when the context ends.

    Args:
        names: "tensorboard" or "wandb", or both. A package that is missing is an error at once.
        output: the folder that holds the runs' folders; TensorBoard's files lie in these.
    """
    trackers = [_Tracker(name, Path(output)) for name in dict.fromkeys(names)]
    try:
        yield join(*trackers)
    finally:
        for tracker in trackers:
            tracker.close()


def join(*observers: Observer | None) -> Observer | None:
    """Return one observer that tells all of them, in this order; None where there is none."""

    def tell(event: Event) -> None:
        for observer in filter(None, observers):
            observer(event)

    return tell if any(observers) else None


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics by name; those that were not finite are left out.

    Example:
        >>> scalars({"step": 5, "loss": 2.5, "kept": None, "eval": {"de": {"ppl": 2.72}}})
        {'loss': 2.5, 'eval/ppl/de': 2.72}
    """
    found = {name: x for name, x in line.items() if name not in ("step", "eval")}
    for language, scores in line.get("eval", {}).items():
        found |= {f"eval/{name}/{language}": x for name, x in scores.items()}
    return {name: x for name, x in found.items() if x is not None}


class _Tracker:
    def __init__(self, name: str, output: Path) -> None:
        checks.choice("track", name, tuple(MODULES))
        try:
            self._package = importlib.import_module(MODULES[name])
        except ImportError as error:
            raise MissingExtraError(name, "track", f"--track {name}") from error
        self._output, self._kind = output, _Board if name == "tensorboard" else _Run
        self._tracks: dict[str, _Board | _Run] = {}

    def __call__(self, event: Event) -> None:
        for i, run in enumerate(event.runs):
            if event.kind == "start":
                folder = self._output / run.folder
                self._tracks[run.folder] = self._kind(self._package, folder, run, event.step)
            elif event.lines:
                self._tracks[run.folder].add(event.lines[i]["step"], scalars(event.lines[i]))
            elif event.kind == "done":
                self._tracks.pop(run.folder).close()

    def close(self) -> None:
        while self._tracks:
            self._tracks.popitem()[1].close()


class _Board:
    def __init__(self, package: Any, folder: Path, run: RunConfig, done: int) -> None:
        self._writer = package.SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
        self.close = self._writer.close

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


class _Run:
    def __init__(self, package: Any, folder: Path, run: RunConfig, done: int) -> None:
        path = folder / "wandb-id.txt"  # by which it is found again
        if not path.exists():
            write_bytes(path, os.urandom(8).hex().encode())
        self._run = package.init(
            project=os.environ.get("WANDB_PROJECT", "elbowroom"),
            name=run.folder,
            id=path.read_text(encoding="utf-8"),
            resume="allow",
            dir=str(folder.absolute()),
            config=as_plain(run),
            reinit="create_new",  # beside those of the other runs
        )
        self.close = self._run.finish

    def add(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self._run.starting_step:  # it keeps what it has
            self._run.log(dict(values), step=step)
