"""A backend's sweep as a custom operator, and the autograd function that hands its gradients out.

As an operator the sweep is one opaque node to ``torch.compile``. It returns losses and gradients
together. Where the derivatives by the tokens' losses are known beforehand (mean, sum), gradients
are made in the forward pass; for ``reduction="none"`` they are known in the backward pass only,
and there the sweep is made a second time.
"""

# Annotations stay objects in this file: the operator's schema is read off them.

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elbowroom.errors import BackendError
from elbowroom.losses import chunked, fused
from elbowroom.losses.chunked import empty_stats
from elbowroom.losses.problem import Head, Tokens, compute_dtype
from elbowroom.losses.products import Needs
from elbowroom.losses.spec import Spec, TokenStats
from elbowroom.losses.variants import Decoupled, DetachedBelow, Leaky, RareOnly, Softminus, Variant

SWEEPS = {"chunked": chunked.sweep, "triton": fused.sweep}


def loss_and_stats(
    head: Head, tokens: Tokens, spec: Spec, backend: str, *, stats: bool
) -> tuple[Tensor, TokenStats | None]:
    """Return the reduced loss, differentiable by hidden, weight and bias, and what it saw."""
    inputs = (head.hidden, head.weight, head.bias)
    needs = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in inputs]
    variant, numbers, rows = _pack_variant(spec.variant)
    value, *others = _Loss.apply(  # type: ignore[no-untyped-call]
        *inputs,
        tokens.coefficients(compute_dtype(head.hidden.dtype)),
        (tokens.target, tokens.counted, spec.margin, spec.protect, rows),
        (
            variant,
            numbers,
            head.logit_scale,
            head.softcap,
            spec.label_smoothing,
            spec.z_loss,
            spec.unbounded,
            backend,
        ),
        (needs, tokens.reduction == "none", stats),
    )
    if tokens.reduction == "none":
        value = value.view(tokens.shape)
    elif not tokens.runs:
        value = value[0]
    return value, TokenStats(*others) if stats else None


class _Loss(torch.autograd.Function):
    """``[R]`` sums of coefficient times loss, or ``[R, N]`` for each token; then statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        coefficient: Tensor,
        tensors: tuple[Tensor | None, ...],
        numbers: tuple[Any, ...],
        flags: tuple[list[bool], bool, bool],
    ) -> tuple[Tensor, ...]:
        needs, per_token, stats = flags
        known = any(needs) and not per_token
        losses, *rest = _sweep(
            hidden,
            weight,
            bias,
            coefficient if known else None,
            *tensors,
            *numbers,
            needs if known else [False] * 3,
            stats,
        )
        # Not saved: the first backward pass gives them away, so that nobody has to copy them.
        ctx.gradients = rest[:3] if known else None
        ctx.save_for_backward(hidden, weight, bias, coefficient, *tensors)
        ctx.numbers, ctx.flags = numbers, flags
        ctx.mark_non_differentiable(*rest[3:])
        weighted = losses * coefficient  # both 0 where ignored
        return (weighted if per_token else weighted.sum(-1), *rest[3:])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise BackendError(
                f"backend: {ctx.numbers[-1]!r} gives first derivatives only, and create_graph=True "
                "asks for more; pass backend='reference'"
            )
        needs, per_token, _stats = ctx.flags
        hidden, weight, bias, coefficient, *tensors = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        factor: Tensor | None = upstream
        if gradients is None:  # for each token, or a second backward pass over a retained graph
            c = coefficient * (upstream if per_token else upstream[:, None])
            _, *gradients = _sweep(hidden, weight, bias, c, *tensors, *ctx.numbers, needs, False)
            factor = None
        out = [
            _scaled(x, factor, like.dtype) if need else None
            for x, need, like in zip(gradients, needs, (hidden, weight, bias), strict=True)
        ]
        return (*out, None, None, None, None)


def _scaled(gradient: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Multiply the gradient of each run, which is given away, and convert it, in one pass.

    Spare the pass where the factor is 1, on a CPU and where kernels look at it on the device.
    """
    on_host = gradient.device.type == "cpu" and not torch.compiler.is_compiling()
    if factor is None or gradient.numel() == 0 or (on_host and bool((factor == 1).all())):
        return gradient.to(dtype)
    column = factor.view(-1, *[1] * (gradient.ndim - 1))
    if gradient.dtype == dtype:
        return gradient if fused.scale(gradient, factor) else gradient.mul_(column)
    return torch.mul(gradient, column, out=gradient.new_empty(gradient.shape, dtype=dtype))


@torch.library.custom_op("elbowroom::sweep", mutates_args=())
def _sweep(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    coefficient: Tensor | None,
    target: Tensor,
    counted: Tensor,
    margin: Tensor,
    protect: Tensor | None,
    rows: Tensor | None,
    variant: str,
    numbers: Sequence[float],
    logit_scale: float,
    softcap: float | None,
    label_smoothing: float,
    z_loss: float,
    unbounded: bool,
    backend: str,
    needs: Sequence[bool],
    stats: bool,
) -> list[Tensor]:
    """Return losses, three gradients (empty where not needed) and five statistics (or none)."""
    head = Head(hidden=hidden, weight=weight, bias=bias, logit_scale=logit_scale, softcap=softcap)
    tokens = Tokens(
        target=target,
        counted=counted,
        weights=None,
        normalizer=None,
        reduction="none",
        shape=tuple(target.shape),
        runs=True,
    )
    spec = Spec(
        margin=margin,
        protect=protect,
        variant=_unpack_variant(variant, numbers, rows),
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        unbounded=unbounded,
    )
    done = SWEEPS[backend](head, tokens, spec, coefficient, Needs(*needs), stats=stats)
    gradients = [
        done.losses.new_empty(0) if x is None else x for x in (done.hidden, done.weight, done.bias)
    ]
    return [done.losses, *gradients, *([] if done.stats is None else done.stats.tensors())]


@_sweep.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    coefficient: Tensor | None,
    target: Tensor,
    *arguments: Any,
) -> list[Tensor]:
    backend, needs, stats = arguments[-3:]
    losses = hidden.new_empty(target.shape, dtype=compute_dtype(hidden.dtype))
    wanted = [need and coefficient is not None for need in needs]
    gradients = [
        losses.new_empty(like.shape if need else (0,))
        for like, need in zip((hidden, weight, weight[..., 0]), wanted, strict=True)
    ]
    if backend == "triton" and wanted[0]:
        gradients[0] = gradients[0].to(hidden.dtype)
    if backend == "triton" and wanted[1]:
        gradients[1] = gradients[1].to(fused.gradient_dtype(weight.dtype))
    others = empty_stats(losses, weight.shape[1]).tensors() if stats else []
    return [losses, *gradients, *others]


def _pack_variant(variant: Variant | None) -> tuple[str, list[float], Tensor | None]:
    match variant:
        case None:
            return "", [], None
        case Softminus():
            return "Softminus", [float(variant.c), float(variant.detach_threshold)], None
        case Leaky():
            return "Leaky", [float(variant.weight)], None
        case RareOnly():
            return "RareOnly", [], variant.rows
        case _:
            return type(variant).__name__, [], None


def _unpack_variant(name: str, numbers: Sequence[float], rows: Tensor | None) -> Variant | None:
    match name:
        case "":
            return None
        case "Softminus":
            return Softminus(numbers[0], bool(numbers[1]))
        case "Leaky":
            return Leaky(numbers[0])
        case "DetachedBelow":
            return DetachedBelow()
        case "Decoupled":
            return Decoupled()
        case _:
            assert name == "RareOnly"
            assert rows is not None
            return RareOnly(rows)
