"""What no way can beat: the operations and bytes that cannot be avoided, at measured rates."""

from __future__ import annotations

import statistics

import torch

from elbowroom.study.speed.problem import Shape
from elbowroom.study.speed.rounds import Timer

ROUNDS = 9


def matrix_rate(timer: Timer, dtype: torch.dtype, device: str, size: int = 8192) -> float:
    """Return the operations a second of a square product by the vendor's library.

    Args:
        timer: of the device.
        dtype: of the matrices.
        device: where to measure.
        size: rows and columns.
    """
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    seconds = [timer(lambda: torch.mm(a, b.T, out=out)) for _ in range(ROUNDS + 3)][3:]
    return 2 * size**3 / statistics.median(seconds)


def copy_rate(timer: Timer, device: str, size: int = 2**30) -> float:
    """Return the bytes a second of a copy, reading and writing.

    Args:
        timer: of the device.
        device: where to measure.
        size: bytes to copy.
    """
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    seconds = [timer(lambda: target.copy_(source)) for _ in range(ROUNDS + 3)][3:]
    return 2 * size / statistics.median(seconds)


def floor(shape: Shape, kept: float, itemsize: int, matrix: float, copy: float) -> float:
    r"""Return the seconds that forward and backward cannot go below.

    With ``f`` the share that is kept, :math:`(2 + 4 f) N V D` operations, and hidden states and
    head read once and their gradients written once.

    Args:
        shape: tokens, width, vocabulary.
        kept: the share of the logits that is kept.
        itemsize: bytes of an element.
        matrix: operations a second.
        copy: bytes a second.

    Example:
        >>> floor(Shape(10, 10, 10), 1.0, 2, matrix=6000.0, copy=800.0)
        2.0
    """
    operations = (2 + 4 * kept) * shape.work
    moved = 2 * itemsize * shape.width * (shape.tokens + shape.vocab)
    return operations / matrix + moved / copy
