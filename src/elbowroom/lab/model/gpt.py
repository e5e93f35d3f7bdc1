"""The GPT itself: R models of one shape in one module."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.model.config import ModelConfig
from elbowroom.lab.model.layers import Block, Norm
from elbowroom.lab.random import normal, stream


class GPT(nn.Module):
    """R language models of one shape, one for each initial seed.

    Every parameter has a leading dimension of runs, so that all R train in one program; no run
    sees another. Logits are never made here: losses and metrics take the hidden states with
    `head` and `bias`. Paper, section "Experimental setup": the defaults of `ModelConfig` are its
    GPT-2 (pre-norm, exact GELU, no dropout).

    A run's start follows from its seed and the names of the parameters alone: the same bits
    whatever the company, independent of PyTorch's generators. It is made on the CPU; move the
    model afterwards.

    Args:
        config: the shape of each model.
        init_seeds: one integer a run.

    Example:
        >>> model = GPT(ModelConfig(), init_seeds=[0, 1])
        >>> model(torch.zeros(2, 3, 64, dtype=torch.long)).shape
        torch.Size([2, 3, 64, 128])
        >>> model.head.shape, f"{model.size / 1e6:.2f}M"
        (torch.Size([2, 130, 128]), '0.80M')
    """

    def __init__(self, config: ModelConfig, init_seeds: Sequence[int] | Int[Tensor, " R"]) -> None:
        super().__init__()
        seeds = _check_seeds(init_seeds)
        runs, width = len(seeds), config.width
        self.config = config
        self.embedding = _parameter(runs, config.vocab_size, width)
        learned = config.position == "learned"
        self.positions = _parameter(runs, config.context, width) if learned else None
        self.blocks = nn.ModuleList(Block(runs, config) for _ in range(config.layers))
        self.norm = Norm(runs, config)
        self.output = None if config.tied else _parameter(runs, config.vocab_size, width)
        self.output_bias = _parameter(runs, config.vocab_size) if config.unigram_bias else None
        self._start(seeds)

    @property
    def runs(self) -> int:
        """R, the number of models."""
        return self.embedding.shape[0]

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens."""
        return self.config.vocab_size

    @property
    def head(self) -> Float[Tensor, "R V D"]:
        """The head's weight; where it is tied, the embedding's parameter itself."""
        return self.embedding if self.output is None else self.output

    @property
    def bias(self) -> Float[Tensor, "R V"] | None:
        """The head's bias, a unigram model in logits, if the config asks for it."""
        return self.output_bias

    @property
    def size(self) -> int:
        """The number of one model's parameters, those of learned positions not counted."""
        return sum(p[0].numel() for p in self.parameters() if p is not self.positions)

    def forward(self, ids: Int[Tensor, "R B T"]) -> Float[Tensor, "R B T D"]:
        """Return the hidden states after the last norm, which the head turns into logits.

        Args:
            ids: the tokens of each run, 0 to V - 1; T at most the context.
        """
        runs, batch, length = self._check_ids(ids).shape
        x = self._embed(ids)
        if self.positions is not None:
            whole = length == self.positions.shape[1]  # a slice of all would be copied backward
            place = self.positions if whole else self.positions[:, :length]
            x = x.view(runs, batch, length, -1) + place[:, None]
        x = x.view(runs, batch * length, -1)
        for block in self.blocks:
            x = block(x, length)
        return cast(Tensor, self.norm(x)).view(runs, batch, length, -1)

    def _embed(self, ids: Int[Tensor, "R B T"]) -> Float[Tensor, "R B T D"]:
        """Look all runs' rows up in one table of R * V; its gradient is deterministic, on CUDA too.

        PyTorch sorts the ids there, and adds up the gradients of equal ones in a fixed order.
        """
        runs, size = self.embedding.shape[:2]
        if runs > 1:
            first = torch.arange(0, runs * size, size, device=ids.device)
            ids = ids + first[:, None, None]
        return F.embedding(ids, self.embedding.flatten(0, 1))

    def _check_ids(self, ids: Tensor) -> Tensor:
        checks.is_integer("ids", ids)
        expected = f"[R, B, T] with R = {self.runs} and T at most {self.config.context}"
        right = ids.ndim == 3 and ids.shape[0] == self.runs
        if not right or not 1 <= ids.shape[2] <= self.config.context:
            raise ArgumentValueError("ids", expected, f"shape {tuple(ids.shape)}")
        if self.runs > 1:  # of one run F.embedding checks; of several, one would read another's
            inside = (ids >= 0) & (ids < self.vocab_size)
            expected = f"token ids from 0 to {self.vocab_size - 1}"
            checks.all_true(inside, "ids", expected, "one outside")
        return ids

    def _start(self, seeds: Sequence[int]) -> None:
        """Set all parameters to their start."""
        residual = self.config.init_std / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:  # a gain or a bias a run
                nn.init.constant_(parameter, 1.0 if name.endswith("norm.weight") else 0.0)
                continue
            std = residual if name.endswith(("out.weight", "down.weight")) else self.config.init_std
            which = stream(f"init/{name}")
            with torch.no_grad():
                for run, seed in zip(parameter, seeds, strict=True):
                    run.copy_(normal(seed, which, run.numel()).view_as(run)).mul_(std)

    def parameter_groups(self, weight_decay: float | Tensor) -> list[dict[str, Any]]:
        """Return groups for an optimizer: matrices and embeddings decay, gains and biases do not.

        Args:
            weight_decay: of the first group: a number, or one a run where the optimizer takes that.
        """
        matrices = [p for p in self.parameters() if p.ndim > 2]
        vectors = [p for p in self.parameters() if p.ndim == 2]
        return [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]

    def run_state(self, run: int) -> dict[str, Tensor]:
        """Return a copy of one run's parameters by name, without the run dimension.

        Matrices are ``[D_in, D_out]``. The head's weight is there where it is not tied.
        """
        self._check_run(run)
        return {name: p.detach()[run].clone() for name, p in self.named_parameters()}

    @torch.no_grad()
    def load_run_state(self, run: int, state: Mapping[str, Tensor]) -> None:
        """Set one run's parameters to what `run_state` returned; the names must be the same.

        Args:
            run: which run, from 0.
            state: its parameters, on any device.
        """
        self._check_run(run)
        own = dict(self.named_parameters())
        if own.keys() != state.keys():
            different = ", ".join(sorted(own.keys() ^ state.keys()))
            fix = "make the model with the config that the state was saved with"
            raise ArgumentValueError(
                "state", "this model's parameters", f"others: {different}", fix
            )
        for name, parameter in own.items():
            checks.has_shape(f"state[{name!r}]", state[name], parameter[run].shape, "this model's")
        for name, parameter in own.items():
            parameter[run].copy_(state[name])

    def select(self, runs: Sequence[int]) -> GPT:
        """Return a new model of some of the runs, in the given order, with copies of their state.

        Args:
            runs: their places, from 0.

        Example:
            >>> model = GPT(ModelConfig(layers=1), init_seeds=[0, 1, 2])
            >>> torch.equal(model.select([2]).head[0], model.head[2])
            True
        """
        if not runs:
            raise ArgumentValueError("runs", "at least one run", "none")
        for run in runs:
            self._check_run(run)
        chosen = torch.tensor(list(runs), device=self.embedding.device)
        replacements = {id(p): nn.Parameter(p.detach()[chosen]) for p in self.parameters()}
        return copy.deepcopy(self, cast("dict[int, Any]", replacements))

    def _check_run(self, run: int) -> None:
        if not 0 <= checks.integer("run", run) < self.runs:
            raise ArgumentValueError("run", f"from 0 to {self.runs - 1}", run)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape))


def _check_seeds(seeds: object) -> list[int]:
    if isinstance(seeds, Tensor):
        seeds = checks.is_integer("init_seeds", seeds).flatten().tolist()
    if isinstance(seeds, str) or not isinstance(seeds, Sequence):
        expected = "a sequence of integers, one a run"
        raise ArgumentTypeError("init_seeds", expected, checks.describe(seeds))
    if not seeds:
        raise ArgumentValueError("init_seeds", "one integer a run, at least one", "none")
    return [checks.integer("init_seeds", seed) for seed in seeds]
