r"""The three types of gradient that an embedding receives, in closed form.

With :math:`z_{ni} = \langle h_n, w_i \rangle` and :math:`d_{ni} = \partial L / \partial z_{ni}`,
row i of an embedding that is both input and head is moved by (paper, section "Formalization")

1. context alignment, through the model's body, where token i is an input:
   :math:`\sum_{m : x_m = i} \partial L / \partial e_m`, with e the embedding's output;
2. target alignment, where token i is the target: :math:`\sum_{n : y_n = i} d_{n i} h_n`;
3. non-target marginalization, everywhere else: :math:`\sum_{n : y_n \ne i} d_{n i} h_n`.

The head's gradient is the sum of 2 and 3, a tied embedding's the sum of all. Each takes one pass
over the batch; no second head and no copy of the embedding is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.losses.problem import (
    Head,
    Reduction,
    Tokens,
    compute_dtype,
    prepare_linear,
    prepare_tokens,
)
from elbowroom.losses.resolve import margin_numbers
from elbowroom.losses.variants import mask_of_rows
from elbowroom.margins import Margin

LOGITS_AT_ONCE = 2**24  # logits that exist at a time: 64 MiB in float32, a few times that in all


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadGradients:
    """The gradient of a head's rows, by type; their sum is the head's gradient."""

    target: Float[Tensor, "*runs V D"]
    """From tokens whose target is the row's."""
    marginalization: Float[Tensor, "*runs V D"]
    """From all other tokens."""

    def norms(self) -> tuple[Float[Tensor, "*runs V"], Float[Tensor, "*runs V"]]:
        """Return the norm of each row, target alignment first."""
        return self.target.norm(dim=-1), self.marginalization.norm(dim=-1)


@torch.no_grad()
def head_gradients(
    hidden: Float[Tensor, "*n D"],
    weight: Float[Tensor, "*runs V D"],
    target: Int[Tensor, "*n"],
    margin: Margin = torch.inf,
    *,
    bias: Float[Tensor, "*runs V"] | None = None,
    logit_scale: float | int = 1.0,
    softcap: float | int | None = None,
    shift: int = 0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    normalizer: float | int | Tensor | None = None,
    token_weights: Float[Tensor, "*n"] | None = None,
    protect: Bool[Tensor, "*some V"] | None = None,
    progress: float | int | Tensor | None = None,
) -> HeadGradients:
    r"""Return target alignment and marginalization of thresholded cross-entropy.

    With P the softmax over the entries that are not masked, 0 at the others, and :math:`c_n` the
    coefficient that the reduction gives token n,

    .. math:: d_{n i} = c_n P_{n i} \; (i \ne y_n), \qquad
        d_{n y_n} = - c_n \sum_{i \ne y_n} P_{n i}

    times the slope of ``logit_scale`` and ``softcap``. The target's entry is summed, not
    subtracted from 1, so that it keeps its digits where the target is nearly certain. Logits of a
    few tokens exist at a time. Paper, sections "Formalization" and "Method".

    Args:
        hidden: ``[..., D]``; ``[R, ..., D]`` with runs.
        weight: ``[V, D]``; ``[R, V, D]`` with runs.
        target: hidden's shape without its last dimension.
        margin: as for the loss: infinite for cross-entropy; a number, a tensor ``[]``, ``[R]``,
            ``[R, N]`` or of target's shape, or a rule.
        bias, logit_scale, softcap, shift, ignore_index, reduction, normalizer, token_weights: as
            in the loss that trains the model.
        protect: ``[V]`` or ``[R, V]``, equalization: a protected row is a negative only where the
            target is protected too.
        progress: share of training that is over, for annealed margins.

    For the gradient of any other loss see `split_gradients`.

    Example:
        >>> import torch
        >>> hidden, weight = torch.tensor([[1.0, 0.0]]), torch.eye(2)
        >>> found = head_gradients(hidden, weight, torch.tensor([1]), margin=2.0)
        >>> found.target, found.marginalization
        (tensor([[ 0.0000,  0.0000],
                [-0.7311,  0.0000]]), tensor([[0.7311, 0.0000],
                [0.0000, 0.0000]]))
    """
    head, tokens = prepare_linear(
        hidden,
        weight,
        target,
        bias=bias,
        logit_scale=logit_scale,
        softcap=softcap,
        shift=shift,
        ignore_index=ignore_index,
        reduction=reduction,
        normalizer=normalizer,
        token_weights=token_weights,
    )
    dtype = compute_dtype(head.hidden.dtype)
    margins = margin_numbers(margin, progress, tokens, dtype, head=head, shift=shift)
    margins = margins.expand(tokens.target.shape)
    if protect is not None:
        runs = len(tokens.target) if tokens.runs else None
        protect = mask_of_rows("protect", protect, tokens.target, runs, head.vocab_size)
    head = _widened(head, tokens, dtype)
    coefficients = tokens.coefficients(dtype)
    found = _zeros(head.weight)
    with torch.autocast(head.hidden.device.type, enabled=False):
        for part in _chunks(head):
            few, y = replace(head, hidden=head.hidden[:, part]), tokens.target[:, part]
            d = _derivative(few, y, margins[:, part], protect)
            _collect(found, few.hidden, d * coefficients[:, part, None], y)
    return found if tokens.runs else _only_run(found)


