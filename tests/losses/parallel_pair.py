"""Two processes that share a head: this one, whose coverage counts, and one that was started.

Both do the same jobs of `parallel_jobs`, each in a process group of its own that ends with it; the
other process waits for the next one. Nothing hangs: a group has a time limit, and so has that
process.
"""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.losses import parallel_jobs

ROOT = Path(__file__).parents[2]
PATIENCE = 20  # seconds for a job


@contextmanager
def joined(store, rank):
    """Be one of two."""
    limit = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Pair:
    """This process is rank 0; ``folder`` is for what goes to the other one and comes back."""

    def __init__(self, folder, patch):
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        patch.setenv("GLOO_SOCKET_IFNAME", loopback)
        self.file = folder / "job"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.losses.parallel_pair"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def do(self, job, *arguments):
        """Do a job in both; return what it gave here and there."""
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.file.write_bytes(pickle.dumps((job, arguments, store.port)))
        self.process.stdin.write(f"{self.file}\n")
        self.process.stdin.flush()
        try:
            with joined(store, 0):
                here = getattr(parallel_jobs, job)(0, *arguments)
        finally:
            ended = self.process.stdout.readline().strip()
        assert ended == "done", ended
        return here, pickle.loads(self.file.read_bytes())

    def close(self):
        self.process.kill()
        self.process.communicate()


def partner():
    """Do jobs as rank 1, one a line of the standard input."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        signal.alarm(2 * PATIENCE)
        file = Path(line.strip())
        job, arguments, port = pickle.loads(file.read_bytes())
        try:
            with joined(dist.TCPStore("127.0.0.1", port), 1):
                found = getattr(parallel_jobs, job)(1, *arguments)
            file.write_bytes(pickle.dumps(found))
            print("done", flush=True)
        except Exception:
            print(traceback.format_exc().replace("\n", " | "), flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    partner()
