"""Launch the kernels: grids, tiles and warps; `elbowroom.losses.fused` knows what for.

Nothing here waits for the device: what a kernel has to do beyond its grid it reads from lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from elbowroom.losses.kernels import lists as lists_module
from elbowroom.losses.kernels import products, rows, settings
from elbowroom.losses.kernels.settings import Rows, Tile

STRIP = 128
TOKENS = 128  # of a block
JOINED = 32  # tokens that a program of `join_kernel` adds up
SCALED = 4096  # elements that a program scales at once
NUMBERS = ("scale", "cap", "fade", "leak", "smoothing", "z_loss")
SWITCHES = ("BIAS", "CAP", "PROTECT", "RARE", "VARIANT")


@dataclass(frozen=True)
class Work:
    """What one chunk leaves to be done; lists that never leave the device.

    Attributes:
        strips, counts: of each token the strips that it keeps something of, the first ``listed``.
        block_strips, block_counts: of each block those that any of its tokens keeps something of.
        order, place: tokens sorted, those in blocks first, and the place of each.
        blocked: how many are in blocks.
        listed: entries that a token in no block has at most; 0 if all are in blocks.
    """

    strips: Tensor
    counts: Tensor
    block_strips: Tensor
    block_counts: Tensor
    order: Tensor
    place: Tensor
    blocked: Tensor
    listed: int


def on(x: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device the current one."""
    return torch.cuda.device(x.get_device())


def of_rows(chosen: Rows, vocab: int, variant: int, fading: int) -> dict[str, int]:
    """Return block, stages and warps of a kernel that goes over a token's logits."""
    most = min(chosen.block, fading) if variant == rows.FADE.value else chosen.block
    block = min(most, max(STRIP, 1 << (vocab - 1).bit_length()))
    return {"BLOCK": block, "STAGES": chosen.stages, "num_warps": chosen.warps}


def _numbers(options: Mapping[str, Any]) -> list[float]:
    return [options[name] for name in NUMBERS]


def _switches(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in SWITCHES}


