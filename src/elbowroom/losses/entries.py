"""The equations on the entries that a loss keeps, value and gradient in one go, by hand.

`reference` leaves derivatives to autograd and needs all logits several times over. Here the kept
logits of a block of tokens lie in a buffer that is overwritten with their gradients. The buffer
has one of two layouts, and the equations need only a few operations of it:

* `Dense`: ``[R, n, V]``, with a mask of what is kept.
* `Listed`: only the kept entries, one after the other, token by token.

What is summed or compared over the vocabulary goes through `Whole`, or through its subclass for a
rank that has a part of the rows.

Derivatives, for one token with coefficient ``c`` (the derivative of the reduced loss by this
token's loss), smoothing ``e`` over ``K`` entries and z-loss ``s``::

    l      = lse - (1 - e) z_y - e mean(z) + s lse^2,    lse over kept entries
    dl/dz_i = p_i (1 + 2 s lse) - (1 - e) [i = y] - e / K
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom.losses.reference import SMALLEST_FACTOR, masks
from elbowroom.losses.spec import Spec
from elbowroom.losses.variants import Softminus


class Whole:
    """The rows of the head that are here: all of them. `shards.Shard` is the part of one rank.

    Attributes:
        parted: whether other ranks have rows, too.
    """

    parted = False

    def widest(self, vocab: int) -> int:
        """Return the most rows that a rank has: all ranks must cut their tokens alike."""
        return vocab

    def local(self, target: Int[Tensor, "R n"]) -> Int[Tensor, "R n"]:
        """Return targets as rows that are here, -1 where another rank has them."""
        return target

    def masks(
        self, z: Float[Tensor, "R n V"], target: Int[Tensor, "R n"], spec: Spec
    ) -> tuple[Bool[Tensor, "R n V"], Bool[Tensor, "R n V"]]:
        """Return which entries are below the threshold, and which equalization drops."""
        return masks(z, target, spec)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks; may overwrite ``x``."""
        return x

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest of all ranks; may overwrite ``x``."""
        return x

    def all(self, x: Bool[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Return what is true on all ranks."""
        return x


WHOLE = Whole()


class Dense:
    """Entries as ``[R, n, V]``, of which ``keep`` says the kept ones.

    Dropped entries hold any logit, and their gradient becomes 0: multiplying by a mask is far
    cheaper on a CPU than filling with -inf by a mask and taking the exponential of that.

    Args:
        target: the tokens' targets, which are kept; -1 where another rank has them.
        keep: what is in the log-sum-exp.
        smoothed: what smoothing spreads over; None for ``keep``.
        largest_kept: whether the largest entry of each token is known to be a kept one, as it is
            where only a threshold drops: the largest lies above the target.
        rows: whose entries these are.
    """

    def __init__(
        self,
        target: Int[Tensor, "R n"],
        keep: Bool[Tensor, "R n V"],
        smoothed: Bool[Tensor, "R n V"] | None = None,
        *,
        largest_kept: bool = False,
        rows: Whole = WHOLE,
    ) -> None:
        self.rows = rows
        self.elsewhere = target < 0 if rows.parted else None
        self.target = (target.clamp(min=0) if rows.parted else target)[..., None]
        self.keep = keep
        self.smoothed = keep if smoothed is None else smoothed
        self.largest_kept = largest_kept

    def without(self, dropped: Bool[Tensor, "R n V"]) -> Dense:
        """Return the layout that drops these entries besides."""
        target = self.target[..., 0]
        if self.elsewhere is not None:
            target = target.masked_fill(self.elsewhere, -1)
        return Dense(target, self.keep & ~dropped, rows=self.rows)

    def spread(self, x: Float[Tensor, "R n"]) -> Tensor:
        """Give each entry its token's number."""
        return x[..., None]

    def exponentiate_(self, x: Tensor) -> Float[Tensor, "R n"]:
        """Turn kept entries into ``exp(x - m)``, dropped ones into 0; return ``m``, the largest."""
        if self.largest_kept:
            largest = self.rows.largest(x.amax(-1))
            x.sub_(largest[..., None]).exp_().mul_(self.keep)
        else:  # dropped ones may be larger, infinite or NaN
            dropped = ~self.keep
            largest = self.rows.largest(x.masked_fill_(dropped, -torch.inf).amax(-1))
            x.sub_(largest[..., None]).exp_().masked_fill_(dropped, 0.0)
        return largest

    def total(self, x: Tensor) -> Float[Tensor, "R n"]:
        """Return each token's sum."""
        return self.rows.sum(x.sum(-1))

    def smoothed_mean(self, x: Tensor) -> tuple[Float[Tensor, "R n"], Float[Tensor, "R n"]]:
        """Return mean and number of the entries that smoothing spreads over."""
        count = self.rows.sum(self.smoothed.sum(-1).to(x.dtype))
        return self.rows.sum(x.masked_fill(~self.smoothed, 0.0).sum(-1)) / count, count

    def subtract_smoothed_(self, x: Tensor, y: Float[Tensor, "R n"]) -> None:
        """Subtract each token's number from the entries that smoothing spreads over."""
        x.sub_(y[..., None] * self.smoothed)

    def at_target(self, x: Tensor) -> Float[Tensor, "R n"]:
        """Return the target's entry."""
        here = x.gather(-1, self.target)[..., 0]
        return (
            here if self.elsewhere is None else self.rows.sum(here.masked_fill(self.elsewhere, 0.0))
        )

    def add_at_target_(self, x: Tensor, y: Float[Tensor, "R n"]) -> None:
        """Add to the target's entry."""
        if self.elsewhere is not None:
            y = y.masked_fill(self.elsewhere, 0.0)
        x.scatter_add_(-1, self.target, y[..., None])


