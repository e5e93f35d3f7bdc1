"""Portable backend: blocks of tokens, gradients made while a block's logits are at hand.

Logits never exist for more than `BLOCK` entries. Where a block keeps few of them they are turned
into a list, and the two products of the backward become weighted sums of rows, whose work is in
proportion to what was kept. Only a CPU does this: the length of a list must be known on the host.
All else is dense matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom.losses.entries import Dense, Listed, Terms, cross_entropy_, softminus_
from elbowroom.losses.problem import Head, Tokens, compute_dtype
from elbowroom.losses.products import Block, Needs, Products
from elbowroom.losses.reference import masks, statistics
from elbowroom.losses.spec import Spec, TokenStats
from elbowroom.losses.variants import Decoupled, DetachedBelow, Leaky, RareOnly, Softminus

BLOCK = 8 * 2**20  # logits at a time: 32 MiB in float32
LIST_SHARE = 0.15  # a block is listed where at most this share of it is kept


def blocks(runs: int, tokens: int, vocab: int) -> Iterator[Block]:
    """Cut ``[runs, tokens, vocab]`` into blocks of at most `BLOCK` entries, or of one token."""
    r = max(1, min(runs, BLOCK // max(1, tokens * vocab)))
    n = max(1, min(tokens, BLOCK // (r * vocab)))
    for i in range(0, runs, r):
        for j in range(0, tokens, n):
            yield Block(slice(i, min(i + r, runs)), slice(j, min(j + n, tokens)))


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
) -> Swept:
    """Return losses, and gradients of ``sum_n coefficient_n * loss_n`` if there are coefficients.

    Where it can be known without waiting for a device, ignored tokens cost nothing.
    """
    counted = tokens.counted
    spare = head.hidden.device.type == "cpu" and len(counted) == 1 and not bool(counted.all())
    if not spare:
        done = Sweep(head, tokens, spec, stats=stats).run(coefficient, needs)
        p = done.products
        losses = done.losses.masked_fill(~counted, 0.0)
        return Swept(losses, p.hidden, p.weight, p.bias, done.stats)
    rows = counted[0].nonzero()[:, 0]

    def of(x: Tensor) -> Tensor:
        return x if x.shape[1] == 1 else x[:, rows]

    part = sweep(
        replace(head, hidden=head.hidden[:, rows]),
        replace(tokens, target=of(tokens.target), counted=counted[:, rows]),
        replace(spec, margin=of(spec.margin)),
        None if coefficient is None else coefficient[:, rows],
        needs,
        stats=stats,
    )

    def back(x: Tensor, fill: int = 0) -> Tensor:
        out = x.new_full((1, counted.shape[1], *x.shape[2:]), fill)
        return out.index_copy_(1, rows, x)

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
        products: after `run`, holds the gradients of ``sum_n coefficient_n * loss_n``.
    """

    def __init__(self, head: Head, tokens: Tokens, spec: Spec, *, stats: bool) -> None:
        # Hidden states of ignored tokens may be anything, NaN too: they must not reach the weight.
        hidden = head.hidden.masked_fill(~tokens.counted[..., None], 0.0)
        self.head, self.tokens, self.spec = replace(head, hidden=hidden), tokens, spec
        shape = tokens.target.shape
        self.losses = head.hidden.new_zeros(shape, dtype=compute_dtype(head.hidden.dtype))
        self.stats = empty_stats(self.losses, head.vocab_size) if stats else None

    def run(self, coefficient: Float[Tensor, "R N"] | None, needs: Needs) -> Sweep:
        """Sweep over all blocks; without coefficients no gradient is made."""
        vocab = self.head.vocab_size
        todo = list(blocks(self.losses.shape[0], self.losses.shape[1], vocab))
        size = max((self.losses[b.runs, b.tokens].numel() for b in todo), default=0)
        self.products = Products(self.head, needs, size * vocab)
        for block in todo:
            c = None if coefficient is None else block.cut(coefficient)
            self._visit(block, c)
        self.products.finish()
        return self

    def _visit(self, block: Block, coefficient: Float[Tensor, "r n"] | None) -> None:
        head, spec, products = self.head, cut_spec(self.spec, block), self.products
        target, counted = block.cut(self.tokens.target), block.cut(self.tokens.counted)
        hidden = block.cut(head.hidden).to(self.losses.dtype)
        z, slope = products.logits(block, hidden)
        if self.stats is not None:
            tokens = replace(self.tokens, target=target, counted=counted)
            store_stats(self.stats, statistics(z, tokens, spec), block)
        below, dropped = masks(z, target, spec)
        terms = Terms(
            label_smoothing=spec.label_smoothing, z_loss=spec.z_loss, coefficient=coefficient
        )
        if isinstance(spec.variant, DetachedBelow | Decoupled | Leaky):
            x: Tensor = z
            layout: Dense | Listed = Dense(target, ~dropped)
            losses = with_entries_below_(z, target, below, dropped, spec.variant, terms)
        else:
            keep = dropped.logical_or_(below).logical_not_()
            x, layout = lay_out(z, target, keep, products.may_list, spec)
            losses = without_entries_below_(x, layout, spec, terms)
        self.losses[block.runs, block.tokens] = losses
        if coefficient is None:
            return
        if slope is not None:
            x.mul_(layout.take(slope))
        elif head.logit_scale != 1.0:
            x.mul_(head.logit_scale)
        if isinstance(layout, Listed):
            products.add_listed(block, x, layout)
        else:
            rows_skip = below if isinstance(spec.variant, Decoupled) else None
            products.add_dense(block, hidden, x, rows_skip)


