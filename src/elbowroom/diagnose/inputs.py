"""Checks that the diagnostics share."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.losses.problem import compute_dtype


def matrix(name: str, value: Tensor, rows: Tensor | None) -> Float[Tensor, "*runs V D"]:
    """Check a matrix and choose rows of it; detached, in the dtype for computing."""
    checks.is_floating(name, value)
    if value.ndim not in (2, 3) or 0 in value.shape:
        raise ArgumentValueError(name, "[V, D] or [R, V, D], not empty", tuple(value.shape))
    value = value.detach().to(compute_dtype(value.dtype))
    return value if rows is None else value[..., row_ids("rows", rows, value), :]


def row_ids(name: str, rows: Tensor, matrix: Tensor) -> Int[Tensor, " K"]:
    """Return the ids of rows given by a mask or by ids; at least one."""
    size = matrix.shape[-2]
    if checks.is_tensor(name, rows).dtype == torch.bool:
        checks.has_shape(name, rows, (size,), "a mask of rows")
        rows = rows.nonzero()[:, 0]
    checks.is_integer(name, rows, "pass ids, or a mask")
    if rows.ndim != 1 or rows.numel() == 0:
        expected = "ids [K] of one row or more, or a mask with such"
        raise ArgumentValueError(name, expected, checks.describe(rows))
    checks.same_device(name, rows, "the matrix", matrix)
    checks.all_true((rows >= 0) & (rows < size), name, f"ids from 0 to {size - 1}", "an id outside")
    return rows.long()
