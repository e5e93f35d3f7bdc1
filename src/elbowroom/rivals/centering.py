"""Output embedding centering: rows minus their mean after each step, or a penalty on the mean."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.losses.problem import compute_dtype


def center_rows(optimizer: Optimizer, weight: Float[Tensor, "*runs V D"]) -> RemovableHandle:
    r"""Subtract from each row the mean of all rows, after every step of an optimizer.

    .. math:: w_i \leftarrow w_i - \mu, \qquad \mu = \frac{1}{V} \sum_{j=1}^{V} w_j

    The logits of an output matrix all change by the same number, which a softmax does not see; but
    the matrix no longer drifts, and logits stay small. (Of a thresholded loss the same holds: a
    threshold moves with its target's logit.) In a *tied* matrix the inputs change too.

    Reference: Stollenwerk, "Output Embedding Centering for Stable LLM Pretraining", 2026: its
    first method.

    Args:
        optimizer: any optimizer; it need not be the one that moves ``weight``.
        weight: ``[V, D]``, or ``[R, V, D]`` with a mean for each run. It is centered for the first
            time after the next step.

    Returns:
        A handle; ``handle.remove()`` ends it.

    The mean is taken in float32 or better. Rows that `elbowroom.RowAdamW` left alone are shifted
    with all others.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([[1.0], [4.0]]))
        >>> optimizer = torch.optim.SGD([weight], lr=0.0)
        >>> handle = center_rows(optimizer, weight)
        >>> optimizer.step()
        >>> weight.data.T
        tensor([[-1.5000,  1.5000]])
    """
    if not isinstance(optimizer, Optimizer):
        raise ArgumentTypeError("optimizer", "a torch.optim.Optimizer", checks.describe(optimizer))
    _check(weight)

    def center(*_: Any) -> None:
        with torch.no_grad():
            weight.sub_(_mean(weight)[..., None, :])

    return optimizer.register_step_post_hook(center)


def centering_penalty(
    weight: Float[Tensor, "*runs V D"], strength: float | Tensor
) -> Float[Tensor, "*runs"]:
    r"""Return a penalty on the mean of the rows, to be added to a loss.

    .. math:: \lambda \lVert \mu \rVert^2, \qquad \mu = \frac{1}{V} \sum_{j=1}^{V} w_j

    It is not scaled further, so its gradient is :math:`2 \lambda \mu / V` for every row, which all
    rows get: with it, `elbowroom.RowAdamW` has no row to leave alone. There, use `center_rows`.

    Reference: Stollenwerk, "Output Embedding Centering for Stable LLM Pretraining", 2026: its
    second method.

    Args:
        weight: ``[V, D]``, or ``[R, V, D]``.
        strength: the factor, at least 0: a number, or a tensor ``[R]`` with one a run.

    Returns:
        A number, or ``[R]`` with runs; float32 or better, differentiable.

    Example:
        >>> centering_penalty(torch.tensor([[3.0, 0.0], [3.0, 8.0]]), strength=0.1)
        tensor(2.5000)
    """
    _check(weight)
    squares = _mean(weight).square().sum(-1)
    if not isinstance(strength, Tensor):
        return checks.number("strength", strength, at_least=0.0) * squares
    checks.is_floating("strength", strength)
    if strength.ndim:
        checks.has_shape("strength", strength, squares.shape, "a number a run")
    checks.all_true(strength >= 0, "strength", "numbers that are at least 0", "one that is not")
    return strength.to(squares.dtype) * squares


def _check(weight: Tensor) -> None:
    checks.is_floating("weight", weight)
    if weight.ndim < 2 or weight.shape[-2] == 0:
        expected = "[V, D] or [R, V, D], V at least 1"
        raise ArgumentValueError("weight", expected, f"shape {tuple(weight.shape)}")


def _mean(weight: Tensor) -> Tensor:
    return weight.mean(-2, dtype=compute_dtype(weight.dtype))
