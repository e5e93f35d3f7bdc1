"""AdamW over the rows that were touched, found and gathered; for the CPU.

Reading a list of indices costs nothing there. A block of rows at a time is gathered into a scratch
that stays in cache, moved, and put back; stretches of neighbouring rows are moved where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from elbowroom.losses.problem import compute_dtype
from elbowroom.optim.gather import GATHERED, Scratch, load, store
from elbowroom.optim.rows import At, Rows, Rule, begin
from elbowroom.optim.touched import touched_rows
from elbowroom.optim.update import Coefficients, forget, update_moments, update_param

STRETCH = 2**20  # elements of an operand in a block that is updated where it lies


def step_touched(rows: Rows, rule: Rule, scratch: Scratch) -> None:
    """Move the rows that were touched; on a CPU."""
    found = _find(rows)
    if found is None and _uniform(rows, rule):
        _step_fused(rows, rule)
        return
    at = slice(0, len(rows)) if found is None else found
    dtype = compute_dtype(rows.param.dtype)
    c, missed, step = begin(rows, rule, at, dtype)
    for block, part in _blocks(at, rows.param.shape[1]):
        skipped = None if missed is None else missed[part]
        _step_block(rows, rule, block, c.part(part), skipped, scratch)
    rows.row_step[at] = step
    if rows.row_decay is not None:
        rows.row_decay[at] = 1.0


def _find(rows: Rows) -> Tensor | None:
    """Return the indices of the touched rows, None for all."""
    if rows.marks is not None:
        marked = rows.marks.nonzero().squeeze(1)
        if 2 * len(marked) <= len(rows):
            touched = touched_rows(rows.grad, marked)
            return marked if bool(touched.all()) else marked[touched]
    touched = touched_rows(rows.grad)
    if rows.marks is not None:
        touched &= rows.marks
    at = touched.nonzero().squeeze(1)
    return None if len(at) == len(rows) else at


def _blocks(at: At, width: int) -> Iterator[tuple[At, slice]]:
    """Cut rows into blocks; also return each block's place among the rows."""
    if isinstance(at, slice):
        size = max(1, STRETCH // max(1, width))
        for i in range(at.start, at.stop, size):
            stretch = slice(i, min(i + size, at.stop))
            yield stretch, stretch
        return
    size = max(1, GATHERED // max(1, width))
    for i in range(0, len(at), size):
        block, part = at[i : i + size], slice(i, i + size)
        first, last = int(block[0]), int(block[-1])
        yield slice(first, last + 1) if last - first + 1 == len(block) else block, part


def _step_block(
    rows: Rows, rule: Rule, at: At, c: Coefficients, missed: Tensor | None, scratch: Scratch
) -> None:
    n = at.stop - at.start if isinstance(at, slice) else len(at)
    dtype = compute_dtype(rows.param.dtype)
    count = 1 if isinstance(at, slice) else 5
    work, *buffers = scratch.take(count, n, rows.param.shape[1], dtype)
    grad = load(rows.grad, at, dtype, buffers)
    grad = grad.neg() if rule.maximize else grad
    stored = (rows.param, rows.exp_avg, rows.exp_avg_sq)
    param, exp_avg, exp_avg_sq = values = [load(x, at, dtype, buffers) for x in stored]
    if missed is not None:
        forget(exp_avg, exp_avg_sq, missed, rule.betas)
    update_moments(exp_avg, exp_avg_sq, grad, rule.betas)
    update_param(param, exp_avg, torch.sqrt(exp_avg_sq, out=work), c)
    for to, value in zip(stored, values, strict=True):
        store(to, at, value)


def _uniform(rows: Rows, rule: Rule) -> bool:
    """Return whether one set of numbers serves all rows, and torch's fused kernel applies."""
    tensors = (rows.param, rows.grad, rows.exp_avg, rows.exp_avg_sq)
    dtype = rows.param.dtype
    if not (rule.fused and len(rows) and all(x.is_contiguous() for x in tensors)):
        return False
    if any(x.dtype != dtype for x in tensors) or isinstance(rows.lr, Tensor):
        return False
    if isinstance(rows.weight_decay, Tensor):
        return False
    low, high = (float(x) for x in torch.aminmax(rows.row_step))
    if rule.catch_up:
        return low == high == rule.step - 1
    return low == high or low >= max(_horizon(beta, dtype) for beta in rule.betas)


def _horizon(beta: float, dtype: torch.dtype) -> float:
    """Return the step from which on ``1 - beta^t`` rounds to one."""
    bits = 54 if dtype == torch.float64 else 25
    return -bits * math.log(2) / math.log(beta) if beta else 1.0


def _step_fused(rows: Rows, rule: Rule) -> None:
    assert not isinstance(rows.weight_decay, Tensor)  # `_uniform` has seen to it
    adamw(
        [rows.param],
        [rows.grad],
        [rows.exp_avg],
        [rows.exp_avg_sq],
        [],
        [rows.row_step.min()],
        fused=True,
        amsgrad=False,
        beta1=rule.betas[0],
        beta2=rule.betas[1],
        lr=rows.lr,
        weight_decay=rows.weight_decay,
        eps=rule.eps,
        maximize=rule.maximize,
    )
    rows.row_step.add_(1)
    if rows.row_decay is not None:
        rows.row_decay.fill_(1.0)
