"""A pair of processes that train together: this one, whose coverage counts, and a forked one."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from elbowroom.lab import distributed
from tests.lab import torchrun_jobs

ROOT = Path(__file__).parents[2]
PATIENCE = timedelta(seconds=60)  # then it is an error: no test hangs


class Partner:
    """Starts the other processes, one at a time; see `torchrun_partner`."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.torchrun_partner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def start(self, **what):
        """Start a process; return its id."""
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self):
        return int(self.process.stdout.readline())

    def close(self):
        self.process.kill()
        self.process.communicate()


class Pair:
    """Two processes that find each other.

    Args:
        partner: starts the other one.
        folder: for what it returns.
        patch: of pytest; puts this process's environment back.
    """

    def __init__(self, partner, folder, patch):
        self.partner, self.result, self.patch = partner, folder / "result.json", patch

    def run(self, job, arguments, *, rank=0, theirs=None):
        """Do a job in both; return what it gave here and there, or what the other one died of.

        Args:
            job: the name of a function of `torchrun_jobs`.
            arguments: by name.
            rank: of this process.
            theirs: changes to the arguments of the other one.
        """
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        pid = self.partner.start(
            job=job,
            arguments=arguments | (theirs or {}),
            environment=environment(1 - rank, store.port),
            result=str(self.result),
        )
        try:
            with self.patch.context() as patch:
                for name, value in environment(rank, store.port).items():
                    patch.setenv(name, value)
                meet = functools.partial(dist.init_process_group, timeout=PATIENCE)
                patch.setattr(dist, "init_process_group", meet)
                patch.setattr(distributed, "PATIENCE", PATIENCE)
                here = getattr(torchrun_jobs, job)(**arguments, partner=pid)
        finally:
            ended = self.partner.read()
        return here, json.loads(self.result.read_text()) if ended == 0 else ended

    def both(self, job, arguments, **more):
        """Do a job; return what each gave, that of the first process before the other's."""
        found = self.run(job, arguments, **more)
        return found[::-1] if more.get("rank") else found


def environment(rank, port):
    """Return what ``torchrun`` tells a process; its parent has the store, as there."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": loopback,
    }
