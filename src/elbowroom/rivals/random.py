"""Random numbers by counter: the same seed, step and position give the same bits on any device."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError

_MASK = 0xFFFFFFFF


def _mix(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Scramble 32-bit integers held as int64, one to one, so that each bit depends on all.

    Two rounds of "xor with the shifted self, multiply by an odd number". The products wrap
    around in int64, which leaves their low 32 bits right.
    """
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def uniform(
    seed: int | Int[Tensor, "*runs"],
    step: int | Int[Tensor, ""],
    shape: tuple[int, ...],
    device: torch.device,
) -> Float[Tensor, " *shape"]:
    """Return float64 numbers in [0, 1) of the shape ``[R, ...]``, with 32 random bits each.

    Args:
        seed: an integer for all runs, or one a run, ``[R]``.
        step: the step of training.
        shape: at least two dimensions, R first.
        device: where to make them; the numbers do not depend on it.
    """
    runs = (shape[0], *(1,) * (len(shape) - 1))
    key = _mix(_mix(_seed(seed, shape[0], device) & _MASK) + _step(step, device) & _MASK)
    bits = key.view(runs)
    for dim, size in enumerate(shape[1:], start=1):  # a round a dimension: no index overflows
        position = torch.arange(size, device=device)
        ones = (1,) * (len(shape) - 1 - dim)
        bits = _mix(bits + _mix(position + dim & _MASK).view(size, *ones) & _MASK)
    return bits.double() / (_MASK + 1)


def _seed(seed: int | Tensor, runs: int, device: torch.device) -> Int[Tensor, " R"]:
    if not isinstance(seed, Tensor):
        return torch.full((runs,), checks.integer("seed", seed), device=device)
    checks.is_integer("seed", seed)
    if seed.shape not in (torch.Size(()), torch.Size((runs,))):
        raise ArgumentValueError("seed", f"shape [] or [{runs}], one a run", tuple(seed.shape))
    return seed.to(device=device, dtype=torch.int64).expand(runs)


def _step(step: int | Tensor, device: torch.device) -> Tensor:
    if not isinstance(step, Tensor):
        return torch.full((), checks.integer("step", step, at_least=0), device=device)
    checks.has_shape("step", checks.is_integer("step", step), (), "a 0-d tensor")
    return step.to(device=device, dtype=torch.int64)
