"""AdamW over all rows, of which the touched ones are kept; for any device.

It never asks which rows those are, so nothing in it synchronises or depends on data. On CUDA
`fused` does the same in one pass, where it can.
"""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from elbowroom.losses.problem import compute_dtype
from elbowroom.optim.rows import Rows, Rule, begin
from elbowroom.optim.touched import touched_rows
from elbowroom.optim.update import forget, update_moments, update_param

MASKED = 2**25  # elements of an operand in one block, which bounds the memory for results


def step_masked(rows: Rows, rule: Rule) -> None:
    """Move the rows that were touched without ever asking which they are; on any device."""
    size = max(1, MASKED // max(1, rows.param.shape[1]))
    for start in range(0, len(rows), size):
        at = slice(start, start + size)
        tensors = {
            f.name: x[at] if isinstance(x := getattr(rows, f.name), Tensor) and x.ndim else x
            for f in fields(rows)
        }
        _step_masked(replace(rows, **tensors), rule)


def _step_masked(rows: Rows, rule: Rule) -> None:
    dtype = compute_dtype(rows.param.dtype)
    touched = touched_rows(rows.grad)
    if rows.marks is not None:
        touched = touched & rows.marks
    grad = (-rows.grad if rule.maximize else rows.grad).to(dtype)
    c, missed, step = begin(rows, rule, slice(None), dtype)
    olds = (rows.param, rows.exp_avg, rows.exp_avg_sq)
    param, exp_avg, exp_avg_sq = news = tuple(x.detach().to(dtype, copy=True) for x in olds)
    if missed is not None and rows.row_decay is not None:
        forget(exp_avg, exp_avg_sq, missed, rule.betas)
        rows.row_decay.masked_fill_(touched, 1.0)
    update_moments(exp_avg, exp_avg_sq, grad, rule.betas)
    update_param(param, exp_avg, exp_avg_sq.sqrt(), c)
    for old, new in zip(olds, news, strict=True):
        old.copy_(torch.where(touched[:, None], new.to(old.dtype), old))
    count = step.to(rows.row_step.dtype) if isinstance(step, Tensor) else step
    rows.row_step.copy_(torch.where(touched, count, rows.row_step))
