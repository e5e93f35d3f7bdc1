"""What tests of kernels share on machines without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run_tests(file: str, **environment: str) -> None:
    """Run a file of tests in a process of its own: Triton asks once how kernels are to run.

    Args:
        file: as seen from the repository's root.
        environment: variables to set.
    """
    pytest.importorskip("triton")
    options = ["-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "--no-cov"]
    inherited = {x: value for x, value in os.environ.items() if x != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, file],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Recorder:
    """Stands in for a kernel: it keeps the grid and the arguments of each launch."""

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[int, ...], tuple, dict]] = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((grid, args, options))
