"""Launch the kernels: grids, tiles and warps; `elbowroom.losses.fused` knows what for.

Nothing here waits for the device: what a kernel has to do beyond its grid it reads from lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from elbowroom.losses.kernels import lists as lists_module
from elbowroom.losses.kernels import products, rows

STRIP = 128
BLOCK = 4096  # logits of a token that a program holds at once
FADING_BLOCK = 2048  # the same for softminus, which needs more registers an entry
ROW_WARPS = 8
NUMBERS = ("scale", "cap", "fade", "leak", "smoothing", "z_loss")
SWITCHES = ("BIAS", "CAP", "PROTECT", "RARE", "VARIANT")
# Columns, depth, warps, stages of the products' tiles, by bytes of an element: the largest that do
# not spill. Hopper takes operands from shared memory, which leaves registers for the sums.
TILES = {2: (128, 32, 8, 4), 4: (128, 32, 8, 2)}
HOPPER, HOPPER_TILES = 9, TILES | {2: (256, 64, 8, 3)}


def on(x: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device the current one."""
    return torch.cuda.device(x.get_device())


def _block(vocab: int, variant: int) -> int:
    most = FADING_BLOCK if variant == rows.FADE.value else BLOCK
    return min(most, max(STRIP, 1 << (vocab - 1).bit_length()))


def _numbers(options: Mapping[str, Any]) -> list[float]:
    return [options[name] for name in NUMBERS]


def _switches(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in SWITCHES}


def survey(
    given: Sequence[Any],
    results: Sequence[Tensor],
    stats: tuple[Sequence[Tensor], Tensor] | None,
    options: Mapping[str, Any],
    *,
    grading: bool,
) -> None:
    """Find losses, sums, strips and statistics of each token.

    Args:
        given: raw, bias, target, counted, margin, protect, rare.
        results: losses, found, flags, kept.
        stats: log-probability, rank, argmax and kept, and touched; None if not wanted.
        options: numbers and switches.
        grading: whether flags are wanted.
    """
    raw = given[0]
    losses, found, flags, kept = results
    seen: list[Tensor | None] = [None] * 4
    if stats is not None:
        (log_probability, rank, argmax, kept), touched = stats[0], stats[1].view(torch.uint8)
        seen = [touched, log_probability, rank, argmax]
    n, vocab = raw.shape
    with on(raw):
        rows.survey_kernel[(n,)](
            *given, losses, found, flags, *seen, kept, vocab, flags.shape[1], *_numbers(options),
            **_switches(options), SMOOTH=options["smoothing"] > 0, STATS=stats is not None,
            GRADIENT=grading, BLOCK=_block(vocab, options["VARIANT"]), num_warps=ROW_WARPS,
        )  # fmt: skip
    if stats is not None:
        results[3].copy_(kept)


