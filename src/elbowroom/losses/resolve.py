"""From what a user gives as margin to numbers: at this moment, for each token."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.losses.problem import Head, Tokens
from elbowroom.margins import Annealed, ByNorms, Margin, MarginRule


def margin_numbers(
    margin: Margin,
    progress: float | Tensor | None,
    tokens: Tokens,
    dtype: torch.dtype,
    *,
    head: Head | None = None,
    shift: int = 0,
) -> Float[Tensor, "Rm Nm"]:
    """Check a margin and return it as ``[1 or R, 1 or N]``.

    Args:
        margin: a number, a tensor or a rule.
        progress: share of training that is over, for annealed margins.
        tokens: the problem's tokens, after the shift.
        dtype: of the result.
        head: what `ByNorms` takes norms of; None on bare logits.
        shift: how many positions were cut off the targets; off a margin of their shape, too.
    """
    now = _at(margin, progress)
    if isinstance(now, MarginRule):
        if head is None:
            raise needs_head("margin", "a rule that works on logits alone", type(now).__name__)
        return _by_norms(now, head, tokens)
    if isinstance(now, Tensor):
        return _of_tensor(now, tokens, dtype, shift)
    fix = 'for ordinary cross-entropy pass float("inf")'
    value = checks.number("margin", now, at_least=0.0, finite=False, fix=fix)
    return torch.full((1, 1), value, dtype=dtype, device=tokens.target.device)


def needs_head(argument: str, expected: str, got: str) -> ArgumentTypeError:
    """Return the error for what bare logits do not tell."""
    fix = "use linear_thresholded_cross_entropy, which sees hidden states and weight"
    return ArgumentTypeError(argument, expected, got, fix)


def _at(margin: Margin, progress: float | Tensor | None) -> float | Tensor | MarginRule:
    """Return the margin for this moment of training."""
    if isinstance(progress, Tensor):  # also where the margin makes no use of it
        checks.has_shape("progress", progress, (), "one number")
    elif progress is not None:
        checks.number("progress", progress, at_least=0.0, at_most=1.0)
    if not isinstance(margin, MarginRule):
        return margin
    if progress is not None:
        return margin.at(progress)
    if isinstance(margin, Annealed):
        raise ArgumentValueError(
            "progress",
            "the share of training that is over, for an annealed margin",
            None,
            "pass progress=step / steps, or set the module's buffer: loss.progress.fill_(...)",
        )
    return margin


def _by_norms(rule: MarginRule, head: Head, tokens: Tokens) -> Float[Tensor, "R N"]:
    if not isinstance(rule, ByNorms):
        expected = "a number, a tensor, or a rule of elbowroom.margins"
        raise ArgumentTypeError("margin", expected, checks.describe(rule))
    with torch.no_grad():
        runs, vocab, width = head.weight.shape
        first = torch.arange(runs, device=tokens.target.device)[:, None] * vocab
        rows = head.weight.reshape(-1, width)[tokens.target + first]
        # Hidden states of ignored tokens may be anything, NaN too.
        return rule.of(head.hidden, rows).masked_fill(~tokens.counted, torch.inf)


def _of_tensor(
    margin: Tensor, tokens: Tokens, dtype: torch.dtype, shift: int
) -> Float[Tensor, "Rm Nm"]:
    runs, count = tokens.target.shape
    x = margin.detach().to(dtype)
    if shift and x.ndim == len(tokens.shape):
        left = x[..., shift:]
        x = left if left.shape[-1] == tokens.shape[-1] != x.shape[-1] else x
    shapes: dict[tuple[int, ...], tuple[int, int]] = {(): (1, 1), tokens.shape: (runs, count)}
    shapes |= {(runs,): (runs, 1), (runs, count): (runs, count)} if tokens.runs else {}
    shapes |= {} if tokens.runs else {(count,): (1, count)}
    if tuple(x.shape) not in shapes:
        expected = "a number, or shape " + " or ".join(map(str, shapes))
        raise ArgumentValueError("margin", expected, f"shape {tuple(margin.shape)}")
    if x.ndim:
        checks.same_device("margin", x, "target", tokens.target)
    valid = x >= 0  # false for NaN
    checks.all_true(valid, "margin", "values that are at least 0", "a negative value or NaN")
    return x.to(tokens.target.device).reshape(shapes[tuple(x.shape)])
