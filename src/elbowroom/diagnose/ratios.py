"""How much of an embedding's gradient is marginalization: a recorder and two ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elbowroom import checks
from elbowroom.diagnose.gradients import context_gradients, head_gradients
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.margins import Margin

ZeroDenominator = Literal["drop", "replace"]
ZERO_DENOMINATORS = ("drop", "replace")


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientNorms:
    """The norm of each row's gradient, by type (see `gradients`)."""

    context: Float[Tensor, "*runs V"]
    target: Float[Tensor, "*runs V"]
    marginalization: Float[Tensor, "*runs V"]


class GradientRatios:
    r"""Ratios of alignment to marginalization over training, in memory linear in V.

    With norms :math:`g_{k, s}` of type k (1 context, 2 target, 3 marginalization) in step s,

    .. math:: \text{ratio of averages} =
        \frac{\sum_s (g_{1,s} + g_{2,s})}{\sum_s g_{3,s}}, \qquad
        \text{average of ratios} = \frac{1}{S} \sum_s \frac{g_{1,s} + g_{2,s}}{g_{3,s}}

    for each token. Below 1, marginalization moves the token more than its own contexts do.
    Paper, section "Influence of Marginalization".

    Example:
        >>> ratios = GradientRatios()
        >>> for push in (1.0, 0.0):
        ...     one = torch.ones(1)
        ...     ratios.update(GradientNorms(context=one, target=one, marginalization=push * one))
        >>> ratios.ratio_of_averages().item(), ratios.average_of_ratios().item()
        (4.0, 2.0)
        >>> ratios.average_of_ratios("replace").item()
        3.0
    """

    def __init__(self) -> None:
        self.steps = 0
        # rows: g1, g2, g3, (g1 + g2) / g3 where g3 > 0, steps with g3 > 0, g1 + g2 where g3 = 0
        self._sums: Tensor | None = None

    def update(self, norms: GradientNorms) -> None:
        """Count one step."""
        g1, g2, g3 = (
            x.detach().double() for x in (norms.context, norms.target, norms.marginalization)
        )
        pull, zero = g1 + g2, g3 == 0
        ratio = (pull / g3).masked_fill(zero, 0.0)
        alone = pull.masked_fill(~zero, 0.0)
        step = torch.stack((g1, g2, g3, ratio, (~zero).double(), alone))
        if self._sums is None:
            self._sums = torch.zeros_like(step)
        checks.has_shape("norms", step, self._sums.shape, "that of the steps before")
        self._sums += step
        self.steps += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Return what was counted: ``steps`` and ``sums``, ``[6, *runs, V]``; nothing at first."""
        if self._sums is None:
            return {}
        return {"steps": torch.tensor(self.steps), "sums": self._sums.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` gave, on the device of its ``sums``."""
        self.steps = int(state["steps"]) if state else 0
        self._sums = state["sums"].double().clone() if state else None

    def averages(self) -> GradientNorms:
        """Return the average norms over all steps."""
        g1, g2, g3 = (self._counted() / self.steps)[:3].unbind(0)
        return GradientNorms(context=g1, target=g2, marginalization=g3)

    def ratio_of_averages(self) -> Float[Tensor, "*runs V"]:
        """Return the ratio of averages; infinite for a token that is never marginalized."""
        g1, g2, g3, *_ = self._counted().unbind(0)
        return (g1 + g2) / g3

    def average_of_ratios(
        self, zero_denominator: ZeroDenominator = "drop"
    ) -> Float[Tensor, "*runs V"]:
        r"""Return the average of ratios.

        A threshold makes the denominator exactly zero in some steps. "drop" leaves these steps out
        of the token's average: so were the paper's printed figures made. "replace" puts the
        token's average denominator :math:`\bar g_3`, over all steps, in the place of zero, as the
        paper's footnote says (its lower bound). That average is known at the end only, but

        .. math:: \frac{1}{S} \Big( \sum_{s : g_{3,s} > 0} \frac{g_{1,s} + g_{2,s}}{g_{3,s}}
            + \frac{1}{\bar g_3} \sum_{s : g_{3,s} = 0} (g_{1,s} + g_{2,s}) \Big)

        needs two sums. A token that is never marginalized has no average: NaN for "drop"; infinite,
        or NaN without any gradient, for "replace".
        """
        checks.choice("zero_denominator", zero_denominator, ZERO_DENOMINATORS)
        _, _, g3, ratio, kept, alone = self._counted().unbind(0)
        if zero_denominator == "drop":
            return ratio / kept
        return (ratio + alone / (g3 / self.steps)) / self.steps

    def _counted(self) -> Tensor:
        if self._sums is None:
            raise ArgumentValueError("steps", "at least one step", 0, "call update() first")
        return self._sums


