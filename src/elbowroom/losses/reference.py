"""The equations, eager: any device, any dtype, differentiable by autograd; every test's oracle.

Readable before fast: all logits exist at once, several times over.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom.losses.problem import Head, Tokens
from elbowroom.losses.spec import Spec, TokenStats
from elbowroom.losses.variants import Decoupled, DetachedBelow, Leaky, RareOnly, Softminus

SMALLEST_FACTOR = 1e-9  # softminus: the least that a probability is multiplied by, for c = 1


def linear_losses(head: Head, tokens: Tokens, spec: Spec) -> Float[Tensor, "R N"]:
    """Return each token's loss over a linear head (anything where ignored)."""
    # Hidden states of ignored tokens may be anything, NaN too: they must not reach the weight.
    hidden = head.hidden.masked_fill(~tokens.counted[..., None], 0.0)
    head = replace(head, hidden=hidden)
    if not isinstance(spec.variant, Decoupled):
        return losses(head.logits(), tokens, spec)
    bias = None if head.bias is None else head.bias.detach()
    frozen = replace(head, weight=head.weight.detach(), bias=bias)
    z = frozen.logits()  # carries the gradient of hidden alone
    below, dropped = masks(z, tokens.target, spec)
    z = torch.where(below, z, head.logits())  # the others carry that of weight and bias, too
    return _cross_entropy(z, tokens.target, dropped, ~dropped, spec)


def losses(z: Float[Tensor, "R N V"], tokens: Tokens, spec: Spec) -> Float[Tensor, "R N"]:
    """Return each token's loss from its logits (anything where ignored)."""
    z = z.masked_fill(~tokens.counted[..., None], 0.0)
    target, variant = tokens.target, spec.variant
    below, dropped = masks(z, target, spec)
    if isinstance(variant, DetachedBelow):
        z = torch.where(below, z.detach(), z)
        return _cross_entropy(z, target, dropped, ~(below | dropped), spec)
    if isinstance(variant, Leaky):
        plain = _cross_entropy(z, target, dropped, ~dropped, spec)
        dropped = below | dropped
        thresholded = _cross_entropy(z, target, dropped, ~dropped, spec)
        return (1 - variant.weight) * thresholded + variant.weight * plain
    dropped = below | dropped
    if isinstance(variant, Softminus):
        z = _softminus(z, target, dropped, spec.margin, variant)
    return _cross_entropy(z, target, dropped, ~dropped, spec)


def masks(
    z: Float[Tensor, "R N V"], target: Int[Tensor, "R N"], spec: Spec
) -> tuple[Bool[Tensor, "R N V"], Bool[Tensor, "R N V"]]:
    """Return which entries are below the threshold, and which equalization drops.

    The target is neither, by index. A NaN is not below: comparisons with NaN are false.
    """
    theta = z.detach().gather(-1, target[..., None]) - spec.margin[..., None]
    below = z.detach() < theta
    if isinstance(spec.variant, RareOnly):
        below = below & spec.variant.rows.view(-1, 1, z.shape[-1])
    below = below.scatter(-1, target[..., None], False)
    if spec.protect is None:
        return below, torch.zeros_like(below)
    protect = spec.protect.expand(z.shape[0], -1)
    return below, protect[:, None] & ~protect.gather(-1, target)[..., None]


def statistics(z: Float[Tensor, "R N V"], tokens: Tokens, spec: Spec) -> TokenStats:
    """Return what the loss saw; see `LossStats`."""
    z, counted, target = z.detach(), tokens.counted, tokens.target
    below, dropped = masks(z, target, spec)
    kept = ~(below | dropped) & counted[..., None]
    gradient = ~dropped & counted[..., None] if isinstance(spec.variant, Leaky) else kept
    at_target = z.gather(-1, target[..., None])
    ties = (z == at_target).sum(-1) - 1
    rank = 1 + (z > at_target).sum(-1) + ties.clamp(min=0) / 2
    log_probability = (at_target - z.logsumexp(-1, keepdim=True))[..., 0]
    # Compared with a NaN nothing is greater, and the rank would be 1.
    rank = rank.to(z.dtype).masked_fill(log_probability.isnan(), torch.nan)
    return TokenStats(
        log_probability=log_probability.masked_fill(~counted, 0.0),
        rank=rank.masked_fill(~counted, 0.0),
        argmax=z.argmax(-1).masked_fill(~counted, -1),
        kept=kept.sum(-1),
        touched=gradient.any(1),
    )


def _cross_entropy(
    z: Float[Tensor, "R N V"],
    target: Int[Tensor, "R N"],
    dropped: Bool[Tensor, "R N V"],
    smoothed: Bool[Tensor, "R N V"],
    spec: Spec,
) -> Float[Tensor, "R N"]:
    """Cross-entropy over entries that are not dropped; smoothing spreads over ``smoothed``."""
    z = z.masked_fill(dropped, -torch.inf)
    log_p = F.log_softmax(z, -1)
    loss = -log_p.gather(-1, target[..., None])[..., 0]
    if spec.label_smoothing:
        spread = -log_p.masked_fill(~smoothed, 0.0).sum(-1) / smoothed.sum(-1)
        loss = (1 - spec.label_smoothing) * loss + spec.label_smoothing * spread
    if spec.z_loss:
        loss = loss + spec.z_loss * z.logsumexp(-1) ** 2
    return loss


def _softminus(
    z: Float[Tensor, "R N V"],
    target: Int[Tensor, "R N"],
    dropped: Bool[Tensor, "R N V"],
    margin: Float[Tensor, "Rm Nm"],
    variant: Softminus,
) -> Float[Tensor, "R N V"]:
    theta = z.gather(-1, target[..., None]) - margin[..., None]
    if variant.detach_threshold:
        theta = theta.detach()
    nothing = dropped | torch.isneginf(z)  # contributes nothing; any finite number will do
    above = torch.where(nothing, 1.0, z - theta)
    factor = -torch.expm1(-above / variant.c)
    return z + variant.c * factor.clamp(min=SMALLEST_FACTOR).log()
