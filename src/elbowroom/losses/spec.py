"""What is computed for each token, apart from where the logits come from."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom.losses.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The method: margins as numbers, masks and variant, smoothing and z-loss.

    ``Rm`` and ``Rp`` are 1 or R, ``Nm`` is 1 or N: sizes that broadcast.
    """

    margin: Float[Tensor, "Rm Nm"]  # in the dtype that sums are kept in
    protect: Bool[Tensor, "Rp V"] | None = None
    variant: Variant | None = None
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    unbounded: bool = False  # the margin is known to be infinite, without asking the device

    @property
    def keeps_all(self) -> bool:
        """Whether it is known that no entry is masked."""
        return self.unbounded and self.protect is None and self.variant is None


@dataclass(frozen=True)
class LossStats:
    """What a loss saw, without logits ever existing in full.

    All but ``touched`` have the shape of ``target`` (after the shift), and describe the *full*
    softmax at temperature 1; where the target is ignored they are 0, and ``argmax`` is -1.

    Attributes:
        log_probability: of the target.
        rank: of the target, from 1; ``1 + greater + equal / 2``, the expectation over ties; NaN
            where the log-probability is.
        argmax: the most probable token.
        kept: how many entries were not masked, the target included.
        touched: ``[V]`` or ``[R, V]``, rows of the head that some counted token kept: the rows
            that can have gradient from this loss. `RowAdamW` takes it.
    """

    log_probability: Tensor
    rank: Tensor
    argmax: Tensor
    kept: Tensor
    touched: Tensor


@dataclass(frozen=True)
class TokenStats:
    """`LossStats` before they take the caller's shape."""

    log_probability: Float[Tensor, "R N"]
    rank: Float[Tensor, "R N"]
    argmax: Int[Tensor, "R N"]
    kept: Int[Tensor, "R N"]
    touched: Bool[Tensor, "R V"]

    def tensors(self) -> list[Tensor]:
        """Return the five tensors in the order of the fields."""
        return [self.log_probability, self.rank, self.argmax, self.kept, self.touched]
