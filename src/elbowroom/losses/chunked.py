"""Portable backend: blocks of tokens, gradients made while a block's logits are at hand.

Logits never exist for more than `BLOCK` entries; the equations go over them in strips that fit a
cache. Where a token keeps few entries they are turned into a list, and its part in the two
products of the backward becomes a weighted sum of rows, whose work is in proportion to what was
kept. Only a CPU does this: the length of a list must be known on the host. The other tokens are
moved together, for dense matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from elbowroom.losses.entries import (
    WHOLE,
    Dense,
    Listed,
    Terms,
    Whole,
    cross_entropy_,
    softminus_,
)
from elbowroom.losses.problem import Head, Tokens, compute_dtype
from elbowroom.losses.products import Needs, Part, Products
from elbowroom.losses.reference import statistics
from elbowroom.losses.spec import Spec, TokenStats
from elbowroom.losses.variants import Decoupled, DetachedBelow, Leaky, RareOnly, Softminus

BLOCK = 12 * 2**20  # logits at a time: 48 MiB in float32
STRIP = 2**20  # logits that the equations go over at a time
LIST_SHARE = 0.13  # a token is listed where it keeps at most this share of the vocabulary
FEW = 8  # tokens that are too few for a dense product: they are listed, too


def blocks(runs: int, tokens: int, vocab: int, entries: int) -> Iterator[Part]:
    """Cut ``[runs, tokens, vocab]`` into even blocks of at most so many entries, or of one token.

    Several runs share a block where all their tokens make no more than a strip.
    """
    r = max(1, min(runs, STRIP // max(1, tokens * vocab)))
    n = max(1, min(tokens, entries // (r * vocab)))
    n = math.ceil(tokens / math.ceil(tokens / n)) if tokens else 1
    for i in range(0, runs, r):
        for j in range(0, tokens, n):
            yield Part(slice(i, min(i + r, runs)), slice(j, min(j + n, tokens)))


@dataclass(frozen=True)
class Swept:
    """Losses of all tokens (0 where ignored), gradients and statistics; None where not wanted."""

    losses: Float[Tensor, "R N"]
    hidden: Float[Tensor, "R N D"] | None
    weight: Float[Tensor, "R V D"] | None
    bias: Float[Tensor, "R V"] | None
    stats: TokenStats | None


def sweep(
    head: Head,
    tokens: Tokens,
    spec: Spec,
    coefficient: Float[Tensor, "R N"] | None,
    needs: Needs,
    *,
    stats: bool,
    rows: Whole = WHOLE,
) -> Swept:
    """Return losses, and gradients of ``sum_n coefficient_n * loss_n`` if there are coefficients.

    With a part of the ``rows`` here, the gradient of hidden is that by the logits that are here.
    Where it can be known without waiting for a device, ignored tokens cost nothing.
    """
    counted = tokens.counted
    spare = head.hidden.device.type == "cpu" and len(counted) == 1 and not bool(counted.all())
    if not spare:
        done = Sweep(head, tokens, spec, coefficient, needs, stats=stats, rows=rows)
        p = done.products
        losses = done.losses.masked_fill(~counted, 0.0)
        return Swept(losses, p.hidden, p.weight, p.bias, done.stats)
    ids = counted[0].nonzero()[:, 0]

    def of(x: Tensor) -> Tensor:
        return x if x.shape[1] == 1 else x[:, ids]

    part = sweep(
        replace(head, hidden=head.hidden[:, ids]),
        replace(tokens, target=tokens.target[:, ids], counted=counted[:, ids]),
        replace(spec, margin=of(spec.margin)),
        None if coefficient is None else coefficient[:, ids],
        needs,
        stats=stats,
        rows=rows,
    )

    def back(x: Tensor, fill: int = 0) -> Tensor:
        out = x.new_full((1, counted.shape[1], *x.shape[2:]), fill)
        return out.index_copy_(1, ids, x)

    return Swept(
        back(part.losses),
        None if part.hidden is None else back(part.hidden),
        part.weight,
        part.bias,
        None
        if part.stats is None
        else TokenStats(
            back(part.stats.log_probability),
            back(part.stats.rank),
            back(part.stats.argmax, -1),
            back(part.stats.kept),
            part.stats.touched,
        ),
    )


class Sweep:
    """One pass over all blocks: losses always, gradients and statistics where wanted.

    Attributes:
        losses: ``[R, N]``, each token's loss (anything where ignored).
        stats: what the loss saw; None if not wanted.
        products: holds the gradients of ``sum_n coefficient_n * loss_n``.
    """

    def __init__(
        self,
        head: Head,
        tokens: Tokens,
        spec: Spec,
        coefficient: Float[Tensor, "R N"] | None,
        needs: Needs,
        *,
        stats: bool,
        rows: Whole = WHOLE,
    ) -> None:
        # Hidden states of ignored tokens may be anything, NaN too: they must not reach the weight.
        hidden = head.hidden.masked_fill(~tokens.counted[..., None], 0.0)
        self.head = replace(head, hidden=hidden.detach(), weight=head.weight.detach())
        self.tokens, self.spec, self.rows = tokens, spec, rows
        self.coefficient = coefficient
        dtype = compute_dtype(hidden.dtype)
        self.losses = hidden.new_zeros(tokens.target.shape, dtype=dtype)
        self.stats = empty_stats(self.losses, head.vocab_size) if stats else None
        # The products of Decoupled need the mask of a whole block, so that is but a strip.
        entries = STRIP if isinstance(spec.variant, Decoupled) else BLOCK
        runs, count = tokens.target.shape
        todo = list(blocks(runs, count, rows.widest(head.vocab_size), entries))
        room = max((self.losses[b.runs, b.tokens].numel() for b in todo), default=0)
        self.products = Products(self.head, needs, room * head.vocab_size)
        for block in todo:
            self._block(block)
        self.products.finish()

    def _block(self, block: Part) -> None:
        """Make a block's logits, turn them into gradients strip by strip, and pass these on."""
        z = self.products.logits(block)
        step = max(1, STRIP // self.rows.widest(z.shape[2])) if len(z) == 1 else z.shape[1]
        left: list[Part] = []  # tokens for the dense products; their gradients lie first in z
        for start in range(0, z.shape[1], step):
            strip = slice(start, min(start + step, z.shape[1]))
            many, below = self._strip(block.within(strip), z, strip, sum(map(len, left)))
            left.append(many)
        together = Part.join(left)
        if self.coefficient is not None and len(together):
            skip = below if isinstance(self.spec.variant, Decoupled) else None
            self.products.add_dense(together, z[:, : len(together)], skip)

    def _strip(
        self, part: Part, z: Float[Tensor, "r n V"], strip: slice, first: int
    ) -> tuple[Part, Bool[Tensor, "r m V"]]:
        """Do a strip; return its tokens that are left for the dense products, and its mask.

        The gradients of those tokens are moved to ``first`` and what follows.
        """
        x, target, spec = z[:, strip], part.cut(self.tokens.target), cut_spec(self.spec, part)
        if self.stats is not None:
            tokens = replace(self.tokens, target=target, counted=part.cut(self.tokens.counted))
            store_stats(self.stats, statistics(x, tokens, spec), part)
        below, dropped = self.rows.masks(x, target, spec)
        target = self.rows.local(target)
        if isinstance(spec.variant, DetachedBelow | Decoupled | Leaky):
            layout = Dense(target, dropped.logical_not_(), rows=self.rows)
            self._equations(part, x, layout, below)
            return part, below
        keep = dropped.logical_or_(below).logical_not_()
        listing = self.products.may_list and len(x) == 1
        easy = list_worthy(keep[0], self.rows) if listing else None
        if easy is not None and bool(easy.any()):
            few = part.select(easy)
            listed = Listed(keep[:, easy], target[:, easy], self.rows)
            entries = x[0, easy.nonzero()[:, 0][listed.row], listed.column]
            self._equations(few, entries, listed)
            if self.coefficient is not None:
                self.products.add_listed(few, entries, listed)
            part, keep, target = part.select(~easy), keep[:, ~easy], target[:, ~easy]
            z[:, first : first + len(part)] = x[:, ~easy]
        elif first != strip.start:
            z[:, first : first + len(part)] = x.clone()
        x = z[:, first : first + len(part)]
        if len(part):
            layout = Dense(target, keep, largest_kept=spec.protect is None, rows=self.rows)
            self._equations(part, x, layout)
        return part, below

    def _equations(
        self,
        part: Part,
        x: Tensor,
        layout: Dense | Listed,
        below: Bool[Tensor, "r n V"] | None = None,
    ) -> None:
        """Store the losses of some tokens; turn their logits into gradients by the raw ones."""
        spec, head = cut_spec(self.spec, part), self.head
        c = None if self.coefficient is None else part.cut(self.coefficient)
        terms = Terms(label_smoothing=spec.label_smoothing, z_loss=spec.z_loss, coefficient=c)
        slope: Tensor | float = head.logit_scale
        if head.softcap is not None and c is not None:
            capped = x / (head.softcap * head.logit_scale)  # tanh of the raw logits
            slope = (1 - capped.square_()).mul_(head.logit_scale)
        part.store(losses_(x, layout, below, spec, terms), self.losses)
        if c is not None and not (isinstance(slope, float) and slope == 1.0):
            x.mul_(slope)


def list_worthy(keep: Bool[Tensor, "n V"], rows: Whole = WHOLE) -> Bool[Tensor, " n"]:
    """Return which tokens keep so few entries that a list pays, on every rank."""
    kept = keep.view(torch.int8).sum(-1, dtype=torch.int32)  # far faster than keep.sum(-1)
    easy = rows.all(kept <= LIST_SHARE * keep.shape[1])
    hard = len(easy) - int(easy.sum())
    return torch.ones_like(easy) if 0 < hard < FEW < len(easy) else easy


def losses_(
    x: Tensor,
    layout: Dense | Listed,
    below: Bool[Tensor, "r n V"] | None,
    spec: Spec,
    terms: Terms,
) -> Float[Tensor, "r n"]:
    """Return losses; ``x``, the logits in this layout, becomes their gradient.

    The layout keeps what is in the log-sum-exp. Where entries below the threshold are in it too,
    ``below`` says which these are. For `Decoupled` the gradient is that which hidden gets.
    """
    variant = spec.variant
    if isinstance(variant, Softminus):
        return softminus_(x, layout, spec.margin, variant, terms)
    if not isinstance(variant, Leaky | DetachedBelow):
        return cross_entropy_(x, layout, terms)
    assert isinstance(layout, Dense)
    assert below is not None
    above = layout.without(below)
    if isinstance(variant, DetachedBelow):
        layout.smoothed = above.keep
        losses = cross_entropy_(x, layout, terms)
        x.masked_fill_(below, 0.0)
        return losses
    w, c = variant.weight, terms.coefficient
    thresholded, plain = (
        replace(terms, coefficient=None if c is None else share * c) for share in (1 - w, w)
    )
    y = x.clone()
    losses = (1 - w) * cross_entropy_(y, above, thresholded)
    losses = losses + w * cross_entropy_(x, layout, plain)
    x.add_(y)
    return losses


def cut_spec(spec: Spec, part: Part) -> Spec:
    """Cut out of a spec what may differ by run or token."""
    variant, protect = spec.variant, spec.protect
    if isinstance(variant, RareOnly) and variant.rows.ndim == 2:
        variant = RareOnly(part.cut_runs(variant.rows))
    if protect is not None:
        protect = part.cut_runs(protect)
    return replace(spec, margin=part.cut(spec.margin), protect=protect, variant=variant)


def empty_stats(losses: Float[Tensor, "R N"], vocab: int) -> TokenStats:
    """Return statistics to be filled part by part."""
    counts = torch.zeros_like(losses, dtype=torch.int64)
    return TokenStats(
        log_probability=torch.zeros_like(losses),
        rank=torch.zeros_like(losses),
        argmax=counts,
        kept=torch.zeros_like(counts),
        touched=torch.zeros(len(losses), vocab, dtype=torch.bool, device=losses.device),
    )


def store_stats(stats: TokenStats, found: TokenStats, part: Part) -> None:
    """Write a part's statistics where they belong."""
    *of_tokens, touched = found.tensors()
    for x, out in zip(of_tokens, stats.tensors(), strict=False):
        part.store(x, out)
    stats.touched[part.runs] |= touched
