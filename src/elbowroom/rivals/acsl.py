"""Adaptive class suppression: only confident negatives are pushed."""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.losses.problem import Tokens
from elbowroom.rivals.common import HeadOptions, all_logits, cross_entropy, is_target, prepare

SuppressionForm = Literal["sigmoid", "softmax"]
SUPPRESSION_FORMS = ("sigmoid", "softmax")


def acsl(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    xi: float = 0.7,
    form: SuppressionForm = "sigmoid",
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Keep a negative only where its probability is at least ξ (Wang et al. 2021, ACSL).

    The closest relative of the thresholded loss: its threshold is a probability, the same for all
    targets, where ours is a distance from the target's logit.

    .. math:: \ell = -\log \sigma(z_y) - \sum_{j \ne y} [\sigma(z_j) \ge \xi] \log(1 -\sigma(z_j))

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        xi: ξ, from 0 to 1; at 0 nothing is dropped. .7 as published, for sigmoids; of a softmax
            at most one negative has a probability of .7, so that form wants a smaller ξ, as a
            multiple of 1 / V.
        form: "sigmoid", the equation above as published; or "softmax", our transfer to language
            models: cross-entropy over the target and those j with ``softmax(z)[j] >= xi``.
        **options: see `HeadOptions`.

    Reference:
        Wang et al. 2021, "Adaptive Class Suppression Loss for Long-Tail Object Detection". Its
        rule for background, which is specific to detection, has no counterpart here.

    Example:
        >>> hidden, weight = torch.tensor([[0.0, 2.0, -2.0]]), torch.eye(3)
        >>> acsl(hidden, weight, torch.tensor([0]))  # softplus(-0) + softplus(2)
        tensor(2.8201)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    xi = checks.number("xi", xi, at_least=0.0, at_most=1.0)
    checks.choice("form", form, SUPPRESSION_FORMS)
    z = all_logits(head)
    loss = _by_sigmoid(z, tokens, xi) if form == "sigmoid" else _by_softmax(z, tokens, xi)
    return tokens.reduce(loss)


def _by_sigmoid(z: Float[Tensor, "R N V"], tokens: Tokens, xi: float) -> Float[Tensor, "R N"]:
    target = is_target(z, tokens)
    kept = target | (z.detach().sigmoid() >= xi)
    one_sided = F.softplus(torch.where(target, -z, z))  # -log sigmoid(z), -log(1 - sigmoid(z))
    return one_sided.masked_fill(~kept, 0.0).sum(-1)


def _by_softmax(z: Float[Tensor, "R N V"], tokens: Tokens, xi: float) -> Float[Tensor, "R N"]:
    kept = is_target(z, tokens) | (z.detach().softmax(-1) >= xi)
    return cross_entropy(z.masked_fill(~kept, -math.inf), tokens)
