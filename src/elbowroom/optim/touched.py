"""Which rows have a gradient."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK = 2**20  # elements of a gradient read at once, so that the second reading finds it in cache
SAMPLE = 16  # of so many rows one tells beforehand whether looking at a column will settle much


def touched_rows(
    grad: Float[Tensor, "n D"], at: Int[Tensor, " k"] | None = None
) -> Bool[Tensor, " n"] | Bool[Tensor, " k"]:
    """Return which rows, all or those at some indices, hold anything but zeros; NaN is something.

    On a CPU one column is looked at first: a row with something there needs no further reading,
    and if that is so for all, the rest of the gradient is not read at all. Where a sample of the
    rows says that most are not settled that way, everything is read at once.
    """
    count = len(grad) if at is None else len(at)
    if grad.numel() == 0:
        return torch.zeros(count, dtype=torch.bool, device=grad.device)
    if at is None and (grad.device.type != "cpu" or torch.compiler.is_compiling()):
        return (grad != 0).any(-1)
    column = grad[:, grad.shape[1] // 2]
    if at is None and _settles_little(column[::SAMPLE]):
        return _read(grad)
    touched = (column if at is None else column.index_select(0, at)) != 0
    if bool(touched.all()):
        return touched
    unsettled = (~touched).nonzero().squeeze(1)
    touched[unsettled] = _read(grad.index_select(0, unsettled if at is None else at[unsettled]))
    return touched


def _settles_little(column: Float[Tensor, " n"]) -> bool:
    return 8 * int((column == 0).sum()) > len(column)


def _read(grad: Float[Tensor, "n D"]) -> Bool[Tensor, " n"]:
    """Read all elements; NaN comes through.

    Where the largest is zero none is positive, and then their sum is zero only if all are: numbers
    of one sign do not cancel, and a sum of them is never smaller than its parts. PyTorch vectorises
    these two; ``any`` and the maximum norm are slower, and sums of squares underflow to zero.
    """
    blocks = torch.split(grad, max(1, BLOCK // grad.shape[1]))
    return torch.cat([(x.amax(-1) != 0) | (x.sum(-1) != 0) for x in blocks])
