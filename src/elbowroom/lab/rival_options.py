"""How a configuration's options reach a rival's loss, and a trial of them before any work."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from elbowroom import rivals
from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

FROM_THE_LAB = ("counts", "seed", "step")  # arguments that training gives, not the configuration


def bind(
    name: str, options: Mapping[str, Any], counts: TokenCounts, seed: Tensor
) -> Callable[..., Tensor]:
    """Return a rival's loss as a function ``f(hidden, weight, target, *, step, **head_options)``.

    Args:
        name: of the loss in `elbowroom.rivals`.
        options: its own parameters.
        counts: for losses that take counts.
        seed: for losses that draw, one a run.
    """
    loss: Callable[..., Tensor] = getattr(rivals, name)
    taken = inspect.signature(loss).parameters
    given = dict(options)
    if takes_counts(name, options):
        given["counts"] = counts
    if "seed" in taken:
        given["seed"] = seed
    draws = "step" in taken

    def call(*arguments: Tensor, step: Tensor, **more: Any) -> Tensor:
        return loss(*arguments, **given, **({"step": step} if draws else {}), **more)

    return call


def takes_counts(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether a loss takes counts: of the sampled softmax, one proposal does."""
    if name == "sampled_softmax":
        return options.get("proposal") == "frequency"
    return "counts" in inspect.signature(getattr(rivals, name)).parameters


def try_rival(name: str, options: Mapping[str, Any], count_steps: int | None) -> None:
    """Raise unless a loss takes these options: it is computed once, for one token.

    Args:
        name: of the loss.
        options: its own parameters.
        count_steps: over how many steps tokens are counted; None for the whole text's counts.

    Example:
        >>> try_rival("focal", {"gamma": 1.0}, None)
        >>> try_rival("focal", {"gama": 1.0}, None)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        elbowroom.errors.ArgumentValueError: options.gama: ...; did you mean 'gamma'?
    """
    _check_names(name, options)
    if count_steps is not None and not takes_counts(name, options):
        raise ArgumentValueError("count_steps", f"none: {name} takes no counts", count_steps)
    counts = TokenCounts(torch.ones(1, 3))
    if count_steps is not None:
        counts = TokenCounts.running(3, steps=count_steps, runs=1)
        counts.update(torch.zeros(1, 1, dtype=torch.long))
    zero = torch.zeros((), dtype=torch.long)
    try:
        loss = bind(name, options, counts, zero[None])
        loss(torch.ones(1, 1, 2), torch.ones(1, 3, 2), zero[None, None], step=zero)
    except (ArgumentTypeError, ArgumentValueError) as error:
        if error.argument == "counts":
            expected = f"a number of steps: {name} counts while training runs"
            raise ArgumentValueError("count_steps", expected, count_steps) from error
        error.argument, error.args = f"options.{error.argument}", (f"options.{error}",)
        raise


def _check_names(name: str, options: Mapping[str, Any]) -> None:
    taken = inspect.signature(getattr(rivals, name)).parameters.values()
    own = [p for p in taken if p.kind is p.KEYWORD_ONLY and p.name not in FROM_THE_LAB]
    names = [p.name for p in own]
    for key in options:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            fix = f"did you mean {near[0]!r}?" if near else ""
            expected = f"one of {', '.join(names)}" if names else f"none for {name}"
            raise ArgumentValueError(f"options.{key}", expected, "an unknown option", fix)
    for p in own:
        if p.default is p.empty and p.name not in options:
            raise ArgumentValueError("options", f"{p.name}, which {name} needs", "none")