class Listed:
    """Entries as a list ``[K]`` with their token ``row`` (sorted) and vocabulary ``column``.

    The target's entry of a token is the one at ``hit``, if it is here.
    """

    def __init__(
        self, keep: Bool[Tensor, "R n V"], target: Int[Tensor, "R n"], rows: Whole = WHOLE
    ) -> None:
        self.shape, self.rows = target.shape, rows
        flat = keep.view(-1, keep.shape[-1])
        self.row, self.column = flat.nonzero().unbind(1)
        self.count = torch.bincount(self.row, minlength=flat.shape[0])
        self.hit = (self.column == target.reshape(-1)[self.row]).nonzero()[:, 0]

    def spread(self, x: Float[Tensor, "R n"]) -> Tensor:
        """Give each entry its token's number."""
        return x.reshape(-1)[self.row]

    def exponentiate_(self, x: Tensor) -> Float[Tensor, "R n"]:
        """Turn entries into ``exp(x - m)``; return ``m``, each token's largest."""
        out = x.new_full((self.shape.numel(),), -torch.inf)
        out = out.scatter_reduce_(0, self.row, x, "amax")
        largest = self.rows.largest(out.view(self.shape))
        x.sub_(self.spread(largest)).exp_()
        return largest

    def total(self, x: Tensor) -> Float[Tensor, "R n"]:
        """Return each token's sum."""
        out = x.new_zeros(self.shape.numel()).index_add_(0, self.row, x)
        return self.rows.sum(out.view(self.shape))

    def smoothed_mean(self, x: Tensor) -> tuple[Float[Tensor, "R n"], Float[Tensor, "R n"]]:
        """Return mean and number of the kept entries."""
        count = self.rows.sum(self.count.view(self.shape).to(x.dtype))
        return self.total(x) / count, count

    def subtract_smoothed_(self, x: Tensor, y: Float[Tensor, "R n"]) -> None:
        """Subtract each token's number from its entries."""
        x.sub_(self.spread(y))

    def at_target(self, x: Tensor) -> Float[Tensor, "R n"]:
        """Return the target's entry."""
        out = x.new_zeros(self.shape.numel())
        out[self.row[self.hit]] = x[self.hit]
        return self.rows.sum(out.view(self.shape))

    def add_at_target_(self, x: Tensor, y: Float[Tensor, "R n"]) -> None:
        """Add to the target's entry."""
        x[self.hit] += y.reshape(-1)[self.row[self.hit]]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Numbers that the equations take: smoothing, z-loss and each token's coefficient."""

    label_smoothing: float
    z_loss: float
    coefficient: Float[Tensor, "R n"] | None  # None: the gradient is not wanted


def cross_entropy_(x: Tensor, layout: Dense | Listed, terms: Terms) -> Float[Tensor, "R n"]:
    """Return each token's loss; turn ``x``, the kept logits, into coefficient * gradient."""
    e, s, c = terms.label_smoothing, terms.z_loss, terms.coefficient
    at_target = layout.at_target(x)
    mean, count = layout.smoothed_mean(x) if e else (at_target, at_target)
    largest = layout.exponentiate_(x)
    total = layout.total(x)
    lse = largest + total.log()
    gap = largest - at_target  # not lse - z_y, which rounds where both are large
    if e:
        gap = (1 - e) * gap + e * (largest - mean)
    loss = gap + total.log()
    if s:
        loss = loss + s * lse**2
    if c is not None:
        x.mul_(layout.spread(c * (1 + 2 * s * lse) / total))
        layout.add_at_target_(x, (e - 1) * c)
        if e:
            layout.subtract_smoothed_(x, e * c / count)
    return loss


def softminus_(
    x: Tensor,
    layout: Dense | Listed,
    margin: Float[Tensor, "Rm Nm"],
    variant: Softminus,
    terms: Terms,
) -> Float[Tensor, "R n"]:
    """Do as `cross_entropy_`, of ``z' = z + c log(1 - exp(-(z - theta) / c))``.

    With ``a = dz'/dz = 1 / (1 - exp(-(z - theta) / c))``, or 1 where clamped, an entry's gradient
    is that by ``z'`` times ``a``; ``theta`` collects ``-sum (a - 1) dl/dz'`` for the target.
    """
    lowest = torch.finfo(x.dtype).min  # for -inf, lest it meet the -inf of an impossible token
    theta = (layout.at_target(x) - margin).clamp_(min=lowest)
    factor = -torch.expm1((layout.spread(theta) - x) / variant.c)
    # 1 for NaN too: a dropped one must not reach theta, and a kept one shows in its exponential
    slope = torch.where(factor >= SMALLEST_FACTOR, 1 / factor, torch.ones_like(factor))
    x.add_(factor.clamp_(min=SMALLEST_FACTOR).log_(), alpha=variant.c)
    loss = cross_entropy_(x, layout, terms)
    if terms.coefficient is not None:
        through_theta = layout.total((slope - 1).mul_(x)).neg_()
        x.mul_(slope)
        if not variant.detach_threshold:
            layout.add_at_target_(x, through_theta)
    return loss
