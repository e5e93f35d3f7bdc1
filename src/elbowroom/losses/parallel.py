"""Vocabulary-parallel: each rank of a group has some rows of the head, and sees their logits alone.

The sweep is the chunked backend's, on the rank's own rows; `shards.Shard` gives it what a token
needs of all rows. The gradients of the rows stay where the rows are; that of the hidden states is
summed over the ranks once, whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError, BackendError
from elbowroom.losses.chunked import sweep
from elbowroom.losses.entries import Whole
from elbowroom.losses.functional import make_spec
from elbowroom.losses.problem import (
    Head,
    Reduction,
    Tokens,
    compute_dtype,
    prepare_linear,
    prepare_tokens,
)
from elbowroom.losses.products import Needs
from elbowroom.losses.resolve import margin_numbers
from elbowroom.losses.shards import Ranks, told
from elbowroom.losses.spec import Spec
from elbowroom.losses.variants import Variant
from elbowroom.margins import Margin, MarginRule


def vocab_parallel_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    margin: Margin,
    *,
    group: dist.ProcessGroup | None = None,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    shift: int = 0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    normalizer: float | Tensor | None = None,
    token_weights: Tensor | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    protect: Tensor | None = None,
    variant: Variant | None = None,
    progress: float | Tensor | None = None,
) -> Tensor:
    r"""`linear_thresholded_cross_entropy` of a head whose rows are spread over processes.

    With the rows of rank r as :math:`V_r`, the largest kept logit of a token as
    :math:`m_n`, and :math:`\theta_n = z_{n, y_n} - margin_n`, on whichever rank the target is,

    .. math:: l_n = m_n - z_{n, y_n}
              + \log \sum_r \sum_{i \in V_r: z_{n,i} \ge \theta_n} e^{z_{n,i} - m_n}

    Each rank makes the logits of its own rows, block by block, and their gradients. Sums and
    maxima ``[N]`` go through the group, and the gradient of ``hidden`` once; loss and gradients
    are those of the whole head. Paper, section "Method"; goes beyond it.

    Differs from `linear_thresholded_cross_entropy`: all ranks of the group call it, and go
    backward, together and in the same order. All arguments but ``weight`` and ``bias`` are the
    same on all ranks, and so is the loss; hence the gradient that comes into it, too. There are no
    runs, statistics or backends, first derivatives only, and `torch.compile` has to leave it out.
    Before anything else the ranks compare their arguments: where one refuses its own, or they
    differ, all raise. Values of ``hidden`` are not compared.

    Args:
        hidden: ``[..., D]``, the whole of it on each rank.
        weight: ``[V_r, D]``, this rank's rows: the vocabulary is cut in the order of the ranks,
            evenly or not, at least one row each. Or a DTensor ``[V, D]`` with placements
            ``[Shard(0)]`` over a mesh of one dimension; its gradient is one, too.
        target: integers ``[...]``, ids of the whole vocabulary.
        margin: as for `linear_thresholded_cross_entropy`, without runs.
        group: the process group; None for that of a DTensor, else for the default group, or for
            this process alone where there is none.
        bias: ``[V_r]``, cut as ``weight``; or a DTensor on the mesh of ``weight``.
        protect: boolean ``[V]``, of the whole vocabulary, on each rank.
        variant: any; the mask of `RareOnly` is ``[V]``, of the whole vocabulary.

    The other arguments are those of `linear_thresholded_cross_entropy`.

    Example:
        >>> hidden, weight = torch.randn(6, 8), torch.randn(100, 8)
        >>> loss = vocab_parallel_cross_entropy(hidden, weight, torch.arange(6), margin=0.5)
        >>> whole = er.linear_thresholded_cross_entropy(hidden, weight, torch.arange(6), 0.5)
        >>> bool(torch.isclose(loss, whole))  # no group: this process has all rows
        True
    """
    of_head = {"logit_scale": logit_scale, "softcap": softcap, "shift": shift}
    of_tokens = {"ignore_index": ignore_index, "reduction": reduction, "normalizer": normalizer}
    of_spec = {"protect": protect, "variant": variant, "label_smoothing": label_smoothing}
    of_spec |= {"z_loss": z_loss}
    ranks = Ranks.of(group, weight)
    with ranks.or_none():
        head = _own_head(ranks, hidden, weight, target, token_weights, bias, of_head | of_tokens)
        given = of_head | of_tokens | of_spec | {"target": target, "margin": margin}
        given |= {"progress": progress, "token_weights": token_weights}
        needs = [
            torch.is_grad_enabled() and x is not None and x.requires_grad
            for x in (head.hidden, head.weight, head.bias)
        ]
        said = _shapes(head, needs) | {name: told(value) for name, value in given.items()}
    rows, vocab = ranks.agree(head.vocab_size, said)
    # From here on each check sees the same on all ranks: all go on, or all raise.
    if shift:
        target = target[..., shift:]
        token_weights = None if token_weights is None else token_weights[..., shift:]
    tokens = prepare_tokens(target, vocab, token_weights=token_weights, **of_tokens)  # type: ignore[arg-type]
    numbers = _margins(margin, progress, tokens, head, shift, rows)
    spec = make_spec(numbers, tokens, vocab, **of_spec)  # type: ignore[arg-type]
    work = _Work(replace(tokens, weights=None), spec, rows, head.logit_scale, head.softcap)
    coefficient = tokens.coefficients(compute_dtype(head.hidden.dtype))
    with torch.autocast(head.hidden.device.type, enabled=False):
        inputs = head.hidden, head.weight, head.bias
        value: Tensor = _Loss.apply(*inputs, coefficient, work, needs)  # type: ignore[no-untyped-call]
    return value.view(tokens.shape) if reduction == "none" else value[0]


def _own_head(
    ranks: Ranks,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    token_weights: Tensor | None,
    bias: Tensor | None,
    options: dict[str, Any],
) -> Head:
    """Check what can be checked without knowing the other ranks; return the head of this one."""
    for name, value in {"hidden": hidden, "target": target, "token_weights": token_weights}.items():
        if isinstance(value, Tensor) and hasattr(value, "full_tensor"):
            fix = f"pass {name}.full_tensor()"
            expected = "a plain tensor, the same on all ranks"
            raise ArgumentTypeError(name, expected, "a DTensor", fix)
    own = ranks.own("weight", checks.is_tensor("weight", weight))
    if own.ndim != 2:
        expected = "[V_r, D], the rows of this rank, without runs"
        raise ArgumentValueError("weight", expected, f"shape {tuple(own.shape)}")
    if bias is not None:
        bias = ranks.own("bias", checks.is_tensor("bias", bias))
    anything = torch.zeros_like(checks.is_integer("target", target))
    options = options | {"bias": bias, "token_weights": token_weights}
    return prepare_linear(hidden, own, anything, **options)[0]


def _shapes(head: Head, needs: list[bool]) -> dict[str, object]:
    """Return what the ranks compare of hidden states and rows."""
    x = head.hidden
    kinds = [f"{list(x.shape[1:])} {x.dtype} on {x.device.type}", f"[V_r, {x.shape[-1]}]"]
    kinds.append("None" if head.bias is None else "[V_r]")
    names = ("hidden", "weight", "bias")
    return {
        name: f"{kind}, requires_grad={need}"
        for name, kind, need in zip(names, kinds, needs, strict=True)
    }


def _margins(
    margin: Margin,
    progress: float | Tensor | None,
    tokens: Tokens,
    head: Head,
    shift: int,
    rows: Whole,
) -> Float[Tensor, "Rm Nm"]:
    """Return margins as numbers; those by norms come from the rank that has the target's row."""
    dtype = compute_dtype(head.hidden.dtype)
    local = rows.local(tokens.target)
    here = replace(tokens, target=local.clamp(min=0))
    numbers = margin_numbers(margin, progress, here, dtype, head=head, shift=shift)
    if not isinstance(margin, MarginRule):
        return numbers
    return rows.sum(numbers.expand_as(local).masked_fill(local < 0, 0.0))


