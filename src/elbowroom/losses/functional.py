"""The public functions: check what came in, resolve the margin, choose a backend."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, TypedDict, Unpack, overload

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, BackendError
from elbowroom.losses import fused, operator, reference
from elbowroom.losses.problem import (
    Head,
    Reduction,
    Tokens,
    compute_dtype,
    prepare_linear,
    prepare_logits,
)
from elbowroom.losses.resolve import margin_numbers, needs_head
from elbowroom.losses.spec import LossStats, Spec, TokenStats
from elbowroom.losses.variants import Decoupled, RareOnly, Softminus, Variant, mask_of_rows
from elbowroom.margins import Margin, MarginRule

Backend = Literal["auto", "reference", "chunked", "triton"]
BACKENDS = ("auto", "reference", "chunked", "triton")


class LossOptions(TypedDict, total=False):
    """The keyword arguments that both losses share; see `thresholded_cross_entropy`."""

    logit_scale: float
    ignore_index: int
    reduction: Reduction
    normalizer: float | Tensor | None
    token_weights: Tensor | None
    z_loss: float
    label_smoothing: float
    protect: Tensor | None
    variant: Variant | None
    progress: float | Tensor | None


class LinearLossOptions(LossOptions, total=False):
    """What `linear_thresholded_cross_entropy` takes besides."""

    bias: Tensor | None
    softcap: float | None
    shift: int
    backend: Backend


@overload
def thresholded_cross_entropy(
    logits: Tensor,
    target: Tensor,
    margin: Margin,
    *,
    stats: Literal[False] = False,
    **options: Unpack[LossOptions],
) -> Tensor: ...
@overload
def thresholded_cross_entropy(
    logits: Tensor,
    target: Tensor,
    margin: Margin,
    *,
    stats: Literal[True],
    **options: Unpack[LossOptions],
) -> tuple[Tensor, LossStats]: ...


def thresholded_cross_entropy(
    logits: Tensor,
    target: Tensor,
    margin: Margin,
    *,
    logit_scale: float = 1.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    normalizer: float | Tensor | None = None,
    token_weights: Tensor | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    protect: Tensor | None = None,
    variant: Variant | None = None,
    progress: float | Tensor | None = None,
    stats: bool = False,
) -> Tensor | tuple[Tensor, LossStats]:
    r"""Cross-entropy over the logits that come near the target's.

    With ``z = logit_scale * logits`` and :math:`\theta_n = z_{n, y_n} - margin_n`,

    .. math:: l_n = -\log \frac{e^{z_{n, y_n}}}{\sum_{i: z_{n,i} \ge \theta_n} e^{z_{n,i}}}

    An entry below its threshold leaves the sum and gets exactly zero gradient; the target never
    does, ties are kept, and a NaN logit is kept, so that it shows. Margins are numbers: nothing
    differentiates through them. Paper, section "Method", algorithm 1.

    Differs from `torch.nn.functional.cross_entropy`: the vocabulary is the last dimension; targets
    are indices; no tokens at all give 0, not NaN; 16-bit logits are computed in float32. With
    ``margin=float("inf")`` values and gradients are the same to the bit.

    Args:
        logits: ``[..., V]``.
        target: integers ``[...]``.
        margin: a number, a tensor ``[]`` or of the shape of ``target`` (or flat, ``[N]``), or an
            `Annealed` rule with ``progress``. At least 0; ``inf`` is ordinary cross-entropy.
        logit_scale: multiplies the logits (the paper's training temperature T).
        ignore_index: targets that do not count.
        reduction: "mean" divides by the number of counted tokens (the sum of their weights), or by
            ``normalizer``; "sum"; "none" gives the shape of ``target``.
        normalizer: a number or 0-d tensor, as for gradient accumulation.
        token_weights: the shape of ``target``.
        z_loss: weight of the squared log-sum-exp of what the loss itself uses.
        label_smoothing: share of the target's weight that spreads evenly over kept entries.
        protect: boolean ``[V]``, the equalization: a protected row is a negative only where the
            target is protected too.
        variant: one of `elbowroom.variants`.
        progress: share of training that is over, from 0 to 1, for annealed margins.
        stats: return ``(loss, LossStats)``.

    Example:
        >>> z = torch.tensor([[2.0, 1.5, -3.0]], requires_grad=True)
        >>> loss = thresholded_cross_entropy(z, torch.tensor([0]), margin=1.0)
        >>> loss.backward()
        >>> z.grad[0, 2].item()
        0.0
    """
    z, tokens = prepare_logits(
        logits,
        target,
        logit_scale=logit_scale,
        ignore_index=ignore_index,
        reduction=reduction,
        normalizer=normalizer,
        token_weights=token_weights,
    )
    if isinstance(variant, Decoupled):
        raise needs_head("variant", "one that works on logits alone", "Decoupled")
    spec = make_spec(
        margin_numbers(margin, progress, tokens, z.dtype),
        tokens,
        z.shape[-1],
        protect=protect,
        variant=variant,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )
    checks.flag("stats", stats)
    loss = tokens.reduce(reference.losses(z, tokens, spec))
    if not stats:
        return loss
    return loss, _present(reference.statistics(z, tokens, spec), tokens)


@overload
def linear_thresholded_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    margin: Margin,
    *,
    stats: Literal[False] = False,
    **options: Unpack[LinearLossOptions],
) -> Tensor: ...
@overload
def linear_thresholded_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    margin: Margin,
    *,
    stats: Literal[True],
    **options: Unpack[LinearLossOptions],
) -> tuple[Tensor, LossStats]: ...
def linear_thresholded_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    margin: Margin,
    *,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    shift: int = 0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    normalizer: float | Tensor | None = None,
    token_weights: Tensor | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    protect: Tensor | None = None,
    variant: Variant | None = None,
    progress: float | Tensor | None = None,
    stats: bool = False,
    backend: Backend = "auto",
) -> Tensor | tuple[Tensor, LossStats]:
    r"""`thresholded_cross_entropy` of a linear head, without holding its logits.

    .. math:: z = logit\_scale \cdot cap(hidden \, weight^T + bias), \qquad
              cap(x) = softcap \cdot \tanh(x / softcap)

    Rows of ``weight`` that a batch never keeps get exactly zero gradient. Paper, section "Method".
    Sums are kept in float32 (float64 for float64), whatever the dtype of the input.

    With a run dimension on the weight, ``[R, V, D]``, this is R losses ``[R]`` of R models.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: integers ``[...]``, or ``[R, ...]``.
        margin: as for `thresholded_cross_entropy`, or ``[R]`` or ``[R, N]`` with runs, or a
            `ByNorms` rule.
        bias: ``[V]`` or ``[R, V]``.
        logit_scale: multiplies the logits, after the cap.
        softcap: bounds the logits, or None.
        shift: position t predicts ``target[t + shift]``; 1 for hidden states and token ids of one
            text. Both are cut inside. Margins of the shape of ``target`` are cut with it.
        backend: "reference" is eager and holds all logits; "chunked" works on any device and holds
            a block of them; "triton" is for GPUs, new, and used where it is asked for; "auto" is
            "chunked".

    The other arguments are those of `thresholded_cross_entropy`; ``protect`` may be ``[R, V]``.

    Example:
        >>> hidden, weight = torch.randn(6, 8), torch.randn(100, 8, requires_grad=True)
        >>> loss, stats = linear_thresholded_cross_entropy(
        ...     hidden, weight, torch.arange(6), margin=0.5, stats=True)
        >>> loss.backward()
        >>> bool((weight.grad[~stats.touched] == 0).all())
        True
    """
    head, tokens = prepare_linear(
        hidden,
        weight,
        target,
        bias=bias,
        logit_scale=logit_scale,
        softcap=softcap,
        shift=shift,
        ignore_index=ignore_index,
        reduction=reduction,
        normalizer=normalizer,
        token_weights=token_weights,
    )
    dtype = compute_dtype(head.hidden.dtype)
    spec = make_spec(
        margin_numbers(margin, progress, tokens, dtype, head=head, shift=shift),
        tokens,
        head.vocab_size,
        protect=protect,
        variant=variant,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        unbounded=not isinstance(margin, (Tensor, MarginRule)) and math.isinf(margin),
    )
    checks.flag("stats", stats)
    with torch.autocast(head.hidden.device.type, enabled=False):
        loss, seen = _run(head, tokens, spec, backend, stats)
    return loss if seen is None else (loss, _present(seen, tokens))


def _run(
    head: Head, tokens: Tokens, spec: Spec, backend: Backend, stats: bool
) -> tuple[Tensor, TokenStats | None]:
    """Compute on the chosen backend."""
    checks.choice("backend", backend, BACKENDS)
    if backend == "auto":  # "triton" by name only, until it has been measured on a GPU
        backend = "chunked"
    if backend == "triton" and not fused.takes(head.hidden):
        raise BackendError(fused.why_not(head))
    if backend != "reference":
        return operator.loss_and_stats(head, tokens, spec, backend, stats=stats)
    loss = tokens.reduce(reference.linear_losses(head, tokens, spec))
    if not stats:
        return loss, None
    with torch.no_grad():
        hidden = head.hidden.masked_fill(~tokens.counted[..., None], 0.0)
        z = replace(head, hidden=hidden).logits()
        return loss, reference.statistics(z, tokens, spec)


def make_spec(
    margin: Float[Tensor, "Rm Nm"],
    tokens: Tokens,
    vocab: int,
    *,
    protect: Tensor | None,
    variant: object,
    label_smoothing: float,
    z_loss: float,
    unbounded: bool = False,
) -> Spec:
    """Check what is computed for each token."""
    if variant is not None and not isinstance(variant, Variant):
        expected = "None or one of elbowroom.variants"
        raise ArgumentTypeError("variant", expected, checks.describe(variant))
    runs = len(tokens.target) if tokens.runs else None
    if protect is not None:
        protect = mask_of_rows("protect", protect, tokens.target, runs, vocab)
    if isinstance(variant, RareOnly):
        variant = RareOnly(mask_of_rows("rows", variant.rows, tokens.target, runs, vocab))
    if isinstance(variant, Softminus):
        why = "values above 0 with Softminus"
        fix = "at margin 0 softminus would erase the target itself"
        checks.all_true(~(margin <= 0), "margin", why, "a margin of 0", fix)
    return Spec(
        margin=margin,
        protect=protect,
        variant=variant,
        label_smoothing=checks.number("label_smoothing", label_smoothing, at_least=0.0, below=1.0),
        z_loss=checks.number("z_loss", z_loss, at_least=0.0),
        unbounded=unbounded,
    )


def _present(stats: TokenStats, tokens: Tokens) -> LossStats:
    """Give statistics the caller's shape."""
    return LossStats(
        log_probability=stats.log_probability.view(tokens.shape),
        rank=stats.rank.view(tokens.shape),
        argmax=stats.argmax.view(tokens.shape),
        kept=stats.kept.view(tokens.shape),
        touched=stats.touched if tokens.runs else stats.touched[0],
    )
