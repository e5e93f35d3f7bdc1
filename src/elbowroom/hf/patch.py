"""One line that gives a causal LM another loss: its code stays, its logits are not computed.

Of the causal LMs in transformers, nearly all compute ``logits = head(hidden)``, perhaps scale or
cap them, and call ``self.loss_function(logits=..., labels=...)``. `patch` replaces these two ends:
the head returns a `StandIn` while the model trains, and the loss function computes our loss from
the hidden states and the head that the stand-in remembers. Nothing between them changes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.hf.standin import StandIn, numbers_of
from elbowroom.losses.functional import LossOptions, thresholded_cross_entropy
from elbowroom.losses.modules import LinearThresholdedCrossEntropy
from elbowroom.margins import Margin

_CALL = "elbowroom_call"  # how the loss reaches the head through its own hooks


def patch(model: nn.Module, loss: LinearThresholdedCrossEntropy | Margin) -> Patch:
    """Let a causal LM train with our loss; its ``forward`` stays as it is.

    While the model is in training mode and gets labels, its logits are not computed: the loss takes
    hidden states and head. In evaluation mode nothing changes, so validation losses stay ordinary
    cross-entropy. ``num_items_in_batch`` (gradient accumulation in `transformers.Trainer`) and
    ``shift_labels`` mean what they meant. Scaled and soft-capped logits are understood; a model
    that does anything else with its logits gets them, and the same loss from them.

    Args:
        model: of transformers, or with the same conventions: ``get_output_embeddings()`` returns a
            plain `torch.nn.Linear`, and ``forward`` calls ``self.loss_function(logits, labels)``.
            May be wrapped by `DistributedDataParallel`, `torch.compile` or PEFT.
        loss: the module, or just a margin, such as ``elbowroom.margins.default(vocab_size)``. An
            annealed one needs ``handle.progress(step / steps)`` before each step.

    Example:
        >>> handle = patch(model, 2.0)                              # doctest: +SKIP
        >>> model(input_ids, labels=input_ids).loss.backward()      # doctest: +SKIP
        >>> handle.remove()                                         # doctest: +SKIP
    """
    owner = unwrapped(model)
    head = plain_head(owner)
    if getattr(head, "_elbowroom_patch", None) is not None:
        fix = "call remove() of the handle that the first call returned"
        raise ArgumentValueError("model", "one that is not patched yet", "a patched one", fix)
    if not isinstance(loss, LinearThresholdedCrossEntropy):
        loss = LinearThresholdedCrossEntropy(loss)
    return Patch(owner, head, check_loss(loss))


class Patch:
    """What `patch` did to a model, and the way back.

    Attributes:
        loss: the module that computes the loss.
        fused: how many losses were computed without logits.
        materialised: how many needed the logits, because the model used them otherwise.
    """

    def __init__(
        self, owner: nn.Module, head: nn.Linear, loss: LinearThresholdedCrossEntropy
    ) -> None:
        self.loss = loss.to(head.weight.device)
        self.fused = self.materialised = 0
        self._owner, self._head = owner, head
        self._before = vars(owner).get("_loss_function")  # where transformers keeps a given one
        self._plain = head.forward
        self._ordinary = owner.loss_function
        head.forward = self._forward  # type: ignore[method-assign, assignment]
        head._elbowroom_patch = self  # type: ignore[assignment]
        owner.loss_function = self._loss  # type: ignore[assignment]

    def progress(self, share: float | Tensor) -> None:
        """Tell an annealed margin how much of training is over.

        Args:
            share: from 0 to 1.
        """
        if isinstance(share, Tensor):
            self.loss.progress.copy_(share)
        else:
            self.loss.progress.fill_(share)

    def remove(self) -> None:
        """Give the model its own head and loss back; a second call does nothing."""
        if vars(self._head).pop("_elbowroom_patch", None) is None:
            return
        del self._head.forward
        if self._before is not None:
            self._owner.loss_function = self._before
        else:
            del vars(self._owner)["_loss_function"]

    def _forward(self, hidden: Tensor, **call: Any) -> Any:
        """Stand in for ``head.forward``."""
        if _CALL in call:  # from `_loss`, through the head's own hooks, which gather its weight
            target, options = call[_CALL]
            return self.loss(hidden, self._head.weight, target, self._head.bias, **options)
        if not self._owner.training:
            return self._plain(hidden)
        return StandIn(hidden, self._plain)

    def _loss(
        self,
        logits: Any,
        labels: Tensor | None = None,
        vocab_size: int | None = None,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Stand in for ``model.loss_function``."""
        if not self._owner.training:
            others |= {"shift_labels": shift_labels, "ignore_index": ignore_index}
            others |= {"num_items_in_batch": num_items_in_batch, "vocab_size": vocab_size}
            ordinary: Any = self._ordinary
            return ordinary(logits=numbers_of(logits), labels=labels, **others)  # type: ignore[no-any-return]
        target = shifted(labels, ignore_index) if shift_labels is None else shift_labels
        options: dict[str, Any] = {"ignore_index": ignore_index}
        if num_items_in_batch is not None:
            options["normalizer"] = num_items_in_batch
        given = logits.hidden_and_cap() if isinstance(logits, StandIn) else None
        if given is None:
            self.materialised += 1
            return self._of_logits(numbers_of(logits), target, options)
        self.fused += 1
        hidden, cap = given
        options |= cap.over(self.loss.at_this_moment()[1])
        loss: Tensor = self._head(hidden, **{_CALL: (on(target, hidden), options)})
        return loss

    def _of_logits(self, logits: Tensor, target: Tensor, options: dict[str, Any]) -> Tensor:
        """Compute the same loss from logits that exist."""
        margin, own = self.loss.at_this_moment()
        options = {k: v for k, v in own.items() if k in LossOptions.__annotations__} | options
        found: Tensor = thresholded_cross_entropy(logits, on(target, logits), margin, **options)
        return found


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, `torch.compile` and PEFT."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None and hasattr(model, "get_base_model"):
            inner = model.get_base_model()  # type: ignore[operator]
        if inner is None or inner is model:
            return model
        model = inner


