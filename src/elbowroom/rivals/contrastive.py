"""Contrastive weight tying: the batch's own targets are the only negatives."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.losses.problem import Tokens
from elbowroom.rivals.common import HeadOptions, all_logits, cross_entropy, of_targets, prepare


def contrastive_weight_tying(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    deduplicate: bool = False,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Softmax of hidden against the rows of the batch's targets (Godey et al. 2024, CWT).

    .. math:: \ell_n = \log \sum_{m} e^{\langle h_n, w_{y_m} \rangle} - \langle h_n, w_{y_n}\rangle
        = \log \sum_i c_i e^{z_{ni}} - z_{n, y_n}

    with :math:`c_i` the occurrences of token i among the counted targets of the call. The second
    form, which is what we compute, shows what the first hides: a token that occurs c times is its
    own negative c - 1 times, and the loss is never below :math:`\log c`.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``; with runs, each has its own negatives.
        weight: ``[V, D]``, or ``[R, V, D]``; the input embeddings, as published.
        target: ``[...]``, or ``[R, ...]``.
        deduplicate: count each token once (:math:`c_i \in \{0, 1\}`), so that there are no false
            negatives; False as published.
        **options: see `HeadOptions`. ``token_weights`` weigh losses, not negatives.

    Reference:
        Godey, de la Clergerie and Sagot 2024, "Headless Language Models: Learning without
        Predicting with Contrastive Weight Tying". Like the run of "Stop jostling", without the
        embedding predictor of that paper.

    Example:
        >>> hidden, target = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])
        >>> contrastive_weight_tying(hidden, torch.ones(5, 2), target).exp()
        tensor(4.)
        >>> contrastive_weight_tying(hidden, torch.ones(5, 2), target, deduplicate=True).exp()
        tensor(2.)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    checks.flag("deduplicate", deduplicate)
    z = all_logits(head)
    log_c = _occurrences(tokens, z, deduplicate).log()
    # Cross-entropy subtracts log c of the target with its logit; the equation does not.
    return tokens.reduce(cross_entropy(z + log_c[:, None], tokens) + of_targets(log_c, tokens))


def _occurrences(
    tokens: Tokens, like: Float[Tensor, "R N V"], deduplicate: bool
) -> Float[Tensor, "R V"]:
    c = like.new_zeros(like.shape[0], like.shape[2])
    c.scatter_add_(1, tokens.target, tokens.counted.to(c.dtype))
    if deduplicate:
        c.clamp_(max=1.0)
    return torch.where(c.sum(-1, keepdim=True) == 0, torch.ones_like(c), c)  # no tokens: loss 0
