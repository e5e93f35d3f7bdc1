"""Train in children that are killed, told to stop, or short of room; `test_resume` runs this.

Each is a fork of this process, which takes milliseconds; importing torch takes seconds::

    python -m tests.lab.killed_run FOLDER 1     # kills at every moment; 7: at every seventh
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import warnings
from pathlib import Path

import torch

from elbowroom.errors import FileError
from elbowroom.lab.evaluation import Judge
from elbowroom.lab.population import Population
from tests.lab.killed import Killer, Proxy
from tests.lab.observed import differences
from tests.lab.toy import fit, run

KEEP = {"which": "best", "every": 1, "batches": 1}
TRAINING = {"steps": 6, "log_every": 2, "eval_every": 3, "checkpoint_every": 2, "keep": KEEP}
RUNS = [
    run(name="a", training=TRAINING),
    run(name="b", training=TRAINING, loss={"name": "ldam", "count_steps": 3}),
]


def halves(killer, opened):
    """Let files that are opened for writing or appending write half, then the rest."""

    def call(where, mode="r", **options):
        file = opened(where, mode, **options)
        if mode not in ("wb", "a"):
            return file
        proxy = Proxy(file)

        def write(data):
            file.write(data[: len(data) // 2])
            file.flush()
            killer.now()
            return file.write(data[len(data) // 2 :])

        proxy.write = write
        return proxy

    return call


def arm(killer):
    """Let the killer look on wherever training changes anything."""
    Path.open, os.fdopen = halves(killer, Path.open), halves(killer, os.fdopen)
    for owner, name in (
        (os, "fsync"),
        (shutil, "rmtree"),
        (Path, "rename"),
        (Path, "replace"),
        (Population, "advance"),
        (Judge, "full"),
    ):
        setattr(owner, name, killer.around(getattr(owner, name)))


def in_child(work):
    """Do it in a child; return how that ended, as `os.waitpid` tells it."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        work()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def moments(root, expected, every):
    """Kill at every so manieth moment, and resume; return how many moments there were."""
    moment = 0
    while True:
        folder = root / str(moment)

        def train(moment=moment, folder=folder):
            arm(Killer(moment))
            fit(RUNS, folder)

        if not os.WIFSIGNALED(in_child(train)):
            return moment
        found = differences(fit(RUNS, folder, resume=True), expected)
        assert not found, (moment, found)
        moment += every


def signals(root, expected):
    """Stop a child by each signal while it trains, and resume; return what differs."""
    found = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = root / number.name
        found[number.name] = stopped(folder, number)
        found[number.name] += differences(fit(RUNS, folder, resume=True), expected)
    return found


def stopped(folder, number):
    """Send a signal while a child reports; return what it did that it should not."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.read(ready[0], 1)
        os.kill(child, number)
        os.write(go[1], b"x")
        status = os.waitpid(child, 0)[1]
        return [] if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7 else [status]

    def wait(event):
        if event.kind == "log" and event.step == 2:
            os.write(ready[1], b"x")
            os.read(go[0], 1)

    os._exit(7 if fit(RUNS, folder, observer=wait).stopped else 0)


def room(root, expected):
    """Train where files may only be so large, then with room; return what was said before."""
    folder, said = root / "small", root / "said"

    def train():
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        try:
            fit(RUNS, folder)
        except FileError as error:
            said.write_text(str(error))

    in_child(train)
    left = sorted(path.name for path in folder.rglob(".*"))
    found = differences(fit(RUNS, folder, resume=True), expected)
    return {"said": said.read_text(), "left": left, "differences": found}


def main(root, every):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*fork")
    torch.set_num_threads(1)
    expected = fit(RUNS, root / "whole")
    found = {"moments": moments(root, expected, every)}
    found |= {"signals": signals(root, expected), "room": room(root, expected)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
