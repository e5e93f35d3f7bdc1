"""The losses as modules: options fixed at construction, progress as a buffer."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError
from elbowroom.losses.functional import (
    LinearLossOptions,
    LossOptions,
    linear_thresholded_cross_entropy,
    thresholded_cross_entropy,
)
from elbowroom.losses.variants import RareOnly
from elbowroom.margins import Margin, MarginRule


class _Loss(nn.Module):
    """Keeps margin, options and progress; tensors among them move with the module.

    They are buffers outside the state dict: a loss has no state of its own, and a model that
    contains one loads the same checkpoints as before.
    """

    known: ClassVar[dict[str, Any]]  # the options that the function takes
    progress: Tensor
    rows: Tensor

    def __init__(self, margin: Margin, stats: bool, options: dict[str, Any]) -> None:
        super().__init__()
        if not isinstance(margin, Tensor | MarginRule):
            fix = 'for ordinary cross-entropy pass float("inf")'
            margin = checks.number("margin", margin, at_least=0.0, finite=False, fix=fix)
        unknown = sorted(options.keys() - self.known.keys())
        if unknown:
            expected = f"one of the options {', '.join(self.known)}"
            raise ArgumentTypeError(unknown[0], expected, "an unknown option")
        if options.get("progress") is not None:
            fix = "set it with loss.progress.fill_(step / steps)"
            raise ArgumentTypeError(
                "progress", "no value: it is a buffer of the module", "one", fix
            )
        options.pop("progress", None)
        self.stats = checks.flag("stats", stats)
        self.register_buffer("progress", torch.zeros(()), persistent=False)
        self._tensors: list[str] = []
        self._options = {name: self._keep(name, value) for name, value in options.items()}
        self._margin = self._keep("margin", margin)

    def _keep(self, name: str, value: Any) -> Any:
        """Register a tensor as a buffer and remember its name instead of it."""
        if isinstance(value, RareOnly):
            self.register_buffer("rows", value.rows, persistent=False)
        if not isinstance(value, Tensor):
            return value
        self.register_buffer(name, value, persistent=False)
        self._tensors.append(name)
        return None

    def at_this_moment(self) -> tuple[Any, dict[str, Any]]:
        """Return what the function takes: the margin, and the options with their tensors."""
        options = dict(self._options) | {"progress": self.progress, "stats": self.stats}
        options |= {name: getattr(self, name) for name in self._tensors}
        if isinstance(options.get("variant"), RareOnly):
            options["variant"] = RareOnly(self.rows)
        return options.pop("margin", self._margin), options

    def extra_repr(self) -> str:
        """Show margin and options."""
        margin = self.margin if "margin" in self._tensors else self._margin
        shown = {k: v for k, v in self._options.items() if k not in self._tensors}
        return ", ".join([f"margin={margin}", *(f"{k}={v}" for k, v in shown.items())])


class ThresholdedCrossEntropy(_Loss):
    """`elbowroom.thresholded_cross_entropy` as a module.

    Args:
        margin: a number, a tensor or a rule.
        stats: return ``(loss, LossStats)``.
        options: the keyword arguments of the function, but ``progress``: that is a buffer, to be
            set from outside before each step.

    Example:
        >>> from elbowroom import margins
        >>> loss = ThresholdedCrossEntropy(margins.Annealed(1.0, 10.0))
        >>> _ = loss.progress.fill_(0.25)
        >>> loss(torch.zeros(2, 5), torch.tensor([0, 1]))
        tensor(1.6094)
    """

    known: ClassVar[dict[str, Any]] = LossOptions.__annotations__

    def __init__(
        self, margin: Margin, *, stats: bool = False, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(margin, stats, dict(options))

    def forward(self, logits: Tensor, target: Tensor) -> Any:
        """Return the loss of ``logits [..., V]`` and ``target [...]``."""
        margin, options = self.at_this_moment()
        return thresholded_cross_entropy(logits, target, margin, **options)


class LinearThresholdedCrossEntropy(_Loss):
    """`elbowroom.linear_thresholded_cross_entropy` as a module; the weight stays the caller's.

    Args:
        margin: a number, a tensor or a rule.
        stats: return ``(loss, LossStats)``.
        options: the keyword arguments of the function, but ``progress`` (see
            `ThresholdedCrossEntropy`) and ``bias``, which goes with the weight to the call.

    Example:
        >>> head = torch.nn.Linear(8, 100)
        >>> loss = LinearThresholdedCrossEntropy(2.0, shift=1)
        >>> loss(torch.randn(4, 16, 8), head.weight, torch.ones(4, 16).long(), head.bias).ndim
        0
    """

    known: ClassVar[dict[str, Any]] = LinearLossOptions.__annotations__

    def __init__(
        self, margin: Margin, *, stats: bool = False, **options: Unpack[LinearLossOptions]
    ) -> None:
        if "bias" in options:
            fix = "pass it with the weight: loss(hidden, weight, target, bias)"
            raise ArgumentTypeError("bias", "no value here", "one", fix)
        super().__init__(margin, stats, dict(options))

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Return the loss of ``hidden [..., D]``, ``weight [V, D]`` and ``target [...]``.

        Options of this call, such as ``normalizer``, go over the module's own.
        """
        margin, own = self.at_this_moment()
        return linear_thresholded_cross_entropy(
            hidden, weight, target, margin, **own | {"bias": bias} | options
        )
