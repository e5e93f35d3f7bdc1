"""Where runs that were stopped go on: at the end of training, at a checkpoint, or at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from elbowroom.errors import FileError
from elbowroom.lab import checkpoints
from elbowroom.lab.distributed import State, flat
from elbowroom.lab.folder import RunFolder

Warn = Callable[[str], None]


def found(folders: Sequence[RunFolder], warn: Warn) -> State:
    """Return what the runs of a population go on from, plain data and tensors.

    Under ``ends`` how training ended, where only the evaluation is left; or the newest checkpoint
    that all runs have whole; or nothing, where training starts.

    Args:
        folders: one a run.
        warn: is told of what is damaged.
    """
    ends = [end for folder in folders if (end := folder.end) is not None]
    if len(ends) == len(folders):
        try:
            models = [folder.load_model()[0] for folder in folders]
        except FileError as error:
            warn(f"{error}; going on from before it")
        else:
            return {"ends": [asdict(end) for end in ends]}, flat(models)
    return _checkpoint(folders, warn)


def _checkpoint(folders: Sequence[RunFolder], warn: Warn) -> State:
    """Return the newest checkpoint that all runs have whole, or nothing."""
    steps = [set(checkpoints.steps(folder.state)) for folder in folders]
    for step in sorted(set.intersection(*steps), reverse=True):
        try:
            loaded = [checkpoints.load(folder.state, step) for folder in folders]
        except FileError as error:
            warn(f"{error}; going on from before it")
            continue
        meta = loaded[0].meta
        plain = {"step": step, "since": int(meta["since"]), "seconds": float(meta["seconds"])}
        kept = [list(one.meta["kept"]) for one in loaded]
        return plain | {"kept": kept}, flat([one.tensors for one in loaded])
    if any(steps):
        warn("no checkpoint is whole in all runs; training starts from the beginning")
    return {}, {}
