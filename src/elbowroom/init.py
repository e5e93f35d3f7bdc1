"""How rows of a parameter start."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex

import torch
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError


def zero_rows_(weight: Tensor, rows: Tensor | Iterable[SupportsIndex]) -> Tensor:
    r"""Set the given rows of a parameter to zero, in place, and return it.

    .. math:: w_i \leftarrow 0 \quad \text{for } i \in rows

    Rows of rare tokens that start at zero are placed by their own contexts alone, instead of first
    leaving a random place. An option for twin languages with separate alphabets, and together with
    ``protect`` and an annealed margin; not a default. Goes beyond the paper.

    Args:
        weight: ``[V, D]``, or ``[R, V, D]`` for R runs. Gradients do not see the change.
        rows: a boolean mask ``[V]``, token ids, or, for ``[R, V, D]``, also a mask ``[R, V]``.

    Example:
        >>> zero_rows_(torch.ones(3, 2), [1])
        tensor([[1., 1.],
                [0., 0.],
                [1., 1.]])
    """
    weight = checks.is_floating("weight", weight)
    if weight.ndim not in (2, 3):
        raise ArgumentValueError("weight", "[V, D] or [R, V, D]", f"shape {tuple(weight.shape)}")
    mask = _as_mask(rows, weight)
    with torch.no_grad():
        return weight.masked_fill_(mask[..., None], 0.0)


def _as_mask(rows: Tensor | Iterable[SupportsIndex], weight: Tensor) -> Tensor:
    """Return a boolean mask ``[V]`` or ``[R, V]`` on the weight's device."""
    if not isinstance(rows, Tensor):
        rows = _as_tensor(rows)
    rows = rows.to(weight.device)
    shape = tuple(weight.shape[:-1])
    if rows.dtype == torch.bool:
        if tuple(rows.shape) not in {shape, shape[-1:]}:
            expected = " or ".join(map(str, sorted({shape, shape[-1:]}, key=len)))
            raise ArgumentValueError("rows", f"a mask of shape {expected}", tuple(rows.shape))
        return rows
    rows = checks.is_integer("rows", rows, "pass token ids or a boolean mask")
    if rows.ndim != 1:
        raise ArgumentValueError("rows", "token ids of shape [K]", f"shape {tuple(rows.shape)}")
    inside = (rows >= 0) & (rows < shape[-1])
    checks.all_true(inside, "rows", f"token ids from 0 to {shape[-1] - 1}", "one outside")
    mask = torch.zeros(shape[-1], dtype=torch.bool, device=weight.device)
    return mask.index_fill_(0, rows.long(), True)


def _as_tensor(rows: Iterable[SupportsIndex]) -> Tensor:
    fix = "pass token ids or a boolean mask"
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise ArgumentTypeError("rows", "a tensor or integers", checks.describe(rows), fix)
    values = list(rows)
    if not values:
        return torch.zeros(0, dtype=torch.long)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise ArgumentTypeError("rows", "integers", f"{checks.describe(value)} in them", fix)
    return torch.tensor([operator.index(value) for value in values])
