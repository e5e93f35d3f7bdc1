"""Adversarial training of the output embeddings, in closed form."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.losses.problem import compute_dtype
from elbowroom.rivals.common import (
    HeadOptions,
    all_logits,
    cross_entropy,
    prepare,
    target_logits,
    target_rows,
)


def adversarial(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    alpha: float = 0.005,
    detach_weight_norm: bool = True,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Cross-entropy against the worst perturbation of the target's row (Wang et al. 2019, Adv).

    Among all rows within :math:`\alpha \|w_y\|` of the target's row, the one that hurts most
    lowers the target's raw logit to

    .. math:: \langle w_y, h \rangle - \alpha \|w_y\| \|h\|

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        alpha: the radius of the perturbation as a share of the row's norm. "Stop jostling" prints
            .05 in its table of hyperparameters; its run used .005.
        detach_weight_norm: whether the radius is a constant to the gradient, as in that run;
            the norm of hidden never is.
        **options: see `HeadOptions`. ``softcap`` and ``logit_scale`` apply after the perturbation.

    Reference:
        Wang, Gong and Liu 2019, "Improving Neural Language Modeling via Adversarial Training",
        with the radius in proportion to the row's norm.

    Example:
        >>> hidden, weight = torch.tensor([[3.0, 4.0]]), torch.eye(2)
        >>> target = torch.tensor([1])
        >>> adversarial(hidden, weight, target, alpha=0.2)  # log(1 + exp(3 - (4 - .2 * 1 * 5)))
        tensor(0.6931)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    alpha = checks.number("alpha", alpha, at_least=0.0)
    dtype = compute_dtype(head.hidden.dtype)
    row_norm = torch.linalg.vector_norm(target_rows(head, tokens), dim=-1, dtype=dtype)
    if checks.flag("detach_weight_norm", detach_weight_norm):
        row_norm = row_norm.detach()
    penalty = alpha * row_norm * torch.linalg.vector_norm(head.hidden, dim=-1, dtype=dtype)
    hurt = target_logits(head, tokens, penalty)
    z = all_logits(head).scatter(-1, tokens.target[..., None], hurt[..., None])
    return tokens.reduce(cross_entropy(z, tokens))
