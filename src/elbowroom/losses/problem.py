"""One description of the work for every loss: what comes in, checked and brought to one shape.

A loss over a language model's head is ``sum_n c_n * l_n``: per-token losses ``l_n`` that the
equations of a method give, and coefficients ``c_n`` that come from the reduction. `Head` makes the
logits, `Tokens` knows targets, coefficients and the reduction. Both carry a leading run dimension
R, which is 1 in the ordinary case, so that a population of R models needs no second code path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError

Reduction = Literal["none", "mean", "sum"]
REDUCTIONS = ("none", "mean", "sum")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums are kept in: float64 for float64, float32 for all else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True, kw_only=True)
class Head:
    """Hidden states and the output matrix; ``z = logit_scale * cap(hidden @ weight.T + bias)``."""

    hidden: Float[Tensor, "R N D"]
    weight: Float[Tensor, "R V D"]
    bias: Float[Tensor, "R V"] | None = None
    logit_scale: float = 1.0
    softcap: float | None = None

    @property
    def vocab_size(self) -> int:
        """Return V."""
        return self.weight.shape[1]

    def logits(self) -> Float[Tensor, "R N V"]:
        """Return all logits, in float32 or float64, under autocast too; differentiable."""
        with torch.autocast(self.hidden.device.type, enabled=False):
            return self._logits(compute_dtype(self.hidden.dtype))

    def _logits(self, dtype: torch.dtype) -> Float[Tensor, "R N V"]:
        hidden, weight = self.hidden.to(dtype), self.weight.to(dtype)
        if hidden.shape[0] == 1:  # F.linear, so that the bits are those of an ordinary head
            bias = None if self.bias is None else self.bias[0].to(dtype)
            raw = F.linear(hidden[0], weight[0], bias)[None]
        elif self.bias is None:
            raw = hidden @ weight.mT
        else:
            raw = torch.baddbmm(self.bias[:, None].to(dtype), hidden, weight.mT)
        if self.softcap is not None:
            raw = self.softcap * torch.tanh(raw / self.softcap)
        return raw if self.logit_scale == 1.0 else self.logit_scale * raw


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Targets, which of them count and how much, and how losses over them are reduced."""

    target: Int[Tensor, "R N"]  # int64; 0 where ignored
    counted: Bool[Tensor, "R N"]
    weights: Float[Tensor, "R N"] | None
    normalizer: float | Tensor | None
    reduction: Reduction
    shape: tuple[int, ...]  # of the caller's targets, after the shift
    runs: bool  # whether the caller gave a run dimension

    def coefficients(self, dtype: torch.dtype) -> Float[Tensor, "R N"]:
        """Return the derivative of the reduced loss by each token's loss (1 for "none")."""
        c = self.counted.to(dtype)
        if self.weights is not None:
            c = c * self.weights.to(dtype)
        return c / self._denominator(c)[:, None] if self.reduction == "mean" else c

    def reduce(self, per_token: Float[Tensor, "R N"]) -> Tensor:
        """Reduce per-token losses (anything where ignored) to what the caller asked for."""
        x = per_token.masked_fill(~self.counted, 0.0)
        if self.weights is not None:
            x = x * self.weights.to(x.dtype)
        if self.reduction == "none":
            return x.view(self.shape)
        if self.runs:
            total = x.sum(-1)
        else:  # in nll_loss's order of summation, so that the bits are F.cross_entropy's
            one = torch.where(self.counted, 0, -100).view(-1)
            total = F.nll_loss(-x.view(-1, 1), one, reduction="sum")[None]
        if self.reduction == "mean":
            c = self.counted.to(x.dtype)
            c = c if self.weights is None else c * self.weights.to(x.dtype)
            total = total / self._denominator(c)
        return total if self.runs else total[0]

    def _denominator(self, c: Float[Tensor, "R N"]) -> Float[Tensor, " R"]:
        total = c.sum(-1)
        divisor = total
        if self.normalizer is not None:
            given = torch.as_tensor(self.normalizer, dtype=c.dtype, device=c.device)
            divisor = given.detach().expand(c.shape[0])
        nothing = (total == 0) & (divisor == 0)  # no tokens, here or in all parts: loss 0
        return torch.where(nothing, torch.ones_like(total), divisor)