def survey(
    given: Sequence[Any],
    results: Sequence[Tensor | None],
    stats: tuple[Sequence[Tensor], Tensor] | None,
    options: Mapping[str, Any],
    listed: int,
) -> None:
    """Find losses, sums, strips and statistics of each token.

    Args:
        given: raw, bias, target, counted, margin, protect, rare.
        results: losses, found, kept; then flags, strips, counts, or None where no gradient is
            wanted.
        stats: log-probability, rank, argmax and kept, and touched; None if not wanted.
        options: numbers and switches.
        listed: strips listed of a token.
    """
    raw = given[0]
    losses, found, kept, flags, strips, counts = results
    seen: list[Tensor | None] = [None] * 4
    if stats is not None:
        log_probability, rank, argmax, kept_too = stats[0]
        seen = [stats[1].view(torch.uint8), log_probability, rank, argmax]
    n, vocab = raw.shape
    chosen = settings.of(raw.device)
    with on(raw):
        rows.survey_kernel[(n,)](
            *given, losses, found, flags, strips, counts, *seen, kept,
            vocab, -(-vocab // STRIP), raw.stride(0), listed, *_numbers(options),
            **_switches(options), SMOOTH=options["smoothing"] > 0, STATS=stats is not None,
            GRADIENT=flags is not None,
            **of_rows(chosen.survey, vocab, options["VARIANT"], chosen.fading),
        )  # fmt: skip
    if stats is not None:
        assert kept is not None
        kept_too.copy_(kept)


def grade(
    given: Sequence[Any],
    factor: Tensor,
    found: Tensor,
    work: Work | None,
    second: Tensor | None,
    options: Mapping[str, Any],
) -> tuple[Tensor, Tensor] | None:
    """Turn products into gradients where that is needed: everywhere, if there are no lists.

    Returns columns and number of the entries of tokens that are in no block, where there can be
    such tokens.
    """
    raw = given[0]
    n, vocab = raw.shape
    column = counts = None
    listed = 0 if work is None else work.listed
    if listed:
        column = torch.empty(n * listed, dtype=torch.int32, device=raw.device)
        counts = torch.empty(n, dtype=torch.int32, device=raw.device)
    names: list[Tensor | None] = [None] * 6
    if work is not None:
        names = [work.strips, work.counts, work.block_strips, work.block_counts]
        names += [work.place, work.blocked]
    chosen = settings.of(raw.device)
    with on(raw):
        rows.grade_kernel[(n,)](
            *given, factor, found, *names, second, column, counts,
            vocab, -(-vocab // STRIP), raw.stride(0), listed, TOKENS, *_numbers(options),
            **_switches(options), DETACHED=options["DETACHED"], LISTS=listed > 0,
            WHOLE=work is None,
            **of_rows(chosen.grade, vocab, options["VARIANT"], chosen.fading),
        )  # fmt: skip
    return None if column is None or counts is None else (column, counts)


def strips(flags: Tensor, order: Tensor, blocked: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each block of sorted tokens which strips it needs, and their number."""
    n, count = flags.shape
    grid = -(-n // TOKENS)
    listed = torch.empty(grid, count, dtype=torch.int32, device=flags.device)
    counts = torch.empty(grid, dtype=torch.int32, device=flags.device)
    with on(flags):
        lists_module.strips_kernel[(grid,)](
            flags, order, blocked, listed, counts, count,
            TOKENS=TOKENS, STRIPS=256, ROWS=32, num_warps=8,
        )  # fmt: skip
    return listed, counts


def tokens(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each strip the tokens that keep something of it, and their number."""
    n, count = flags.shape
    listed = torch.empty(count, n, dtype=torch.int16, device=flags.device)
    counts = torch.empty(count, dtype=torch.int32, device=flags.device)
    width, height = settings.of(flags.device).tokens
    with on(flags):
        lists_module.tokens_kernel[(-(-count // width),)](
            flags, listed, counts, n, count, STRIPS=width, ROWS=height, num_warps=4
        )
    return listed, counts


def weight(
    gradient: Tensor,
    hidden: Tensor,
    flags: Tensor,
    unit: Tensor,
    out: Tensor,
    rest: Tensor | None,
    bias: Tensor | None,
    precision: str,
    *,
    first: bool,
    last: bool,
) -> None:
    """Add to the weight's gradient, and to that of the bias; they begin with the first chunk.

    Until the last chunk ``rest`` holds what the dtype of ``out`` does not.
    """
    (n, vocab), width = gradient.shape, hidden.shape[1]
    tile = tile_of(hidden, precision)
    if bias is not None or not (first and last):  # else registers do not suffice
        tile = replace(tile, columns=max(16, tile.columns // 2))
    parts = -(-width // tile.columns)
    listed, counts = tokens(flags)
    with on(gradient):
        products.weight_kernel[(-(-vocab // STRIP) * parts,)](
            gradient, hidden, listed, counts, unit, out, rest, bias,
            n, vocab, gradient.stride(0), width,
            FIRST=first, LAST=last, BIAS=bias is not None, DEPTH=tile.depth, COLUMNS=tile.columns,
            PRECISION=precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


def blocks(
    gradient: Tensor, matrix: Tensor, work: Work, unit: Tensor, out: Tensor, precision: str
) -> None:
    """Set the hidden gradients of tokens in blocks."""
    vocab, width = matrix.shape
    tile = tile_of(matrix, precision)
    count = settings.of(matrix.device).pieces * settings.multiprocessors(matrix.device)
    most = len(work.block_counts) * -(-width // tile.columns)  # tiles
    partial = out.new_empty(count, TOKENS, tile.columns, dtype=torch.float32)
    shape = {"TOKENS": TOKENS, "COLUMNS": tile.columns}
    with on(gradient):
        products.blocks_kernel[(max(count, most),)](
            gradient, matrix, work.order, work.blocked, work.block_strips, work.block_counts, unit,
            partial, out, vocab, work.block_strips.shape[1], gradient.stride(0), width, count,
            DEPTH=tile.depth, PARTS=STRIP // tile.depth, PRECISION=precision,
            num_warps=tile.warps, num_stages=tile.stages, **shape,
        )  # fmt: skip
        products.join_kernel[(min(most, count // 2) * TOKENS // JOINED,)](
            partial, work.order, work.blocked, unit, out, width, count,
            ROWS=JOINED, num_warps=4, **shape,
        )  # fmt: skip


def entries(
    gradient: Tensor,
    matrix: Tensor,
    work: Work,
    listed: tuple[Tensor, Tensor],
    unit: Tensor,
    out: Tensor,
) -> None:
    """Set the hidden gradients of tokens that are in no block."""
    width = matrix.shape[1]
    count, most, warps = settings.of(matrix.device).entries
    columns = min(most, max(16, 1 << (width - 1).bit_length()))
    with on(matrix):
        products.entries_kernel[(len(work.place), -(-width // columns))](
            gradient, matrix, work.place, work.blocked, *listed, unit, out,
            gradient.stride(0), width, work.listed,
            ROWS=count, COLUMNS=columns, num_warps=warps,
        )  # fmt: skip


def scale(x: Tensor, factor: Tensor) -> None:
    """Multiply what each run has by its factor, in place; by 1 it costs next to nothing."""
    size = x.numel() // len(x)
    programs = min(-(-size // SCALED), 8 * settings.multiprocessors(x.device))
    with on(x):
        products.scale_kernel[(len(x) * programs,)](
            x, factor.contiguous(), size, programs, BLOCK=SCALED, num_warps=8
        )


def tile_of(x: Tensor, precision: str) -> Tile:
    """Return a product's tile, narrow for narrow matrices."""
    chosen = settings.of(x.device)
    exact = chosen.exact if precision == "ieee" else chosen.single
    tile = exact if x.dtype == torch.float32 else chosen.half
    narrow = max(16, 1 << (x.shape[1] - 1).bit_length())
    return Tile(min(tile.columns, narrow), tile.depth, tile.warps, tile.stages)
