"""The gradients of tokens' rows by type, measured while a population trains.

They are measured beside a step and not in it: before it is made, its batch is drawn once more, and
its gradient taken at the same weights. So training comes to the same bits with and without it, and
a step that is a CUDA graph stays one. A measurement costs a forward and a part of a backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom.diagnose import GradientNorms, GradientRatios, HeadGradients, head_gradients

if TYPE_CHECKING:
    from elbowroom.lab.objective import Objective
    from elbowroom.lab.population import Population

PREFIX = "gradients."


class GradientRecorder:
    """Sums the norms of each type over the steps that are measured, for all runs.

    Norms are of the whole batch's gradient, before clipping; the types are those of
    `elbowroom.diagnose`. Paper, section "Influence of Marginalization".

    Attributes:
        ratios: what was summed so far, ``[R, V]``.
    """

    def __init__(self) -> None:
        self.ratios = GradientRatios()

    def measure(self, population: Population) -> GradientNorms:
        """Count the coming step, and return its norms, ``[R, V]``.

        Args:
            population: before the step.
        """
        batch = population.batches.draw(population.step, everyone=True)
        parts = population.training.accumulate
        pairs = zip(batch.ids.chunk(parts, 1), batch.target.chunk(parts, 1), strict=True)
        found = [_part(population, ids, target.flatten(1)) for ids, target in pairs]
        context = torch.stack([x for x, _ in found]).mean(0)
        pull = torch.stack([x.target for _, x in found]).mean(0)
        push = torch.stack([x.marginalization for _, x in found]).mean(0)
        norms = GradientNorms(
            context=context.norm(dim=-1),
            target=pull.norm(dim=-1),
            marginalization=push.norm(dim=-1),
        )
        self.ratios.update(norms)
        return norms

    def run_state(self, r: int) -> dict[str, Tensor]:
        """Return what was summed of one run; nothing before the first measurement."""
        state = self.ratios.state_dict()
        return {PREFIX + name: x if x.ndim == 0 else x[:, r].cpu() for name, x in state.items()}

    def load_run_states(self, states: Sequence[Mapping[str, Tensor]], device: torch.device) -> None:
        """Go on from what `run_state` gave of each run.

        Args:
            states: one a run.
            device: where the sums will be needed.
        """
        if f"{PREFIX}sums" in states[0]:
            sums = torch.stack([state[f"{PREFIX}sums"] for state in states], 1)
            steps = states[0][f"{PREFIX}steps"]
            self.ratios.load_state_dict({"sums": sums.to(device), "steps": steps})


def _part(
    population: Population, ids: Int[Tensor, "R B T"], target: Int[Tensor, "R N"]
) -> tuple[Float[Tensor, "R V D"], HeadGradients]:
    """Return context alignment, and the head's types, of a part of the batch."""
    model, progress = population.model, population.progress()
    with torch.enable_grad(), population.precision():
        hidden = model(ids).flatten(1, 2)
        bias = None if model.bias is None else model.bias.detach()
        losses = [
            objective(
                hidden[at],
                model.head[at].detach(),  # so that the embedding is reached as an input only
                target[at],
                None if bias is None else bias[at],
                step=population.step,
                progress=progress,
            )
            for at, objective in population.groups
        ]
    (context,) = torch.autograd.grad(torch.cat(losses).sum(), [model.embedding])
    hidden = hidden.detach().to(model.head.dtype)
    heads = [
        _head(objective, hidden[at], model.head[at], target[at], bias, at, progress)
        for at, objective in population.groups
    ]
    return context, HeadGradients(
        target=torch.cat([x.target for x in heads]),
        marginalization=torch.cat([x.marginalization for x in heads]),
    )


def _head(
    objective: Objective,
    hidden: Float[Tensor, "G N D"],
    weight: Float[Tensor, "G V D"],
    target: Int[Tensor, "G N"],
    bias: Float[Tensor, "R V"] | None,
    at: slice,
    progress: Float[Tensor, ""],
) -> HeadGradients:
    return head_gradients(
        hidden,
        weight.detach(),
        target,
        objective.margin,
        bias=None if bias is None else bias[at],
        logit_scale=objective.config.logit_scale,
        protect=objective.protected(progress),
        progress=progress,
    )
