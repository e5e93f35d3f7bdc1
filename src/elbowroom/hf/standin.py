"""What stands in for a model's logits between its head and its loss: everything but the numbers.

A causal LM computes logits, perhaps scales or caps them, and hands them to its loss. A loss over a
linear head wants hidden states and the head instead. So a patched head returns a `StandIn`, which
remembers both and what is done to it. Whoever wants numbers gets them: any other use computes the
logits in full, as the model would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elbowroom.errors import ArgumentValueError

Number = (int, float)
SAME = ("float", "contiguous", "to")  # of a result that the loss brings to its own dtype and place


@dataclass(frozen=True)
class Cap:
    """``logit_scale * softcap * tanh(x / softcap)``; ``logit_scale * x`` without softcap."""

    logit_scale: float = 1.0
    softcap: float | None = None

    def over(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a loss that has its own scale, and perhaps cap, besides.

        Args:
            own: the loss's options.
        """
        scale = self.logit_scale * own.get("logit_scale", 1.0)
        if self.softcap is None or own.get("softcap") is None:
            return {"logit_scale": scale, "softcap": self.softcap or own.get("softcap")}
        fix = "leave it out of the loss"
        raise ArgumentValueError("loss.softcap", "None: the model caps", own["softcap"], fix)


class StandIn:
    """The logits of ``hidden`` under a head, not computed yet.

    Args:
        hidden: what came to the head.
        compute: makes the logits of it.
        steps: what was done to them since: ``("*", number)`` or ``("tanh", None)``.
    """

    def __init__(
        self,
        hidden: Tensor,
        compute: Callable[[Tensor], Tensor],
        steps: Sequence[tuple[str, float | None]] = (),
    ) -> None:
        self._hidden, self._compute, self._steps = hidden, compute, tuple(steps)
        self._logits: Tensor | None = None

    def _then(self, step: str, number: float | None = None) -> StandIn:
        return StandIn(self._hidden, self._compute, (*self._steps, (step, number)))

    def __mul__(self, other: object) -> Any:
        """Remember a factor; anything else needs the numbers."""
        if self._logits is None and isinstance(other, Number):
            return self._then("*", float(other))
        return self.numbers() * other  # type: ignore[operator]

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Any:
        """Remember a divisor; anything else needs the numbers."""
        if self._logits is None and isinstance(other, Number) and other:
            return self._then("/", float(other))
        return self.numbers() / other  # type: ignore[operator]

    def tanh(self) -> Any:
        """Remember it."""
        return self._then("tanh") if self._logits is None else self.numbers().tanh()

    def numbers(self) -> Tensor:
        """Compute the logits, once."""
        if self._logits is None:
            x = self._compute(self._hidden)
            for step, number in self._steps:
                x = torch.tanh(x) if number is None else x * number if step == "*" else x / number
            self._logits = x
        return self._logits

    def hidden_and_cap(self) -> tuple[Tensor, Cap] | None:
        """Return what a linear loss needs; None if the numbers exist, or are not a scaled cap."""
        cap = None if self._logits is not None else cap_of(self._steps)
        return None if cap is None else (self._hidden, cap)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute for whatever function of PyTorch asks, but for those that can be remembered."""
        if function is torch.tanh and isinstance(args[0], StandIn):
            return args[0].tanh()
        return function(
            *map(numbers_of, args), **{k: numbers_of(v) for k, v in (kwargs or {}).items()}
        )

    def __getattr__(self, name: str) -> Any:
        """Return the logits' attribute; casts wait for the loss."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in SAME and self._logits is None:
            return lambda *_args, **_kwargs: self
        return getattr(self.numbers(), name)

    def __getitem__(self, index: Any) -> Tensor:
        """Return some of the logits."""
        return self.numbers()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Change some of the logits, as models do that forbid certain tokens."""
        self.numbers()[index] = numbers_of(value)

    def __len__(self) -> int:
        """Return the size of the first dimension."""
        return len(self._hidden)

    def __add__(self, other: Any) -> Tensor:
        return torch.add(self.numbers(), numbers_of(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Tensor:
        return torch.sub(self.numbers(), numbers_of(other))

    def __rsub__(self, other: Any) -> Tensor:
        found: Tensor = numbers_of(other) - self.numbers()
        return found

    def __neg__(self) -> Tensor:
        return -self.numbers()

    def __repr__(self) -> str:
        state = "not computed" if self._logits is None else repr(self._logits)
        return f"StandIn({state})"


def numbers_of(value: Any) -> Any:
    """Return the logits that a stand-in stands for; leave anything else, look into sequences."""
    if isinstance(value, StandIn):
        return value.numbers()
    if isinstance(value, tuple | list):
        return type(value)(map(numbers_of, value))
    return value


def cap_of(steps: Sequence[tuple[str, float | None]]) -> Cap | None:
    """Return factors with at most one tanh among them as scale and cap; None for anything else.

    ``b tanh(a x)`` is ``(a b) * softcap * tanh(x / softcap)`` with ``softcap = 1 / a``.

    Example:
        >>> cap_of([("/", 30.0), ("tanh", None), ("*", 30.0)])
        Cap(logit_scale=1.0, softcap=30.0)
        >>> cap_of([("*", 0.5)])
        Cap(logit_scale=0.5, softcap=None)
    """
    before, after, capped = 1.0, 1.0, False
    for step, number in steps:
        if number is None:
            if capped:
                return None
            capped = True
            continue
        factor = number if step == "*" else 1 / number
        before, after = (before, after * factor) if capped else (before * factor, after)
    scale = before * after
    if scale <= 0 or (capped and before <= 0):
        return None
    return Cap(scale, 1 / before if capped else None)
