"""Checks that the diagnostics share."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.losses.problem import Head, Tokens, compute_dtype
from elbowroom.margins import ByNorms, MarginRule


def matrix(name: str, value: Tensor, rows: Tensor | None) -> Float[Tensor, "*runs V D"]:
    """Check a matrix and choose rows of it; detached, in the dtype for computing."""
    checks.is_floating(name, value)
    if value.ndim not in (2, 3) or 0 in value.shape:
        raise ArgumentValueError(name, "[V, D] or [R, V, D], not empty", tuple(value.shape))
    value = value.detach().to(compute_dtype(value.dtype))
    return value if rows is None else value[..., row_ids("rows", rows, value), :]


def row_ids(name: str, rows: Tensor, matrix: Tensor) -> Int[Tensor, " K"]:
    """Return the ids of rows given by a mask or by ids; at least one."""
    size = matrix.shape[-2]
    if checks.is_tensor(name, rows).dtype == torch.bool:
        checks.has_shape(name, rows, (size,), "a mask of rows")
        rows = rows.nonzero()[:, 0]
    checks.is_integer(name, rows, "pass ids, or a mask")
    if rows.ndim != 1 or rows.numel() == 0:
        expected = "ids [K] of one row or more, or a mask with such"
        raise ArgumentValueError(name, expected, checks.describe(rows))
    checks.same_device(name, rows, "the matrix", matrix)
    checks.all_true((rows >= 0) & (rows < size), name, f"ids from 0 to {size - 1}", "an id outside")
    return rows.long()


def margin_of_tokens(
    margin: float | Tensor | MarginRule, head: Head, tokens: Tokens, shift: int
) -> Float[Tensor, "R N"]:
    """Return the margin of each token, from what a loss would take."""
    target, dtype = tokens.target, compute_dtype(head.hidden.dtype)
    if isinstance(margin, ByNorms):
        index = target[..., None].expand(-1, -1, head.weight.shape[-1])
        return margin.of(head.hidden, head.weight.gather(1, index)).to(dtype)
    if isinstance(margin, MarginRule):
        fix = "pass rule.at(progress)"
        raise ArgumentTypeError("margin", "a number, a tensor or ByNorms", repr(margin), fix)
    if not isinstance(margin, Tensor):
        value = checks.number("margin", margin, at_least=0.0, finite=False)
        return torch.full(target.shape, value, dtype=dtype, device=target.device)
    x = margin.detach().to(dtype)
    if shift and x.ndim == len(tokens.shape) and x.shape[-1] == tokens.shape[-1] + shift:
        x = x[..., shift:]
    if tokens.runs and tuple(x.shape) == (len(target),):
        x = x[:, None]
    elif tuple(x.shape) == tokens.shape:
        x = x.reshape(target.shape)
    elif x.ndim and tuple(x.shape) not in (target.shape, target.shape[1 - tokens.runs :]):
        expected = f"a number, or a shape such as {tokens.shape}, target's"
        raise ArgumentValueError("margin", expected, f"shape {tuple(margin.shape)}")
    checks.all_true(x >= 0, "margin", "values that are at least 0", "a negative value or NaN")
    return x.to(target.device).expand(target.shape)


def protected_rows(protect: Tensor, head: Head, tokens: Tokens) -> Bool[Tensor, "Rp V"]:
    """Check the mask of equalization."""
    if checks.is_tensor("protect", protect).dtype != torch.bool:
        raise ArgumentTypeError("protect", "a boolean tensor", checks.describe(protect))
    runs, vocab = len(tokens.target), head.vocab_size
    if tuple(protect.shape) not in ((vocab,), (runs, vocab) if tokens.runs else (vocab,)):
        expected = f"shape ({vocab},)" + f" or ({runs}, {vocab})" * tokens.runs
        raise ArgumentValueError("protect", expected, f"shape {tuple(protect.shape)}")
    checks.same_device("protect", protect, "target", tokens.target)
    return protect.view(-1, vocab)
