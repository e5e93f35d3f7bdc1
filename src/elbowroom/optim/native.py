"""Rows moved by a loop in C, which the system's compiler makes when it is first wanted.

PyTorch's operations on rows that lie apart take them out, move them and put them back, one after
the other; a loop does all of it while a row is in cache. Where there is no compiler, or the loop
does not fit, `touched_step` does the same with PyTorch's operations.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from elbowroom.optim.rows import Rows, Rule

LEAST = 2**20  # elements of a matrix from which on a compiler is called
SHARE = 2**17  # elements that a thread is worth starting for
FLAGS = ("-O3", "-shared", "-fPIC", "-std=c11", "-fopenmp", "-ffp-contract=off", "-fno-math-errno")
SECONDS = 60  # that a compiler may take; it needs a fraction of one


class _Rule(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in ("lr", "weight_decay", "beta1", "beta2", "eps", "step", "sign")
    )


def takes(rows: Rows, rule: Rule) -> bool:
    """Return whether the loop can move these rows: large float32 matrices, numbers for all rows."""
    values = (rows.param, rows.grad, rows.exp_avg, rows.exp_avg_sq)
    one = not any(isinstance(x, Tensor) for x in (rows.lr, rows.weight_decay, rule.step))
    counts = (rows.row_step, rows.row_step if rows.row_decay is None else rows.row_decay)
    return (
        rule.fused
        and one
        and rows.param.numel() >= LEAST
        and all(x.dtype == torch.float32 and x.is_contiguous() for x in values)
        and all(x.is_contiguous() for x in counts)
        and library() is not None
    )


def step_rows(rows: Rows, rule: Rule) -> None:
    """Move the rows that have a gradient, among those that are marked if any are.

    Args:
        rows: that `takes` agreed to.
        rule: of the step.
    """
    code = library()
    assert code is not None
    at = None if rows.marks is None else rows.marks.nonzero().squeeze(1)
    count, width = len(rows) if at is None else len(at), rows.param.shape[1]
    numbers = _Rule(
        float(rows.lr),
        float(rows.weight_decay),
        *rule.betas,
        rule.eps,
        float(rule.step),
        -1.0 if rule.maximize else 1.0,
    )
    tensors = (rows.param, rows.grad, rows.exp_avg, rows.exp_avg_sq)
    where = [_address(x) for x in (*tensors, rows.row_step, rows.row_decay, at)]

    threads = max(1, min(torch.get_num_threads(), count * width // SHARE))
    sizes = (ctypes.c_int64(x) for x in (count, width))
    code.elbowroom_move_rows(*where, *sizes, ctypes.byref(numbers), ctypes.c_int64(threads))


def _address(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled loop; None where there is no C compiler, or it does not succeed."""
    wanted = (*shlex.split(os.environ.get("CC", ""))[:1], "cc", "gcc", "clang")
    compiler = next(filter(None, map(shutil.which, wanted)), None)
    if compiler is None:
        return None
    source = resources.files(__package__).joinpath("rows.c")
    try:
        with (
            resources.as_file(source) as code,
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ):
            target = Path(folder) / "rows.so"
            words = [compiler, *FLAGS, str(code), "-o", str(target), "-lm"]
            subprocess.run(words, check=True, capture_output=True, timeout=SECONDS)
            return ctypes.CDLL(str(target))  # it stays loaded when the file is gone
    except (OSError, subprocess.SubprocessError):
        return None
