"""Seesaw loss: negatives are damped by how rare they are, and raised where they are wrong."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.counts import TokenCounts
from elbowroom.rivals.common import (
    HeadOptions,
    all_logits,
    checked_counts,
    cross_entropy,
    of_rows,
    of_targets,
    prepare,
)


def seesaw(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    counts: TokenCounts,
    p: float = 0.8,
    q: float = 2.0,
    floor: float = 0.01,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Cross-entropy with reweighted negatives (Wang et al. 2021, Seesaw).

    .. math:: \ell = \log \Big( e^{z_y} + \sum_{j \ne y} S_{yj} e^{z_j} \Big) - z_y, \qquad
        S_{yj} = \min \Big( 1, \frac{N_j}{N_y} \Big)^p
                 \max \Big( 1, \frac{\sigma_j}{\sigma_y} \Big)^q

    The first factor, mitigation, spares tokens rarer than the target; the second, compensation,
    punishes those with more probability :math:`\sigma` than it. Both are constants to the
    gradient. Counts below 1 are taken as 1.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        counts: occurrences; published as those of the training so far,
            ``TokenCounts.running(vocab_size, steps=None)``.
        p: the exponent of mitigation.
        q: the exponent of compensation; with p and q 0 the loss is cross-entropy.
        floor: :math:`\sigma_y` is taken as at least this, as in the publication's code; 0 for
            the equation.
        **options: see `HeadOptions`.

    Reference:
        Wang et al. 2021, "Seesaw Loss for Long-Tailed Instance Segmentation".

    Example:
        >>> counts = TokenCounts(torch.tensor([100, 1]))
        >>> hidden, weight, target = torch.zeros(1, 2), torch.ones(2, 2), torch.tensor([0])
        >>> seesaw(hidden, weight, target, counts=counts, p=0.5).exp()  # 1 + sqrt(1 / 100)
        tensor(1.1000)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    p = checks.number("p", p, at_least=0.0)
    q = checks.number("q", q, at_least=0.0)
    floor = checks.number("floor", floor, at_least=0.0, below=1.0)
    z = all_logits(head)
    with torch.no_grad():
        log_n = of_rows(checked_counts(counts, head).values(), head).clamp(min=1.0).log()
        mitigation = (log_n[:, None] - of_targets(log_n, tokens)[..., None]).clamp(max=0.0)
        log_p = z.log_softmax(-1)
        log_p_target = log_p.gather(-1, tokens.target[..., None])
        log_p_target = log_p_target.clamp(min=math.log(floor) if floor else -math.inf)
        compensation = (log_p - log_p_target).clamp(min=0.0)
        log_s = (p * mitigation + q * compensation).scatter(-1, tokens.target[..., None], 0.0)
    return tokens.reduce(cross_entropy(z + log_s, tokens))