@dataclass(frozen=True)
class _Work:
    """A problem apart from what it is differentiated by, and from the weights of tokens."""

    tokens: Tokens
    spec: Spec
    rows: Whole
    logit_scale: float
    softcap: float | None

    def sweep(
        self,
        inputs: tuple[Tensor, Tensor, Tensor | None],
        coefficient: Tensor | None,
        needs: list[bool],
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return losses and, with coefficients, the gradients that are wanted."""
        hidden, weight, bias = inputs
        head = Head(
            hidden=hidden,
            weight=weight,
            bias=bias,
            logit_scale=self.logit_scale,
            softcap=self.softcap,
        )
        wanted = Needs(*(need and coefficient is not None for need in needs))
        options = {"stats": False, "rows": self.rows}
        done = sweep(head, self.tokens, self.spec, coefficient, wanted, **options)  # type: ignore[arg-type]
        by_hidden = None if done.hidden is None else self.rows.sum(done.hidden)
        return done.losses, [by_hidden, done.weight, done.bias]


class _Loss(torch.autograd.Function):
    """``[1]``, the sum of coefficient times loss, or ``[1, N]`` for each token.

    As in `operator`: gradients are made in the forward pass where coefficients are all that they
    need, and else the sweep is made a second time. Then the backward pass speaks to the others.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        coefficient: Tensor,
        work: _Work,
        needs: list[bool],
    ) -> Tensor:
        per_token = work.tokens.reduction == "none"
        known = any(needs) and not per_token
        c = coefficient if known else None
        losses, gradients = work.sweep((hidden, weight, bias), c, needs)
        ctx.gradients = gradients if known else None  # the first backward pass gives them away
        ctx.save_for_backward(hidden, weight, bias, coefficient)
        ctx.work, ctx.needs = work, needs
        weighted = losses * coefficient  # both 0 where ignored
        return weighted if per_token else weighted.sum(-1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise BackendError(
                "vocab_parallel_cross_entropy gives first derivatives only, and create_graph=True "
                "asks for more; gather the rows, and use the reference backend"
            )
        *inputs, coefficient = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        factor: Tensor | float = 1.0
        if gradients is None:  # for each token, or a second backward pass over a retained graph
            per_token = ctx.work.tokens.reduction == "none"
            c = coefficient * (upstream if per_token else upstream[:, None])
            _, gradients = ctx.work.sweep(tuple(inputs), c, ctx.needs)
        elif upstream.device.type != "cpu" or bool(upstream != 1):
            factor = upstream[0]
        out = [
            None if x is None else (x if isinstance(factor, float) else x.mul_(factor)).to(y.dtype)
            for x, y in zip(gradients, inputs, strict=True)
        ]
        return (*out, None, None, None)
