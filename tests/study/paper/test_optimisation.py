"""One real step, against autograd: what is drawn is the gradient."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from elbowroom.lab.batches import Batches
from elbowroom.lab.config import RunConfig, run_config
from elbowroom.lab.corpora import Pair, Texts
from elbowroom.lab.corpora.texts import Document
from elbowroom.lab.data import shares_of
from elbowroom.lab.model import GPT
from elbowroom.lab.tokens import Corpus, prepare
from elbowroom.study.paper import optimisation
from elbowroom.study.paper.optimisation import step_of

MODEL = {"layers": 1, "heads": 2, "width": 8, "context": 8}


@cache
def corpus() -> Corpus:
    document = Document.from_text("all", "A bat sat at a cat. " * 40)
    texts = Texts(name="made up", documents={"en": (document,)})
    return prepare(texts.paired(Pair()), "characters", context=8)


def run(**more: Any) -> RunConfig:
    values: dict[str, Any] = {"training": {"batch": 3, "steps": 5}, "loss": {"logit_scale": 0.5}}
    return run_config({"name": "x", "model": MODEL | more.pop("model", {}), **values, **more})


def model(config: RunConfig) -> GPT:
    shape = replace(config.model, vocab_size=corpus().vocab_size, init_std=0.7)
    found = GPT(shape, [3])
    if found.bias is not None:
        with torch.no_grad():
            found.bias.copy_(torch.linspace(-1, 1, corpus().vocab_size)[None])
    return found


def norms(rows: torch.Tensor) -> list[float]:
    return rows.norm(dim=-1).tolist()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_arrows_are_the_gradient_of_one_position(tied: bool, bias: bool) -> None:
    config = run(model={"tied": tied, "unigram_bias": bias})
    of = model(config)
    step = step_of(of, corpus(), config)
    assert step is not None
    json.dumps(step, allow_nan=False)
    ids, target = _found(of, config, step)
    plain, close = step["losses"]["cross-entropy"], step["losses"]["margin 1"]
    hidden = of(ids[None, None])[0, 0, -1]
    raw = of.head[0] @ hidden
    logits = 0.5 * (raw if of.bias is None else raw + of.bias[0])
    assert step["along"] == pytest.approx((0.5 * raw).tolist(), rel=1e-3, abs=1e-4)
    p = logits.softmax(-1)
    assert step["probability"] == pytest.approx(p[target].item(), rel=1e-3)
    pushes = (0.5 * p * hidden.norm()).tolist()
    pushes[target] = 0.0
    assert plain["push"] == pytest.approx(pushes, rel=1e-3)
    assert plain["pull"] == pytest.approx(sum(pushes), rel=1e-3)
    zero = [x == 0 for x in close["push"]]
    below = (logits < logits[target] - 1).tolist()
    assert zero == [b or i == target for i, b in enumerate(below)]
    assert 1 < sum(zero) < len(zero)
    (whole,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor(target)), [of.embedding])
    source, embedding = step["source"], whole[0]
    head = -0.5 * (F.one_hot(torch.tensor(target), len(p)) - p)[:, None] * hidden
    context = embedding - head if tied else embedding
    assert plain["context_norm"] == pytest.approx(max(norms(context)), rel=1e-3)
    assert norms(context).index(max(norms(context))) == source
    at = None if bias else pytest.approx(step["along"][target] - 1, abs=1e-3)
    assert (plain["threshold"], close["threshold"]) == (None, at)
    # the plane holds it whole, and its place along the hidden state is right
    assert math.hypot(*plain["context"]) == pytest.approx(plain["context_norm"], rel=1e-3)
    share = float((-context[source] @ hidden / hidden.norm()).detach())
    assert plain["context"][0] == pytest.approx(share, rel=1e-3, abs=1e-4)
    assert math.hypot(*close["context"]) <= close["context_norm"] * 1.001


def _found(of: GPT, config: RunConfig, step: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Find the position by what is said of it: it must be the nearest to the probability."""
    shares = shares_of(config, corpus())[None]
    cpu = torch.device("cpu")
    batches = Batches(corpus(), shares, [config.data_seed], batch=3, context=8, device=cpu)
    batch = batches.draw(torch.tensor(5))
    best: tuple[float, torch.Tensor, int] = (9.0, torch.empty(0), 0)
    for ids, target, language in zip(batch.ids[0], batch.target[0], batch.language[0], strict=True):
        for t in range(4, 8) if int(language) == 0 else ():
            raw = of.head[0] @ of(ids[None, None])[0, 0, t]
            z = 0.5 * (raw if of.bias is None else raw + of.bias[0])
            away = abs(float(z.detach().softmax(-1)[target[t]]) - optimisation.PROBABILITY)
            best = min(best, (away, ids[: t + 1], int(target[t])), key=lambda one: one[0])
    assert step["target"] == best[2]
    assert step["before"] == corpus().tokenizer.decode(best[1].tolist())
    return best[1], best[2]


def test_rows_have_names_and_languages() -> None:
    config = run()
    step = step_of(model(config), corpus(), config)
    assert step is not None
    size = corpus().vocab_size // 2
    assert step["languages"] == ["hr"] * size + ["lr"] * size
    assert step["tokens"][:size] == step["tokens"][size:]
    assert len(step["aside"]) == 2 * size
    assert step["languages"][step["target"]] == "hr"


def test_nothing_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    other = run(data={"sampling": "fixed", "shares": [0.0, 1.0]})
    assert step_of(model(other), corpus(), other) is None
    config = run()
    broken = model(config)
    with torch.no_grad():
        broken.embedding[0, 0] = torch.nan
    assert step_of(broken, corpus(), config) is None
    monkeypatch.setattr(optimisation, "MOST", corpus().vocab_size - 1)
    assert step_of(model(config), corpus(), config) is None
