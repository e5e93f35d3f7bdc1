"""Hidden states, head and targets to measure with, and the margins that keep a given share.

*Scattered*: every token keeps the same share of its logits, anywhere in the vocabulary.
*Clustered*: as a trained model does, kept entries gather in the rows of frequent tokens, which come
first, and a few hard tokens hold most of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from elbowroom.errors import ArgumentValueError, FileError

SAMPLE = 8192  # rows of the head that thresholds are estimated from
SPREAD = 2.0  # standard deviation of the logarithm of a token's share, where they are clustered
STRIP = 128  # logits; the unit that the Triton backend skips by
AT_ONCE = 2**25  # logits held while data are made or looked at


class Shape(NamedTuple):
    """The numbers that decide how much work a head and its loss are."""

    tokens: int
    width: int
    vocab: int

    @property
    def work(self) -> int:
        """``N * V * D``: a product of hidden states and head takes twice as many operations.

        Example:
            >>> Shape(2, 3, 5).work
            30
        """
        return self.tokens * self.width * self.vocab


@dataclass(frozen=True)
class Problem:
    """What every way to compute the loss is given.

    Attributes:
        hidden: ``[N, D]``.
        weight: ``[V, D]``.
        target: ``[N]``.
        data: "scattered", "clustered", or where the tensors come from.
        seed: of the data, and of what `share_margins` draws.
    """

    hidden: Tensor
    weight: Tensor
    target: Tensor
    data: str
    seed: int = 0

    @property
    def shape(self) -> Shape:
        """Tokens, width and vocabulary."""
        n, d = self.hidden.shape
        return Shape(n, d, len(self.weight))

    def leaves(self) -> tuple[Tensor, Tensor]:
        """Return hidden states and head as tensors that collect gradients, on the same memory."""
        return self.hidden.detach().requires_grad_(), self.weight.detach().requires_grad_()

    def parts(self) -> Iterator[slice]:
        """Yield slices of tokens whose logits can be held."""
        size = max(1, AT_ONCE // len(self.weight))
        for start in range(0, len(self.hidden), size):
            yield slice(start, min(start + size, len(self.hidden)))


def synthetic(
    shape: Shape,
    *,
    clustered: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> Problem:
    """Return normal hidden states and head, whose logits have a standard deviation of 1.

    Clustered logits also fall with the logarithm of a row's rank, as Zipf's law has it. A target
    is the largest logit of a sample of rows.

    Args:
        shape: tokens, width, vocabulary.
        clustered: gather what is kept; see this module.
        dtype: of hidden states and head.
        device: where they are made and stay.
        seed: decides all numbers.

    Example:
        >>> synthetic(Shape(4, 3, 10)).target.shape
        torch.Size([4])
    """
    generator = torch.Generator(device).manual_seed(seed)
    n, d, v = shape
    hidden = torch.randn(n, d, generator=generator, device=device, dtype=dtype)
    weight = torch.randn(v, d, generator=generator, device=device, dtype=dtype).div_(d**0.5)
    if clustered:
        hidden[:, 0] = 1.0
        weight[:, 0] = -torch.arange(1, v + 1, device=device).log()
    made = Problem(hidden, weight, torch.zeros(n, dtype=torch.long, device=device), "", seed)
    rows = _sample(made)
    target = [_logits(made, part, rows).argmax(-1) for part in made.parts()]
    return Problem(
        hidden, weight, rows[torch.cat(target)], "clustered" if clustered else "scattered", seed
    )


def share_margins(problem: Problem, share: float) -> Tensor:
    """Return a margin for each token so that about ``share`` of all logits is kept.

    Args:
        problem: the data.
        share: above 0 and at most 1.

    Example:
        >>> problem = synthetic(Shape(64, 8, 200))
        >>> abs(kept(problem, share_margins(problem, 0.1))[0] - 0.1) < 0.02
        True
    """
    if not 0 < share <= 1:
        raise ArgumentValueError("share", "a number above 0 and at most 1", share)
    rows = _sample(problem)
    shares = _shares(problem, share)
    count = (shares * len(rows)).ceil().long().clamp(1, len(rows))
    margins = []
    for part in problem.parts():
        ordered = _logits(problem, part, rows).sort(-1, descending=True).values
        threshold = ordered.gather(1, count[part, None] - 1).squeeze(1)
        aim = problem.weight[problem.target[part]].float()
        margins.append((problem.hidden[part].float() * aim).sum(-1) - threshold)
    return torch.cat(margins).clamp(min=0)


def kept(problem: Problem, margin: float | Tensor) -> tuple[float, float]:
    """Return which share of the logits is kept, and of strips of 128 that hold a kept one.

    Args:
        problem: the data.
        margin: a number or ``[N]``.

    Example:
        >>> kept(synthetic(Shape(4, 3, 10)), float("inf"))
        (1.0, 1.0)
    """
    if not isinstance(margin, Tensor):
        if math.isinf(margin):
            return 1.0, 1.0
        margin = torch.full((len(problem.hidden),), margin, device=problem.hidden.device)
    entries = strips = 0
    spare = -len(problem.weight) % STRIP
    for part in problem.parts():
        logits = problem.hidden[part] @ problem.weight.T
        aim = problem.target[part, None]
        least = logits.gather(1, aim).float() - margin[part, None]
        mask = (logits >= least).scatter_(1, aim, True)
        entries += int(mask.sum())
        mask = torch.nn.functional.pad(mask, (0, spare))
        strips += int(mask.view(len(mask), -1, STRIP).any(-1).sum())
    n, _, v = problem.shape
    return entries / (n * v), strips / (n * -(-v // STRIP))


def read(path: str | Path, dtype: torch.dtype, device: str | torch.device) -> Problem:
    """Read hidden states, head and targets of a trained model from a safetensors file.

    The head may be stored as integers of 8 bits, with a tensor ``weight_scale`` of one number a
    row.

    Args:
        path: a file with tensors ``hidden`` [N, D], ``weight`` [V, D] and ``target`` [N].
        dtype: of hidden states and head.
        device: where they go.
    """
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except Exception as error:
        raise FileError(f"{path}: cannot be read as safetensors ({error})") from error
    missing = sorted({"hidden", "weight", "target"} - set(found))
    if missing:
        raise FileError(f"{path}: expected hidden, weight and target; {', '.join(missing)} missing")
    weight = found["weight"].to(device)
    if "weight_scale" in found:
        weight = weight.float() * found["weight_scale"].to(device).float()[:, None]
    hidden, target = found["hidden"].to(device, dtype), found["target"].to(device).long()
    fits = hidden.ndim == weight.ndim == 2 and hidden.shape[1] == weight.shape[1]
    if not fits or target.shape != hidden.shape[:1] or int(target.max()) >= len(weight):
        raise FileError(f"{path}: shapes of hidden, weight and target do not fit together")
    return Problem(hidden, weight.to(dtype), target, Path(path).stem)


def _sample(problem: Problem) -> Tensor:
    """Return rows of the head, the same for the same seed."""
    device, vocab = problem.weight.device, len(problem.weight)
    generator = torch.Generator(device).manual_seed(problem.seed + 1)
    return torch.randperm(vocab, generator=generator, device=device)[:SAMPLE]


def _logits(problem: Problem, part: slice, rows: Tensor) -> Tensor:
    return (problem.hidden[part] @ problem.weight[rows].T).float()


def _shares(problem: Problem, share: float) -> Tensor:
    """Return the share of each token: the same, or spread so that few tokens hold most."""
    n, device = len(problem.hidden), problem.hidden.device
    if problem.data != "clustered":
        return torch.full((n,), share, device=device)
    generator = torch.Generator(device).manual_seed(problem.seed + 2)
    spread = (SPREAD * torch.randn(n, generator=generator, device=device)).exp()
    low, high = 0.0, 1e6
    for _ in range(60):  # find the scale at which the mean is right, with no token above 1
        middle = (low + high) / 2
        enough = float((spread * middle).clamp(max=1).mean()) >= share
        low, high = (low, middle) if enough else (middle, high)
    return (spread * high).clamp(max=1)
