"""What a loss does besides masking: the paper's variants, and two of ours.

Notation: ``z`` the logits of one token, ``y`` its target, ``theta = z_y - margin`` the threshold.
An entry is *below* if ``z_i < theta`` and ``i != y``. Equalization (``protect``) is no variant: it
drops entries under every variant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

__all__ = ["Decoupled", "DetachedBelow", "Leaky", "RareOnly", "Softminus", "Variant"]


class Variant:
    """Base of all variants; without one (``variant=None``) entries below are dropped."""


@dataclass(frozen=True)
class Softminus(Variant):
    r"""Kept logits fade out towards the threshold instead of being cut off at it.

    .. math:: z'_i = z_i + c \log(1 - e^{-(z_i - \theta) / c})

    for entries that are not below; the others are dropped. With ``c = 1`` this subtracts
    :math:`P(y) e^{-margin}` from each probability. Paper, "Softminus"; the exponent 1/c is in the
    authors' code only. The logarithm's argument is clamped at 1e-9 as there. At margin inf
    :math:`z' = z`; a margin of 0 would erase the target and is an error.

    Args:
        c: width of the fade, above 0.
        detach_threshold: treat ``theta`` as a constant (the paper's "DT").
    """

    c: float = 1.0
    detach_threshold: bool = False

    def __post_init__(self) -> None:
        checks.number("c", self.c, above=0.0)
        checks.flag("detach_threshold", self.detach_threshold)


@dataclass(frozen=True)
class DetachedBelow(Variant):
    """Entries below keep their value in the softmax and get no gradient.

    Paper, "Detached Logits Under Threshold". Label smoothing spreads over entries not below.
    """


@dataclass(frozen=True)
class Decoupled(Variant):
    """The full softmax for the hidden states, the thresholded gradient for the head's rows.

    The value is ordinary cross-entropy's and so is the gradient of ``hidden``; a row of the weight
    (and bias) gets gradient only from tokens where it is not below. Linear losses only.
    """


@dataclass(frozen=True)
class Leaky(Variant):
    """``(1 - weight)`` times the thresholded loss plus ``weight`` times ordinary cross-entropy.

    Both terms share every other option, equalization included.

    Args:
        weight: share of ordinary cross-entropy, from 0 to 1.
    """

    weight: float

    def __post_init__(self) -> None:
        checks.number("weight", self.weight, at_least=0.0, at_most=1.0)


@dataclass(frozen=True, eq=False)
class RareOnly(Variant):
    """The threshold may mask these rows of the head only.

    Args:
        rows: boolean ``[V]``, or ``[R, V]`` for a population; `TokenCounts.rare` makes such masks.
    """

    rows: Tensor

    def __post_init__(self) -> None:
        is_mask("rows", self.rows)


def is_mask(name: str, value: object) -> Tensor:
    """Return ``value`` if it is a boolean tensor."""
    mask = checks.is_tensor(name, value)
    if mask.dtype != torch.bool:
        fix = "make a mask with torch.zeros(V, dtype=torch.bool), or TokenCounts.rare"
        raise ArgumentTypeError(name, "a boolean tensor", checks.describe(mask), fix)
    return mask


def mask_of_rows(name: str, mask: object, like: Tensor, runs: int | None, vocab: int) -> Tensor:
    """Check a mask over the vocabulary against a problem; return it as ``[1 or R, V]``."""
    value = is_mask(name, mask)
    shapes = [(vocab,)] + ([(runs, vocab)] if runs is not None else [])
    if tuple(value.shape) not in shapes:
        expected = "shape " + " or ".join(map(str, shapes)) + " (a flag a row of the head)"
        raise ArgumentValueError(name, expected, f"shape {tuple(value.shape)}")
    checks.same_device(name, value, "target", like)
    return value.view(-1, vocab)
