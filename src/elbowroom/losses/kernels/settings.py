"""Sizes that decide how fast the kernels are, and nothing else; one choice for each architecture.

They are found by measuring (``benchmarks/sweep_loss_cuda.py``) and written down here: nothing is
tried out while a user waits. `CHOSEN` lets a measurement, or a test, put something else in their
place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Rows:
    """How a program goes over a token's logits.

    Attributes:
        block: logits held at once.
        warps: that share them.
        stages: blocks on their way from memory while one is worked on, and that one.
    """

    block: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Tile:
    """Part of a product: so many columns, so deep at a time, by so many warps, in stages."""

    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Settings:
    """All of them.

    Attributes:
        survey, grade: of the kernels of that name.
        fading: most logits at once for softmaxes that fade, which need more registers an entry.
        half, single, exact: tiles of products in 16 bits, in TF32 and in float32: the largest that
            do not spill. Hopper takes operands from shared memory, which leaves registers.
        tokens: strips and tokens that a program of `lists.tokens_kernel` looks at.
        entries: entries and columns of `products.entries_kernel`, and its warps.
        listed, share: a token's hidden gradient is a sum of rows where it keeps so many entries at
            most, or so small a share of the vocabulary: reading a row for each costs less than its
            part of a block's product.
        pieces: of the products for blocks of tokens, a multiprocessor.
    """

    survey: Rows = Rows(2048, 8, 3)
    grade: Rows = Rows(2048, 8, 1)
    fading: int = 2048
    half: Tile = Tile(128, 32, 8, 4)
    single: Tile = Tile(128, 16, 8, 3)
    exact: Tile = Tile(64, 32, 8, 3)
    tokens: tuple[int, int] = (8, 512)
    entries: tuple[int, int, int] = (16, 256, 4)
    listed: int = 128
    share: float = 1 / 250
    pieces: int = 2


USUAL = Settings()
BY_CAPABILITY = {
    9: replace(USUAL, half=Tile(256, 64, 8, 3), single=Tile(128, 32, 8, 2)),
    10: replace(USUAL, single=Tile(128, 32, 8, 2), exact=Tile(64, 16, 8, 2)),
}
CHOSEN: Settings | None = None
WITHOUT = 1  # multiprocessors of a device that has none


def of(device: torch.device) -> Settings:
    """Return the settings for a device.

    Args:
        device: where the kernels run.
    """
    if CHOSEN is not None:
        return CHOSEN
    if device.type != "cuda":
        return USUAL
    return BY_CAPABILITY.get(torch.cuda.get_device_capability(device)[0], USUAL)


def multiprocessors(device: torch.device) -> int:
    """Return how many programs a device works on at once, at least.

    Args:
        device: where the kernels run.
    """
    if device.type != "cuda":
        return WITHOUT
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
