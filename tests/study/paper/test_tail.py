from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elbowroom.lab.corpora import Pair, Texts
from elbowroom.lab.corpora.texts import Document
from elbowroom.lab.model import GPT, ModelConfig
from elbowroom.lab.tokens import prepare
from elbowroom.study.paper.tail import tail_of

CONFIG = ModelConfig(layers=1, heads=2, width=8, context=8, unigram_bias=True)


def test_probabilities_are_the_softmaxs_over_all_tokens() -> None:
    document = Document.from_text("all", "A bat sat at a cat. " * 40)
    texts = Texts(name="made up", documents={"en": (document,)})
    corpus = prepare(texts.paired(Pair()), "characters", context=8)
    model = GPT(replace(CONFIG, vocab_size=corpus.vocab_size), [0])
    assert model.bias is not None
    with torch.no_grad():
        model.bias.copy_(torch.linspace(-1, 1, corpus.vocab_size)[None])
    found = tail_of(model, corpus, logit_scale=0.5)
    assert found is not None
    text = torch.as_tensor(corpus.validation[0].tokens.astype("int64"))
    with torch.no_grad():
        logits = model(text[None, None, :8])[0, 0, -1] @ model.head[0].T + model.bias[0]
    p = (0.5 * logits.double()).softmax(-1)
    first = p[: corpus.vocab_size // 2].sort(descending=True).values
    assert found["probabilities"] == pytest.approx(first.tolist(), rel=1e-3)
    assert sum(found["probabilities"]) < 0.9  # the other language has the rest
    assert found["target"] == pytest.approx(float(p[text[8]]), rel=1e-3)
    assert found["rank"] == 1 + int((p > p[text[8]]).sum())
    with torch.no_grad():
        model.bias[0, 0] = torch.nan
    assert tail_of(model, corpus) is None
