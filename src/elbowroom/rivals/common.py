"""What all rival losses share: their options, checks of counts, and cross-entropy over logits."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks
from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.losses.problem import Head, Reduction, Tokens, compute_dtype, prepare_linear


class HeadOptions(TypedDict, total=False):
    """The options that every rival loss accepts, as `elbowroom.losses` defines them."""

    bias: Tensor | None
    """``[V]``, or ``[R, V]`` with runs; added to the raw logits. None by default."""
    logit_scale: float
    """Multiplies the logits. 1 by default."""
    softcap: float | None
    """Bounds the raw logits: ``softcap * tanh(x / softcap)``. None by default."""
    shift: int
    """Position ``t`` predicts the target at ``t + shift``. 0 by default."""
    ignore_index: int
    """Targets that do not count. -100 by default."""
    reduction: Reduction
    """"none", "mean" (the default) or "sum"."""
    normalizer: float | Tensor | None
    """What "mean" divides by, instead of the tokens' number or weight."""
    token_weights: Tensor | None
    """The weight of each token, of the target's shape."""


def prepare(
    hidden: Tensor, weight: Tensor, target: Tensor, **options: Unpack[HeadOptions]
) -> tuple[Head, Tokens]:
    """Check the shared arguments and bring them to one shape."""
    unknown = sorted(options.keys() - HeadOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(HeadOptions.__annotations__)
        raise ArgumentTypeError(unknown[0], f"one of the options {known}", "an unknown option")
    head, tokens = prepare_linear(hidden, weight, target, **options)
    # Hidden states of ignored tokens may be anything, NaN too: they must not reach the weight.
    clean = head.hidden.masked_fill(~tokens.counted[..., None], 0.0)
    return replace(head, hidden=clean), tokens


def is_counts(counts: object) -> TokenCounts:
    """Return ``counts`` if they are `TokenCounts`."""
    if not isinstance(counts, TokenCounts):
        fix = "wrap a tensor of counts: TokenCounts(tensor)"
        raise ArgumentTypeError("counts", "TokenCounts", checks.describe(counts), fix)
    return counts


def checked_counts(counts: TokenCounts, head: Head) -> TokenCounts:
    """Return the counts if they fit the head: vocabulary, runs and device."""
    counts = is_counts(counts)
    shape = tuple(counts.counts.shape)
    if shape not in ((head.vocab_size,), (head.weight.shape[0], head.vocab_size)):
        expected = f"counts of the head's {head.vocab_size} tokens, of one run or of each"
        raise ArgumentValueError("counts", expected, f"shape {shape}")
    checks.same_device("counts", counts.counts, "hidden", head.hidden)
    return counts


def all_logits(head: Head) -> Float[Tensor, "R N V"]:
    """Return all logits in float32 or float64; `prepare` has cast for ``torch.autocast``."""
    with torch.autocast(head.hidden.device.type, enabled=False):
        return head.logits()


def of_rows(
    values: Float[Tensor, "*runs V"], head: Head, dtype: torch.dtype | None = None
) -> Float[Tensor, "R V"]:
    """Return a number a row, ``[V]`` or ``[R, V]``, as ``[R, V]`` in the dtype of the logits."""
    dtype = dtype or compute_dtype(head.hidden.dtype)
    return values.to(dtype).expand(head.weight.shape[0], head.vocab_size)


def of_targets(rows: Float[Tensor, "R V"], tokens: Tokens) -> Float[Tensor, "R N"]:
    """Return the number of each target's row."""
    return rows.gather(1, tokens.target)


def is_target(z: Float[Tensor, "R N V"], tokens: Tokens) -> Tensor:
    """Return a boolean ``[R, N, V]``, true at the targets."""
    return torch.zeros_like(z, dtype=torch.bool).scatter_(-1, tokens.target[..., None], True)


def cross_entropy(z: Float[Tensor, "R N V"], tokens: Tokens) -> Float[Tensor, "R N"]:
    """Return ``logsumexp(z) - z[target]`` of every token; entries of -inf are left out."""
    flat = z.reshape(-1, z.shape[-1])
    return F.cross_entropy(flat, tokens.target.reshape(-1), reduction="none").view(z.shape[:2])


def target_logits(
    head: Head, tokens: Tokens, penalty: Float[Tensor, "R N"] | None = None
) -> Float[Tensor, "R N"]:
    """Return the targets' logits; ``penalty`` is taken from the raw ones, before cap and scale."""
    dtype = compute_dtype(head.hidden.dtype)
    rows = target_rows(head, tokens).to(dtype)
    raw = (head.hidden.to(dtype) * rows).sum(-1)
    if head.bias is not None:
        raw = raw + head.bias.to(dtype).gather(1, tokens.target)
    if penalty is not None:
        raw = raw - penalty
    if head.softcap is not None:
        raw = head.softcap * torch.tanh(raw / head.softcap)
    return head.logit_scale * raw


def target_rows(head: Head, tokens: Tokens) -> Float[Tensor, "R N D"]:
    """Return the targets' rows of the weight."""
    index = tokens.target[..., None].expand(-1, -1, head.weight.shape[2])
    return head.weight.gather(1, index)


def unit_rows(x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape D"]:
    """Return vectors divided by their norms; a zero vector stays zero and gets no gradient."""
    x = x.to(compute_dtype(x.dtype))
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    zero = norm == 0
    return (x / norm.masked_fill(zero, 1.0)).masked_fill(zero, 0.0)
