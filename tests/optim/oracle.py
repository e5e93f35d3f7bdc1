"""An independent RowAdamW: one torch AdamW a row, which steps only if its row has a gradient."""

from __future__ import annotations

import torch
from torch import Tensor


class OneOptimizerPerRow:
    def __init__(self, weight: Tensor, **options) -> None:
        self.rows = [torch.nn.Parameter(row.clone()) for row in weight.flatten(0, -2)]
        self.optimizers = [torch.optim.AdamW([row], foreach=False, **options) for row in self.rows]
        self.shape = weight.shape

    def step(self, grad: Tensor) -> None:
        flat = grad.flatten(0, -2)
        for row, g, optimizer in zip(self.rows, flat, self.optimizers, strict=True):
            if not bool((g == 0).all()):
                row.grad = g.clone()
                optimizer.step()

    def weight(self) -> Tensor:
        return torch.stack([row.detach() for row in self.rows]).view(self.shape)

    def counts(self) -> Tensor:
        states = [o.state[row] for o, row in zip(self.optimizers, self.rows, strict=True)]
        counts = [float(state["step"]) if state else 0.0 for state in states]
        return torch.tensor(counts).view(self.shape[:-1])


def some_rows(shape: tuple[int, ...], share: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """A random gradient of which a share of the rows is not zero."""
    keep = torch.rand(shape[:-1]) < share
    return torch.randn(shape, dtype=dtype) * keep[..., None]
