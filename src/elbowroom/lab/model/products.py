"""Products with one matrix a run, by the fastest routine that this machine has.

On an x86 CPU, PyTorch gives float32 products to MKL, which leaves half of an AVX-512 unit idle on
AMD's processors. There oneDNN, which PyTorch brings along and its compiler uses, takes less than
half the time. Elsewhere, and for other dtypes, this is ``bmm``.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def product(
    x: Float[Tensor, "R N I"],
    weight: Float[Tensor, "R I O"],
    onto: Float[Tensor, "R _ O"] | None = None,
) -> Float[Tensor, "R N O"]:
    """Return ``x @ weight`` of each run, added to ``onto`` where that is given.

    Args:
        x: the vectors of each run.
        weight: its matrix.
        onto: something of the product's shape, or a bias ``[R, 1, O]``.
    """
    y: Tensor = (_OneDNN.apply if _takes_onednn(x) else torch.bmm)(x, weight)
    # no baddbmm: it copies `onto` first, and autocast would take its precision away
    return y if onto is None else onto + y


def _takes_onednn(x: Tensor) -> bool:
    return (
        HAS_ONEDNN
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()  # which takes this routine for inference alone
        and bool(torch.backends.mkldnn.enabled)
    )


def _has_onednn() -> bool:
    """Tell whether this machine has the routine and gains by it; not by a race, which may vary.

    The routine is PyTorch's entry to oneDNN for dense tensors. It is the compiler's own and not
    documented, so it may be missing one day.
    """
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and "AVX512" in torch.backends.cpu.get_cpu_capability()
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


HAS_ONEDNN = _has_onednn()


def _times(a: Float[Tensor, "R N I"], b: Float[Tensor, "R I O"]) -> Float[Tensor, "R N O"]:
    """Multiply run by run, so that a run gets the same bits alone as in company."""
    parts = [
        torch.ops.mkldnn._linear_pointwise(x, w.t(), None, "none", [], "")
        for x, w in zip(a.unbind(0), b.unbind(0), strict=True)
    ]
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


class _OneDNN(torch.autograd.Function):
    """``x @ weight`` by oneDNN, and its gradients likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _times(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = _times(gradient, weight.mT) if ctx.needs_input_grad[0] else None
        of_weight = _times(x.mT, gradient) if ctx.needs_input_grad[1] else None
        return of_x, of_weight
