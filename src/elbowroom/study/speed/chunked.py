"""The peer that anybody can write in torch: chunks of tokens, with the vendor's products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = {"cuda": 2**28, "cpu": 2**23}  # logits of a chunk, at most


def at_once(hidden: Tensor, weight: Tensor) -> int:
    """Return the tokens of even chunks whose logits stay within bounds.

    Args:
        hidden: ``[N, D]``.
        weight: ``[V, D]``.

    Example:
        >>> at_once(torch.zeros(1000, 2), torch.zeros(2**14, 2))
        500
    """
    n = len(hidden)
    most = max(1, min(n, CHUNK[hidden.device.type] // len(weight)))
    return -(-n // -(-n // most))


class Chunked(torch.autograd.Function):
    """Cross-entropy in chunks of tokens, with plain products: gradients are made in the forward.

    Products do nearly all of the work; between them logits pass through memory a few times.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss, and keep both gradients."""
        n, v = len(hidden), len(weight)
        size = at_once(hidden, weight)
        raw = hidden.new_empty(size, v)
        of_hidden, total = torch.empty_like(hidden), hidden.new_zeros((), dtype=torch.float32)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, n, size):
            x, aim = hidden[start : start + size], target[start : start + size, None]
            logits = torch.mm(x, weight.T, out=raw[: len(x)])
            scores = logits.log_softmax(-1, dtype=torch.float32)
            total -= scores.gather(1, aim).sum()
            scores.exp_().scatter_add_(1, aim, scores.new_full((), -1.0).expand(aim.shape))
            logits.copy_(scores)
            torch.mm(logits, weight, out=of_hidden[start : start + size])
            if x.is_cuda and x.dtype != torch.float32:
                torch.addmm(of_weight, logits.T, x, out_dtype=torch.float32, out=of_weight)
            else:
                of_weight.addmm_(logits.T.float(), x.float())
        ctx.gradients = of_hidden.div_(n), torch.mul(of_weight, 1 / n, out=torch.empty_like(weight))
        return total / n

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients, scaled in place."""
        of_hidden, of_weight = ctx.gradients
        return of_hidden.mul_(outer[0]), of_weight.mul_(outer[0]), None
