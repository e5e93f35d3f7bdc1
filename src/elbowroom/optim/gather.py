"""Rows taken from where they lie into a scratch that stays in cache, and put back."""

from __future__ import annotations

import torch
from torch import Tensor

from elbowroom.optim.rows import At

GATHERED = 2**19  # elements of an operand in a gathered block; five of them stay in cache


class Scratch:
    """Memory to gather into, kept from step to step."""

    def __init__(self) -> None:
        self._flat: dict[torch.dtype, Tensor] = {}

    def take(self, count: int, rows: int, width: int, dtype: torch.dtype) -> list[Tensor]:
        """Return ``count`` tensors ``[rows, width]`` with anything in them."""
        flat = self._flat.get(dtype)
        need = count * rows * width
        if flat is None or flat.numel() < need:
            flat = torch.empty(max(need, 5 * GATHERED), dtype=dtype)
            self._flat[dtype] = flat
        return list(flat[:need].view(count, rows, width).unbind())


def load(x: Tensor, at: At, dtype: torch.dtype, buffers: list[Tensor]) -> Tensor:
    """Return some rows in the dtype to compute in: themselves if they can be, else a copy."""
    if isinstance(at, slice):
        return x[at].to(dtype)
    if x.dtype != dtype:
        return x.index_select(0, at).to(dtype)
    buffer, x = buffers.pop(), x.detach()
    torch.index_select(widened(x), 0, at, out=widened(buffer) if is_wide(x) else buffer)
    return buffer


def store(x: Tensor, at: At, value: Tensor) -> None:
    """Put rows back where `load` took them."""
    x = x.detach()
    if isinstance(at, slice):
        if x.dtype != value.dtype:
            x[at] = value.to(x.dtype)
    elif is_wide(x) and x.dtype == value.dtype:
        widened(x).index_copy_(0, at, widened(value))
    else:
        x.index_copy_(0, at, value.to(x.dtype))


def is_wide(x: Tensor) -> bool:
    """Return whether rows can be copied 16 bytes at a time."""
    size = x.element_size()
    fits = x.shape[1] * size % 16 == 0 and x.data_ptr() % 16 == 0
    return fits and x.stride(1) == 1 and x.stride(0) * size % 16 == 0


def widened(x: Tensor) -> Tensor:
    """Return a view for copying: PyTorch's index_copy moves one element at a time, however wide.

    The type is never computed with, and copying keeps every bit.
    """
    return x.view(torch.complex128) if is_wide(x) else x