def grade(
    given: Sequence[Any],
    factor: Tensor,
    found: Tensor,
    flags: Tensor,
    needed: Tensor,
    place: Tensor,
    blocks: Tensor,
    second: Tensor,
    options: Mapping[str, Any],
    listed: int,
    tokens: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn products into gradients where needed; return entries: columns, values, counts."""
    raw = given[0]
    n, vocab = raw.shape
    column = torch.empty(n * max(1, listed), dtype=torch.int32, device=raw.device)
    value = torch.empty(n * max(1, listed), dtype=torch.float32, device=raw.device)
    counts = torch.empty(n, dtype=torch.int32, device=raw.device)
    with on(raw):
        rows.grade_kernel[(n,)](
            *given, factor, found, flags, needed, place, blocks, second, column, value, counts,
            vocab, flags.shape[1], tokens, *_numbers(options), **_switches(options),
            DETACHED=options["DETACHED"], LISTED=listed, WHOLE=False,
            BLOCK=_block(vocab, options["VARIANT"]), num_warps=ROW_WARPS,
        )  # fmt: skip
    return column, value, counts


def grade_all(
    given: Sequence[Any], factor: Tensor, found: Tensor, options: Mapping[str, Any]
) -> None:
    """Turn all products into gradients."""
    raw = given[0]
    n, vocab = raw.shape
    with on(raw):
        rows.grade_kernel[(n,)](
            *given, factor, found, *[None] * 8, vocab, 0, 1, *_numbers(options),
            **_switches(options), DETACHED=options["DETACHED"], LISTED=0, WHOLE=True,
            BLOCK=_block(vocab, options["VARIANT"]), num_warps=ROW_WARPS,
        )  # fmt: skip


def strips(
    flags: Tensor, order: Tensor, blocks: Tensor, tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each block of sorted tokens which strips it needs: marked, listed, counted."""
    n, count = flags.shape
    grid = -(-n // tokens)
    needed = torch.empty(grid, count, dtype=torch.int8, device=flags.device)
    listed = torch.empty(grid, count, dtype=torch.int32, device=flags.device)
    counts = torch.empty(grid, dtype=torch.int32, device=flags.device)
    with on(flags):
        lists_module.strips_kernel[(grid,)](
            flags, order, blocks, needed, listed, counts, count,
            TOKENS=tokens, STRIPS=256, ROWS=min(32, tokens), num_warps=8,
        )  # fmt: skip
    return needed, listed, counts


def tokens(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each strip the tokens that keep something of it, and their number."""
    n, count = flags.shape
    listed = torch.empty(count, n, dtype=torch.int16, device=flags.device)
    counts = torch.empty(count, dtype=torch.int32, device=flags.device)
    with on(flags):
        lists_module.tokens_kernel[(-(-count // 16),)](
            flags, listed, counts, n, count, STRIPS=16, ROWS=128, num_warps=4
        )
    return listed, counts


def weight(
    gradient: Tensor,
    hidden: Tensor,
    listed: tuple[Tensor, Tensor],
    unit: Tensor,
    out: Tensor,
    bias: Tensor | None,
    precision: str,
    *,
    first: bool,
) -> None:
    """Add the weight's gradient, and that of the bias; set them where this is the first chunk."""
    (n, vocab), width = gradient.shape, hidden.shape[1]
    columns, depth, warps, stages = _tile(hidden)
    parts = -(-width // columns)
    with on(gradient):
        products.weight_kernel[(-(-vocab // STRIP) * parts,)](
            gradient, hidden, *listed, unit, out, bias, n, vocab, width,
            FIRST=first, BIAS=bias is not None, DEPTH=depth, COLUMNS=columns, PRECISION=precision,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip


def blocks(
    gradient: Tensor,
    matrix: Tensor,
    order: Tensor,
    blocked: Tensor,
    steps: Tensor,
    counts: Tensor,
    unit: Tensor,
    out: Tensor,
    tokens: int,
    precision: str,
) -> None:
    """Set the hidden gradients of tokens in blocks."""
    vocab, width = matrix.shape
    columns, depth, warps, stages = _tile(matrix)
    with on(gradient):
        products.blocks_kernel[(len(counts), -(-width // columns))](
            gradient, matrix, order, blocked, steps, counts, unit, out,
            vocab, steps.shape[1], width, TOKENS=tokens, DEPTH=depth, PARTS=STRIP // depth,
            COLUMNS=columns, PRECISION=precision, num_warps=warps, num_stages=stages,
        )  # fmt: skip


def entries(
    matrix: Tensor,
    place: Tensor,
    blocked: Tensor,
    listed: tuple[Tensor, Tensor, Tensor],
    unit: Tensor,
    out: Tensor,
    most: int,
) -> None:
    """Set the hidden gradients of tokens that are in no block."""
    column, value, counts = listed
    width = matrix.shape[1]
    columns = min(512, max(16, 1 << (width - 1).bit_length()))
    with on(matrix):
        products.entries_kernel[(len(place), -(-width // columns))](
            matrix, place, blocked, column, value, counts, unit, out, width,
            LISTED=most, ROWS=16, COLUMNS=columns, num_warps=4,
        )  # fmt: skip


def _tile(x: Tensor) -> tuple[int, int, int, int]:
    """Return columns, depth, warps and stages of a product's tile, narrow for narrow matrices."""
    hopper = x.device.type == "cuda" and torch.cuda.get_device_capability(x.device)[0] == HOPPER
    columns, depth, warps, stages = (HOPPER_TILES if hopper else TILES)[x.dtype.itemsize]
    narrow = max(16, 1 << (x.shape[1] - 1).bit_length())
    return min(columns, narrow), depth, warps, stages