def lay_out(
    z: Float[Tensor, "r n V"],
    target: Int[Tensor, "r n"],
    keep: Bool[Tensor, "r n V"],
    may_list: bool,
    spec: Spec,
) -> tuple[Tensor, Dense | Listed]:
    """Choose the layout by the share that is kept; return the entries in it."""
    if may_list and z.shape[0] == 1:
        kept = keep.view(torch.int8).sum(-1, dtype=torch.int32).sum()  # fast, unlike keep.sum()
        if int(kept) <= LIST_SHARE * keep.numel():
            listed = Listed(keep, target)
            return listed.take(z), listed
    return z, Dense(target, keep, largest_kept=spec.protect is None)


def without_entries_below_(
    x: Tensor, layout: Dense | Listed, spec: Spec, terms: Terms
) -> Float[Tensor, "r n"]:
    """Return losses that depend on kept entries only; ``x`` becomes their gradient."""
    if isinstance(spec.variant, Softminus):
        margin = spec.margin.to(x.dtype)
        return softminus_(x, layout, margin, spec.variant, terms)
    return cross_entropy_(x, layout, terms)


def with_entries_below_(
    z: Float[Tensor, "r n V"],
    target: Int[Tensor, "r n"],
    below: Bool[Tensor, "r n V"],
    dropped: Bool[Tensor, "r n V"],
    variant: DetachedBelow | Decoupled | Leaky,
    terms: Terms,
) -> Float[Tensor, "r n"]:
    """Return losses to which entries below the threshold contribute; ``z`` becomes the gradient.

    For `Decoupled` that is the gradient which hidden gets.
    """
    keep = ~dropped
    if isinstance(variant, Leaky):
        w, c = variant.weight, terms.coefficient
        thresholded, plain = (
            replace(terms, coefficient=None if c is None else share * c) for share in (1 - w, w)
        )
        y = z.clone()
        losses = (1 - w) * cross_entropy_(y, Dense(target, keep & ~below), thresholded)
        losses = losses + w * cross_entropy_(z, Dense(target, keep), plain)
        z.add_(y)
        return losses
    smoothed = keep if isinstance(variant, Decoupled) else keep & ~below
    losses = cross_entropy_(z, Dense(target, keep, smoothed), terms)
    if isinstance(variant, DetachedBelow):
        z.masked_fill_(below, 0.0)
    return losses


def cut_spec(spec: Spec, block: Block) -> Spec:
    """Cut a block out of what may differ by run or token."""
    variant = spec.variant
    if isinstance(variant, RareOnly) and variant.rows.ndim == 2:
        variant = RareOnly(variant.rows[block.runs] if len(variant.rows) > 1 else variant.rows)
    protect = spec.protect
    if protect is not None and len(protect) > 1:
        protect = protect[block.runs]
    return replace(spec, margin=block.cut(spec.margin), protect=protect, variant=variant)


def empty_stats(losses: Float[Tensor, "R N"], vocab: int) -> TokenStats:
    """Return statistics to be filled block by block."""
    counts = torch.zeros_like(losses, dtype=torch.int64)
    return TokenStats(
        log_probability=torch.zeros_like(losses),
        rank=torch.zeros_like(losses),
        argmax=counts,
        kept=torch.zeros_like(counts),
        touched=torch.zeros(len(losses), vocab, dtype=torch.bool, device=losses.device),
    )


def store_stats(stats: TokenStats, of_block: TokenStats, block: Block) -> None:
    """Write a block's statistics where they belong."""
    for field in ("log_probability", "rank", "argmax", "kept"):
        getattr(stats, field)[block.runs, block.tokens] = getattr(of_block, field)
    stats.touched[block.runs] |= of_block.touched
