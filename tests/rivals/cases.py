"""One list of all rival losses, for the tests of what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elbowroom import rivals
from elbowroom.counts import TokenCounts

V, D = 7, 4


def make_counts(vocab_size: int = V) -> TokenCounts:
    """Running counts over a few steps in which low ids are frequent and the last is unseen."""
    counts = TokenCounts.running(vocab_size, steps=20)
    for step in range(10):
        ids = [i for i in range(vocab_size - 1) for _ in range(vocab_size - i) if step >= i]
        counts.update(torch.tensor(ids))
    return counts


@dataclass(frozen=True)
class Case:
    name: str
    loss: Callable[..., Tensor]
    plain: dict[str, Any] | None  # parameters that make it cross-entropy; None if none do
    parameters: dict[str, Any] = field(default_factory=dict)
    needs_counts: bool = False
    smooth: bool = True  # whether its gradient is that of its value (no stopped gradients)

    def __call__(self, *args: Any, counts: TokenCounts | None = None, **kwargs: Any) -> Tensor:
        given = {**self.parameters, **kwargs}
        if self.needs_counts:
            given["counts"] = make_counts(args[1].shape[-2]) if counts is None else counts
        return self.loss(*args, **given)

    def as_plain(self) -> Callable[..., Tensor]:
        assert self.plain is not None
        return partial(self, **self.plain)


CASES = [
    Case("agg", rivals.agg, {"alpha": 0.0}, {"alpha": 3.0}, needs_counts=True, smooth=False),
    Case("adversarial", rivals.adversarial, {"alpha": 0.0}, {"alpha": 0.2}, smooth=False),
    Case(
        "adversarial_whole",
        rivals.adversarial,
        {"alpha": 0.0},
        {"alpha": 0.2, "detach_weight_norm": False},
    ),
    Case("cwt", rivals.contrastive_weight_tying, None),
    Case("cwt_dedup", rivals.contrastive_weight_tying, None, {"deduplicate": True}),
    Case(
        "equalization",
        rivals.equalization,
        {"gamma": 0.0},
        {"threshold": 0.15, "gamma": 0.5, "seed": 3},
        needs_counts=True,
    ),
    Case("seesaw", rivals.seesaw, {"p": 0.0, "q": 0.0}, needs_counts=True, smooth=False),
    Case("acsl_sigmoid", rivals.acsl, None, {"xi": 0.6}),
    Case("acsl_softmax", rivals.acsl, {"xi": 0.0}, {"xi": 0.1, "form": "softmax"}),
    Case("logit_adjusted", rivals.logit_adjusted, {"tau": 0.0}, needs_counts=True),
    Case("entmax15", rivals.entmax15, None),
    Case("sparsemax", rivals.sparsemax, None),
    Case(
        "sampled",
        rivals.sampled_softmax,
        None,
        {"samples": 5, "proposal": "frequency", "seed": 1},
        needs_counts=True,
    ),
    Case("sampled_log", rivals.sampled_softmax, None, {"samples": 9, "seed": 1}),
    Case("focal", rivals.focal, {"gamma": 0.0}),
    Case("class_balanced", rivals.class_balanced, {"beta": 0.0}, needs_counts=True),
    Case("mile", rivals.mile, {"gamma": 0.0}, smooth=False),
    Case("ldam", rivals.ldam, None, {"s": 5.0}, needs_counts=True),
    Case(
        "ldam_bare",
        rivals.ldam,
        {"max_margin": 0.0, "s": 1.0},
        {"s": 2.0, "normalize": False},
        needs_counts=True,
    ),
]


def problem(n: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden, weight and target of a small problem."""
    hidden = torch.randn(n, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(0, V, (n,))
