"""Save checkpoints and be killed in the middle, once at each moment; `test_checkpoints` runs this.

It forks a child for each moment, which takes milliseconds; importing torch takes seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path

import torch

from elbowroom.lab import checkpoints

TENSORS = {"weight": torch.arange(1000.0)}


class Killer:
    """Kills this process at the given one of the moments that it is called at."""

    def __init__(self, moment):
        self.left = moment

    def now(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def around(self, function):
        def call(*args, **kwargs):
            self.now()
            result = function(*args, **kwargs)
            self.now()
            return result

        return call

    def halfway(self, opened):
        """Let files that are opened for writing write half, then the rest."""

        def call(path, mode="r", **kwargs):
            file = opened(path, mode, **kwargs)
            if mode != "wb":
                return file
            whole = file.write
            file = Proxy(file)

            def write(data):
                whole(data[: len(data) // 2])
                file.flush()
                self.now()
                return whole(data[len(data) // 2 :])

            file.write = write
            return file

        return call


class Proxy:
    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def save_and_die(folder, step, moment):
    """Save in a child that is killed; return whether it was, before it had finished."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    killer = Killer(moment)
    os.fsync = killer.around(os.fsync)
    checkpoints.shutil.rmtree = killer.around(checkpoints.shutil.rmtree)
    Path.rename = killer.around(Path.rename)
    Path.open = killer.halfway(Path.open)
    checkpoints.save(folder, step, TENSORS, {"step": step})
    os._exit(0)


def check(folder, allowed):
    """Whatever the moment: the newest is whole, of an allowed step, and saving goes on."""
    damage = []
    found = checkpoints.load(folder, on_damage=damage.append)
    assert not damage, damage
    assert found.step in allowed, (found.step, allowed)
    assert found.meta == {"step": found.step}
    assert torch.equal(found.tensors["weight"], TENSORS["weight"])
    checkpoints.save(folder, 9, TENSORS, {"step": 9})
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 2, names
    assert names[1] == "step-000000009", names


def main(root):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*fork")
    moments = 0
    for again in (False, True):  # a new step; one that is there already
        for moment in range(100):
            folder = root / f"{again}-{moment}"
            for step in (1, 2):
                checkpoints.save(folder, step, TENSORS, {"step": step})
            step = 2 if again else 3
            if not save_and_die(folder, step, moment):
                break
            check(folder, (2, step))
            moments += 1
    print(moments)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
