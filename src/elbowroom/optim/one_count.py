"""AdamW where one count serves all rows: PyTorch's fused kernel for the CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elbowroom.optim.numbers import Number
from elbowroom.optim.rows import Rows, Rule


def whole_count(rows: Rows, rule: Rule) -> Tensor | None:
    """Return one count for a whole matrix that the kernel can move where it lies, else None."""
    tensors = (rows.param, rows.grad, rows.exp_avg, rows.exp_avg_sq)
    dtype = rows.param.dtype
    if isinstance(rows.weight_decay, Tensor) or any(
        x.dtype != dtype or not x.is_contiguous() for x in tensors
    ):
        return None
    if rule.catch_up and bool((rows.row_step != rule.step - 1).any()):
        return None  # some have missed something
    return shared_count(rows, rule, rows.row_step + 1, dtype)


def shared_count(rows: Rows, rule: Rule, step: Number, dtype: torch.dtype) -> Tensor | None:
    """Return one count that serves in place of those in ``step``, None if there is none.

    They agree, or their bias corrections are all one.
    """
    if not rule.fused or isinstance(rows.lr, Tensor):
        return None
    counts = torch.as_tensor(step)
    if not counts.numel():
        return None
    low, high = torch.aminmax(counts)
    equal = float(low) == float(high)
    return low if equal or float(low) >= max(_horizon(b, dtype) for b in rule.betas) else None


def _horizon(beta: float, dtype: torch.dtype) -> float:
    """Return the step from which on ``1 - beta^t`` rounds to one."""
    bits = 54 if dtype == torch.float64 else 25
    return -bits * math.log(2) / math.log(beta) if beta else 1.0


def move_fused(
    values: list[Tensor], rows: Rows, rule: Rule, count: Tensor, decay: Number | None = None
) -> None:
    """Move ``[grad, param, exp_avg, exp_avg_sq]`` in one pass, in place.

    With ``decay`` a tensor, rows are multiplied by it, in place of the weight decay of all.
    """
    grad, param, exp_avg, exp_avg_sq = values
    if isinstance(decay, Tensor):
        param.mul_(decay)
    torch._fused_adamw_(
        [param],
        [grad],
        [exp_avg],
        [exp_avg_sq],
        [],
        [count],
        lr=float(rows.lr),
        beta1=rule.betas[0],
        beta2=rule.betas[1],
        weight_decay=0.0 if isinstance(decay, Tensor) else float(rows.weight_decay),
        eps=rule.eps,
        amsgrad=False,
        maximize=rule.maximize,
    )
