"""Rules that give a margin: from the norms of the vectors at hand, or from training's progress."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

Norms = Literal["both", "target", "hidden"]
Shape = Literal["linear", "geometric"]
NORMS = ("both", "target", "hidden")
SHAPES = ("linear", "geometric")


class MarginRule(ABC):
    """Base of all rules that take a margin's place.

    A loss asks a rule for the present moment with `at`, and gets a number, a tensor, or a rule that
    needs no progress.
    """

    @abstractmethod
    def at(self, progress: float | Tensor) -> float | Tensor | MarginRule:
        """Return the margin, or the rule, for a moment of training.

        Args:
            progress: 0 at the start of training, 1 at its end: a number or a 0-d tensor.
        """


Margin: TypeAlias = float | Tensor | MarginRule
"""A number, a tensor (``[]``, ``[N]``, ``[R]`` or ``[R, N]``), or a rule."""


@dataclass(frozen=True)
class ByNorms(MarginRule):
    r"""A margin a token, in proportion to the norms of the two vectors that make the target logit.

    .. math:: m_n = \alpha \, \lVert w_{x_n} \rVert \, \lVert h_n \rVert

    Logits grow with the norms, so a fixed margin means less and less as they do; alpha is free of
    scale. For ``norms="target"`` or ``"hidden"`` one norm alone counts. Norms are of the vectors
    before ``logit_scale``, and nothing differentiates through them.

    Paper, appendix B (the rows "alpha" of its extended table).

    Args:
        alpha: a number, at least 0, or a tensor ``[]`` or ``[R]``, one value a run.
        norms: "both", "target" (the output row of the target), or "hidden".

    Example:
        >>> hidden, rows = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])
        >>> ByNorms(0.5).of(hidden, rows)
        tensor([5.])
    """

    alpha: float | Tensor
    norms: Norms = "both"

    def __post_init__(self) -> None:
        alpha = _number_or_runs(
            "alpha", self.alpha, 'for ordinary cross-entropy pass margin=float("inf")'
        )
        object.__setattr__(self, "alpha", alpha)
        checks.choice("norms", self.norms, NORMS)

    def at(self, progress: float | Tensor) -> ByNorms:
        """Return the rule itself: norms change with the vectors, not with progress."""
        return self

    def of(
        self, hidden: Float[Tensor, "*n D"], target_rows: Float[Tensor, "*n D"]
    ) -> Float[Tensor, "*n"]:
        """Return the margin of each token, detached, in float32 (float64 for float64 input).

        Args:
            hidden: ``[..., D]``, or ``[R, N, D]`` with one alpha a run.
            target_rows: the output row of each token's target, of the same shape.

        Returns:
            ``[...]``, or ``[R, N]``.
        """
        hidden = checks.is_floating("hidden", hidden).detach()
        rows = checks.is_floating("target_rows", target_rows).detach()
        if hidden.ndim < 1:
            raise ArgumentValueError("hidden", "[..., D]", "a tensor without dimensions")
        checks.has_shape("target_rows", rows, hidden.shape, "the shape of hidden")
        checks.same_device("target_rows", rows, "hidden", hidden)
        dtype = torch.promote_types(torch.promote_types(hidden.dtype, rows.dtype), torch.float32)
        factors = {"hidden": (hidden,), "target": (rows,), "both": (rows, hidden)}[self.norms]
        margin: Tensor = torch.linalg.vector_norm(factors[0], dim=-1, dtype=dtype)
        if len(factors) == 2:
            margin = margin * torch.linalg.vector_norm(factors[1], dim=-1, dtype=dtype)
        return margin * self._alpha_for(margin)

    def _alpha_for(self, margin: Tensor) -> float | Tensor:
        """Return alpha so that it multiplies a tensor ``[...]``, or ``[R, ...]`` run by run."""
        alpha = self.alpha
        if not isinstance(alpha, Tensor):
            return alpha
        if alpha.ndim == 1:
            if margin.ndim < 1 or margin.shape[0] != alpha.shape[0]:
                expected = f"[R, ..., D] with R = {alpha.shape[0]}, one alpha a run"
                raise ArgumentValueError("hidden", expected, f"leading {tuple(margin.shape)}")
            alpha = alpha.view(-1, *[1] * (margin.ndim - 1))
        if alpha.ndim:  # a 0-d tensor on a CPU multiplies tensors anywhere
            checks.same_device("alpha", alpha, "hidden", margin)
        return alpha.to(margin.dtype)


@dataclass(frozen=True)
class Annealed(MarginRule):
    r"""A margin that moves from ``start`` to ``end`` while training proceeds.

    With :math:`f = (progress - hold) / (release - hold)`, kept within 0 and 1,

    .. math:: m = start + f \, (end - start) \quad \text{or} \quad m = start^{1 - f} \, end^{f}

    for "linear" and "geometric". At progress ``hold`` and before, the value is exactly ``start``;
    at ``release`` and after, exactly ``end``. Where both are one number, the rule is a step, and
    ``end`` holds from that number on.

    A narrow start shields rare rows while they are placed, a wide end calibrates the tail. Goes
    beyond the paper, whose margins are constant; see `default`.

    Args:
        start: a margin: a finite number, at least 0, or a tensor ``[]`` or ``[R]``; or a `ByNorms`,
            whose alpha then moves.
        end: of the same kind as ``start``; two `ByNorms` have the same ``norms``.
        shape: "linear", or "geometric", which needs start and end above 0.
        hold: the progress until which ``start`` holds.
        release: the progress from which ``end`` holds, at least ``hold``.

    Example:
        >>> rule = Annealed(1.0, 16.0, "geometric")
        >>> rule.at(0), rule.at(0.5), rule.at(1)
        (1.0, 4.0, 16.0)
        >>> Annealed(ByNorms(0.25), ByNorms(0.75)).at(0.5)
        ByNorms(alpha=0.5, norms='both')
    """

    start: float | Tensor | ByNorms
    end: float | Tensor | ByNorms
    shape: Shape = "linear"
    hold: float = 0.0
    release: float = 1.0

    def __post_init__(self) -> None:
        checks.choice("shape", self.shape, SHAPES)
        hold = checks.number("hold", self.hold, at_least=0.0, at_most=1.0)
        release = checks.number("release", self.release, at_least=hold, at_most=1.0)
        object.__setattr__(self, "hold", hold)
        object.__setattr__(self, "release", release)
        for name in ("start", "end"):
            value = getattr(self, name)
            if not isinstance(value, ByNorms):
                fix = "pass top_p(vocab_size, 0.999) for a wide margin"
                object.__setattr__(self, name, _number_or_runs(name, value, fix))
        self._check_pair()

    def _check_pair(self) -> None:
        if isinstance(self.start, ByNorms) != isinstance(self.end, ByNorms):
            expected = "a ByNorms" if isinstance(self.start, ByNorms) else "a number or a tensor"
            raise ArgumentTypeError("end", f"{expected}, like start", checks.describe(self.end))
        norms = [x.norms for x in (self.start, self.end) if isinstance(x, ByNorms)]
        if len(set(norms)) > 1:
            raise ArgumentValueError(
                "end", f"norms={norms[0]!r}, like start", f"norms={norms[1]!r}"
            )
        start, end = self._ends()
        if isinstance(start, Tensor) and isinstance(end, Tensor):
            checks.same_device("end", end, "start", start)
            if start.ndim and end.ndim:
                checks.has_shape("end", end, start.shape, "one value a run, like start")
        if self.shape == "geometric":
            _check_positive("start", start)
            _check_positive("end", end)

    def at(self, progress: float | Tensor) -> float | Tensor | ByNorms:
        """Return the margin, or the `ByNorms`, for a moment of training.

        Args:
            progress: from 0 to 1: a number, or a 0-d tensor on the device of the margins. A tensor
                is used in tensor operations alone, so that a captured graph can follow it.

        Returns:
            A float where start, end and progress are numbers; else a tensor ``[]`` or ``[R]``, in
            float32, or float64 if one of the tensors is; a `ByNorms` where start and end are.
        """
        value = self._between(_check_progress(progress))
        if isinstance(self.start, ByNorms):
            return _by_norms(value, self.start.norms)
        return value

    def _ends(self) -> tuple[float | Tensor, float | Tensor]:
        if isinstance(self.start, ByNorms) and isinstance(self.end, ByNorms):
            return self.start.alpha, self.end.alpha
        return self.start, self.end  # type: ignore[return-value]  # no ByNorms: _check_pair

    def _between(self, progress: float | Tensor) -> float | Tensor:
        start, end = self._ends()
        tensors = [x for x in (start, end, progress) if isinstance(x, Tensor)]
        if tensors:
            return self._between_tensors(start, end, progress, tensors)
        assert not isinstance(start, Tensor)
        assert not isinstance(end, Tensor)
        if progress >= self.release:
            return end
        if progress <= self.hold:
            return start
        f = (progress - self.hold) / (self.release - self.hold)
        if self.shape == "linear":
            return start + f * (end - start)
        return math.exp((1 - f) * math.log(start) + f * math.log(end))

    def _between_tensors(
        self, start: float | Tensor, end: float | Tensor, progress: float | Tensor, of: list[Tensor]
    ) -> Tensor:
        if isinstance(progress, Tensor):
            checks.same_device("progress", progress, "the margin", of[0])
        dtype = torch.float32
        for tensor in of:
            dtype = torch.promote_types(dtype, tensor.dtype)
        # The schedule's numbers become tensors of this dtype too: comparing with them is then
        # exact for a progress that was rounded to it (0.9 in float32 is not 0.9 in float64).
        s, e, p, hold, release = (
            x.to(dtype)
            if isinstance(x, Tensor)
            else torch.full((), x, dtype=dtype, device=of[0].device)
            for x in (start, end, progress, self.hold, self.release)
        )
        f = (p - hold) / (release - hold)  # a step divides by 0, but then nothing selects it
        if self.shape == "linear":
            between = s + f * (e - s)
        else:
            between = torch.exp((1 - f) * torch.log(s) + f * torch.log(e))
        return torch.where(p >= release, e, torch.where(p <= hold, s, between))


def _by_norms(alpha: float | Tensor, norms: Norms) -> ByNorms:
    """Make a `ByNorms` of values known to be good, without another look at them on a device."""
    rule = object.__new__(ByNorms)
    object.__setattr__(rule, "alpha", alpha)
    object.__setattr__(rule, "norms", norms)
    return rule


def _number_or_runs(name: str, value: object, fix: str) -> float | Tensor:
    """Return a finite number that is at least 0, or a detached tensor ``[]`` or ``[R]`` of such."""
    if not isinstance(value, Tensor):
        return checks.number(name, value, at_least=0.0, fix=fix)
    value = checks.is_floating(name, value).detach()
    if value.ndim > 1:
        raise ArgumentValueError(name, "shape [] or [R]", f"shape {tuple(value.shape)}")
    good = torch.isfinite(value) & (value >= 0)
    checks.all_true(good, name, "finite numbers, at least 0", "others", fix)
    return value


def _check_positive(name: str, value: float | Tensor) -> None:
    fix = 'use shape="linear", or a small number'
    if isinstance(value, Tensor):
        checks.all_true(value > 0, name, 'numbers above 0 for shape="geometric"', "others", fix)
    elif value <= 0:
        raise ArgumentValueError(name, 'a number above 0 for shape="geometric"', value, fix)


def _check_progress(progress: object) -> float | Tensor:
    if not isinstance(progress, Tensor):
        return checks.number("progress", progress, at_least=0.0, at_most=1.0)
    progress = checks.is_floating("progress", progress).detach()
    checks.has_shape("progress", progress, (), "one number")
    inside = (progress >= 0) & (progress <= 1)
    checks.all_true(inside, "progress", "a number from 0 to 1", "another")
    return progress
