"""Many models trained in one program; one model is a population of one.

All that a step does is operations on tensors ``[R, ...]`` that wait for nothing, so on CUDA a step
is captured once as a graph and replayed. A run whose loss or gradient is not finite is stopped
alone: its learning rate becomes 0 before anything of it has changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import init
from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.batches import Batches, Split
from elbowroom.lab.config import RunConfig
from elbowroom.lab.data import shares_of
from elbowroom.lab.distributed import average
from elbowroom.lab.gradients import GradientRecorder
from elbowroom.lab.keeping import Best
from elbowroom.lab.logs import Log, look
from elbowroom.lab.model import GPT
from elbowroom.lab.objective import Facts, Objective, key, rows_mask
from elbowroom.lab.optimizers import optimizer_of, schedule_of
from elbowroom.lab.precision import matmul_precision
from elbowroom.lab.tokens import Corpus
from elbowroom.optim import RowAdamW
from elbowroom.rivals import CoupledAdamW

MOST_COMPILED = 24  # kinds of loss to compile with the model; more of them cost minutes
WARM_UP = 3  # steps before a graph is captured


def population_key(run: RunConfig) -> str:
    """Return what runs of one population share; all else may differ from run to run."""
    data = replace(run.data, sampling="natural", shares=(), tau=1.0, epochs=1.0)
    training = replace(run.training, keep=replace(run.training.keep, by="cross_entropy"))
    optimizer = replace(run.optimizer, lr=0.0, min_lr=0.0)
    return repr((data, run.model, optimizer, training, run.evaluation))


class Population:
    """Runs of one `population_key`, and everything that changes while they train.

    Args:
        runs: their configurations.
        corpus: the texts.
        device: where to train.
        rank: with `world`, of the processes that share each batch, which this is.
        world: how many there are; gradients are averaged over them.
    """

    def __init__(
        self,
        runs: Sequence[RunConfig],
        corpus: Corpus,
        device: torch.device,
        *,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if len({population_key(run) for run in runs}) != 1:
            expected = "runs that differ in loss, sampling, start and learning rate only"
            raise ArgumentValueError("runs", expected, "others", "group them by population_key")
        self.runs = sorted(runs, key=lambda run: repr(key(run)))  # groups are side by side
        self.corpus, self.device, self.world = corpus, device, world
        first = self.runs[0]
        self.training = first.training
        self.shares = torch.stack([shares_of(run, corpus) for run in self.runs])
        facts = self._facts()
        self.token_counts = facts.counts  # one a run, over all of training
        config = replace(first.model, vocab_size=corpus.vocab_size)
        self.model = self._place(GPT(config, [run.init_seed for run in self.runs]))
        self._zero_rows(facts)
        self._set_bias(facts)
        self.groups = [
            (at, Objective(self.runs[at], facts.of(at), corpus.vocab_size, device))
            for at in _groups([key(run) for run in self.runs])
        ]
        self.batches = self._batches("train", rank)
        self.schedule = schedule_of(self.runs, device)
        self.optimizer = self._optimizer()
        self.done = 0
        count = len(self.runs)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.alive = torch.ones(count, dtype=torch.bool, device=device)
        self.died_at = torch.full((count,), -1, dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros(count, dtype=torch.float64, device=device)
        self.grad_norm = torch.zeros(count, device=device)
        self._since = 0  # steps that loss_sum covers
        self.gradients = GradientRecorder() if self.training.gradients_every else None
        self.best = None
        if self.training.keep.which == "best":
            draws = self._batches("validation", rank)
            self.best = Best(self.training.keep, draws, self.weights())
        self._graph: torch.cuda.CUDAGraph | None = None
        if self._compiles():
            self._compile()

    def _compiles(self) -> bool:
        compiled = self.training.compile
        return self.device.type == "cuda" if compiled is None else compiled

    def _compile(self) -> None:
        """Compile what a step does, for the shapes of this population alone.

        The compiler counts programs by their source: after a few populations it would take shapes
        as variable, and after eight give up. So it forgets the population before.
        """
        torch.compiler.reset()
        names = ["_losses" if len(self.groups) <= MOST_COMPILED else "_hidden"]
        if self.device.type == "cuda":  # elsewhere its text is cut on the host
            names += ["_draw", "_scale", "_norms"]
        for name in names:
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False))

    # What is made once

    def _place(self, model: GPT) -> GPT:
        return model.to(self.device)

    def _batches(self, split: Split, rank: int) -> Batches:
        """Return the batches of a split of the texts, of each this process's part."""
        return Batches(
            self.corpus,
            self.shares,
            [run.data_seed for run in self.runs],
            batch=self.training.batch,
            context=self.runs[0].model.context,
            device=self.device,
            rank=rank,
            world=self.world,
            split=split,
        )

    def _facts(self) -> Facts:
        """Return how often each run's sampling shows each token in all of training."""
        found = torch.as_tensor(self.corpus.counts()).double()
        found /= found.sum(-1, keepdim=True)
        tokens = self.training.steps * self.training.batch * self.runs[0].model.context
        counts = [TokenCounts(share @ found * tokens) for share in self.shares]
        groups = torch.as_tensor(self.corpus.group_of_token).long()
        return Facts(counts, groups, self.corpus.languages)

    def _zero_rows(self, facts: Facts) -> None:
        masks = [
            rows_mask(run.zero_rows, counts, facts.groups, facts.languages)
            for run, counts in zip(self.runs, facts.counts, strict=True)
        ]
        mask = torch.stack(masks)
        if bool(mask.any()):
            for matrix in self._token_matrices():
                init.zero_rows_(matrix, mask.to(matrix.device))

    def _set_bias(self, facts: Facts) -> None:
        """Start a unigram bias at the logarithm of how often tokens are seen."""
        if self.model.bias is not None:
            prior = torch.stack([counts.log_prior() for counts in facts.counts])
            with torch.no_grad():
                self.model.bias.copy_(prior - prior.mean(-1, keepdim=True))

    def _token_matrices(self) -> list[Tensor]:
        """Return the matrices with a row a token: embedding and head, which may be one."""
        head, embedding = self.model.head, self.model.embedding
        return [embedding] if head is embedding else [embedding, head]

    def _parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        return self.model.parameter_groups(weight_decay)

    def _optimizer(self) -> RowAdamW | CoupledAdamW:
        config = self.runs[0].optimizer
        groups = self._parameter_groups(config.weight_decay)  # may cut the matrices: it comes first
        return optimizer_of(config, groups, self._token_matrices(), self.device)

    # What a step does

    def advance(self, steps: int) -> None:
        """Make so many steps."""
        with matmul_precision(self.training.precision):
            for _ in range(steps):
                if self.gradients and self.done % (self.training.gradients_every or 1) == 0:
                    self.gradients.measure(self)
                if self._graph is not None:
                    self._graph.replay()
                elif self._can_capture():
                    self._first_steps()
                else:
                    self._step()
                self.done += 1
                self._since += 1
                if self.best and self.done % self.training.keep.every == 0:
                    self.best.look(self)

    def _can_capture(self) -> bool:
        alone = self.world == 1  # what goes between processes stays out of graphs
        return alone and self.device.type == "cuda" and self.batches.windows.on_device

    def _first_steps(self) -> None:
        """Make a step on a side stream, and capture the graph once these have warmed up."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._warm = getattr(self, "_warm", 0) + 1
        if self._warm >= WARM_UP:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            for param in self.model.parameters():
                param.grad = None
            with torch.cuda.graph(graph):
                self._step()
            self._graph = graph

    def _step(self) -> None:
        """Make one step; all in operations on the device."""
        progress = self.progress()
        params = list(self.model.parameters())
        ids, target = self._draw(self.step)
        self._observe(target)
        total: list[Tensor] = []  # losses and gradients of the parts so far
        for part in self._parts():
            with self.precision():
                losses = self._losses(ids[:, part], target[:, part], self.step, progress)
            # not backward(): that copies gradients to where it keeps them
            found = [losses.detach(), *torch.autograd.grad(losses.sum(), params)]
            if total:
                torch._foreach_add_(total, found)
            else:
                total = found
        if self.training.accumulate > 1:
            torch._foreach_div_(total, self.training.accumulate)
        loss, *grads = total
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        self._update(loss, grads)
        self.step += 1

    def _observe(self, target: Tensor) -> None:
        """Let objectives that count see the whole batch, whoever works on it."""
        if self.world > 1 and any(o.config.count_steps is not None for _, o in self.groups):
            target = self.batches.draw(self.step, everyone=True).target
        for at, objective in self.groups:
            objective.observe(target[at].flatten(1))

    def _draw(self, step: Tensor) -> tuple[Tensor, Tensor]:
        batch = self.batches.draw(step)
        return batch.ids, batch.target

    def _parts(self) -> Iterator[slice]:
        size = self.training.batch // self.world // self.training.accumulate
        return (slice(i * size, (i + 1) * size) for i in range(self.training.accumulate))

    def precision(self) -> torch.autocast:
        """Return what the model is computed under."""
        bf16 = self.training.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bf16)

    def progress(self) -> Float[Tensor, ""]:
        """Return the share of training that is over, on the device."""
        return (self.step.float() / self.training.steps).clamp(max=1.0)

    def _hidden(self, ids: Tensor) -> Float[Tensor, "R N D"]:
        """Return the model's hidden states for a batch."""
        return self.model(ids).flatten(1, 2)  # type: ignore[no-any-return]

    def _losses(
        self, ids: Tensor, target: Tensor, step: Tensor, progress: Tensor
    ) -> Float[Tensor, " R"]:
        """Return each run's loss on a batch."""
        model = self.model
        hidden, target = self._hidden(ids), target.flatten(1)
        found = [
            objective(
                hidden[at],
                model.head[at],
                target[at],
                None if model.bias is None else model.bias[at],
                step=step,
                progress=progress,
            )
            for at, objective in self.groups
        ]
        return torch.cat(found) if len(found) > 1 else found[0]

    @torch.no_grad()
    def _update(self, loss: Float[Tensor, " R"], grads: list[Tensor]) -> None:
        """Clip, let runs that are not finite stand still, and move the others."""
        self._average(loss, grads)
        norm = self._norms(grads)
        self.grad_norm.copy_(norm)
        alive = self.alive & loss.isfinite() & norm.isfinite()
        self.died_at.copy_(torch.where(self.alive & ~alive, self.step, self.died_at))
        self.alive.copy_(alive)
        self.loss_sum += torch.where(alive, loss, torch.nan).double()
        clip = self.runs[0].optimizer.clip
        scale = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
        if self.device.type != "cpu" or not bool((alive & (scale == 1)).all()):
            self._scale(grads, alive, scale)
        self._set_rate(alive)
        self.optimizer.step()
        if self.runs[0].optimizer.center:
            head = self.model.head
            head.sub_(torch.where(alive[:, None, None], head.mean(-2, keepdim=True), 0.0))

    def _average(self, loss: Tensor, grads: list[Tensor]) -> None:
        if self.world > 1:
            average([loss, *grads])

    def _norms(self, grads: list[Tensor]) -> Float[Tensor, " R"]:
        """Return the norm of each run's gradient."""
        squares = [grad.flatten(1).square().sum(1) for grad in grads]
        return torch.stack(squares).sum(0).sqrt()

    def _scale(self, grads: list[Tensor], alive: Tensor, scale: Tensor) -> None:
        """Multiply the gradients of each run; those of a run that stands still become 0."""
        for grad in grads:
            shape = (-1, *[1] * (grad.ndim - 1))
            grad.copy_(torch.where(alive.view(shape), grad * scale.view(shape), 0.0))

    def _set_rate(self, alive: Tensor) -> None:
        """Set the learning rate; 0 for runs that stand still."""
        if self.device.type == "cpu" and bool(alive.all()):
            rate = self.schedule.at(self.done)
        else:
            rate = self.schedule.at(self.step).to(alive.device) * alive
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    # What is known of it

    def log(self) -> Log:
        """Return what to report after these steps, and begin the next report's sums."""
        found = look(self)
        self.loss_sum.zero_()
        self._since = 0
        return found

    # What is kept to go on later

    def weights(self) -> dict[str, Tensor]:
        """Return what this process holds of the parameters, ``[R, ...]``, by name."""
        return dict(self.model.named_parameters())

    def _whole(self, name: str, part: Tensor) -> Tensor:
        """Return all of what is shaped as a parameter, from what this process holds of it."""
        return part

    def _part(self, name: str, whole: Tensor) -> Tensor:
        """Return what this process holds, from all of what is shaped as a parameter."""
        return whole

    def model_state(self, r: int) -> dict[str, Tensor]:
        """Return the weights of one run."""
        return self.model.run_state(r)

    def load_model_state(self, r: int, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights of one run."""
        self.model.load_run_state(r, tensors)

    def run_state(self, r: int) -> dict[str, Tensor]:
        """Return everything of one run that a later step depends on."""
        state = {f"model.{name}": x for name, x in self.model_state(r).items()}
        state |= self._optimizer_state(r)
        for at, objective in self.groups:
            if at.start <= r < at.stop:
                state |= objective.run_state(r - at.start)
        state |= self.gradient_state(r)
        if self.best is not None:
            state |= self.best.run_state(r, self._whole)
        state["loss_sum"], state["died_at"] = self.loss_sum[r], self.died_at[r]
        return {name: x.detach().cpu() for name, x in state.items()}

    def gradient_state(self, r: int) -> dict[str, Tensor]:
        """Return what was measured of one run's gradients, if they are."""
        return {} if self.gradients is None else self.gradients.run_state(r)

    def _optimizer_state(self, r: int) -> dict[str, Tensor]:
        return {
            f"optimizer.{name}.{what}": value[r] if value.ndim else value
            for name, param in self.model.named_parameters()
            for what, value in self.optimizer.state[param].items()
            if isinstance(value, Tensor)
        }

    def load_run_states(
        self, states: Sequence[Mapping[str, Tensor]], step: int, since: int
    ) -> None:
        """Continue from the states of all runs after ``step`` steps.

        Args:
            states: one a run, as `run_state` gave them.
            step: how many steps were made.
            since: how many of them ``loss_sum`` covers.
        """
        for r, state in enumerate(states):
            own = {k.removeprefix("model."): x for k, x in state.items() if k.startswith("model.")}
            self.load_model_state(r, own)
        self._load_optimizer_state(states)
        for at, objective in self.groups:
            objective.load_run_states(states[at])
        if self.gradients is not None:
            self.gradients.load_run_states(states, self.device)
        if self.best is not None:
            self.best.load_run_states(states, self._part)
        self.loss_sum.copy_(torch.stack([state["loss_sum"] for state in states]))
        self.died_at.copy_(torch.stack([state["died_at"] for state in states]))
        self.alive.copy_(self.died_at < 0)
        self.step.fill_(step)
        self.done, self._since = step, since

    def _load_optimizer_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        for name, param in self.model.named_parameters():
            head = f"optimizer.{name}."
            names = [k.removeprefix(head) for k in states[0] if k.startswith(head)]
            for what in names:
                values = [state[head + what] for state in states]
                value = torch.stack(values) if what != "step" else values[0].clone()
                on = "cpu" if what == "step" and self.device.type == "cpu" else self.device
                self.optimizer.state[param][what] = value.to(on)

    def settle(self) -> None:
        """Training is over: let rows that wait catch up, and go back to what is kept."""
        if isinstance(self.optimizer, RowAdamW):
            self.optimizer.settle()
        if self.best is not None:
            self.best.restore(self.weights())

    def chosen(self) -> list[tuple[int, float | None]]:
        """Return the step of each run's kept weights and their loss; -1 and None for the last."""
        return [(-1, None)] * len(self.runs) if self.best is None else self.best.chosen()

    def end_at(
        self, done: int, died_at: Sequence[int], chosen: Sequence[tuple[int, float | None]]
    ) -> None:
        """Be as after training; the weights are loaded before.

        Args:
            done: steps that were made.
            died_at: the step at which each run stopped, or -1.
            chosen: which weights were kept, as `chosen` gave it.
        """
        if self.best is not None:
            self.best.end_at(self.weights(), chosen)
        self.died_at.copy_(torch.tensor(died_at))
        self.alive.copy_(self.died_at < 0)
        self.step.fill_(done)
        self.done, self._since = done, 0

    @property
    def since(self) -> int:
        """Steps since the last report."""
        return self._since


def _groups(keys: Sequence[object]) -> list[slice]:
    """Return the stretches of equal keys."""
    edges = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]