def plain_head(model: nn.Module) -> nn.Linear:
    """Return the head of a causal LM; raise unless it is a plain linear one and there is a loss."""
    fix = "call elbowroom.linear_thresholded_cross_entropy in its training loop instead"
    if not (hasattr(model, "get_output_embeddings") and hasattr(model, "loss_function")):
        expected = "a causal LM with get_output_embeddings() and loss_function, as in transformers"
        raise ArgumentTypeError("model", expected, f"a {type(model).__name__}", fix)
    head = model.get_output_embeddings()  # type: ignore[operator]
    plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    if not plain:
        expected = "a head that is a plain torch.nn.Linear"
        got = f"a {type(head).__name__}"
        raise ArgumentTypeError("model", expected, got, f"leave adapters off the head, or {fix}")
    assert isinstance(head, nn.Linear)
    return head


def check_loss(loss: LinearThresholdedCrossEntropy) -> LinearThresholdedCrossEntropy:
    """Raise unless a model can use the loss: one number, shifts and ignored labels left to it."""
    wanted: dict[str, tuple[Any, Any]] = {"stats": (loss.stats, False)}
    _, options = loss.at_this_moment()
    for name, value in (("reduction", "mean"), ("shift", 0), ("ignore_index", -100)):
        wanted[name] = (options.get(name, value), value)
    for name, (got, value) in wanted.items():
        if got != value:
            fix = "leave it out: the model, its labels and its trainer decide that"
            raise ArgumentValueError(f"loss.{name}", repr(value), got, fix)
    return loss


def shifted(labels: Tensor | None, ignore_index: int) -> Tensor:
    """Return for each position the label that it predicts: the next one."""
    if labels is None:
        raise ArgumentTypeError("labels", "a tensor, to train with", None, "pass labels=input_ids")
    return F.pad(labels, (0, 1), value=ignore_index)[..., 1:]


def on(target: Tensor, like: Tensor) -> Tensor:
    """Return the target where the loss is computed, in the shape of its positions if it fits."""
    target, shape = target.to(like.device), like.shape[:-1]
    return target.reshape(shape) if target.numel() == shape.numel() else target
