"""The rows of a parameter as matrices, and the numbers of a step for each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from elbowroom.optim.numbers import Number
from elbowroom.optim.update import Betas, Coefficients, coefficients

At: TypeAlias = slice | Tensor  # which rows: a stretch of them, or indices [n]


@dataclass(frozen=True)
class Rule:
    """What holds for all rows of a parameter in one step."""

    betas: Betas
    eps: float
    step: Number  # the parameter's own count, this step included
    catch_up: bool
    maximize: bool
    fused: bool  # whether torch's fused kernel may be used


@dataclass(frozen=True)
class Rows:
    """A matrix, its moments, and what is known of each of its rows."""

    param: Float[Tensor, "n D"]
    grad: Float[Tensor, "n D"]
    exp_avg: Float[Tensor, "n D"]
    exp_avg_sq: Float[Tensor, "n D"]
    row_step: Float[Tensor, " n"]
    row_decay: Float[Tensor, " n"] | None  # the decay that rows have missed, this step's included
    marks: Bool[Tensor, " n"] | None  # outside these no row has a gradient
    lr: float | Float[Tensor, ""] | Float[Tensor, " n"]
    weight_decay: float | Float[Tensor, ""] | Float[Tensor, " n"]

    def __len__(self) -> int:
        return self.param.shape[0]


def matrices(values: dict[str, Tensor | float | None]) -> Iterator[Rows]:
    """Cut a parameter ``[..., V, D]`` and all that belongs to it into matrices of rows.

    One matrix if the memory layout allows it, else one for each leading index.
    """
    param = values["param"]
    whole = {name: x for name, x in values.items() if isinstance(x, Tensor) and x.ndim}
    try:
        cut = {name: _flatten(x, name) for name, x in whole.items()}
        yield Rows(**{**values, **cut})  # type: ignore[arg-type]
    except _NoViewError:
        assert isinstance(param, Tensor)
        for i in range(param.shape[0]):
            yield from matrices({**values, **{name: x[i] for name, x in whole.items()}})


class _NoViewError(Exception):
    """The rows of a tensor cannot be listed without a copy."""


def _flatten(x: Tensor, name: str) -> Tensor:
    if name in _PER_ELEMENT:
        if x.ndim == 2:
            return x
        try:
            return x.view(-1, x.shape[-1]) if x.numel() else x.reshape(-1, x.shape[-1])
        except RuntimeError as error:
            raise _NoViewError from error
    return x.reshape(-1)


_PER_ELEMENT = ("param", "grad", "exp_avg", "exp_avg_sq")


def begin(
    rows: Rows, rule: Rule, at: At, dtype: torch.dtype
) -> tuple[Coefficients, Tensor | None, Number]:
    """Return the numbers of some rows for this step, the steps they missed, their new count."""
    rates = (rows.lr, rows.weight_decay)
    lr, weight_decay = (x[at] if isinstance(x, Tensor) and x.ndim else x for x in rates)
    decay = 1 - lr * weight_decay
    missed: Tensor | None = None
    if rows.row_decay is not None:
        step: Number = rule.step
        missed = rule.step - 1 - rows.row_step[at]
        decay = rows.row_decay[at].to(dtype, copy=True)  # it is soon reset
    else:
        step = rows.row_step[at] + 1
    exact = step.to(dtype) if isinstance(step, Tensor) else step
    c = coefficients(exact, lr, decay, rule.betas, rule.eps)
    return c.columns(), missed, step