@torch.no_grad()
def split_gradients(
    hidden: Float[Tensor, "*runs N D"],
    dlogits: Float[Tensor, "*runs N V"],
    target: Int[Tensor, "*runs N"],
    *,
    ignore_index: int = -100,
) -> HeadGradients:
    """Return target alignment and marginalization of any loss, from its derivative by the logits.

    Args:
        hidden: ``[N, D]`` or ``[R, N, D]``.
        dlogits: ``[N, V]`` or ``[R, N, V]``, the derivative by ``hidden @ weight.T`` of the
            reduced loss (through its scale or cap, where it has one).
        target: ``[N]`` or ``[R, N]``.
        ignore_index: targets that do not count.

    Example:
        >>> import torch
        >>> hidden, z = torch.ones(1, 1), torch.zeros(1, 3, requires_grad=True)
        >>> loss = torch.nn.functional.cross_entropy(z, torch.tensor([2]))
        >>> dlogits, = torch.autograd.grad(loss, z)
        >>> split_gradients(hidden, dlogits, torch.tensor([2])).marginalization.T
        tensor([[0.3333, 0.3333, 0.0000]])
    """
    checks.is_floating("hidden", hidden)
    checks.is_floating("dlogits", dlogits)
    if hidden.ndim not in (2, 3):
        raise ArgumentValueError("hidden", "[N, D] or [R, N, D]", tuple(hidden.shape))
    expected = (*hidden.shape[:-1], *dlogits.shape[-1:])
    checks.has_shape("dlogits", dlogits, expected, "hidden's, with V in the place of D")
    checks.is_integer("target", target)
    checks.has_shape("target", target, hidden.shape[:-1], "hidden's without its last dimension")
    checks.same_device("dlogits", dlogits, "hidden", hidden)
    checks.same_device("target", target, "hidden", hidden)
    runs = hidden.shape[0] if hidden.ndim == 3 else None
    tokens = prepare_tokens(target, dlogits.shape[-1], runs=runs, ignore_index=ignore_index)
    dtype = compute_dtype(hidden.dtype)
    ignored = ~tokens.counted[..., None]
    h = hidden.reshape(runs or 1, *hidden.shape[-2:]).to(dtype).masked_fill(ignored, 0.0)
    d = dlogits.reshape(runs or 1, *dlogits.shape[-2:]).to(dtype).masked_fill(ignored, 0.0)
    found = _zeros(h.new_empty(len(h), d.shape[-1], h.shape[-1]))
    _collect(found, h, d, tokens.target)
    return found if runs else _only_run(found)


