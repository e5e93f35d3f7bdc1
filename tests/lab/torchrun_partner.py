"""The other process of a pair, as ``torchrun`` would start it: forked by one that has trained.

Importing torch, and what training imports, takes seconds; forking takes milliseconds. What is to be
done comes in as lines of JSON, the arguments of `work`; out go a child's id, and how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import torch

import elbowroom.lab.sharded  # noqa: F401
from tests.lab import torchrun_jobs

PATIENCE = 60  # seconds that a child may live: no test hangs


def work(job, arguments, environment, result):
    """Do a job in this process, which is a child.

    Args:
        job: the name of a function of `torchrun_jobs`.
        arguments: its arguments by name.
        environment: what ``torchrun`` tells a process.
        result: the file for what it returns.
    """
    signal.alarm(PATIENCE)
    os.environ.update(environment)
    found = getattr(torchrun_jobs, job)(**arguments)
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def child(line):
    """Start a process for a job; return its id."""
    found = os.fork()
    if found:
        return found
    try:
        work(**json.loads(line))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def main():
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*fork")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        torchrun_jobs.train(folder, [{"training": {"steps": 1}}])
    for line in sys.stdin:
        started = child(line)
        print(started, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(started, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
