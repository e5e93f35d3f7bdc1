# mypy: ignore-errors
# Triton has no types, and reads a kernel's annotations in a way of its own.
"""Products of gradients with hidden states and weights, over what the lists name.

Each result is one program's own and summed in float32 in the order of its list, so that it does
not depend on the schedule. Gradients come divided by ``unit``, so that float16 holds them; sums are
multiplied by it.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from elbowroom.losses.kernels.rows import STRIP

# A checker of types must not wrap a kernel: Triton reads its source, and the names around it.


@triton.jit
@no_type_check
def weight_kernel(
    gradient, hidden, tokens, counts, unit, weight_gradient, bias_gradient, n, V, D,
    FIRST: tl.constexpr, BIAS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """A strip of the weight's gradient: ``gradient.T @ hidden`` over the tokens that keep it."""
    parts = tl.cdiv(D, COLUMNS)
    strip, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    row = strip * STRIP + tl.arange(0, STRIP)
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.load(counts + strip)
    if FIRST | (total > 0):
        factor = tl.load(unit)
        at = weight_gradient + row[:, None].to(tl.int64) * D + column[None, :]
        inside = (row[:, None] < V) & (column[None, :] < D)
        sums = tl.zeros((STRIP,), tl.float32)
        # From what is there: added at the end, it would need as many registers as the sum itself.
        if FIRST:
            acc = tl.zeros((STRIP, COLUMNS), tl.float32)
        else:
            acc = tl.load(at, mask=inside, other=0) / factor
        mine = tokens + strip.to(tl.int64) * n
        for start in range(0, total, DEPTH):
            k = start + tl.arange(0, DEPTH)
            token = tl.load(mine + k, mask=k < total, other=0).to(tl.int64)
            g = tl.load(
                gradient + token[:, None] * V + row[None, :],
                mask=(k[:, None] < total) & (row[None, :] < V),
                other=0,
            )
            h = tl.load(
                hidden + token[:, None] * D + column[None, :],
                mask=(k[:, None] < total) & (column[None, :] < D),
                other=0,
            )
            acc = tl.dot(tl.trans(g), h, acc, input_precision=PRECISION)
            if BIAS:
                sums += tl.sum(g.to(tl.float32), axis=0)
        tl.store(at, acc * factor, mask=inside)
        if BIAS:
            if part == 0:
                sums *= factor
                if not FIRST:
                    sums += tl.load(bias_gradient + row, mask=row < V, other=0)
                tl.store(bias_gradient + row, sums, mask=row < V)


@triton.jit
@no_type_check
def blocks_kernel(
    gradient, weight, order, blocks, strips, counts, unit, hidden_gradient, V, S, D,
    TOKENS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """The hidden gradient of a block of sorted tokens: ``gradient @ weight`` over its strips.

    A strip is taken in ``PARTS`` of ``DEPTH``.
    """
    block, part = tl.program_id(0), tl.program_id(1)
    last = tl.load(blocks)
    if block * TOKENS < last:
        place = block * TOKENS + tl.arange(0, TOKENS)
        token = tl.load(order + place, mask=place < last, other=0).to(tl.int64)
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        mine = strips + block.to(tl.int64) * S
        acc = tl.zeros((TOKENS, COLUMNS), tl.float32)
        for step in range(0, tl.load(counts + block) * PARTS):
            k = tl.load(mine + step // PARTS) * STRIP + step % PARTS * DEPTH + tl.arange(0, DEPTH)
            g = tl.load(
                gradient + token[:, None] * V + k[None, :],
                mask=(place[:, None] < last) & (k[None, :] < V),
                other=0,
            )
            w = tl.load(
                weight + k[:, None].to(tl.int64) * D + column[None, :],
                mask=(k[:, None] < V) & (column[None, :] < D),
                other=0,
            )
            acc = tl.dot(g, w, acc, input_precision=PRECISION)
        at = hidden_gradient + token[:, None] * D + column[None, :]
        inside = (place[:, None] < last) & (column[None, :] < D)
        tl.store(at, acc * tl.load(unit), mask=inside)


@triton.jit
@no_type_check
def entries_kernel(
    weight, place, blocks, entry_column, entry_value, entries, unit, hidden_gradient, D,
    LISTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """The hidden gradient of a token that keeps few entries: a weighted sum of their rows."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(place + token) >= tl.load(blocks):
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.load(entries + token)
        acc = tl.zeros((COLUMNS,), tl.float32)
        for start in range(0, total, ROWS):
            k = start + tl.arange(0, ROWS)
            row = tl.load(entry_column + token * LISTED + k, mask=k < total, other=0).to(tl.int64)
            g = tl.load(entry_value + token * LISTED + k, mask=k < total, other=0)
            w = tl.load(
                weight + row[:, None] * D + column[None, :],
                mask=(k[:, None] < total) & (column[None, :] < D),
                other=0,
            )
            acc += tl.sum(g[:, None] * w.to(tl.float32), axis=0)
        tl.store(hidden_gradient + token * D + column, acc * tl.load(unit), mask=column < D)
