"""Label-distribution-aware margins: rarer targets must win by more."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.counts import TokenCounts
from elbowroom.losses.problem import Head
from elbowroom.rivals.common import (
    HeadOptions,
    all_logits,
    checked_counts,
    cross_entropy,
    of_rows,
    of_targets,
    prepare,
    unit_rows,
)


def ldam(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    counts: TokenCounts,
    max_margin: float = 0.5,
    s: float = 30.0,
    normalize: bool = True,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Label-distribution-aware margin loss (Cao et al. 2019, LDAM).

    .. math:: \ell = -\log \frac{e^{s (z_y - \Delta_y)}}
        {e^{s (z_y - \Delta_y)} + \sum_{j \ne y} e^{s z_j}}, \qquad \Delta_i = C / N_i^{1/4}

    with C such that the rarest token has the largest margin. This margin is subtracted from the
    target's logit and asks for more; the margin of this library's loss lets go.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        counts: occurrences :math:`N_i`; those below 1 are taken as 1.
        max_margin: the largest Δ.
        s: multiplies the logits, margin included.
        normalize: whether logits are cosines, of unit rows and unit hidden, as published; the
            model must then predict so too. With False, s 1 and margin 0 it is cross-entropy.
        **options: see `HeadOptions`.

    Reference:
        Cao et al. 2019, "Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss",
        with s and unit vectors as in its code.

    Example:
        >>> import torch
        >>> counts = TokenCounts(torch.tensor([16, 1]))
        >>> hidden, weight, target = torch.tensor([[5.0, 0.0]]), torch.eye(2), torch.tensor([0])
        >>> ldam(hidden, weight, target, counts=counts, max_margin=2.0, s=1.0)  # cosine 1 - 2 / 2
        tensor(0.6931)
    """
    head, tokens = prepare(hidden, weight, target, **options)
    max_margin = checks.number("max_margin", max_margin, at_least=0.0)
    s = checks.number("s", s, above=0.0)
    checks.flag("normalize", normalize)
    z = all_logits(_cosine(head) if normalize else head)
    root = of_rows(checked_counts(counts, head).values().clamp(min=1.0), head) ** -0.25
    margin = max_margin * root / root.amax(-1, keepdim=True)
    shift = of_targets(margin, tokens)[..., None]
    z = z.scatter_add(-1, tokens.target[..., None], -shift)
    return tokens.reduce(cross_entropy(s * z, tokens))


def _cosine(head: Head) -> Head:
    return replace(head, hidden=unit_rows(head.hidden), weight=unit_rows(head.weight))