def prepare_linear(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    shift: int = 0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    normalizer: float | Tensor | None = None,
    token_weights: Tensor | None = None,
) -> tuple[Head, Tokens]:
    """Check the arguments that all losses over a linear head share, and bring them to one shape.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]`` where ``weight`` has a run dimension.
        weight: ``[V, D]`` or ``[R, V, D]``.
        target: the shape of ``hidden`` without its last dimension.
        bias: ``[V]``, or ``[R, V]`` with runs.
        logit_scale: multiplies the logits.
        softcap: bounds them: ``softcap * tanh(x / softcap)``.
        shift: position ``t`` predicts the target at ``t + shift`` of the last dimension.
        ignore_index: targets that do not count.
        reduction: "none", "mean" or "sum".
        normalizer: what "mean" divides by, instead of the weights' sum.
        token_weights: the shape of ``target``; the weight of each token.
    """
    hidden = checks.is_floating("hidden", hidden)
    weight = checks.is_floating("weight", weight)
    if weight.ndim not in (2, 3) or 0 in weight.shape:
        expected = "[V, D] or [R, V, D], none of them 0"
        raise ArgumentValueError("weight", expected, f"shape {tuple(weight.shape)}")
    runs = weight.ndim == 3
    if hidden.ndim < (3 if runs else 1) or hidden.shape[-1] != weight.shape[-1]:
        expected = f"[{'R, ' * runs}..., D] with D = {weight.shape[-1]}, as in the weight"
        raise ArgumentValueError("hidden", expected, f"shape {tuple(hidden.shape)}")
    if runs and hidden.shape[0] != weight.shape[0]:
        expected = f"[R, ..., D] with R = {weight.shape[0]}, the weight's run dimension"
        raise ArgumentValueError("hidden", expected, f"shape {tuple(hidden.shape)}")
    checks.same_device("weight", weight, "hidden", hidden)
    hidden, weight, bias = _autocast(hidden, weight, bias)
    checks.same_dtype("weight", weight, "hidden", hidden)
    if bias is not None:
        bias = checks.is_floating("bias", bias)
        checks.has_shape("bias", bias, weight.shape[:-1], "a number a row of the weight")
        checks.same_device("bias", bias, "hidden", hidden)
        checks.same_dtype("bias", bias, "hidden", hidden)
    logit_scale = checks.number("logit_scale", logit_scale, above=0.0)
    if softcap is not None:
        softcap = checks.number("softcap", softcap, above=0.0, fix="pass None for no cap")
    _check_target(target, hidden.shape[:-1], "hidden", hidden)
    hidden, target, token_weights = _shift(hidden, target, token_weights, shift, runs)
    tokens = prepare_tokens(
        target,
        weight.shape[-2],
        runs=weight.shape[0] if runs else None,
        ignore_index=ignore_index,
        reduction=reduction,
        normalizer=normalizer,
        token_weights=token_weights,
    )
    vocab, width = weight.shape[-2:]
    head = Head(
        hidden=hidden.reshape(*tokens.target.shape, width),
        weight=weight.view(-1, vocab, width),
        bias=None if bias is None else bias.view(-1, vocab),
        logit_scale=logit_scale,
        softcap=softcap,
    )
    return head, tokens


def prepare_logits(
    logits: Tensor, target: Tensor, *, logit_scale: float = 1.0, **options: object
) -> tuple[Float[Tensor, "1 N V"], Tokens]:
    """Check logits ``[..., V]`` and targets ``[...]``; return scaled logits ``[1, N, V]``.

    Options are ``ignore_index``, ``reduction``, ``normalizer`` and ``token_weights``.
    """
    logits = checks.is_floating("logits", logits)
    if logits.ndim < 1 or logits.shape[-1] == 0:
        raise ArgumentValueError("logits", "[..., V] with V at least 1", tuple(logits.shape))
    _check_target(target, logits.shape[:-1], "logits", logits)
    tokens = prepare_tokens(target, logits.shape[-1], **options)  # type: ignore[arg-type]
    logit_scale = checks.number("logit_scale", logit_scale, above=0.0)
    z = logits.reshape(1, -1, logits.shape[-1]).to(compute_dtype(logits.dtype))
    return (z if logit_scale == 1.0 else logit_scale * z), tokens


