"""Adaptive gradient gating: rare rows are pushed less, by how rare they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.counts import TokenCounts
from elbowroom.losses.problem import Head, Tokens
from elbowroom.rivals.common import (
    HeadOptions,
    all_logits,
    checked_counts,
    cross_entropy,
    of_rows,
    prepare,
)


def agg(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    counts: TokenCounts,
    alpha: float = 0.02,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Cross-entropy whose gradient to rare rows of the weight is gated (Yu et al. 2022, AGG).

    With :math:`r_i` the occurrences of token i a step over the last K steps, a token is rare if
    :math:`r_i < \alpha`. The loss is that of

    .. math:: \tilde z_{ni} = \langle \bar w_i, h_n \rangle
        + g_{ni} (\langle w_i, \bar h_n \rangle - \langle \bar w_i, \bar h_n \rangle)

    (a bar stops the gradient), so its value is cross-entropy's, hidden gets its whole gradient,
    and the row of token i gets the share :math:`g_{ni}` of what token n sends it: 1 if i is the
    target or not rare; :math:`\min(1, r_i)` if the target is not rare; and
    :math:`\min(1, N_i / \text{mean}_{\text{rare}\,j} N_j)` if the target is rare as well.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        counts: running counts; published with 1600 steps. Update them with the step's targets
            before the loss, as the publication's code does.
        alpha: below this many occurrences a step a token is rare.
        **options: see `HeadOptions`.

    Reference:
        Yu et al. 2022, "Rare Tokens Degenerate All Tokens: Improving Neural Text Generation via
        Adaptive Gradient Gating". Its code returns the sum of the losses for hidden and for
        weight, which is twice our value with the same gradients.

    Example:
        >>> counts = TokenCounts.running(3, steps=1600)
        >>> target = torch.tensor([0, 1])
        >>> counts.update(target)
        >>> weight = torch.zeros(3, 2, requires_grad=True)
        >>> agg(torch.ones(2, 2), weight, target, counts=counts).backward()
        >>> weight.grad[2]  # never seen: not pushed at all
        tensor([0., 0.])
    """
    head, tokens = prepare(hidden, weight, target, **options)
    alpha = checks.number("alpha", alpha, at_least=0.0)
    with torch.no_grad():
        gate = _gate(checked_counts(counts, head), alpha, head, tokens)
    by_hidden = all_logits(_detached(head, weight=True))
    by_weight = all_logits(_detached(head, weight=False))
    z = by_hidden + gate * (by_weight - by_weight.detach())
    return tokens.reduce(cross_entropy(z, tokens))


def _gate(counts: TokenCounts, alpha: float, head: Head, tokens: Tokens) -> Float[Tensor, "R N V"]:
    rate, count = of_rows(counts.rate(), head), of_rows(counts.values(), head)
    rare = rate < alpha
    mean = (count * rare).sum(-1, keepdim=True) / rare.sum(-1, keepdim=True).clamp(min=1)
    one = torch.ones_like(rate)
    of_common = torch.where(rare, rate.clamp(max=1.0), one)
    of_rare = torch.where(rare, (count / (mean + 1e-7)).clamp(max=1.0), one)
    target_is_rare = rare.gather(1, tokens.target)[..., None]
    gate = torch.where(target_is_rare, of_rare[:, None], of_common[:, None])
    return gate.scatter(-1, tokens.target[..., None], 1.0)


def _detached(head: Head, *, weight: bool) -> Head:
    """Stop the gradient to the weight and the bias, or to hidden."""
    if not weight:
        return replace(head, hidden=head.hidden.detach())
    bias = None if head.bias is None else head.bias.detach()
    return replace(head, weight=head.weight.detach(), bias=bias)
