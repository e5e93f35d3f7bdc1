"""Sampled softmax: a few negatives stand for all, corrected for how they were drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentValueError
from elbowroom.losses.problem import Head, Tokens
from elbowroom.rivals.common import HeadOptions, all_logits, checked_counts, prepare, target_logits
from elbowroom.rivals.random import uniform

Proposal = Literal["uniform", "log_uniform", "frequency"]
PROPOSALS = ("uniform", "log_uniform", "frequency")


def sampled_softmax(
    hidden: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*batch"],
    *,
    samples: int,
    proposal: Proposal = "log_uniform",
    counts: TokenCounts | None = None,
    smoothing: float = 1.0,
    seed: int | Int[Tensor, "*seeds"] = 0,
    step: int | Int[Tensor, ""] = 0,
    **options: Unpack[HeadOptions],
) -> Tensor:
    r"""Cross-entropy against sampled negatives with importance correction (Jean et al. 2015).

    .. math:: \ell_n = \log \Big( e^{z_{n, y_n}} + \sum_{s : i_s \ne y_n}
        \frac{e^{z_{n, i_s}}}{S\, q_{i_s}} \Big) - z_{n, y_n}, \qquad i_1, \dots, i_S \sim q

    The sum is unbiased for that of all negatives, so the loss tends to cross-entropy as S grows.
    One draw, with replacement, serves all tokens of a run; only its rows and the targets' are
    multiplied, never the whole head.

    Args:
        hidden: ``[..., D]``, or ``[R, ..., D]``.
        weight: ``[V, D]``, or ``[R, V, D]``.
        target: ``[...]``, or ``[R, ...]``.
        samples: S.
        proposal: q. "uniform"; "log_uniform" (the share of id i is proportional to
            log((i + 2) / (i + 1)), for vocabularies in order of frequency); or "frequency".
        counts: occurrences that give "frequency" its q.
        smoothing: added to these counts, so that every token can be drawn.
        seed: an integer, or one a run ``[R]``. The draw depends on seed and step only, and is the
            same on every device.
        step: the step of training; pass a new one each time, a 0-d tensor in a captured graph.
        **options: see `HeadOptions`.

    Reference:
        Bengio and Senécal 2008, "Adaptive Importance Sampling to Accelerate Training of a
        Neural Probabilistic Language Model"; Jean et al. 2015, "On Using Very Large Target
        Vocabulary for Neural Machine Translation". As in Blanc and Rendle 2018, "Adaptive Sampled
        Softmax with Kernel Based Sampling", the target's logit is not corrected, since it is
        always there; TensorFlow's function corrects it too.

    Example:
        >>> hidden, weight, target = torch.zeros(2, 4), torch.ones(50, 4), torch.tensor([3, 7])
        >>> loss = sampled_softmax(hidden, weight, target, samples=64, proposal="uniform")
        >>> bool((loss - torch.tensor(50.0).log()).abs() < 0.1)
        True
    """
    head, tokens = prepare(hidden, weight, target, **options)
    samples = checks.integer("samples", samples, at_least=1)
    log_q = _log_proposal(head, proposal, counts, smoothing)
    u = uniform(seed, step, (log_q.shape[0], samples), log_q.device)
    cumulative = log_q.exp().cumsum(-1)
    cumulative = cumulative / cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, u, right=True).clamp(max=head.vocab_size - 1)
    return tokens.reduce(_loss(head, tokens, ids, log_q.gather(1, ids)))


def _loss(
    head: Head, tokens: Tokens, ids: Int[Tensor, "R S"], log_q: Float[Tensor, "R S"]
) -> Float[Tensor, "R N"]:
    rows = head.weight.gather(1, ids[..., None].expand(-1, -1, head.weight.shape[2]))
    bias = None if head.bias is None else head.bias.gather(1, ids)
    z = all_logits(replace(head, weight=rows, bias=bias))
    z = z - (log_q + math.log(ids.shape[1])).to(z.dtype)[:, None]
    hit = ids[:, None] == tokens.target[..., None]  # the target is no negative of itself
    z = z.masked_fill(hit, -math.inf)
    z = torch.cat([target_logits(head, tokens)[..., None], z], dim=-1)
    first = torch.zeros_like(tokens.target).view(-1)
    loss = F.cross_entropy(z.flatten(0, 1), first, reduction="none")
    return loss.view(tokens.target.shape)


def _log_proposal(
    head: Head, proposal: Proposal, counts: TokenCounts | None, smoothing: float
) -> Float[Tensor, "R V"]:
    checks.choice("proposal", proposal, PROPOSALS)
    if (counts is not None) != (proposal == "frequency"):
        expected = "TokenCounts with proposal='frequency', and None with others"
        raise ArgumentValueError("counts", expected, f"{checks.describe(counts)} with {proposal!r}")
    runs, vocab = head.weight.shape[:2]
    if counts is not None:
        smoothing = checks.number("smoothing", smoothing, above=0.0)
        return checked_counts(counts, head).log_prior(smoothing).double().expand(runs, vocab)
    if proposal == "uniform":
        q = torch.ones(vocab, dtype=torch.float64, device=head.weight.device)
    else:
        i = torch.arange(vocab, dtype=torch.float64, device=head.weight.device)
        q = ((i + 2) / (i + 1)).log()
    return (q / q.sum()).log().expand(runs, vocab)
