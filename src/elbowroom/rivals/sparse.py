"""Sparse alternatives to softmax: entmax 1.5 and sparsemax, with their Fenchel-Young losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.losses.problem import Tokens
from elbowroom.rivals.common import HeadOptions, all_logits, prepare


def entmax15(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Fenchel-Young loss of 1.5-entmax (Peters et al. 2019): exactly sparse gradients.

    .. math:: \ell = (p - e_y) \cdot z + \tfrac{4}{3} \Big( 1 - \sum_i p_i^{3/2} \Big), \qquad
        p_i = \big[ \tfrac{1}{2} z_i - \tau \big]_+^2, \quad \sum_i p_i = 1

    Its gradient is :math:`p - e_y`, exactly 0 for tokens well below the others; it is 0 as a
    whole once the target leads all others by 2. The model then predicts with `entmax15_probs`,
    not with softmax, and its perplexity may be infinite.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        **options: see `HeadOptions`.

    Reference:
        Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", the exact
        algorithm for 1.5-entmax.

    Example:
        >>> hidden, weight = torch.tensor([[3.0, 1.0]]), torch.eye(2)
        >>> entmax15(hidden, weight, torch.tensor([0]))  # leads by 2
        tensor(0.)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    loss = _fenchel_young(all_logits(head), tokens, entmax15_probs, _tsallis15)
    return tokens.reduce(loss)


def sparsemax(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Sparsemax loss (Martins and Astudillo 2016): exactly sparse gradients, the sparsest here.

    .. math:: \ell = (p - e_y) \cdot z + \tfrac{1}{2} \Big( 1 - \sum_i p_i^2 \Big), \qquad
        p_i = [ z_i - \tau ]_+, \quad \sum_i p_i = 1

    Its gradient is :math:`p - e_y`; it is 0 as a whole once the target leads all others by 1.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        **options: see `HeadOptions`.

    Reference:
        Martins and Astudillo 2016, "From Softmax to Sparsemax", algorithm 1.

    Example:
        >>> hidden, weight = torch.tensor([[0.5, 0.0]]), torch.eye(2)
        >>> sparsemax(hidden, weight, torch.tensor([0]))  # (1 - .5)^2 / 4
        tensor(0.0625)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    loss = _fenchel_young(all_logits(head), tokens, sparsemax_probs, _tsallis2)
    return tokens.reduce(loss)


@torch.no_grad()
def sparsemax_probs(logits: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch V"]:
    """Return sparsemax of logits, ``[..., V]``: their projection onto the simplex; no gradient.

    Example:
        >>> sparsemax_probs(torch.tensor([0.5, 0.0, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    x, order, k = _prepared(_checked(logits))
    # With the k largest in the support, sum_{i <= k} (x_i - tau) = 1 gives tau_k; the support is
    # the largest k for which its smallest member is above tau_k.
    tau = (order.cumsum(-1) - 1) / k
    tau = _last(tau, order > tau)
    support = x > tau
    tau = tau + ((x - tau) * support).sum(-1, keepdim=True).sub(1) / support.sum(-1, keepdim=True)
    return (x - tau.clamp(min=-1.0)).clamp(min=0.0)


@torch.no_grad()
def entmax15_probs(logits: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch V"]:
    """Return 1.5-entmax of logits, ``[..., V]``; no gradient.

    Example:
        >>> entmax15_probs(torch.tensor([1.0, 1.0, -3.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    x, order, k = _prepared(_checked(logits) / 2)
    # With the k largest in the support, sum_{i <= k} (x_i - tau)^2 = 1 is a quadratic in tau with
    # mean m and mean square s: tau_k = m - sqrt(1 / k - (s - m^2)).
    m, s = order.cumsum(-1) / k, (order * order).cumsum(-1) / k
    tau = m - (1 / k - (s - m * m)).clamp(min=0.0).sqrt()
    tau = _last(tau, order >= tau)
    root = (x - tau).clamp(min=0.0)
    tau = tau + (root.square().sum(-1, keepdim=True) - 1) / (2 * root.sum(-1, keepdim=True))
    return (x - tau.clamp(min=-1.0)).clamp(min=0.0).square()


def _checked(logits: Tensor) -> Tensor:
    checks.is_floating("logits", logits)
    if logits.ndim < 1 or logits.shape[-1] == 0:
        raise ArgumentValueError("logits", "[..., V] with V at least 1", tuple(logits.shape))
    return logits


def _prepared(
    x: Float[Tensor, "*batch V"],
) -> tuple[Float[Tensor, "*batch V"], Float[Tensor, "*batch V"], Float[Tensor, " V"]]:
    """Return logits with their largest at 0, the same in descending order, and 1, 2, ..., V.

    As no probability exceeds 1, tau is at least -1 and a logit below -1 is outside the support
    whatever its value: clamping it there changes nothing but rounding, for the better. Both
    functions end with a step of Newton's method on sum_i p_i = 1, which takes away the rounding
    of long sums, and with tau at -1 or above, so that what was clamped is exactly 0.
    """
    x = (x - x.amax(-1, keepdim=True)).clamp(min=-1.0)
    order = x.sort(dim=-1, descending=True).values
    return x, order, torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)


def _last(tau: Float[Tensor, "*batch V"], holds: Tensor) -> Float[Tensor, "*batch 1"]:
    """Return tau_k of the largest k for which the condition holds; it does for k = 1."""
    k = torch.arange(tau.shape[-1], device=tau.device)
    return tau.gather(-1, torch.where(holds, k, 0).amax(-1, keepdim=True))


def _tsallis15(p: Float[Tensor, "R N V"]) -> Float[Tensor, "R N"]:
    return 4 / 3 * (1 - (p * p.sqrt()).sum(-1))


def _tsallis2(p: Float[Tensor, "R N V"]) -> Float[Tensor, "R N"]:
    return 1 / 2 * (1 - p.square().sum(-1))


def _fenchel_young(
    z: Float[Tensor, "R N V"],
    tokens: Tokens,
    probs: Callable[[Tensor], Tensor],
    entropy: Callable[[Tensor], Tensor],
) -> Float[Tensor, "R N"]:
    """Return max_p (p . z + H(p)) - z_y; by the envelope theorem its gradient is p - e_y."""
    p = probs(z.detach())
    # Differences from the target's logit are small where p is not 0, and z itself may be large.
    gap = z - z.gather(-1, tokens.target[..., None])
    return (p * gap).sum(-1) + entropy(p)
