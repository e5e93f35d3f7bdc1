"""Equalization loss: rare classes are dropped as negatives, at random."""

from __future__ import annotations

import math
from typing import Unpack

from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.counts import TokenCounts
from elbowroom.rivals.common import (
    HeadOptions,
    all_logits,
    checked_counts,
    cross_entropy,
    is_target,
    of_rows,
    prepare,
)
from elbowroom.rivals.random import uniform


def equalization(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    counts: TokenCounts,
    threshold: float,
    gamma: float = 0.95,
    seed: int | Int[Tensor, "*seeds"] = 0,
    step: int | Int[Tensor, ""] = 0,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Softmax equalization loss (Tan et al. 2020, EQL): rare tokens are rarely negatives.

    .. math:: \ell_n = \log \sum_i \omega_{ni} e^{z_{ni}} - z_{n, y_n}, \qquad
        \omega_{ni} = 1 - \beta_{ni} [f_i < \lambda] [i \ne y_n]

    with :math:`f_i` the frequency of token i and :math:`\beta_{ni}` 1 with probability
    :math:`\gamma`, else 0, drawn for each entry. Unlike ``protect=`` of
    `elbowroom.linear_thresholded_cross_entropy`, a rare token is dropped for rare targets too.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        counts: occurrences of the tokens.
        threshold: λ; tokens whose share of all occurrences is below it are rare. It has no
            default, as it depends on the data.
        gamma: the probability of being dropped; 0 is cross-entropy.
        seed: an integer, or one a run ``[R]``. The draw depends on seed, step and position only,
            and has the same bits on every device.
        step: the step of training; pass a new one each time, a 0-d tensor in a captured graph.
        **options: see `HeadOptions`.

    Reference:
        Tan et al. 2020, "Equalization Loss for Long-Tailed Object Recognition", the softmax
        form; its λ and γ are tuned to each data set, and the default γ is ours.

    Example:
        >>> import torch
        >>> counts = TokenCounts(torch.tensor([60, 39, 1]))
        >>> hidden, weight, target = torch.zeros(1, 2), torch.ones(3, 2), torch.tensor([0])
        >>> equalization(hidden, weight, target, counts=counts, threshold=0.05, gamma=1.0).exp()
        tensor(2.)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    threshold = checks.number("threshold", threshold, at_least=0.0, at_most=1.0)
    gamma = checks.number("gamma", gamma, at_least=0.0, at_most=1.0)
    z = all_logits(head)
    rare = of_rows(checked_counts(counts, head).frequency(), head) < threshold
    beta = uniform(seed, step, tuple(z.shape), z.device) < gamma
    drop = beta & rare[:, None] & ~is_target(z, tokens)
    return tokens.reduce(cross_entropy(z.masked_fill(drop, -math.inf), tokens))
