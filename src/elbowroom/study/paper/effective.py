"""Effective margins: of initialised GPT-2 models, drawn here, and of weights that a user has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks, margins
from elbowroom.study.paper.printed import EFFECTIVE, Printed
from elbowroom.study.statistics import Interval, mean_interval, prediction_interval

VOCAB, STD, SAMPLE, DRAWS = 50257, 0.02, 256, 3
TRAINED_SAMPLE = 4096  # tokens: those of trained models differ much more
NORM = margins.FinalNorm("layer", eps=1e-5)


@dataclass(frozen=True, kw_only=True)
class Effective:
    """One model's effective margin and alpha, beside what the paper prints."""

    model: str
    """Its name."""
    width: int
    """d_model."""
    margin: Interval
    """Over draws."""
    margin_std: float
    """Over tokens, of the first draw."""
    margin_new: Interval
    """Where one more draw would lie."""
    alpha: Interval
    """Over draws."""
    alpha_new: Interval
    """Where one more draw would lie."""
    alpha_std: float
    """Over tokens, of the first draw."""
    margin_printed: Printed
    """Initialised."""
    alpha_printed: Printed
    """Initialised."""
    trained: tuple[str, str]
    """Margin and alpha of the pre-trained model as printed."""

    @property
    def inside(self) -> tuple[bool, bool]:
        """Whether the printed margin and alpha round to where one more draw would lie."""
        margin, alpha = self.margin_new, self.alpha_new
        return _agree(margin, self.margin_printed), _agree(alpha, self.alpha_printed)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The effective margin and alpha of weights that somebody trained."""

    model: str
    """Its name; one of the GPT-2 family stands beside what the paper prints."""
    width: int
    """d_model."""
    margin: float
    """Mean over the tokens looked at."""
    margin_std: float
    """Over these tokens."""
    alpha: float
    """Likewise."""
    alpha_std: float
    """Likewise."""


def trained_margin(
    model: str,
    weight: Float[Tensor, "V D"],
    norm: margins.FinalNorm,
    *,
    sample: int = TRAINED_SAMPLE,
    progress: Callable[[int, int], None] | None = None,
) -> Trained:
    """Return the effective margin of a model's weights.

    Args:
        model: its name.
        weight: ``[V, D]``, its output embedding.
        norm: its final norm.
        sample: how many tokens the margin is averaged over; all if there are fewer.
        progress: called with tokens done and tokens in all.
    """
    few = min(sample, weight.shape[0])
    found = margins.effective(weight, norm, sample=few, on_block=progress)
    return Trained(
        model=model,
        width=weight.shape[1],
        margin=found.margin,
        margin_std=found.margin_std,
        alpha=found.alpha,
        alpha_std=found.alpha_std,
    )


def effective_margins(
    *,
    vocab_size: int = VOCAB,
    widths: Mapping[str, int] | None = None,
    sample: int = SAMPLE,
    draws: int = DRAWS,
    progress: Callable[[int, int], None] | None = None,
) -> list[Effective]:
    """Return the effective margins of models that are drawn here.

    Args:
        vocab_size: tokens.
        widths: of each model; those of the GPT-2 family if None.
        sample: how many tokens the margin is averaged over.
        draws: of the embeddings.
        progress: called with draws done and draws in all.

    Example:
        >>> found = effective_margins(vocab_size=64, widths={"gpt2": 16}, sample=8, draws=2)
        >>> found[0].model, found[0].margin.n, found[0].margin_printed.text
        ('gpt2', 2, '14.04')
    """
    checks.integer("draws", draws, at_least=2)
    widths = {name: row[0] for name, row in EFFECTIVE.items()} if widths is None else widths
    found = []
    for i, (name, width) in enumerate(widths.items()):
        each = []
        for seed in range(draws):
            generator = torch.Generator().manual_seed(seed)
            weight = torch.empty(vocab_size, width).normal_(0.0, STD, generator=generator)
            each.append(margins.effective(weight, NORM, sample=sample, seed=seed))
            if progress is not None:
                progress(i * draws + seed + 1, len(widths) * draws)
        found.append(_row(name, width, each))
    return found


def _row(name: str, width: int, each: Sequence[margins.EffectiveMargin]) -> Effective:
    _, (margin, _), (alpha, _), *trained = EFFECTIVE[name]
    margin_each = [float(one.margin) for one in each]
    alpha_each = [float(one.alpha) for one in each]
    return Effective(
        model=name,
        width=width,
        margin=mean_interval(margin_each),
        margin_new=prediction_interval(margin_each),
        margin_std=float(each[0].margin_std),
        alpha=mean_interval(alpha_each),
        alpha_new=prediction_interval(alpha_each),
        alpha_std=float(each[0].alpha_std),
        margin_printed=Printed(margin, margin),
        alpha_printed=Printed(alpha, alpha),
        trained=(str(trained[0]), str(trained[1])),
    )


def _agree(found: Interval, printed: Printed) -> bool:
    if found.low is None or found.high is None:
        return False
    half = printed.half_unit
    return found.low - half <= printed.value <= found.high + half
