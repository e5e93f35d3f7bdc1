"""The final norm of a transformer, whatever class it comes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

NormKind = Literal["layer", "rms"]
NORM_KINDS = ("layer", "rms")


@dataclass(frozen=True, eq=False)
class FinalNorm:
    r"""A LayerNorm or an RMSNorm along the last dimension, as plain data.

    .. math::

        \mathrm{layer}(x) = \frac{x - \bar{x}}{\sqrt{\mathrm{var}(x) + \epsilon}} \circ \gamma + b,
        \qquad \mathrm{rms}(x) = \frac{x}{\sqrt{\overline{x^2} + \epsilon}} \circ \gamma + b

    Args:
        kind: "layer" or "rms".
        weight: ``[D]``, what the normalised vector is multiplied by, or None. Models that store an
            offset from 1 (Gemma) pass ``1 + stored``.
        bias: ``[D]``, or None.
        eps: at least 0.

    Example:
        >>> FinalNorm("rms", eps=0.0)(torch.tensor([3.0, 4.0])) * 12.5**0.5
        tensor([3., 4.])
    """

    kind: NormKind
    weight: Float[Tensor, " D"] | None = None
    bias: Float[Tensor, " D"] | None = None
    eps: float = 1e-5

    def __post_init__(self) -> None:
        checks.choice("kind", self.kind, NORM_KINDS)
        checks.number("eps", self.eps, at_least=0.0)
        for name in ("weight", "bias"):
            part = getattr(self, name)
            if part is not None:
                part = checks.is_floating(name, part).detach()
                if part.ndim != 1:
                    raise ArgumentValueError(name, "[D]", f"shape {tuple(part.shape)}")
                object.__setattr__(self, name, part)

    def __call__(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """Return the normalised vectors, in the dtype and on the device of ``x``."""
        for name, part in (("weight", self.weight), ("bias", self.bias)):
            if part is not None:
                checks.has_shape(name, part, x.shape[-1:], "the width of the vectors")
        weight, bias = (None if p is None else p.to(x) for p in (self.weight, self.bias))
        width = (x.shape[-1],)
        if self.kind == "layer":
            return F.layer_norm(x, width, weight, bias, float(self.eps))
        normal = F.rms_norm(x, width, weight, float(self.eps))
        return normal if bias is None else normal + bias

    @classmethod
    def of(cls, module: object) -> FinalNorm:
        """Read a module: LayerNorm, RMSNorm, or one that turns out to compute the same.

        Of other classes than torch's own, the module is tried on fixed vectors and compared with
        LayerNorm and RMSNorm, with ``weight`` and with ``1 + weight``; so Llama's and Gemma's are
        told apart by what they do, not by their names.

        Args:
            module: has ``weight`` ``[D]``, maybe ``bias``, and ``eps`` or ``variance_epsilon``
                (1e-5 if neither).
        """
        if not isinstance(module, nn.Module):
            expected = "a module or a FinalNorm"
            raise ArgumentTypeError("norm", expected, checks.describe(module))
        if isinstance(module, nn.LayerNorm):
            return cls("layer", module.weight, module.bias, module.eps)
        if isinstance(module, nn.RMSNorm):
            dtype = torch.float32 if module.weight is None else module.weight.dtype
            eps = torch.finfo(dtype).eps if module.eps is None else module.eps
            return cls("rms", module.weight, None, eps)
        return cls._like(module)

    @classmethod
    def _like(cls, module: nn.Module) -> FinalNorm:
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if not isinstance(weight, Tensor) or weight.ndim != 1:
            raise _unknown(module)
        eps = getattr(module, "eps", getattr(module, "variance_epsilon", 1e-5))
        generator = torch.Generator().manual_seed(0)
        # one vector of ordinary size, and one so small that eps shows; neither has mean 0
        probe = 0.5 + torch.randn(2, weight.shape[0], generator=generator)
        probe = (probe * torch.tensor([[1.0], [0.003]])).to(weight)
        with torch.no_grad():
            result = module(probe)
        tolerance = max(1e-4, 4 * torch.finfo(weight.dtype).eps)
        for kind in NORM_KINDS:
            for gamma in (weight.float(), 1 + weight.float()):
                norm = cls(kind, gamma, bias, eps)  # type: ignore[arg-type]
                if torch.allclose(norm(probe.float()), result.float(), tolerance, tolerance):
                    return norm
        raise _unknown(module)


def _unknown(module: nn.Module) -> ArgumentTypeError:
    return ArgumentTypeError(
        "norm",
        "a LayerNorm or an RMSNorm",
        f"an object of type {type(module).__name__} that computes something else",
        "describe it with FinalNorm(kind, weight, bias, eps)",
    )
