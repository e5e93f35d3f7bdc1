"""Small problems in float64, away from the threshold, and derivatives of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elbowroom import variants

V, D, N = 6, 3, 5
RARE = torch.tensor([False, True, True, False, True, False])
PROTECT = torch.tensor([True, False, False, True, False, False])
MARGIN = 1.0

# Those whose gradient is the derivative of their value; the others stop part of it on purpose.
TRUE_GRADIENT: tuple[variants.Variant | None, ...] = (
    None,
    variants.Softminus(),
    variants.Softminus(5.0),
    variants.Leaky(0.3),
    variants.RareOnly(RARE),
)
STOPPED: tuple[variants.Variant, ...] = (
    variants.Softminus(1.0, detach_threshold=True),
    variants.DetachedBelow(),
    variants.Decoupled(),
)
ALL = TRUE_GRADIENT + STOPPED

OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "sum": {"reduction": "sum", "logit_scale": 0.7},
    "smooth": {"label_smoothing": 0.2, "z_loss": 0.05},
    "protect": {"protect": PROTECT, "reduction": "none"},
    "all": {
        "label_smoothing": 0.1,
        "z_loss": 0.1,
        "protect": PROTECT,
        "logit_scale": 1.5,
        "token_weights": torch.tensor([1.0, 0.5, 2.0, 0.0, 3.0], dtype=torch.float64),
        "normalizer": 7.0,
    },
}


def name(variant: object) -> str:
    """Name a variant in a test's id."""
    return "plain" if variant is None else repr(variant).split("(rows")[0]


def far_from_threshold(z: Tensor, target: Tensor, margin: float = MARGIN) -> bool:
    """Return whether each logit but the target's is 1e-3 or more away from the threshold."""
    theta = z.gather(-1, target[..., None]) - margin
    distance = (z - theta).abs().scatter(-1, target[..., None], torch.inf)
    return bool((distance > 1e-3).all())


def linear_problem(
    scale: float = 1.0, softcap: float | None = None, runs: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden, weight, bias and target (one ignored), away from the threshold."""
    lead = () if runs is None else (runs,)
    for seed in range(100):
        g = torch.Generator().manual_seed(seed)
        hidden, weight, bias = (
            torch.randn(*lead, *shape, generator=g, dtype=torch.float64).requires_grad_()
            for shape in ((N, D), (V, D), (V,))
        )
        target = torch.randint(V, (*lead, N), generator=g)
        z = (hidden @ weight.mT + bias[..., None, :]).detach()
        z = scale * (z if softcap is None else softcap * torch.tanh(z / softcap))
        if far_from_threshold(z, target):
            target[..., 2] = -100
            return hidden, weight, bias, target
    raise AssertionError("no seed gives logits away from the threshold")


def logits_problem(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return logits and targets (one ignored), away from the threshold."""
    hidden, weight, bias, target = linear_problem(scale)
    return (hidden @ weight.mT + bias).detach().requires_grad_(), target


def value_and_gradients(
    loss: Callable[..., Tensor], *inputs: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return a loss and its gradients, each token with another upstream gradient."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = loss(*leaves)
    upstream = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).view(value.shape)
    return value.detach(), torch.autograd.grad(value, leaves, upstream)
