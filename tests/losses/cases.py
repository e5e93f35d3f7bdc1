"""Generated problems for comparing backends: odd shapes, all options, awkward values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import elbowroom as er
from elbowroom import margins, variants


@dataclass
class Case:
    """Inputs and options of one call, in float64; ``seed`` makes it again."""

    seed: int
    hidden: Tensor
    weight: Tensor
    target: Tensor
    margin: Any
    options: dict[str, Any] = field(default_factory=dict)

    def call(self, dtype: torch.dtype, backend: str, **more: Any) -> dict[str, Tensor]:
        """Return loss, gradients and statistics of one backend on inputs of one dtype."""
        inputs = {"hidden": self.hidden, "weight": self.weight, "bias": self.options.get("bias")}
        leaves = {
            k: x.to(dtype, copy=True).requires_grad_() for k, x in inputs.items() if x is not None
        }
        options = self.options | {"bias": leaves.get("bias")} | more
        loss, stats = er.linear_thresholded_cross_entropy(
            leaves["hidden"],
            leaves["weight"],
            self.target,
            self.margin,
            backend=backend,
            stats=True,
            **options,
        )
        g = torch.Generator().manual_seed(self.seed)
        upstream = torch.rand(loss.shape, generator=g, dtype=torch.float64).to(loss.dtype)
        loss.backward(upstream)
        out = {"loss": loss.detach()} | {f"d_{k}": x.grad for k, x in leaves.items()}
        names = ("log_probability", "rank", "argmax", "kept", "touched")
        return out | {name: getattr(stats, name) for name in names}


def make(seed: int, variant: variants.Variant | None = None) -> Case:
    """Make a case from its seed alone."""
    g = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    def chance(p: float) -> bool:
        return bool(torch.rand((), generator=g) < p)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    runs = number(2, 3) if chance(0.2) else None
    lead = () if runs is None else (runs,)
    tokens, width = number(1, 40), number(1, 24)
    vocab = 1 if chance(0.05) else number(2, 400)
    # Values that are exact in every dtype, so that logits tie and lie on thresholds.
    coarse = chance(0.2)
    hidden, weight = normal(*lead, tokens, width), normal(*lead, vocab, width)
    if coarse:
        hidden, weight = (hidden * 2).round() / 2, (weight * 2).round() / 2
    else:
        hidden, weight = (x.to(torch.bfloat16).double() for x in (hidden, weight * 0.5))
    target = torch.randint(vocab, (*lead, tokens), generator=g)
    if chance(0.4):
        target[torch.rand(target.shape, generator=g) < 0.4] = -100
    if chance(0.05):
        target.fill_(-100)
    margin: Any = [
        lambda: 0.0,
        lambda: 0.5,
        lambda: 1.0,
        lambda: 8.0,
        lambda: float("inf"),
        lambda: torch.rand(target.shape, generator=g, dtype=torch.float64) * 4,
        lambda: torch.tensor(2.0),
        lambda: margins.ByNorms(0.1 + 0.3 * float(torch.rand((), generator=g))),
    ][number(0, 7)]()
    if isinstance(variant, variants.Softminus) and isinstance(margin, float) and margin == 0:
        margin = 0.5
    options: dict[str, Any] = {"reduction": ("mean", "sum", "none")[number(0, 2)]}
    if chance(0.3):
        options["bias"] = normal(*lead, vocab).to(torch.bfloat16).double()
    if chance(0.3):
        options["softcap"] = 4.0
    if chance(0.3):
        options["logit_scale"] = 0.5
    if chance(0.3):
        options["token_weights"] = torch.rand(target.shape, generator=g, dtype=torch.float64)
    if chance(0.3):
        options["label_smoothing"] = 0.1
    if chance(0.3):
        options["z_loss"] = 0.01
    if chance(0.3):
        options["protect"] = torch.rand(vocab, generator=g) < 0.4
    if isinstance(variant, variants.RareOnly):
        variant = variants.RareOnly(torch.rand(vocab, generator=g) < 0.5)
    return Case(seed, hidden, weight, target, margin, options | {"variant": variant})


VARIANTS: tuple[variants.Variant | None, ...] = (
    None,
    variants.Softminus(),
    variants.Softminus(5.0, detach_threshold=True),
    variants.DetachedBelow(),
    variants.Decoupled(),
    variants.Leaky(0.3),
    variants.RareOnly(torch.zeros(1, dtype=torch.bool)),
)


def all_cases(count: int, first: int = 0) -> Iterator[Case]:
    """Yield ``count`` cases, each variant in turn."""
    for seed in range(first, first + count):
        yield make(seed, VARIANTS[seed % len(VARIANTS)])


def broken(case: Case) -> Case:
    """Return a case with a NaN or an infinity in a token, in a row of the weight or in the bias."""
    g = torch.Generator().manual_seed(case.seed)

    def draw(size: int) -> int:
        return int(torch.randint(size, (), generator=g))

    value = (float("nan"), float("inf"), -float("inf"))[draw(3)]
    bias = case.options.get("bias", torch.zeros(case.weight.shape[:-1], dtype=torch.float64))
    places = {"hidden": case.hidden, "weight": case.weight, "bias": bias}
    name = ("hidden", "weight", "bias")[draw(3)]
    spoiled = places[name].clone()
    spoiled.view(-1)[draw(spoiled.numel())] = value
    places[name] = spoiled
    return replace(
        case,
        hidden=places["hidden"],
        weight=places["weight"],
        options=case.options | {"bias": places["bias"], "reduction": "none"},
    )
