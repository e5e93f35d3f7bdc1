r"""Which margin would shield the rows of a given model: appendix B of the paper.

For a row :math:`w_i` and the contexts :math:`h_t`, one for each token :math:`t`, the margin that
spares the row in 95% of them is the 5th percentile over :math:`t` of
:math:`\langle h_t, w_t - w_i \rangle`. The V x V products never exist at once: blocks of rows are
worked off one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.margins.norms import FinalNorm

BLOCK_ELEMENTS = 2**24  # of a block of products: 64 MiB in float32


@dataclass(frozen=True, eq=False)
class EffectiveMargin:
    """The margin and the alpha that are effective for a model, per token and on average.

    Attributes:
        margin: the mean of ``margins``.
        margin_std: their standard deviation (divided by their number, as numpy does).
        alpha: the mean of ``alphas``.
        alpha_std: their standard deviation.
        margins: ``[S]``, the margin of each token looked at; S is V unless a sample was taken.
        alphas: ``[S]``, the same divided by the norms.
        tokens: ``[S]``, which tokens these are, in ascending order.
    """

    margin: float
    margin_std: float
    alpha: float
    alpha_std: float
    margins: Float[Tensor, " S"]
    alphas: Float[Tensor, " S"]
    tokens: Int[Tensor, " S"]


def effective(
    weight: Float[Tensor, "V D"],
    norm: nn.Module | FinalNorm,
    quantile: float = 0.05,
    *,
    sample: int | None = None,
    seed: int = 0,
    on_block: Callable[[int, int], None] | None = None,
) -> EffectiveMargin:
    r"""Estimate the margin (and alpha) that spares a model's rows in most contexts.

    .. math::

        m_i = \mathcal{P}_{0.05}\big(\langle h_t, w_t - w_i \rangle\big), \qquad
        \alpha_i = \mathcal{P}_{0.05}\left(
            \frac{\langle h_t, w_t - w_i \rangle}{\lVert h_t \rVert \lVert w_t \rVert}\right),
        \qquad h_t = \mathrm{norm}(\gamma \circ w_t)

    with percentiles over all tokens :math:`t`, among them :math:`i` itself. The norm is the model's
    final one with its weight :math:`\gamma`, its bias if it has one, and its eps; :math:`h_t` is
    the context it can give that suits :math:`w_t` best. Quantiles are exact, with numpy's linear
    interpolation; sums are kept in float32 (float64 for float64 weights).

    Paper, appendix B. A context whose product of norms is 0 says nothing about alpha and is left
    out of it (an embedding's padding row, for example).

    Args:
        weight: ``[V, D]``, the output embeddings, V at least 2.
        norm: the final norm, a module (`torch.nn.LayerNorm`, `torch.nn.RMSNorm`, or one that
            computes the same) or a `FinalNorm`.
        quantile: the share of contexts in which a row may stay unshielded, from 0 to 1.
        sample: average over this many tokens ``i``, drawn without replacement; None takes all. All
            contexts count either way.
        seed: of the sample.
        on_block: called with the tokens done and their number, now and then.

    Example:
        >>> weight = 0.02 * torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
        >>> found = effective(weight, torch.nn.LayerNorm(64))
        >>> round(found.alpha, 1)
        0.8
    """
    weight = _check_weight(weight)
    quantile = checks.number("quantile", quantile, at_least=0.0, at_most=1.0)
    final = norm if isinstance(norm, FinalNorm) else FinalNorm.of(norm)
    hidden = _contexts(weight, final)
    tokens = _choose(weight.shape[0], sample, seed).to(weight.device)
    own = (hidden * weight).sum(-1)
    scale = torch.linalg.vector_norm(hidden, dim=-1) * torch.linalg.vector_norm(weight, dim=-1)
    says = scale > 0
    if not bool(says.any()):
        raise ArgumentValueError("weight", "rows that are not all zero", "only zeros")
    margins, alphas = [], []
    rows = max(1, BLOCK_ELEMENTS // weight.shape[0])
    for block in torch.split(tokens, rows):
        gap = torch.addmm(own, weight[block], hidden.mT, alpha=-1)  # <h_t, w_t> - <h_t, w_i>
        margins.append(_quantile(gap, quantile))
        alphas.append(_quantile(_over_norms(gap, scale, says), quantile))
        if on_block is not None:
            on_block(sum(map(len, margins)), len(tokens))
    return _summary(torch.cat(margins), torch.cat(alphas), tokens)


def _check_weight(weight: Tensor) -> Float[Tensor, "V D"]:
    """Return the weight, checked, in the dtype of the sums."""
    weight = checks.is_floating("weight", weight).detach()
    if weight.ndim != 2 or weight.shape[0] < 2 or weight.shape[1] < 1:
        expected = "[V, D] with V at least 2"
        raise ArgumentValueError("weight", expected, f"shape {tuple(weight.shape)}")
    weight = weight.to(torch.float64 if weight.dtype == torch.float64 else torch.float32)
    checks.all_true(torch.isfinite(weight), "weight", "finite numbers", "infinite ones or NaN")
    return weight


def _contexts(weight: Float[Tensor, "V D"], norm: FinalNorm) -> Float[Tensor, "V D"]:
    """Return h_t for every token."""
    for name, part in (("weight", norm.weight), ("bias", norm.bias)):
        if part is not None:
            width = weight.shape[1:]
            checks.has_shape(f"norm.{name}", part, width, "the width of the embeddings")
    return norm(weight if norm.weight is None else weight * norm.weight.to(weight))


def _choose(vocab_size: int, sample: int | None, seed: int) -> Int[Tensor, " S"]:
    """Return the tokens to average over, in ascending order; a seed chooses the same anywhere."""
    seed = checks.integer("seed", seed)
    if sample is None:
        return torch.arange(vocab_size)
    sample = checks.integer("sample", sample, at_least=1)
    if sample > vocab_size:
        fix = "pass None to take all tokens"
        raise ArgumentValueError("sample", f"at most V = {vocab_size}", sample, fix)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(vocab_size, generator=generator)[:sample].sort().values


def _over_norms(
    gap: Float[Tensor, "B V"], scale: Float[Tensor, " V"], says: Bool[Tensor, " V"]
) -> Float[Tensor, "B K"]:
    """Divide by the norms; leave contexts without a direction out."""
    if bool(says.all()):
        return gap.div_(scale)
    return gap[:, says] / scale[says]


def _quantile(x: Float[Tensor, "B K"], quantile: float) -> Float[Tensor, " B"]:
    """Return the quantile of each row, interpolated as numpy does.

    A selection of the smaller end of each row: `torch.quantile` sorts everything, and takes no more
    than 2^24 elements.
    """
    count = x.shape[1]
    position = quantile * (count - 1)
    low = math.floor(position)
    if 2 * low > count:  # the upper end is the shorter one
        ends = x.topk(count - low, dim=1, sorted=False).values.topk(
            min(2, count - low), dim=1, largest=False
        )
        lower, upper = ends.values[:, 0], ends.values[:, -1]
    else:
        size = min(low + 2, count)
        ends = x.topk(size, dim=1, largest=False, sorted=False).values.topk(size - low, dim=1)
        lower, upper = ends.values[:, -1], ends.values[:, 0]
    return torch.lerp(lower, upper, position - low)


def _summary(margins: Tensor, alphas: Tensor, tokens: Tensor) -> EffectiveMargin:
    margin, alpha = margins.double(), alphas.double()
    return EffectiveMargin(
        margin=float(margin.mean()),
        margin_std=float(margin.std(correction=0)),
        alpha=float(alpha.mean()),
        alpha_std=float(alpha.std(correction=0)),
        margins=margins,
        alphas=alphas,
        tokens=tokens,
    )
