"""Priors in the head: logits adjusted by log frequency, and a bias that starts from it."""

from __future__ import annotations

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
    is_counts,
    of_rows,
    prepare,
)


def logit_adjusted(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    counts: TokenCounts,
    tau: float = 1.0,
    smoothing: float = 1.0,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Cross-entropy of :math:`z + \tau \log \pi` (Menon et al. 2021, logit adjustment).

    The prior :math:`\pi` explains the frequencies during training, so that z need not. As
    published the prior is then dropped, which predicts as if all tokens were equally frequent.
    For the perplexity of ordinary text keep it: add ``tau * counts.log_prior()`` at test too.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        counts: occurrences that give the prior.
        tau: τ; 0 is cross-entropy.
        smoothing: added to every count; 0 as published, where every class was seen: an unseen
            token is then no negative at all.
        **options: see `HeadOptions`. The prior comes after ``logit_scale`` and ``softcap``.

    Reference:
        Menon et al. 2021, "Long-Tail Learning via Logit Adjustment", the logit-adjusted softmax
        cross-entropy.

    Example:
        >>> import torch
        >>> counts = TokenCounts(torch.tensor([3, 1]))
        >>> hidden, weight, target = torch.zeros(1, 2), torch.ones(2, 2), torch.tensor([1])
        >>> logit_adjusted(hidden, weight, target, counts=counts, smoothing=0.0).exp()
        tensor(4.)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    tau = checks.number("tau", tau)
    log_prior = checked_counts(counts, head).log_prior(smoothing)
    z = all_logits(head)
    if tau != 0:
        z = z + tau * of_rows(log_prior, head)[:, None]
    return tokens.reduce(cross_entropy(z, tokens))


def unigram_bias(counts: TokenCounts, *, smoothing: float = 1.0) -> Float[Tensor, "*runs V"]:
    r"""Return the bias :math:`b_i = \log \pi_i` of a head :math:`z = h W^\top + b`.

    A model that starts from it knows the frequencies, and its rows need not learn them by being
    pushed. Pass it as ``bias=`` to any loss, or make it a parameter.

    Args:
        counts: occurrences ``[V]`` or ``[R, V]``.
        smoothing: added to every count, so that unseen tokens keep a finite bias.

    Example:
        >>> import torch
        >>> unigram_bias(TokenCounts(torch.tensor([2, 0]))).exp()
        tensor([0.7500, 0.2500])
    """
    return is_counts(counts).log_prior(checks.number("smoothing", smoothing, above=0.0))
