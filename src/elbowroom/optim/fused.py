"""Launch AdamW's Triton kernels: one pass over a parameter, its gradient and its moments.

Nothing here waits for the device. What is a number on the host goes along as a number, what is a
tensor on the device stays there, so that a step can be captured in a CUDA graph if its counts are
on the device (``capturable=True``).
"""

from __future__ import annotations

import functools
import math
import types
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from elbowroom.optim.numbers import Number
from elbowroom.optim.rows import Rows, Rule
from elbowroom.optim.update import Betas

DEVICES = ("cuda",)  # tests that interpret kernels add the CPU
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TILE = 2048  # elements of an operand that a program holds at once
WIDEST = 4096  # rows up to this are held whole
WARPS = 8
FULL = 2**14  # tiles that keep any device busy: with more, programs take several in turn
TURNS = 8


@functools.cache
def kernels() -> types.ModuleType | None:
    """Return the module of kernels, None where Triton is missing."""
    try:
        from elbowroom.optim import kernels as module
    except ImportError:
        return None
    return module


def takes(*tensors: Tensor) -> bool:
    """Return whether the kernels can read all these tensors, of one shape, element by element."""
    return (
        all(
            x.device.type in DEVICES
            and x.dtype in DTYPES
            and x.is_contiguous()
            and type(x) in (Tensor, torch.nn.Parameter)
            for x in tensors
        )
        and not torch.compiler.is_compiling()
        and kernels() is not None
    )


def takes_rows(rows: Rows) -> bool:
    """Return whether `step_rows` can make a step of these rows."""
    return takes(rows.param, rows.grad, rows.exp_avg, rows.exp_avg_sq)


def step_rows(rows: Rows, rule: Rule) -> None:
    """Move the rows that were touched; equal to `masked_step.step_masked`, to rounding.

    With marks, other rows are not looked at; without, their gradients alone are read.
    """
    n, width = rows.param.shape
    if n == 0 or width == 0:
        return
    missed = kept = None
    if rows.row_decay is not None:
        missed = (rule.step - 1 - rows.row_step).float()
        kept = torch.stack([torch.pow(beta, missed.double()).float() for beta in rule.betas])
    tile = _tile(n, width)
    with torch.cuda.device(rows.param.get_device()):
        _module().rows_kernel[(_parts(n, tile["ROWS"] * tile["TILES"]),)](
            rows.param,
            rows.grad,
            rows.exp_avg,
            rows.exp_avg_sq,
            rows.row_step,
            None if rows.marks is None else rows.marks.contiguous().view(torch.uint8),
            rows.row_decay,
            missed,
            kept,
            *_pointers(rows.lr, rows.weight_decay),
            *_numbers(rows.lr, rows.weight_decay),
            n,
            width,
            _stride(rows.lr),
            _stride(rows.weight_decay),
            **_betas(rule.betas),
            eps=float(rule.eps),
            MAXIMIZE=rule.maximize,
            **tile,
        )
    increment_version(rows.param)


def step_runs(
    param: Tensor,
    grad: Tensor,
    moments: tuple[Tensor, Tensor],
    step: Number,
    rates: tuple[Number, Number],
    *,
    betas: Betas,
    eps: float,
    maximize: bool,
) -> None:
    """Make AdamW's step of an ordinary parameter.

    Args:
        param, grad, moments: ``[R, ...]``; the first and the last are changed.
        step: the number of this step, from 1.
        rates: learning rate and weight decay: numbers, tensors of one, or tensors of R elements.
        betas, eps, maximize: as in `RowAdamW`.
    """
    if param.numel() == 0:
        return
    runs = max(x.numel() if isinstance(x, Tensor) else 1 for x in rates)
    size = param.numel() // runs
    block = TILE if size >= TILE else 32 * WARPS
    blocks = _parts(size, block)
    lr, weight_decay = rates
    with torch.cuda.device(param.get_device()):
        _module().runs_kernel[(runs * blocks,)](
            param.detach(),
            grad,
            *moments,
            *_pointers(step, lr, weight_decay),
            *_numbers(step, lr, weight_decay),
            size,
            blocks,
            _stride(lr),
            _stride(weight_decay),
            **_betas(betas),
            eps=float(eps),
            MAXIMIZE=maximize,
            BLOCK=block,
            num_warps=WARPS,
        )
    increment_version(param)  # autograd cannot see what a kernel writes


def _module() -> types.ModuleType:
    module = kernels()
    if module is None:  # an invariant: the caller has asked `takes`
        raise RuntimeError("the fused step needs Triton")
    return module


def _tile(n: int, width: int) -> dict[str, Any]:
    """Return the shape of a tile for rows of some width, and how many a program works on."""
    columns = max(16, 1 << (width - 1).bit_length())
    whole = columns <= WIDEST
    columns = columns if whole else TILE
    count = max(1, TILE // columns)
    turns = TURNS if n > FULL * count else 1
    return {
        "ROWS": count, "WIDTH": columns, "TILES": turns, "WHOLE": whole, "num_warps": WARPS
    }  # fmt: skip


def _parts(size: int, part: int) -> int:
    return -(-size // part)


def _betas(betas: Betas) -> dict[str, float]:
    """Return what kernels need of both betas, computed in float64."""
    log_first, log_second = (math.log(beta) if beta else -104.0 for beta in betas)  # exp(-104) is 0
    return {
        "log_first": log_first,
        "log_second": log_second,
        "first": float(betas[0]),
        "second": float(betas[1]),
        "rest_first": 1.0 - betas[0],
        "rest_second": 1.0 - betas[1],
    }


def _pointers(*values: Number) -> list[Tensor | None]:
    return [x.reshape(-1).contiguous() if isinstance(x, Tensor) else None for x in values]


def _numbers(*values: Number) -> list[float]:
    return [0.0 if isinstance(x, Tensor) else float(x) for x in values]


def _stride(x: Number) -> int:
    """Return by how much an index moves from one run, or row, to the next."""
    return int(isinstance(x, Tensor) and x.numel() > 1)
