"""AdamW's arithmetic, once for every optimizer of this package.

With ``b1, b2`` the betas and ``t`` the number of steps, AdamW is::

    m <- b1 m + (1 - b1) g                     v <- b2 v + (1 - b2) g^2
    p <- (1 - lr wd) p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

Multiplying numerator and denominator of the last term by ``sqrt(1 - b2^t)`` leaves one number to
multiply by and one to add, which may differ from row to row; nothing is divided by ``lr``::

    p <- decay p - size * m / (sqrt(v) + eps')
    size = lr sqrt(1 - b2^t) / (1 - b1^t),    eps' = eps sqrt(1 - b2^t),    decay = 1 - lr wd
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from elbowroom.losses.problem import compute_dtype
from elbowroom.optim.numbers import Number

Betas: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Coefficients:
    """The numbers of one step: ``p <- decay p - size m / (sqrt(v) + eps)``."""

    size: Number
    eps: Number
    decay: Number

    def columns(self) -> Coefficients:
        """Return numbers ``[n]`` as columns ``[n, 1]``, so that each meets a row."""
        return Coefficients(*(column(x) for x in (self.size, self.eps, self.decay)))

    def part(self, rows: slice) -> Coefficients:
        """Return the numbers of some of the rows."""
        numbers = (self.size, self.eps, self.decay)
        return Coefficients(*(x[rows] if isinstance(x, Tensor) and x.ndim else x for x in numbers))


def column(x: Number) -> Number:
    """Return ``[n]`` as ``[n, 1]``; leave floats and 0-d tensors."""
    return x[:, None] if isinstance(x, Tensor) and x.ndim else x


def coefficients(step: Number, lr: Number, decay: Number, betas: Betas, eps: float) -> Coefficients:
    """Return the numbers of step number ``step``, which counts from 1; arguments broadcast."""
    first, second = (_bias_correction(step, beta) for beta in betas)
    root = torch.sqrt(second) if isinstance(second, Tensor) else math.sqrt(second)
    return Coefficients(lr * (root / first), eps * root, decay)


def _bias_correction(step: Number, beta: float) -> Number:
    """Return ``1 - beta^step``; by expm1, as float32 would lose half its digits."""
    if not isinstance(step, Tensor):
        return 1.0 - float(beta**step)
    return -torch.expm1(step * (math.log(beta) if beta else -math.inf))


def update_moments(exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, betas: Betas) -> None:
    """Move both moments towards a gradient, in place."""
    exp_avg.lerp_(grad, 1 - betas[0])
    exp_avg_sq.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])


def root_of(x: Tensor, out: Tensor) -> Tensor:
    """Return ``sqrt(x)`` in ``out``, to one unit in the last place.

    PyTorch's own sqrt takes twice the time of these two on a CPU.
    """
    return torch.pow(x, -0.5, out=out).reciprocal_()


def update_param(param: Tensor, exp_avg: Tensor, root: Tensor, c: Coefficients) -> None:
    """Decay a parameter and move it along its moments, in place.

    ``root`` is ``sqrt(v)`` and is overwritten; it may have fewer rows than ``param``.
    """
    root.add_(c.eps)
    same = root.shape == param.shape
    direction = torch.div(exp_avg, root, out=root) if same else exp_avg / root
    if isinstance(c.decay, Tensor) or c.decay != 1.0:
        param.mul_(c.decay)
    if isinstance(c.size, Tensor):
        param.addcmul_(direction, c.size, value=-1)
    else:
        param.add_(direction, alpha=-c.size)


def forget(exp_avg: Tensor, exp_avg_sq: Tensor, missed: Tensor, betas: Betas) -> None:
    """Decay the moments of rows by the steps they missed, ``[...]``: ``m b1^k`` and ``v b2^k``."""
    for moment, beta in zip((exp_avg, exp_avg_sq), betas, strict=True):
        kept = torch.pow(beta, missed.double())  # in float64, for k may be large
        moment.mul_(kept.to(compute_dtype(moment.dtype))[..., None])
