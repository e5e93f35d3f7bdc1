"""One distribution of the next token, for the paper's figure of the long tail."""

from __future__ import annotations

from typing import Any

import torch

from elbowroom.lab.batches import Windows
from elbowroom.lab.model import GPT
from elbowroom.lab.tokens import Corpus

DIGITS = 4


@torch.no_grad()
def tail_of(model: GPT, corpus: Corpus, logit_scale: float = 1.0) -> dict[str, Any] | None:
    """Return the probabilities of the first language's tokens after one context, sorted.

    The context is the first held-out window of that language, the same for every model. The
    softmax is over all tokens. None where the model gives no finite numbers.

    Args:
        model: a population of one.
        corpus: that it was trained on.
        logit_scale: what its logits are multiplied by.
    """
    device = next(model.parameters()).device
    windows = Windows(corpus.validation, model.config.context, device)
    zero = torch.zeros(1, dtype=torch.long, device=device)
    ids, following = windows.cut(zero, zero)
    hidden = model(ids[None])[0, 0, -1].double()
    logits = model.head[0].double() @ hidden
    if model.bias is not None:
        logits = logits + model.bias[0].double()
    p = (logit_scale * logits).softmax(-1)
    if not bool(p.isfinite().all()):
        return None
    own = p[torch.as_tensor(corpus.group_of_token, device=device) == 0]
    target = int(following[0, -1])
    shown = own.sort(descending=True).values.tolist()
    return {
        "probabilities": [float(f"{value:.{DIGITS}g}") for value in shown],
        "target": float(f"{float(p[target]):.{DIGITS}g}"),
        "rank": 1 + int((p > p[target]).sum()),
    }
