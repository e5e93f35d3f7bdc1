# mypy: ignore-errors
# Triton has no types, and reads a kernel's annotations in a way of its own.
"""Products of gradients with hidden states and weights, over what the lists name.

Each result is one program's own and summed in float32 in the order of its list, so that it does
not depend on the schedule. A strip of gradients is read whole: what lies beyond the vocabulary is
0. Gradients come divided by ``unit``, so that float16 holds them; sums are multiplied by it.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from elbowroom.losses.kernels.rows import STRIP

# A checker of types must not wrap a kernel: Triton reads its source, and the names around it.


@triton.jit(do_not_specialize=["n", "V"])
@no_type_check
def weight_kernel(
    gradient, hidden, tokens, counts, unit, weight_gradient, rest, bias_gradient, n, V, STRIDE, D,
    FIRST: tl.constexpr, LAST: tl.constexpr, BIAS: tl.constexpr, DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """A strip of the weight's gradient: ``gradient.T @ hidden`` over the tokens that keep it.

    It begins with the ``FIRST`` chunk of tokens; after the ``LAST`` it is rounded to the dtype of
    ``weight_gradient``. Until then ``rest``, where there is one, has what that dtype does not hold.
    """
    parts = tl.cdiv(D, COLUMNS)
    strip, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    row = strip * STRIP + tl.arange(0, STRIP)
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.load(counts + strip)
    if FIRST | LAST | (total > 0):
        factor = tl.load(unit)
        begin = strip.to(tl.int64) * STRIP * D  # what is added to it fits into 32 bits
        at = tl.arange(0, STRIP)[:, None] * D + column[None, :]
        inside = (row[:, None] < V) & (column[None, :] < D)
        of_bias = tl.zeros((STRIP,), tl.float32)
        # From what is there: added at the end, it would need as many registers as the sum itself.
        if FIRST:
            acc = tl.zeros((STRIP, COLUMNS), tl.float32)
        else:
            acc = tl.load(weight_gradient + begin + at, mask=inside, other=0).to(tl.float32)
            if rest is not None:
                acc += tl.load(rest + begin + at, mask=inside, other=0).to(tl.float32)
            acc /= factor
        mine = tokens + strip.to(tl.int64) * n
        for start in range(0, total, DEPTH):
            k = start + tl.arange(0, DEPTH)
            token = tl.load(mine + k, mask=k < total, other=0).to(tl.int64)
            g = tl.load(
                gradient + token[:, None] * STRIDE + row[None, :],
                mask=(k < total)[:, None],
                other=0,
            )
            h = tl.load(
                hidden + token[:, None] * D + column[None, :],
                mask=(k[:, None] < total) & (column[None, :] < D),
                other=0,
            )
            acc = tl.dot(tl.trans(g), h, acc, input_precision=PRECISION)
            if BIAS:
                of_bias += tl.sum(g.to(tl.float32), axis=0)
        acc *= factor
        result = acc.to(weight_gradient.dtype.element_ty)
        tl.store(weight_gradient + begin + at, result, mask=inside)
        if (rest is not None) & (not LAST):
            left = (acc - result.to(tl.float32)).to(rest.dtype.element_ty)
            tl.store(rest + begin + at, left, mask=inside)
        if BIAS:
            if part == 0:
                of_bias *= factor
                if not FIRST:
                    of_bias += tl.load(bias_gradient + row, mask=row < V, other=0)
                tl.store(bias_gradient + row, of_bias, mask=row < V)


@triton.jit
@no_type_check
def _tile(
    program, last, D, PIECES, TOKENS: tl.constexpr, COLUMNS: tl.constexpr
):  # pragma: no cover
    """Return a program's block of tokens, part of the columns and piece, and the pieces of a tile.

    Where there are fewer tiles than ``PIECES``, each is cut into pieces along the vocabulary, so
    that a few hard tokens keep the device busy. Programs that follow each other have the same
    piece and columns: they read the same rows of the weight.
    """
    blocks = tl.cdiv(last, TOKENS)
    tiles = blocks * tl.cdiv(D, COLUMNS)
    most = tl.maximum(tiles, 1)
    tile, piece = program % most, program // most
    pieces = tl.where(tiles > 0, tl.maximum(PIECES // most, 1), 0)
    blocks = tl.maximum(blocks, 1)
    return tile % blocks, tile // blocks, tile, piece, pieces, most


@triton.jit(do_not_specialize=["V", "S", "PIECES"])
@no_type_check
def blocks_kernel(
    gradient, weight, order, blocks, strips, counts, unit, partial, hidden_gradient,
    V, S, STRIDE, D, PIECES,
    TOKENS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """The hidden gradient of a block of sorted tokens: ``gradient @ weight`` over its strips.

    A strip is taken in ``PARTS`` of ``DEPTH``. A tile in pieces goes to ``partial [PIECES, TOKENS,
    COLUMNS]``, where `join_kernel` finds it.
    """
    last = tl.load(blocks)
    program = tl.program_id(0)
    block, part, _tile_id, piece, pieces, _tiles = _tile(
        program, last, D, PIECES, TOKENS, COLUMNS
    )  # fmt: skip
    if piece < pieces:
        place = block * TOKENS + tl.arange(0, TOKENS)
        token = tl.load(order + place, mask=place < last, other=0).to(tl.int64)
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        mine = strips + block.to(tl.int64) * S
        steps = tl.load(counts + block) * PARTS
        acc = tl.zeros((TOKENS, COLUMNS), tl.float32)
        for step in range(steps * piece // pieces, steps * (piece + 1) // pieces):
            k = tl.load(mine + step // PARTS) * STRIP + step % PARTS * DEPTH + tl.arange(0, DEPTH)
            g = tl.load(
                gradient + token[:, None] * STRIDE + k[None, :],
                mask=(place < last)[:, None],
                other=0,
            )
            w = tl.load(
                weight + k[:, None].to(tl.int64) * D + column[None, :],
                mask=(k[:, None] < V) & (column[None, :] < D),
                other=0,
            )
            acc = tl.dot(g, w, acc, input_precision=PRECISION)
        if pieces > 1:
            within = tl.arange(0, TOKENS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
            tl.store(partial + program.to(tl.int64) * (TOKENS * COLUMNS) + within, acc)
        else:
            at = hidden_gradient + token[:, None] * D + column[None, :]
            inside = (place[:, None] < last) & (column[None, :] < D)
            tl.store(at, (acc * tl.load(unit)).to(hidden_gradient.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["PIECES"])
@no_type_check
def join_kernel(
    partial, order, blocks, unit, hidden_gradient, D, PIECES,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """Add up, ``ROWS`` tokens a program, the pieces into which `blocks_kernel` cut its tiles."""
    last = tl.load(blocks)
    groups: tl.constexpr = TOKENS // ROWS
    block, part, tile, turn, pieces, tiles = _tile(
        tl.program_id(0) // groups, last, D, PIECES, TOKENS, COLUMNS
    )  # fmt: skip
    if (turn == 0) & (pieces > 1):
        row = tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)
        within = row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for piece in range(0, pieces):
            number = (piece * tiles + tile).to(tl.int64)
            acc += tl.load(partial + number * (TOKENS * COLUMNS) + within)
        place = block * TOKENS + row
        token = tl.load(order + place, mask=place < last, other=0).to(tl.int64)
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        inside = (place[:, None] < last) & (column[None, :] < D)
        value = (acc * tl.load(unit)).to(hidden_gradient.dtype.element_ty)
        tl.store(hidden_gradient + token[:, None] * D + column[None, :], value, mask=inside)


@triton.jit(do_not_specialize=["LISTED"])
@no_type_check
def entries_kernel(
    gradient, weight, place, blocks, entry_column, entries, unit, hidden_gradient,
    STRIDE, D, LISTED,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
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
            g = tl.load(gradient + token * STRIDE + row, mask=k < total, other=0)
            w = tl.load(
                weight + row[:, None] * D + column[None, :],
                mask=(k[:, None] < total) & (column[None, :] < D),
                other=0,
            )
            acc += tl.sum(g.to(tl.float32)[:, None] * w.to(tl.float32), axis=0)
        value = (acc * tl.load(unit)).to(hidden_gradient.dtype.element_ty)
        tl.store(hidden_gradient + token * D + column, value, mask=column < D)


@triton.jit(do_not_specialize=["size", "programs"])
@no_type_check
def scale_kernel(x, factor, size, programs, BLOCK: tl.constexpr):  # pragma: no cover
    """Multiply each run's elements by its factor; where that is 1, there is nothing to do."""
    run, program = tl.program_id(0) // programs, tl.program_id(0) % programs
    number = tl.load(factor + run).to(tl.float32)
    if number != 1:
        start = program.to(tl.int64) * BLOCK
        while start < size:
            i = start + tl.arange(0, BLOCK)
            at = x + run.to(tl.int64) * size + i
            value = tl.load(at, mask=i < size, other=0).to(tl.float32) * number
            tl.store(at, value.to(x.dtype.element_ty), mask=i < size)
            start += programs.to(tl.int64) * BLOCK
