"""Randomness by counter: each number follows from seed, stream, step and position alone.

So the order of the data depends on nothing but a run's own seed, resuming needs no replay, and a
run draws the same numbers alone as in company. `bits`, `uniform` and `below` are made of integer
operations, whose results are the same on every device. They wait for nothing, so a CUDA graph can
hold them: it reads the step from a tensor on the device.

Each level of the counter picks a number of a SplitMix64 sequence (Steele, Lea and Flood, 2014),
and the next level's sequence starts there::

    h = mix(stream + (seed + 1) * G)      mix: SplitMix64's finalizer, one to one on 64 bits
    h = mix(h + step * G)                 G: its odd increment, 2^64 divided by the golden ratio
    bits = mix(h + position * G)

All arithmetic is modulo 2^64, in int64. Not for cryptography.
"""

from __future__ import annotations

import hashlib
import math

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError

LARGEST_RANGE = 2**40  # of `below`: keeps the bias under 2^-23 of each probability
_PAIRS_AT_ONCE = 2**15  # normal pairs made at a time, so that they stay in the cache


def _signed(x: int) -> int:
    """Return the int64 that has the bits of an unsigned 64-bit integer."""
    return x - (1 << 64) if x >> 63 else x


_INCREMENT = _signed(0x9E3779B97F4A7C15)
_FACTORS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def stream(name: str) -> int:
    """Return the stream of random numbers that belongs to a name: a hash of it, below 2^63.

    Example:
        >>> stream("windows") != stream("languages")
        True
    """
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def bits(
    seed: Int[Tensor, "*s"],
    stream: int,
    step: int | Integer[Tensor, "*t"],
    position: int | Integer[Tensor, "*p"],
) -> Int[Tensor, "*n"]:
    """Return 64 random bits for each seed, step and position, as int64 of either sign.

    Args:
        seed: int64, usually ``[R]``, or ``[R, 1]`` where each run has several positions.
        stream: what the numbers are for, 0 to 2^63 - 1; see `stream`.
        step: a number, or a tensor on the seed's device: 0-d, or one that broadcasts.
        position: likewise.

    Example:
        >>> bits(torch.tensor([0, 1]), 0, 0, 0).tolist()
        [3746585686858627171, 7179414561303996522]
    """
    seed = checks.is_integer("seed", seed).long()
    checks.integer("stream", stream, at_least=0)
    h = _mix(seed * _INCREMENT + (stream + _INCREMENT))
    h = _mix(h + _counter("step", step, seed.device) * _INCREMENT)
    return _mix(h + _counter("position", position, seed.device) * _INCREMENT)


def uniform(
    seed: Int[Tensor, "*s"],
    stream: int,
    step: int | Integer[Tensor, "*t"],
    position: int | Integer[Tensor, "*p"],
) -> Float[Tensor, "*n"]:
    """Return float32 numbers in [0, 1): multiples of 2^-24, from the highest of the `bits`.

    Example:
        >>> uniform(torch.tensor([0]), 0, 0, torch.arange(3))
        tensor([0.2031, 0.3381, 0.2691])
    """
    return _shift(bits(seed, stream, step, position), 40).float() * 2.0**-24


def below(
    n: int | Integer[Tensor, "*m"],
    seed: Int[Tensor, "*s"],
    stream: int,
    step: int | Integer[Tensor, "*t"],
    position: int | Integer[Tensor, "*p"],
) -> Int[Tensor, "*k"]:
    """Return int64 numbers from 0 to n - 1.

    They are remainders of 63 bits. Each has probability 1/n within 2^-63, which is at most 2^-23
    of 1/n itself where n is up to 2^40.

    Args:
        n: from 1 to 2^40: a number, or a tensor that broadcasts, whose values are trusted.
        seed: as for `bits`, like all that follows.
        stream: what the numbers are for.
        step: the step of training.
        position: where within the step.

    Example:
        >>> below(torch.tensor([10, 1000]), torch.tensor([7]), 0, 0, 0).tolist()
        [0, 450]
    """
    if isinstance(n, Tensor):
        n = checks.is_integer("n", n).long()
    elif not 1 <= checks.integer("n", n) <= LARGEST_RANGE:
        raise ArgumentValueError("n", "from 1 to 2^40", n)
    return _shift(bits(seed, stream, step, position), 1) % n


def normal(seed: int, stream: int, count: int) -> Float[Tensor, " count"]:
    """Return the first ``count`` standard normal numbers of a stream, float32, made on the CPU.

    Box-Muller in float64: positions 2k and 2k + 1 of step 0 give numbers 2k and 2k + 1. Rounding
    to float32 hides in what the logarithms of two machines may differ, but for one number in 2^29.

    Args:
        seed: any int64.
        stream: what the numbers are for; see `stream`.
        count: how many.

    Example:
        >>> torch.equal(normal(3, 0, 5), normal(3, 0, 8)[:5])
        True
    """
    checks.integer("count", count, at_least=0)
    key = torch.tensor(checks.integer("seed", seed))
    pairs = -(-count // 2)
    out = torch.empty(pairs, 2)
    for first in range(0, pairs, _PAIRS_AT_ONCE):
        last = min(first + _PAIRS_AT_ONCE, pairs)
        # the highest 53 bits, in (0, 1]: the logarithm is finite
        drawn = _shift(bits(key, stream, 0, torch.arange(2 * first, 2 * last)), 11) + 1
        u, angle = drawn.double().mul_(2.0**-53).view(-1, 2).unbind(1)
        radius, angle = u.log().mul_(-2).sqrt_(), angle * (2 * math.pi)
        out[first:last, 0] = radius * angle.cos()
        out[first:last, 1] = radius * angle.sin()
    return out.view(-1)[:count]


def _shift(x: Int[Tensor, "*n"], by: int) -> Int[Tensor, "*n"]:
    """Shift to the right as unsigned integers do: zeros come in, whatever the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Scramble 64 bits one to one, so that each depends on all."""
    x = (x ^ _shift(x, 30)) * _FACTORS[0]
    x = (x ^ _shift(x, 27)) * _FACTORS[1]
    return x ^ _shift(x, 31)


def _counter(name: str, value: int | Tensor, device: torch.device) -> Int[Tensor, "*n"]:
    """Return a step or position as int64: products with it must wrap around, not grow."""
    if isinstance(value, Tensor):
        return checks.is_integer(name, value).long()
    return torch.full((), checks.integer(name, value, at_least=0), device=device)
