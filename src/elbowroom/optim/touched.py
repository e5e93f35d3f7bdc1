"""Which rows have a gradient."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK = 2**20  # elements of a gradient read at once, so that the second reading finds it in cache


def touched_rows(
    grad: Float[Tensor, "n D"], at: Int[Tensor, " k"] | None = None
) -> Bool[Tensor, " n"] | Bool[Tensor, " k"]:
    """Return which rows, all or those at some indices, hold anything but zeros; NaN is something.

    On a CPU one column is looked at first: a row with something there needs no further reading,
    and if that is so for all, the rest of the gradient is not read at all.
    """
    count = len(grad) if at is None else len(at)
    if grad.numel() == 0:
        return torch.zeros(count, dtype=torch.bool, device=grad.device)
    if at is None and (grad.device.type != "cpu" or torch.compiler.is_compiling()):
        return (grad != 0).any(-1)
    column = grad[:, grad.shape[1] // 2]
    touched = (column if at is None else column[at]) != 0
    unsettled = (~touched).nonzero().squeeze(1)
    if at is None and 8 * len(unsettled) > count:
        return _read(grad)
    if len(unsettled):
        touched[unsettled] = _read(grad[unsettled if at is None else at[unsettled]])
    return touched


def _read(grad: Float[Tensor, "n D"]) -> Bool[Tensor, " n"]:
    """Read all elements. Largest and smallest are both zero only if all are; NaN comes through.

    PyTorch vectorises these two; ``any`` and the maximum norm are slower, and sums of squares
    underflow to zero.
    """
    blocks = torch.split(grad, max(1, BLOCK // grad.shape[1]))
    return torch.cat([(x.amax(-1) != 0) | (x.amin(-1) != 0) for x in blocks])
