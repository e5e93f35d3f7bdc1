"""What `transformers.Trainer` has to be told: how much of training is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elbowroom.errors import MissingExtraError
from elbowroom.hf.patch import Patch

if TYPE_CHECKING:
    from transformers import TrainerCallback


def progress_callback(handle: Patch) -> TrainerCallback:
    """Return a callback that lets an annealed margin follow training.

    Args:
        handle: what `elbowroom.patch` returned.

    Example:
        >>> handle = er.patch(model, er.margins.default(vocab_size))        # doctest: +SKIP
        >>> Trainer(model, ..., callbacks=[er.hf.progress_callback(handle)]) # doctest: +SKIP
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise MissingExtraError("transformers", "hf", "a callback of its Trainer") from error

    class Progress(TrainerCallback):
        """Sets the margin's progress before each step."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Set it to the share of steps that were made."""
            handle.progress(min(1.0, state.global_step / max(1, state.max_steps)))

    return Progress()
