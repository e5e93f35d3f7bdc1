"""Rows taken from where they lie into a scratch that stays in cache, and put back."""

from __future__ import annotations

import torch
from torch import Tensor

from elbowroom.optim.rows import At

GATHERED = 2**18  # elements of an operand in a gathered block; five of them stay in cache


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


class Shelf:
    """A matrix that rows are taken from and put back into, once a block.

    What is the same for all blocks of a step is found out here: a block is so small that it counts.
    """

    def __init__(self, x: Tensor, dtype: torch.dtype) -> None:
        self._x = x.detach()
        self._dtype = dtype
        self._same = x.dtype == dtype
        # index_copy moves one element at a time, however wide. The type is never computed with,
        # and copying keeps every bit.
        self._wide = self._x.view(torch.complex128) if self._same and _is_wide(x) else None

    def load(self, at: At, buffer: Tensor | None) -> Tensor:
        """Return some rows in the dtype to compute in: themselves if they can be, else a copy."""
        if isinstance(at, slice):
            return self._x[at].to(self._dtype)
        if not self._same or buffer is None:
            return self._x.index_select(0, at).to(self._dtype)
        return torch.index_select(self._x, 0, at, out=buffer)

    def store(self, at: At, value: Tensor) -> None:
        """Put rows back where `load` took them."""
        if isinstance(at, slice):
            if not self._same:
                self._x[at] = value.to(self._x.dtype)
        elif self._wide is not None:
            self._wide.index_copy_(0, at, value.view(torch.complex128))
        else:
            self._x.index_copy_(0, at, value.to(self._x.dtype))


def _is_wide(x: Tensor) -> bool:
    """Return whether rows can be copied 16 bytes at a time."""
    size = x.element_size()
    fits = x.shape[1] * size % 16 == 0 and x.data_ptr() % 16 == 0
    return fits and x.stride(1) == 1 and x.stride(0) * size % 16 == 0
