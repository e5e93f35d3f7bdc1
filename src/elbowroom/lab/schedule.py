"""Learning rates as functions of the step, for numbers and for tensors on a device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError

Kind = Literal["cosine", "wsd", "constant"]
Shape = Literal["linear", "sqrt"]
KINDS = ("cosine", "wsd", "constant")
SHAPES = ("linear", "sqrt")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    r"""A learning rate that warms up, and then decays in one of three ways, or stays.

    For step i, 0 at the first update, with u the share of the decay that has passed, in [0, 1]:

    .. math::
        \min(i / warmup, 1) \, (min + (lr - min) \, k(u)), \qquad
        k(u) = (1 + \cos \pi u) / 2, \quad 1 - u \quad\text{or}\quad 1 - \sqrt u

    Where there is a warm-up, the first update has learning rate 0, as in the paper's code, and
    update number ``warmup`` is the first with ``lr``.

    Args:
        kind: "cosine" decays from the end of the warm-up to ``steps``; "wsd" (warm-up, stable,
            decay) in the last ``decay`` of the steps; "constant" never.
        lr: the highest learning rate: a number, or one a run, ``[R]``.
        min_lr: what it decays to, and stays at after ``steps``: likewise, and not above ``lr``.
        warmup: updates before ``lr`` is reached.
        steps: updates in all.
        decay: the share of ``steps`` that decays, for "wsd".
        shape: how it decays, for "wsd": "linear", or "sqrt", which is steep at first.

    Example:
        >>> schedule = Schedule(lr=1e-3, min_lr=1e-4, warmup=100, steps=8000)
        >>> [round(schedule.at(i), 6) for i in (0, 50, 100, 4050, 8000)]
        [0.0, 0.0005, 0.001, 0.00055, 0.0001]
        >>> schedule.at(torch.tensor(50))
        tensor(0.0005)
    """

    kind: Kind = "cosine"
    lr: float | Float[Tensor, " R"] = 1e-3
    min_lr: float | Float[Tensor, " R"] = 0.0
    warmup: int = 0
    steps: int = 1
    decay: float = 0.2
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        checks.choice("kind", self.kind, KINDS)
        checks.choice("shape", self.shape, SHAPES)
        _check_rate("lr", self.lr)
        _check_rate("min_lr", self.min_lr)
        checks.all_true(torch.as_tensor(self.min_lr <= self.lr), "min_lr", "at most lr", "more")
        checks.integer("steps", self.steps, at_least=1)
        if checks.integer("warmup", self.warmup, at_least=0) > self.steps:
            raise ArgumentValueError("warmup", f"at most steps, {self.steps}", self.warmup)
        checks.number("decay", self.decay, at_least=0.0, at_most=1.0)

    @property
    def begin(self) -> int:
        """The step from which the learning rate decays."""
        share = {"cosine": 1.0, "wsd": self.decay, "constant": 0.0}[self.kind]
        return max(self.warmup, self.steps - round(share * self.steps))

    @overload
    def at(self, step: float) -> float | Tensor: ...
    @overload
    def at(self, step: Tensor) -> Tensor: ...
    def at(self, step: float | Tensor) -> float | Tensor:
        """Return the learning rate of an update; nothing waits for the device.

        Args:
            step: 0 for the first update. A number gives a number, and a 0-d tensor a float32
                tensor on its device, 0-d; ``[R]`` where ``lr`` or ``min_lr`` is one a run.
        """
        i: float | Tensor
        if isinstance(step, Tensor):
            checks.has_shape("step", step, (), "a 0-d tensor")
            i = step.double()
        else:
            i = checks.number("step", step, at_least=0)
        ramp = _unit(i / self.warmup) if self.warmup else 1.0
        rate = ramp * (self.min_lr + (self.lr - self.min_lr) * self._kept(i))
        if isinstance(step, Tensor):
            rate = torch.as_tensor(rate, device=step.device)
        return rate.float() if isinstance(rate, Tensor) else rate

    def _kept(self, i: float | Tensor) -> float | Tensor:
        """Return how much of the way from ``min_lr`` up to ``lr`` is left: 1 before the decay."""
        if self.kind == "constant":
            return 1.0
        u = _unit((i - self.begin) / max(self.steps - self.begin, 1))
        if self.kind == "cosine":
            angle = math.pi * u
            return (1 + (angle.cos() if isinstance(angle, Tensor) else math.cos(angle))) / 2
        return 1 - (u**0.5 if self.shape == "sqrt" else u)


def _unit(x: float | Tensor) -> float | Tensor:
    """Clamp to [0, 1]."""
    return x.clamp(0, 1) if isinstance(x, Tensor) else min(max(x, 0.0), 1.0)


def _check_rate(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        checks.number(name, value, at_least=0.0)
        return
    checks.is_floating(name, value)
    if value.ndim != 1:
        raise ArgumentValueError(name, "a number, or [R]", f"shape {tuple(value.shape)}")
    expected = "finite numbers, at least 0"
    checks.all_true((value >= 0) & value.isfinite(), name, expected, "others among them")
