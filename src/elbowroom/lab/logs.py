"""What a population says of itself while it trains, one number a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elbowroom.lab.distributed import average

if TYPE_CHECKING:
    from elbowroom.lab.population import Population


@dataclass(frozen=True)
class Log:
    """What a population reports of a step, one number a run.

    Attributes:
        loss: mean objective since the last report.
        grad_norm: of the last step, before clipping.
        lr: of the coming step.
        nll: ``[R, L]``, of the coming batch under the full softmax, by language; NaN where the
            batch has none of it.
        kept: share of the entries that the coming batch keeps.
        alive: whether the run goes on.
    """

    loss: list[float]
    grad_norm: list[float]
    lr: list[float]
    nll: list[list[float]]
    kept: list[float]
    alive: list[bool]


@torch.no_grad()
def look(population: Population) -> Log:
    """Draw the coming batch, look at it, and say how the steps since the last report went.

    Args:
        population: between two steps.
    """
    batch = population.batches.draw(population.step)
    model, target = population.model, batch.target.flatten(1)
    with population.precision():
        hidden = model(batch.ids).flatten(1, 2)
    progress = population.progress()
    nll, kept = [], []
    for at, objective in population.groups:
        bias = None if model.bias is None else model.bias[at]
        logp, share = objective.kept(
            hidden[at].to(model.head.dtype), model.head[at], target[at], bias, progress
        )
        nll.append(-logp)
        kept.append(share)
    language = batch.language.repeat_interleave(population.batches.windows.context, 1)
    own = [language == i for i in range(len(population.corpus.languages))]
    sums = torch.stack([(torch.cat(nll) * mask).sum(-1) for mask in own], -1)
    seen = torch.stack([mask.sum(-1) for mask in own], -1).to(sums.dtype)
    shares = torch.cat(kept)
    if population.world > 1:
        average([sums, seen, shares])
    rate = population.schedule.at(min(population.done, population.training.steps))
    count = len(population.runs)
    return Log(
        loss=(population.loss_sum / max(1, population.since)).tolist(),
        grad_norm=population.grad_norm.tolist(),
        lr=rate.tolist() if isinstance(rate, Tensor) else [rate] * count,
        nll=(sums / seen).tolist(),
        kept=shares.tolist(),
        alive=population.alive.tolist(),
    )