@torch.no_grad()
def context_gradients(
    ids: Int[Tensor, "*n"],
    output_gradient: Float[Tensor, "*n D"],
    vocab_size: int,
    *,
    runs: bool = False,
) -> Float[Tensor, "*runs V D"]:
    """Return context alignment: the gradient of each row through the embedding's output.

    Args:
        ids: ``[...]``, the input tokens; ``[R, ...]`` with runs.
        output_gradient: ``[..., D]``, the derivative of the loss by the embedding's output.
        vocab_size: V.
        runs: whether the first dimension is one of runs.

    Example:
        >>> import torch
        >>> context_gradients(torch.tensor([1, 1, 0]), torch.ones(3, 1), vocab_size=3).T
        tensor([[1., 2., 0.]])
    """
    checks.is_integer("ids", ids)
    checks.is_floating("output_gradient", output_gradient)
    expected = (*ids.shape, *output_gradient.shape[-1:])
    checks.has_shape("output_gradient", output_gradient, expected, "the shape of ids, and D")
    checks.same_device("output_gradient", output_gradient, "ids", ids)
    size = checks.integer("vocab_size", vocab_size, at_least=1)
    expected_ids = f"values from 0 to {size - 1}"
    checks.all_true((ids >= 0) & (ids < size), "ids", expected_ids, "a value outside")
    if checks.flag("runs", runs) and ids.ndim < 1:
        raise ArgumentValueError("ids", "[R, ...] with runs", "a single id")
    count = ids.shape[0] if runs else 1
    width = output_gradient.shape[-1]
    rows = output_gradient.new_zeros(
        count * size, width, dtype=compute_dtype(output_gradient.dtype)
    )
    first = torch.arange(count, device=ids.device)[:, None] * size
    index = (ids.long().reshape(count, ids.numel() // count) + first).flatten()
    rows.index_add_(0, index, output_gradient.reshape(-1, width).to(rows.dtype))
    return rows.view(count, size, width) if runs else rows


def _derivative(
    head: Head,
    target: Int[Tensor, "R C"],
    margin: Float[Tensor, "Rm Nm"],
    protect: Bool[Tensor, "Rp V"] | None,
) -> Float[Tensor, "R C V"]:
    """Return the derivative of each token's loss by ``hidden @ weight.T``."""
    z, index = head.logits(), target[..., None]
    masked = z < z.gather(-1, index) - margin[..., None]  # not the target: margins are >= 0
    if protect is not None:
        rows = protect.expand(z.shape[0], -1)
        masked |= rows[:, None] & ~rows.gather(-1, target)[..., None]
    push = z.masked_fill(masked, -torch.inf).softmax(-1).scatter_(-1, index, 0.0)
    derivative = push.scatter_(-1, index, -push.sum(-1, keepdim=True))
    if head.softcap is not None:  # the slope of cap(x) is 1 - (cap(x) / softcap)^2
        derivative *= 1 - (z / (head.logit_scale * head.softcap)) ** 2
    return derivative if head.logit_scale == 1.0 else derivative * head.logit_scale


def _collect(
    found: HeadGradients,
    hidden: Float[Tensor, "R C D"],
    derivative: Float[Tensor, "R C V"],
    target: Int[Tensor, "R C"],
) -> None:
    """Add the gradients of a few tokens."""
    runs, vocab, width = found.target.shape
    pull = derivative.gather(-1, target[..., None]) * hidden
    row = target + torch.arange(runs, device=target.device)[:, None] * vocab
    rows = found.target.view(-1, width)
    if rows.is_cuda:  # in a fixed order, which index_add_ there is not
        rows.index_put_((row.flatten(),), pull.flatten(0, 1), accumulate=True)
    else:
        rows.index_add_(0, row.flatten(), pull.flatten(0, 1))
    push = derivative.scatter(-1, target[..., None], 0.0)
    found.marginalization.baddbmm_(push.mT, hidden)


def _widened(head: Head, tokens: Tokens, dtype: torch.dtype) -> Head:
    """Convert once, and clear ignored tokens: what they hold, NaN too, must not reach a row."""
    hidden = head.hidden.to(dtype).masked_fill(~tokens.counted[..., None], 0.0)
    return replace(head, hidden=hidden, weight=head.weight.to(dtype))


def _zeros(like: Float[Tensor, "R V D"]) -> HeadGradients:
    return HeadGradients(target=torch.zeros_like(like), marginalization=torch.zeros_like(like))


def _only_run(found: HeadGradients) -> HeadGradients:
    return HeadGradients(target=found.target[0], marginalization=found.marginalization[0])


def _chunks(head: Head) -> Iterator[slice]:
    size = max(1, LOGITS_AT_ONCE // (len(head.weight) * head.vocab_size))
    return (slice(first, first + size) for first in range(0, head.hidden.shape[1], size))
