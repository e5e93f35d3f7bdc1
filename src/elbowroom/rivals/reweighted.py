"""Losses that weigh each token's cross-entropy: focal, class-balanced and MiLe."""

from __future__ import annotations

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


def focal(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    gamma: float = 2.0,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Focal loss (Lin et al. 2017): :math:`-(1 - p_y)^\gamma \log p_y`, tokens known well fade.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        gamma: γ; 0 is cross-entropy.
        **options: see `HeadOptions`.

    Reference:
        Lin et al. 2017, "Focal Loss for Dense Object Detection", equation 4, with p of a softmax
        instead of a sigmoid and without the class weight.

    Example:
        >>> hidden, weight = torch.zeros(1, 2), torch.ones(2, 2)
        >>> focal(hidden, weight, torch.tensor([0]))  # (1 / 2)^2 * log 2
        tensor(0.1733)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    gamma = checks.number("gamma", gamma, at_least=0.0)
    nll = cross_entropy(all_logits(head), tokens)
    # 1 - p_y to full relative precision; kept from 0, where a power below 1 has no derivative.
    missing = (-torch.expm1(-nll)).clamp(min=torch.finfo(nll.dtype).tiny)
    return tokens.reduce(missing**gamma * nll)


def class_balanced(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    counts: TokenCounts,
    beta: float = 0.9999,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Cross-entropy weighed by the inverse effective number of samples (Cui et al. 2019).

    .. math:: \ell = -c_y \log p_y, \qquad
        c_i \propto \frac{1 - \beta}{1 - \beta^{N_i}}, \quad \sum_i c_i = V

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        counts: occurrences :math:`N_i`; those below 1 are taken as 1.
        beta: β, from 0 (cross-entropy) to just below 1 (weights inverse to the counts).
        **options: see `HeadOptions`. The mean divides by the tokens' number, not by the weights.

    Reference:
        Cui et al. 2019, "Class-Balanced Loss Based on Effective Number of Samples", the
        softmax form.

    Example:
        >>> hidden, weight = torch.zeros(1, 2), torch.ones(2, 2)
        >>> counts = TokenCounts(torch.tensor([2, 1]))  # 1 / 1.5 and 1, times 1.2
        >>> class_balanced(hidden, weight, torch.tensor([1]), counts=counts, beta=0.5).exp()
        tensor(2.2974)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    beta = checks.number("beta", beta, at_least=0.0, below=1.0)
    z = all_logits(head)
    n = of_rows(checked_counts(counts, head).values(), head, torch.float64).clamp(min=1.0)
    # -expm1(n log beta) is 1 - beta^n without cancellation; log 0 = -inf gives 1, as it should.
    balance = 1 / -torch.expm1(n * n.new_tensor(beta).log())
    balance = balance * n.shape[-1] / balance.sum(-1, keepdim=True)
    return tokens.reduce(of_targets(balance.to(z.dtype), tokens) * cross_entropy(z, tokens))


def mile(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    gamma: float = 1.0,
    normalize: bool = True,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""MiLe loss (Su et al. 2024): cross-entropy weighed by the entropy of the prediction.

    .. math:: \ell = -(1 + H(p))^\gamma \log p_y, \qquad H(p) = -\sum_i p_i \log p_i

    The weight is a constant to the gradient, and so only decides which tokens matter more: for
    each context the best prediction stays that of cross-entropy.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        gamma: γ; 0 is cross-entropy.
        normalize: divide the weights by their mean over the counted tokens of the call, which
            keeps the loss at the height of cross-entropy; as in the publication's code, which
            averages over ignored tokens too. False for the equation above.
        **options: see `HeadOptions`.

    Reference:
        Su et al. 2024, "MiLe Loss: a New Loss for Mitigating the Bias of Learning Difficulties in
        Generative Language Models"; γ and constant weights as in its code.

    Example:
        >>> hidden, weight = torch.zeros(1, 2), torch.ones(2, 2)
        >>> mile(hidden, weight, torch.tensor([0]), normalize=False)  # (1 + log 2) * log 2
        tensor(1.1736)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    gamma = checks.number("gamma", gamma, at_least=0.0)
    checks.flag("normalize", normalize)
    z = all_logits(head)
    with torch.no_grad():
        log_p = z.log_softmax(-1)
        difficulty = (1 - (log_p.exp() * log_p).sum(-1)) ** gamma
        if normalize:
            counted = tokens.counted.to(difficulty.dtype)
            total = difficulty.masked_fill(~tokens.counted, 0.0).sum(-1, keepdim=True)
            mean = total / counted.sum(-1, keepdim=True).clamp(min=1.0)
            difficulty = difficulty / torch.where(mean > 0, mean, torch.ones_like(mean))
    return tokens.reduce(difficulty * cross_entropy(z, tokens))
