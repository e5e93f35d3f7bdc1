# mypy: ignore-errors
# Triton has no types, and reads a kernel's annotations in a way of its own.
"""Where work is left, as lists in a fixed order that never leave the device."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

# A checker of types must not wrap a kernel: Triton reads its source, and the names around it.


@triton.jit(do_not_specialize=["n", "S"])
@no_type_check
def tokens_kernel(
    flags, tokens, counts, n, S, STRIPS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip  # pragma: no cover
    """For each of ``STRIPS`` strips, the tokens that keep something of it: ``tokens [S, n]``."""
    strip = tl.program_id(0) * STRIPS + tl.arange(0, STRIPS)
    total = tl.zeros((STRIPS,), tl.int32)
    for start in range(0, n, ROWS):
        token = start + tl.arange(0, ROWS)
        inside = (token[:, None] < n) & (strip[None, :] < S)
        flag = tl.load(
            flags + token[:, None].to(tl.int64) * S + strip[None, :], mask=inside, other=0
        )
        marked = (flag != 0) & inside
        at = total[None, :] + tl.cumsum(marked.to(tl.int32), axis=0) - 1
        tl.store(tokens + strip[None, :].to(tl.int64) * n + at, token[:, None], mask=marked)
        total += tl.sum(marked.to(tl.int32), axis=0)
    tl.store(counts + strip, total, mask=strip < S)


@triton.jit(do_not_specialize=["S"])
@no_type_check
def strips_kernel(
    flags, order, blocks, strips, counts, S,
    TOKENS: tl.constexpr, STRIPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """For a block of ``TOKENS`` sorted tokens, the strips that any of them keeps something of.

    ``strips [B, S]`` lists them. Only the first ``blocks`` tokens of ``order`` are in blocks.
    """
    block = tl.program_id(0)
    last = tl.load(blocks)
    total = tl.full((), 0, tl.int32)
    if block * TOKENS < last:
        for start in range(0, S, STRIPS):
            strip = start + tl.arange(0, STRIPS)
            found = tl.zeros((STRIPS,), tl.int32)
            for first in range(0, TOKENS, ROWS):
                place = block * TOKENS + first + tl.arange(0, ROWS)
                token = tl.load(order + place, mask=place < last, other=0).to(tl.int64)
                inside = (place[:, None] < last) & (strip[None, :] < S)
                flag = tl.load(flags + token[:, None] * S + strip[None, :], mask=inside, other=0)
                found = tl.maximum(found, tl.max(flag.to(tl.int32), axis=0))
            at = block.to(tl.int64) * S
            marked = (found != 0) & (strip < S)
            here = total + tl.cumsum(marked.to(tl.int32), axis=0) - 1
            tl.store(strips + at + here, strip, mask=marked)
            total += tl.sum(marked.to(tl.int32), axis=0)
    tl.store(counts + block, total)
