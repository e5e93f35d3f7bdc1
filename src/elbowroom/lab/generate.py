"""Sampling text from every run at once, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.model import GPT
from elbowroom.lab.random import stream, uniform

_STREAM = stream("generate")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is drawn from logits; see `generate`."""

    temperature: float = 1.0
    logit_scale: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        checks.number("temperature", self.temperature, at_least=0.0)
        checks.number("logit_scale", self.logit_scale, above=0.0)
        if self.top_p is not None:
            checks.number("top_p", self.top_p, above=0.0, at_most=1.0)
        if self.top_k is not None:
            checks.integer("top_k", self.top_k, at_least=1)
        if self.min_p is not None:
            checks.number("min_p", self.min_p, at_least=0.0, at_most=1.0)

    def draw(self, logits: Float[Tensor, "R B V"], u: Float[Tensor, "R B"]) -> Int[Tensor, "R B"]:
        """Return the token at which the cumulated probability passes ``u``, a number in [0, 1)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        z = logits.double() * (self.logit_scale / self.temperature)
        p = z.softmax(-1)
        p = p.masked_fill(~self._kept(p), 0.0)
        cumulated = p.cumsum(-1)
        passed = cumulated <= u[..., None] * cumulated[..., -1:]
        return passed.sum(-1).clamp(max=p.shape[-1] - 1)  # the clamp is for NaN logits alone

    def _kept(self, p: Float[Tensor, "R B V"]) -> Bool[Tensor, "R B V"]:
        """Return which tokens pass every filter; the most probable one always does."""
        kept = torch.ones_like(p, dtype=torch.bool)
        if self.min_p is not None:
            kept &= p >= self.min_p * p.amax(-1, keepdim=True)
        if self.top_k is not None and self.top_k < p.shape[-1]:
            kept &= p >= p.topk(self.top_k, dim=-1).values[..., -1:]
        if self.top_p is not None:
            ordered, place = p.sort(dim=-1, descending=True, stable=True)
            more_probable = ordered.cumsum(-1) - ordered
            kept &= torch.empty_like(kept).scatter_(-1, place, more_probable < self.top_p)
        return kept


def generate(
    model: GPT,
    ids: Int[Tensor, "R B T"],
    *,
    steps: int,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | Int[Tensor, " R"] = 0,
) -> Iterator[Int[Tensor, "R B"]]:
    """Yield the next token of each run and text, ``steps`` times.

    Random numbers are by counter: a text follows from its run's weights, its prompt, its row and
    the seed, whatever the company. With one seed for all, runs draw by the same numbers, so that
    texts differ where models do. Filters look at the probabilities at the temperature; a token
    must pass each. The model sees the last ``context`` tokens.

    Args:
        model: R runs.
        ids: prompts, ``[R, B, T]``, T at least 1.
        steps: how many tokens to draw.
        temperature: divides the logits; 0 takes the most probable token.
        logit_scale: multiplies the logits, as in the training.
        top_p: only the most probable tokens that together reach this share.
        top_k: only the k most probable tokens, and those that equal the last of them.
        min_p: only tokens with at least this share of the most probable one's probability.
        seed: of the random numbers: an integer, or one a run.

    Example:
        >>> from elbowroom.lab.model import ModelConfig
        >>> model = GPT(ModelConfig(layers=1), init_seeds=[0])
        >>> prompt = torch.zeros(1, 1, 1, dtype=torch.long)
        >>> [int(token) for token in generate(model, prompt, steps=3, temperature=0.0)]
        [0, 0, 0]
    """
    sampling = Sampling(
        temperature=temperature, logit_scale=logit_scale, top_p=top_p, top_k=top_k, min_p=min_p
    )
    checks.integer("steps", steps, at_least=0)
    checks.is_integer("ids", ids)
    if ids.ndim != 3 or ids.shape[0] != model.runs or ids.shape[2] == 0:
        expected = f"[R, B, T] with R = {model.runs} and T at least 1"
        raise ArgumentValueError("ids", expected, f"shape {tuple(ids.shape)}")
    return _tokens(model, ids, steps, sampling, _seeds(seed, model.runs, ids.device))


def _seeds(seed: int | Tensor, runs: int, device: torch.device) -> Int[Tensor, "R 1"]:
    if not isinstance(seed, Tensor):
        return torch.full((runs, 1), checks.integer("seed", seed), device=device)
    checks.has_shape("seed", checks.is_integer("seed", seed), (runs,), "one a run")
    return seed.to(device)[:, None]


@torch.no_grad()
def _tokens(
    model: GPT, ids: Tensor, steps: int, sampling: Sampling, seeds: Tensor
) -> Iterator[Tensor]:
    rows = torch.arange(ids.shape[1], device=ids.device)
    for step in range(steps):
        ids = ids[..., -model.config.context :]
        hidden = model(ids)[:, :, -1]
        logits = torch.bmm(hidden, model.head.mT)
        if model.bias is not None:
            logits = logits + model.bias[:, None]
        token = sampling.draw(logits, uniform(seeds, _STREAM, step, rows))
        ids = torch.cat((ids, token[..., None]), -1)
        yield token