class GradientTypes:
    """Records the three types of gradient of an embedding while a model trains.

    A hook on the embedding collects the gradient at its output, `observe` computes the head's part
    in closed form, `step` takes the norms of what the whole batch summed to. Gradients are those
    of backpropagation, before any clipping. Three matrices ``[V, D]`` exist besides the model, and
    the sums of `ratios`.

    Call `observe` with the weight as it was in the forward pass: before ``optimizer.step()``. A
    batch may be several backward passes, each with its `observe`, and one `step`. In data-parallel
    training each process records its own part of the batch.

    Args:
        embedding: the input embedding, called with ids.
        head: the output layer or its weight ``[V, D]``; by default the embedding's own weight. The
            bias of a layer that has one is used.
        input_scale: what the module multiplies the rows by, such as sqrt(D) in some models.

    Example:
        >>> embedding = nn.Embedding(10, 4)
        >>> ids, target = torch.tensor([1, 2, 3]), torch.tensor([2, 3, 4])
        >>> with GradientTypes(embedding) as types:
        ...     hidden = embedding(ids).tanh()
        ...     loss = nn.functional.cross_entropy(hidden @ embedding.weight.T, target)
        ...     loss.backward()
        ...     types.observe(hidden, target)
        ...     norms = types.step()
        >>> norms.context.count_nonzero().item(), norms.target.count_nonzero().item()
        (3, 3)
        >>> types.ratios.ratio_of_averages().shape
        torch.Size([10])
    """

    def __init__(
        self,
        embedding: nn.Module,
        head: nn.Module | Float[Tensor, "V D"] | None = None,
        *,
        input_scale: float | int = 1.0,
    ) -> None:
        self.embedding = embedding
        self.head = embedding if head is None else head
        weight = _weight("embedding", embedding)
        rows = _weight("head", self.head).shape[0]
        if rows != weight.shape[0]:
            expected = f"{weight.shape[0]} rows, as many as the embedding has"
            raise ArgumentValueError("head", expected, rows)
        if getattr(embedding, "scale_grad_by_freq", False):
            expected = "one whose gradients are not scaled by frequency"
            raise ArgumentValueError("embedding", expected, "scale_grad_by_freq=True")
        self.input_scale = checks.number("input_scale", input_scale)
        self.ratios = GradientRatios()
        self._vocab_size = weight.shape[0]
        self._context: Tensor | None = None
        self._head: tuple[Tensor, Tensor] | None = None
        self._hook = embedding.register_forward_hook(self._forward, with_kwargs=True)

    def observe(
        self,
        hidden: Float[Tensor, "*n D"],
        target: Int[Tensor, "*n"],
        margin: Margin = torch.inf,
        **options: Any,
    ) -> None:
        """Add the head's gradients for a batch, or a part of one.

        Args:
            hidden: ``[..., D]``, what the head was applied to.
            target: hidden's shape without its last dimension.
            margin: the loss's margin; infinite for cross-entropy.
            options: those of `head_gradients`; they must be the training loss's.
        """
        layer = isinstance(self.head, nn.Module) and self.head is not self.embedding
        if layer and "bias" not in options:
            options["bias"] = getattr(self.head, "bias", None)
        weight = _weight("head", self.head).detach()
        found = head_gradients(hidden.detach(), weight, target, margin, **options)
        before = self._head or (0, 0)
        self._head = (before[0] + found.target, before[1] + found.marginalization)

    def step(self) -> GradientNorms:
        """Close a training step: count its norms in `ratios`, and return them."""
        if self._context is None or self._head is None:
            missing = "no backward pass" if self._context is None else "no observe()"
            expected = "a backward pass and an observe() since the last step"
            raise ArgumentValueError("step", expected, missing)
        target, marginalization = (x.norm(dim=-1) for x in self._head)
        norms = GradientNorms(
            context=self._context.norm(dim=-1), target=target, marginalization=marginalization
        )
        self._context = self._head = None
        self.ratios.update(norms)
        return norms

    def close(self) -> None:
        """Remove the hook; what was counted stays."""
        self._hook.remove()

    def __enter__(self) -> GradientTypes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _forward(
        self, module: nn.Module, args: tuple[object, ...], named: dict[str, object], output: Tensor
    ) -> None:
        if not (isinstance(output, Tensor) and output.requires_grad):
            return  # evaluation
        ids = next((x for x in (*args, *named.values()) if _is_ids(x)), None)
        if not isinstance(ids, Tensor):
            raise ArgumentTypeError("embedding", "a module called with ids", "a call without")
        shape = (*ids.shape, *output.shape[-1:])
        checks.has_shape("embedding", output, shape, "a row for each id")

        def collect(gradient: Tensor) -> None:
            self._collect(ids, gradient)

        output.register_hook(collect)  # type: ignore[no-untyped-call]

    def _collect(self, ids: Tensor, gradient: Tensor) -> None:
        rows = context_gradients(ids, gradient.detach(), self._vocab_size) * self.input_scale
        padding = getattr(self.embedding, "padding_idx", None)
        if padding is not None:  # its row gets no gradient
            rows[padding] = 0.0
        self._context = rows if self._context is None else self._context + rows


def _is_ids(value: object) -> bool:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return isinstance(value, Tensor) and not floating and value.dtype != torch.bool


def _weight(name: str, owner: object) -> Tensor:
    weight = owner if isinstance(owner, Tensor) else getattr(owner, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise ArgumentTypeError(
            name, "a module with a weight [V, D], or a weight", checks.describe(owner)
        )
    return weight
