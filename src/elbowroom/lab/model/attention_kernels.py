# mypy: ignore-errors
# Triton has no types, and reads a kernel's annotations in a way of its own.
"""Causal attention over short windows, as Triton kernels; `attention` launches them.

A program holds all keys and values of a window and a head, so weights are made where they are
used, forward and backward, and never stored. Queries, keys and values are read where the
projection left them, ``[window, T, 3, H, d]``, and outputs written as the next product reads them,
``[window, T, H, d]``: nothing is transposed in memory.

Sums are accumulated in float32. What a program writes is its own: results do not depend on the
schedule. Places after the end of a window need no mask of their own among the weights: no query
in it sees them, and to their own queries belong gradients of 0.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

# A checker of types must not wrap a kernel: Triton reads its source, and the names around it.

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def _place(pair, T, H, WIDTH: tl.constexpr):  # pragma: no cover
    """Return where a pair of window and head begins in ``[window, T, H, d]``, and in qkv."""
    window, head = pair // H, pair % H
    first = window.to(tl.int64) * T * H * WIDTH
    return first + head * WIDTH, 3 * first + head * WIDTH


@triton.jit
@no_type_check
def _load(pointer, rows, stride, T, WHOLE: tl.constexpr, WIDTH: tl.constexpr):  # pragma: no cover
    at = rows[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    if WHOLE:
        return tl.load(pointer + at)
    return tl.load(pointer + at, mask=(rows < T)[:, None], other=0)


@triton.jit
@no_type_check
def _store(
    pointer, value, rows, stride, T, WHOLE: tl.constexpr, WIDTH: tl.constexpr
):  # pragma: no cover
    at = rows[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    value = value.to(pointer.dtype.element_ty)
    if WHOLE:
        tl.store(pointer + at, value)
    else:
        tl.store(pointer + at, value, mask=(rows < T)[:, None])


@triton.jit
@no_type_check
def _weights(q, k, rows, keys, scale, PRECISION: tl.constexpr):  # pragma: no cover
    """Return the weight of each key relative to the greatest, and their sum for each query."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
    s = tl.where(rows[:, None] >= keys[None, :], s, float("-inf"))
    p = tl.exp2(s - tl.max(s, axis=1)[:, None])
    return p, tl.sum(p, axis=1)[:, None]


@triton.jit
@no_type_check
def forward_kernel(
    qkv, out, pairs, T, H, scale,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
    TURNS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """``TURNS`` pairs of window and head: ``BLOCK`` keys each, queries ``ROWS`` at a time.

    ``WHOLE`` says that a window fills its block, ``T == BLOCK``.
    """
    size = H * WIDTH
    keys = tl.arange(0, BLOCK)
    begin = tl.program_id(0) * TURNS
    for pair in tl.range(begin, min(begin + TURNS, pairs), num_stages=STAGES):
        to, place = _place(pair, T, H, WIDTH)
        k = _load(qkv + place + size, keys, 3 * size, T, WHOLE, WIDTH)
        v = _load(qkv + place + 2 * size, keys, 3 * size, T, WHOLE, WIDTH)
        for start in tl.range(0, BLOCK if ROWS == BLOCK else T, ROWS, num_stages=1):
            rows = start + tl.arange(0, ROWS)
            q = _load(qkv + place, rows, 3 * size, T, WHOLE, WIDTH)
            p, total = _weights(q, k, rows, keys, scale, PRECISION)
            y = tl.dot(p.to(v.dtype), v, input_precision=PRECISION) / total
            _store(out + to, y, rows, size, T, WHOLE, WIDTH)


@triton.jit
@no_type_check
def backward_kernel(
    qkv, dout, dqkv, pairs, T, H, scale,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
    TURNS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """The gradient of the same pairs by queries, keys and values; weights are made again."""
    size = H * WIDTH
    keys = tl.arange(0, BLOCK)
    begin = tl.program_id(0) * TURNS
    for pair in tl.range(begin, min(begin + TURNS, pairs), num_stages=STAGES):
        upstream, place = _place(pair, T, H, WIDTH)
        k = _load(qkv + place + size, keys, 3 * size, T, WHOLE, WIDTH)
        v = _load(qkv + place + 2 * size, keys, 3 * size, T, WHOLE, WIDTH)
        dk = tl.zeros((BLOCK, WIDTH), tl.float32)
        dv = tl.zeros((BLOCK, WIDTH), tl.float32)
        for start in tl.range(0, BLOCK if ROWS == BLOCK else T, ROWS, num_stages=1):
            rows = start + tl.arange(0, ROWS)
            q = _load(qkv + place, rows, 3 * size, T, WHOLE, WIDTH)
            g = _load(dout + upstream, rows, size, T, WHOLE, WIDTH)
            p, total = _weights(q, k, rows, keys, scale, PRECISION)
            p *= 1 / total
            dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
            ds = (p * (dp - tl.sum(p * dp, axis=1)[:, None])).to(k.dtype)
            dv = tl.dot(tl.trans(p.to(k.dtype)), g, dv, input_precision=PRECISION)
            dk = tl.dot(tl.trans(ds), q, dk, input_precision=PRECISION)
            dq = tl.dot(ds, k, input_precision=PRECISION) * scale
            _store(dqkv + place, dq, rows, 3 * size, T, WHOLE, WIDTH)
        _store(dqkv + place + size, dk * scale, keys, 3 * size, T, WHOLE, WIDTH)
        _store(dqkv + place + 2 * size, dv, keys, 3 * size, T, WHOLE, WIDTH)
