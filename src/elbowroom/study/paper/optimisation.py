"""One position of one real step: how it moves rows, for the paper's figure of optimization types.

With h the hidden state and y the target, the gradient of the loss pulls the target's row along h,
pushes all other rows that are not masked away from it, and moves the context's rows, through the
model's body, so that h comes nearer to the target's. The first two lie on the line of h. The plane
of h and of one context token's gradient therefore holds all three types whole.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elbowroom.diagnose import head_gradients
from elbowroom.lab.batches import Batches
from elbowroom.lab.config import RunConfig
from elbowroom.lab.data import shares_of
from elbowroom.lab.model import GPT
from elbowroom.lab.tokens import Corpus
from elbowroom.losses import linear_thresholded_cross_entropy

LOSSES = {"cross-entropy": float("inf"), "margin 1": 1.0}
PROBABILITY = 0.1  # about what the target has: neither known nor hopeless
MOST = 512  # rows, beyond which nobody could tell them apart
SHOWN = 24  # tokens of the context
DIGITS = 4


def step_of(model: GPT, corpus: Corpus, run: RunConfig) -> dict[str, Any] | None:
    """Return what one position of a run's next batch does to rows, by each of `LOSSES`.

    The position is the one in the first language whose target the model gives a probability
    nearest to `PROBABILITY`, in the later half of a window. Rows are given by their place along the
    hidden state and along the gradient of the context's token that moves most under
    cross-entropy, gradients by their norms; what is exactly zero is 0. None for large vocabularies
    and where the batch has nothing of the first language, or the model gives no finite numbers.

    Args:
        model: a population of one, trained.
        corpus: that it was trained on.
        run: its configuration.
    """
    position = _position(model, corpus, run) if corpus.vocab_size <= MOST else None
    if position is None:
        return None
    ids, target = position
    step = _Step(model, ids, target, run.loss.logit_scale)
    groups = corpus.group_of_token.tolist()
    return {
        "before": corpus.tokenizer.decode(ids[-SHOWN:].tolist()),
        "tokens": [corpus.tokenizer.decode([i]) for i in range(corpus.vocab_size)],
        "languages": [corpus.languages[g] if g >= 0 else None for g in groups],
        **step.places(),
        "losses": {name: step.gradients(margin) for name, margin in LOSSES.items()},
    }


class _Step:
    """The gradients of one position, and the plane that holds them."""

    def __init__(self, model: GPT, ids: Int[Tensor, " t"], target: int, scale: float) -> None:
        self.model, self.scale = model, scale
        self.target = torch.tensor([target])
        with torch.enable_grad():
            self.live = model(ids[None, None])[0, 0, -1:]
        self.hidden = self.live.detach()
        plain = self._context(float("inf"))
        self.source = int(plain.norm(dim=-1).argmax())
        along = self.hidden[0].double() / self.hidden[0].double().norm()
        aside = -plain[self.source]
        aside = aside - (aside @ along) * along
        self.plane = torch.stack((along, aside / aside.norm().clamp(min=1e-30)))

    def places(self) -> dict[str, Any]:
        """Return where rows lie, in logits: along the hidden state, and along the other axis."""
        unit = self.scale * float(self.hidden.double().norm())
        rows = unit * self.model.head[0].detach().double() @ self.plane.T
        source = unit * self.plane @ self.model.embedding[0, self.source].detach().double()
        z = rows[:, 0]
        if self.model.bias is not None:
            z = z + self.scale * self.model.bias[0].detach().double()
        return {
            "target": int(self.target),
            "source": self.source,
            "source_at": _rounded(source),
            "probability": _rounded(z.softmax(-1)[self.target])[0],
            "along": _rounded(rows[:, 0]),
            "aside": _rounded(rows[:, 1]),
        }

    def gradients(self, margin: float) -> dict[str, Any]:
        """Return the norms of a loss's gradients by type, and where the context's token goes.

        Args:
            margin: of the loss.
        """
        bias = None if self.model.bias is None else self.model.bias[0].detach()
        weight, scale = self.model.head[0].detach(), self.scale
        found = head_gradients(
            self.hidden, weight, self.target, margin, bias=bias, logit_scale=scale
        )
        pull, push = found.norms()
        context = -self._context(margin)[self.source]
        return {
            "threshold": self._threshold(margin),
            "pull": _rounded(pull[self.target])[0],
            "push": _rounded(push),
            "context": _rounded(self.plane @ context),
            "context_norm": _rounded(context.norm()[None])[0],
        }

    def _threshold(self, margin: float) -> float | None:
        """Return where along the hidden state masking begins; with a bias there is no such line."""
        if margin == float("inf") or self.model.bias is not None:
            return None
        row = self.model.head[0, self.target[0]].detach().double()
        return _rounded((self.scale * row @ self.hidden[0].double() - margin)[None])[0]

    def _context(self, margin: float) -> Float[Tensor, "V D"]:
        """Return context alignment of all rows: the head is held, so inputs alone are reached."""
        model = self.model
        bias = None if model.bias is None else model.bias[0].detach()
        with torch.enable_grad():
            loss = linear_thresholded_cross_entropy(
                self.live,
                model.head[0].detach(),
                self.target,
                margin,
                bias=bias,
                logit_scale=self.scale,
            )
        (found,) = torch.autograd.grad(loss, [model.embedding], retain_graph=True)
        return found[0].double()


def _position(model: GPT, corpus: Corpus, run: RunConfig) -> tuple[Int[Tensor, " t"], int] | None:
    """Return the tokens up to the position, and its target."""
    batches = Batches(
        corpus,
        shares_of(run, corpus)[None],
        [run.data_seed],
        batch=run.training.batch,
        context=model.config.context,
        device=torch.device("cpu"),
    )
    batch = batches.draw(torch.tensor(run.training.steps))
    windows = batch.language[0] == 0
    if not bool(windows.any()):
        return None
    ids, target = batch.ids[0, windows], batch.target[0, windows]
    with torch.no_grad():
        z = model(ids[None])[0] @ model.head[0].T
        z = z if model.bias is None else z + model.bias[0]
        p = (run.loss.logit_scale * z).softmax(-1).gather(-1, target[..., None])[..., 0]
    if not bool(p.isfinite().all()):
        return None
    first = ids.shape[1] // 2
    window, at = divmod(int((p[:, first:] - PROBABILITY).abs().argmin()), p.shape[1] - first)
    return ids[window, : first + at + 1], int(target[window, first + at])


def _rounded(values: Float[Tensor, " n"]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]