def prepare_tokens(
    target: Tensor,
    vocab_size: int,
    *,
    runs: int | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    normalizer: float | Tensor | None = None,
    token_weights: Tensor | None = None,
) -> Tokens:
    """Check targets and options of the reduction; ``runs`` is the size of a run dimension."""
    checks.choice("reduction", reduction, REDUCTIONS)
    ignore_index = checks.integer("ignore_index", ignore_index)
    shape = tuple(target.shape)
    flat = target.reshape(runs or 1, -1) if target.numel() else target.new_zeros(runs or 1, 0)
    flat = flat.long()
    counted = flat != ignore_index
    checks.all_true(
        ~counted | ((flat >= 0) & (flat < vocab_size)),
        "target",
        f"values from 0 to {vocab_size - 1}, or ignore_index ({ignore_index})",
        "a value outside",
        "compare target.max() with the number of rows of the head",
    )
    if token_weights is not None:
        token_weights = checks.is_floating("token_weights", token_weights)
        checks.has_shape("token_weights", token_weights, shape, "the shape of target")
        checks.same_device("token_weights", token_weights, "target", target)
        # Those of ignored tokens may be anything, NaN too.
        token_weights = token_weights.detach().reshape(flat.shape).masked_fill(~counted, 0.0)
    if normalizer is not None:
        _check_normalizer(normalizer, reduction, runs)
    return Tokens(
        target=flat.masked_fill(~counted, 0),
        counted=counted,
        weights=token_weights,
        normalizer=normalizer,
        reduction=reduction,
        shape=shape,
        runs=runs is not None,
    )


def _check_target(target: Tensor, shape: torch.Size, name: str, of: Tensor) -> None:
    checks.is_integer("target", target)
    checks.has_shape("target", target, shape, f"the shape of {name} without its last dimension")
    checks.same_device("target", target, name, of)


def _check_normalizer(normalizer: float | Tensor, reduction: str, runs: int | None) -> None:
    if reduction != "mean":
        raise ArgumentValueError(
            "normalizer", 'None unless reduction is "mean"', f"one with reduction={reduction!r}"
        )
    if not isinstance(normalizer, Tensor):
        checks.number("normalizer", normalizer, above=0.0)
        return
    if normalizer.ndim and tuple(normalizer.shape) != (runs,):
        expected = "a number or a tensor of shape []" + (f" or [{runs}]" if runs else "")
        raise ArgumentValueError("normalizer", expected, f"shape {tuple(normalizer.shape)}")
    # 0 is a tensor's count of no tokens at all, where the loss is 0
    right = normalizer >= 0  # false for NaN
    checks.all_true(right, "normalizer", "a number that is at least 0", "a negative one or NaN")


def _shift(
    hidden: Tensor, target: Tensor, token_weights: Tensor | None, shift: int, runs: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    if checks.integer("shift", shift, at_least=0) == 0:
        return hidden, target, token_weights
    if target.ndim < 1 + runs:
        raise ArgumentValueError("shift", "0 for a target without a time dimension", shift)
    if token_weights is not None:
        checks.is_floating("token_weights", token_weights)
        checks.has_shape("token_weights", token_weights, target.shape, "the shape of target")
        token_weights = token_weights[..., shift:]
    return hidden[..., : max(0, hidden.shape[-2] - shift), :], target[..., shift:], token_weights


def _autocast(
    hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast as `F.linear` does under ``torch.autocast``; leave float64 alone, as it does."""
    kind = hidden.device.type
    if not torch.is_autocast_enabled(kind):
        return hidden, weight, bias
    if torch.float64 in (hidden.dtype, weight.dtype):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(kind)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
