"""Which numbers products are computed in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from elbowroom.lab.config import Precision


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Let float32 products use the matrix units' TF32 while this lasts, if that is asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
