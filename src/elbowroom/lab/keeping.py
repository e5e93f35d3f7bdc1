"""Which weights of a training are kept: the last ones, or those that had the lowest loss.

The loss is estimated now and then on a few random batches of held-out text, as the paper's code
does: a noisy estimate, whose minimum is a matter of luck too. All of it stays on the device: which
weights are kept is decided by `torch.where`, run by run, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom.lab.batches import Batches
from elbowroom.lab.config import KeepConfig
from elbowroom.lab.distributed import average

if TYPE_CHECKING:
    from elbowroom.lab.population import Population

Along = Callable[[str, Tensor], Tensor]  # from a parameter's name and one form of it to another
PREFIX = "best."


class Best:
    """The weights of each run that had the lowest loss so far.

    Args:
        config: how often and by what.
        draws: batches of held-out text.
        weights: the parameters by name, ``[R, ...]``: what this process holds of them.

    Attributes:
        weights: copies of these, as they were then; the start before the first estimate.
        loss: ``[R]``, infinite before the first estimate.
        step: ``[R]``, after how many steps it was; -1 before.
    """

    def __init__(self, config: KeepConfig, draws: Batches, weights: Mapping[str, Tensor]) -> None:
        self.config, self.draws = config, draws
        self.weights = {name: x.detach().clone() for name, x in weights.items()}
        first = next(iter(self.weights.values()))
        self.loss = first.new_full((len(first),), torch.inf, dtype=torch.float64)
        self.step = first.new_full((len(first),), -1, dtype=torch.int64)

    @torch.no_grad()
    def look(self, population: Population) -> None:
        """Estimate each run's loss, and keep the weights of those whose loss is their lowest.

        Args:
            population: after a step.
        """
        loss = self.estimate(population)
        better = population.alive & (loss < self.loss)  # false for a loss that is no number
        _where(better, population.weights(), self.weights)
        self.loss.copy_(torch.where(better, loss, self.loss))
        self.step.copy_(torch.where(better, population.step, self.step))

    @torch.no_grad()
    def estimate(self, population: Population) -> Float[Tensor, " R"]:
        """Return each run's mean loss on random batches, which follow from its seed and the step.

        Args:
            population: whose weights.
        """
        count, parts = self.config.batches, population.training.accumulate
        total = torch.zeros_like(self.loss)
        for i in range(count):
            batch = self.draws.draw(population.step * count + i)
            pairs = zip(batch.ids.chunk(parts, 1), batch.target.chunk(parts, 1), strict=True)
            for ids, target in pairs:
                total += _losses(population, ids, target.flatten(1))
        total /= count * parts
        if population.world > 1:
            average([total])
        return total

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Put what was kept in the place of the present weights, for runs that have any.

        Args:
            weights: to be changed.
        """
        _where(self.step >= 0, self.weights, weights)

    def chosen(self) -> list[tuple[int, float | None]]:
        """Return the step and the loss of what is kept of each run; -1 and None for nothing."""
        pairs = zip(self.step.tolist(), self.loss.tolist(), strict=True)
        return [(step, loss if step >= 0 else None) for step, loss in pairs]

    # What is kept to go on later

    def run_state(self, r: int, whole: Along) -> dict[str, Tensor]:
        """Return what is kept of one run.

        Args:
            r: which.
            whole: from what this process holds of a parameter to all of it.
        """
        weights = self.weights.items()
        state = {f"{PREFIX}model.{name}": whole(name, x)[r].cpu() for name, x in weights}
        return state | {f"{PREFIX}loss": self.loss[r], f"{PREFIX}step": self.step[r]}

    def load_run_states(self, states: Sequence[Mapping[str, Tensor]], part: Along) -> None:
        """Go on from what `run_state` gave of each run.

        Args:
            states: one a run.
            part: from all of a parameter to what this process holds of it.
        """
        for name, kept in self.weights.items():
            found = torch.stack([state[f"{PREFIX}model.{name}"] for state in states])
            kept.copy_(part(name, found))
        self.loss.copy_(torch.stack([state[f"{PREFIX}loss"] for state in states]))
        self.step.copy_(torch.stack([state[f"{PREFIX}step"] for state in states]))

    def end_at(
        self, weights: Mapping[str, Tensor], chosen: Sequence[tuple[int, float | None]]
    ) -> None:
        """Be as after training, of which only the outcome is known.

        Args:
            weights: the outcome.
            chosen: as `chosen` gave it.
        """
        for name, kept in self.weights.items():
            kept.copy_(weights[name].detach())
        self.step.copy_(torch.tensor([step for step, _ in chosen]))
        losses = [torch.inf if loss is None else loss for _, loss in chosen]
        self.loss.copy_(torch.tensor(losses, dtype=torch.float64))


def _where(runs: Tensor, source: Mapping[str, Tensor], destination: Mapping[str, Tensor]) -> None:
    """Copy the weights of some runs."""
    for name, x in destination.items():
        mask = runs.view(-1, *[1] * (x.ndim - 1))
        x.copy_(torch.where(mask, source[name], x))


def _losses(
    population: Population, ids: Int[Tensor, "R B T"], target: Int[Tensor, "R N"]
) -> Float[Tensor, " R"]:
    model, progress = population.model, population.progress()
    with population.precision():
        hidden = model(ids).flatten(1, 2)
        found = [
            objective.chosen_by(
                hidden[at],
                model.head[at],
                target[at],
                None if model.bias is None else model.bias[at],
                step=population.step,
                progress=progress,
            )
            for at, objective in population.groups
        ]
    return torch.cat(found).double()
